"""torch's own overlap pass, run on a problem: what the product is measured against.

``schedule_overlap_bucketing`` with every node's time forced to the problem's, so that the two are compared on the same
costs; without its bucketing (with it: scripts/studies/rewrites). Its roofline helpers need a GPU and are replaced for
the call; nothing that they return is used.
"""

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx

from llama_repro.capture.parallelism import fake_world
from llama_repro.errors import TorchPassError
from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS, TorchOrder
from llama_repro.harness.problem_graph import RebuiltGraph, problem_to_graph
from overlap_sched.problem import Kind, Problem

_RATES = ("get_gpu_dram_gbps", "get_device_dram_gbps", "get_device_tflops")
"""What torch asks about a GPU: the first is of torch 2.13, the second of 2.15."""

CAPS: dict[str, dict[str, float]] = {
    DEFAULT_CAPS: {},
    NO_CAPS: {"max_memory_increase_gb": 0.0, "max_memory_increase_ratio": 0.0},
}


def torch_order(problem: Problem, caps: str = DEFAULT_CAPS) -> TorchOrder:
    """Run torch's pass on a problem.

    On some graphs with two process groups the pass recurses without end (seen in torch 2.13: at a wait, it launches a
    collective whose path needs another wait, which completes the first). Then it is run again without such launches,
    and the remark says so.

    Args:
        problem: What to schedule.
        caps: ``DEFAULT_CAPS`` or ``NO_CAPS``: what it may take above the original peak, as it counts memory.

    Raises:
        TorchPassError: This torch has no such pass, or it failed; the message says how.
    """
    with groups_of(problem) as names, any_gpu():
        try:
            return _run(problem, names, CAPS[caps])
        except RecursionError:
            remark = (
                f"torch's overlap pass recurses without end on {problem.name!r}: "
                "run again without launches that need another wait"
            )
            with _repaired():
                return _run(problem, names, CAPS[caps])._replace(remark=remark)


def torch_orders(problem: Problem) -> dict[str, TorchOrder | str]:
    """By caps, the order of torch's pass, or why it gives none."""
    result: dict[str, TorchOrder | str] = {}
    for caps in CAPS:
        try:
            result[caps] = torch_order(problem, caps)
        except TorchPassError as error:
            result[caps] = str(error)
    return result


def _run(problem: Problem, names: dict[str, str], caps: dict[str, float]) -> TorchOrder:
    run, rebuilt = overlap_pass(bucketing=False), problem_to_graph(problem, names)
    started = time.perf_counter()
    result = passed(problem, rebuilt, run, caps)
    seconds = time.perf_counter() - started
    return TorchOrder(tuple(rebuilt.node_ids[node] for node in result.graph.nodes if node in rebuilt.node_ids), seconds)


def passed(
    problem: Problem, rebuilt: RebuiltGraph, run: Callable[..., fx.GraphModule], caps: dict[str, float]
) -> fx.GraphModule:
    """What the pass makes of a rebuilt graph.

    Raises:
        TorchPassError: It failed; the message says how.
    """
    try:
        return run(rebuilt.graph_module, custom_runtime_estimation=_times(problem, rebuilt), **caps)
    except RecursionError:
        raise
    except (RuntimeError, AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise TorchPassError(
            f"torch {torch.__version__}: its overlap pass failed on problem {problem.name!r} with "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}. "
            "Leave it out with --no-torch."
        ) from error


@contextlib.contextmanager
def any_gpu() -> Iterator[None]:
    """Torch's roofline finds a GPU, whatever the machine has."""
    from torch.utils import _runtime_estimation

    with contextlib.ExitStack() as stack:
        for name in _RATES:
            if hasattr(_runtime_estimation, name):
                stack.enter_context(mock.patch.object(_runtime_estimation, name, return_value=1e3))
        yield


@contextlib.contextmanager
def _repaired() -> Iterator[None]:
    from torch._inductor.fx_passes.overlap_scheduling import OverlapScheduler, is_wait_tensor

    find_path = OverlapScheduler._find_schedulable_path

    def find_path_without_waits(scheduler: Any, target: fx.Node, hidden_by: fx.Node | None, why: Any) -> Any:
        path = find_path(scheduler, target, hidden_by, why)
        if path and hidden_by is not None and is_wait_tensor(hidden_by) and any(map(is_wait_tensor, path)):
            return None
        return path

    with mock.patch.object(OverlapScheduler, "_find_schedulable_path", find_path_without_waits):
        yield


def overlap_pass(bucketing: bool) -> Callable[..., fx.GraphModule]:
    """The pass with its bucketing or without; raises where this torch has none that takes our times."""
    try:
        from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing
    except ImportError:
        raise TorchPassError(
            f"torch {torch.__version__} has no overlap pass (schedule_overlap_bucketing). "
            "Use torch 2.13, or --no-torch."
        ) from None
    known = inspect.signature(schedule_overlap_bucketing).parameters
    if "compute_estimator" not in known:
        raise TorchPassError(
            f"torch {torch.__version__}: its overlap pass measures on a GPU only (no compute_estimator). "
            "Use torch 2.13, or --no-torch."
        )
    wanted = {
        "collective_bucketing": bucketing,
        "compute_estimator": "analytical",
        "pre_bucketing_fsdp_collectives": bucketing,
    }
    settings: dict[str, Any] = {name: value for name, value in wanted.items() if name in known}

    def run(graph_module: fx.GraphModule, **options: Any) -> fx.GraphModule:
        return schedule_overlap_bucketing(graph_module, **settings, **options)

    return run


def _times(problem: Problem, rebuilt: RebuiltGraph) -> Callable[[fx.Node, int | None], float | None]:
    """Milliseconds per FX node, as torch's hook wants them; ``None`` for what takes no time of its own."""
    timed = (Kind.COMPUTE, Kind.COLLECTIVE)
    times = {
        node: problem.nodes[v].time_us / 1e3 for node, v in rebuilt.node_ids.items() if problem.nodes[v].kind in timed
    }
    return lambda node, override_size: times.get(node)


@contextlib.contextmanager
def groups_of(problem: Problem) -> Iterator[dict[str, str]]:
    """Fake process groups of the problem's sizes, by the problem's names; in a fake world, unless there is a world."""
    largest = max((group.size for group in problem.groups.values()), default=1)
    with contextlib.nullcontext() if dist.is_initialized() else fake_world(largest):
        yield {name: dist.new_group(list(range(group.size))).group_name for name, group in problem.groups.items()}
