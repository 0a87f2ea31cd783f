"""Who orders the compiled graphs: nobody, overlap_sched, or torch's own pass."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal
from unittest import mock

import torch
from torch import fx
from torch._inductor import config as inductor

import overlap_sched
from overlap_sched.cost import Collective, Roofline
from overlap_sched.errors import OptionsError
from overlap_sched.inductor.identity import Settings
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.options import Options
from overlap_sched.problem import Group

Scheduler = Literal["none", "overlap_sched", "torch"]
SCHEDULERS: tuple[Scheduler, ...] = ("none", "overlap_sched", "torch")


@contextmanager
def scheduling(
    scheduler: Scheduler, options: Options, model: Roofline | None, *, on_gpu: bool, predict: bool = False
) -> Iterator[None]:
    """What is compiled inside is ordered by ``scheduler``.

    Args:
        scheduler: Who.
        options: Of overlap_sched.
        model: Times of compute and collectives, for overlap_sched and for torch's pass on a CPU.
        on_gpu: Whether torch's pass can ask the GPU for its figures.
        predict: For ``none`` and ``torch``: let overlap_sched read each graph (not reorder it) for its figures.

    Raises:
        OptionsError: There is no such scheduler, or this torch has no overlap pass.
    """
    if scheduler not in SCHEDULERS:
        raise OptionsError(f"scheduler is {scheduler!r}; it is one of {', '.join(SCHEDULERS)}.")
    with ExitStack() as stack:
        if scheduler == "overlap_sched":
            stack.enter_context(overlap_sched.enabled(options, model=model))
        else:
            stack.enter_context(_torch_pass(model, on_gpu) if scheduler == "torch" else nullcontext())
            stack.enter_context(_reading(model) if predict else nullcontext())
        yield


def _reading(model: Roofline | None) -> Any:
    """A pass with no effort keeps every order, and reports its figures."""
    reader = SchedulerPass(Settings(Options(effort=0, agreement="none"), model=model))
    return inductor.patch(
        {"reorder_for_compute_comm_overlap": True, "reorder_for_compute_comm_overlap_passes": [reader]}
    )


@contextmanager
def _torch_pass(model: Roofline | None, on_gpu: bool) -> Iterator[None]:
    """torch's overlap pass, with the dependencies that keep its order in the generated code.

    On a CPU it needs what it would ask a GPU: rates of compute and memory, and times of collectives, all from ``model``.
    """
    known = inductor.get_config_copy()
    prefix = "aten_distributed_optimizations."
    wanted: dict[str, Any] = {"enable_overlap_scheduling": True, "insert_overlap_deps": True}
    if not on_gpu:
        wanted |= {"compute_estimator": "analytical", "pre_bucketing_fsdp_collectives": False}
        wanted |= {"custom_runtime_estimation": None if model is None else _times_by(model)}
    if any(prefix + name not in known for name in wanted):
        raise OptionsError(
            f"--scheduler torch: torch {torch.__version__} has no overlap pass that runs here. "
            f"Use torch 2.13{'' if on_gpu else ' or a GPU'}, or another scheduler."
        )
    rates = Roofline().device if model is None else model.device
    with ExitStack() as stack:
        stack.enter_context(inductor.patch({prefix + name: value for name, value in wanted.items()}))
        if not on_gpu:
            there = "torch.utils._runtime_estimation."
            stack.enter_context(mock.patch(there + "get_gpu_dram_gbps", return_value=rates.bytes_per_s / 1e9))
            stack.enter_context(mock.patch(there + "get_device_tflops", return_value=rates.flops_per_s / 1e12))
        yield


def _times_by(model: Roofline) -> Callable[[fx.Node, int | None], float | None]:
    """Milliseconds of a collective by our model, which knows gloo; all else is left to torch's pass."""
    functional = torch.ops._c10d_functional
    names = {
        functional.all_gather_into_tensor.default: "all_gather_into_tensor",
        functional.reduce_scatter_tensor.default: "reduce_scatter_tensor",
        functional.all_reduce.default: "all_reduce",
    }

    def milliseconds(node: fx.Node, override_size: int | None) -> float | None:
        op = names.get(node.target)  # type: ignore[call-overload]
        if op is None:
            return None
        sent, received = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
        nbytes = max(sent.nbytes, received.nbytes) if override_size is None else override_size
        ranks = max(received.numel(), sent.numel()) // max(1, min(received.numel(), sent.numel()))
        group = Group(max(2, ranks), True)
        return model.collective_us(Collective(op, nbytes, group)) / 1e3

    return milliseconds
