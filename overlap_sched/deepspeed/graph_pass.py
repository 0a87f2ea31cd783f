"""Our pass of DeepCompile's list, its contract, and how it is registered.

    zero3_compile      writes gathers, releases and reductions into the graph, and measures it
    overlap_sched      decides the order
    selective_gather   may come behind it: keeps parameters that need not be released

DeepCompile's ``prefetch`` moves the same gathers, by its own rule: a schedule has one of the two.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode

from overlap_sched.errors import OptionsError
from overlap_sched.fx.calls import GROUPS_KEY, SHARED
from overlap_sched.inductor.fx_stage import schedule_fx
from overlap_sched.inductor.reporting import warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import current_settings
from overlap_sched.options import Options, check_names

NAME = "overlap_sched"
"""How the pass is called in a schedule of ``engine.compile``."""


def register(options: Options | None = None, **how: Any) -> None:
    """Register the pass with DeepSpeed as ``"overlap_sched"``; again: with the new options.

    Call it on every rank before ``engine.compile``, with the same arguments.

    Args:
        options: How to schedule; by default as :func:`overlap_sched.enable` was told, else the defaults.
        **how: ``cost``, ``model``, ``ranks_per_node``, ``cluster``, ``timeout_s``, as of :func:`overlap_sched.enable`.

    Raises:
        OptionsError: There is no such argument, it cannot have this value, or there is no DeepCompile here.
    """
    check_names("register", "", how, ("cost", "model", "ranks_per_node", "cluster", "timeout_s"))
    settings = current_settings() or Settings()
    settings = replace(settings, options=options or settings.options, stage="deepspeed", notes=(), **how)
    try:
        register_compile_pass = import_module("deepspeed.compile.backend").register_compile_pass
        contract = import_module("deepspeed.compile.passes.contract").PassContract
    except (ImportError, AttributeError) as error:
        raise OptionsError(
            f"there is no DeepCompile with contracts of passes here ({error}). pip install 'deepspeed>=0.19.8'."
        ) from error
    # what ``zero3_compile`` provides (``CAP_Z3_GATHER_RELEASE``); DeepCompile's own pass that moves gathers
    needs = contract(requires=frozenset({"z3_gather_release"}), conflicts_with=frozenset({"prefetch"}))
    register_compile_pass(NAME, partial(order_pass, settings=settings), needs)


def order_pass(
    gm: fx.GraphModule,
    graph_id: int,
    graph_order: Sequence[tuple[int, bool]],
    profiling_results: Mapping[int, Any],
    create_inputs_fn: Any,
    mem_budget: float,
    param_manager: Any,
    bwd: bool,
    *,
    settings: Settings,
) -> fx.GraphModule:
    """Reorder a graph of ZeRO-3 in place, or leave it as it was; the same on all ranks. Returns ``gm``.

    The arguments are those of every pass of DeepCompile (``deepspeed/compile/backend.py:run_opt_passes``); what is read
    of them is the graph, the process group of ``profiling_results[graph_id]``, and whether it is a backward. Compute
    takes as long as DeepCompile has measured, which is the mean over all ranks and so the same on each; where that is
    not complete, and for collectives, which it measures by when they were launched, the cost model says it.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    ranks = _ranks_of(getattr(profiling_results.get(graph_id), "process_group", None))
    if ranks:
        settings = replace(settings, ranks=ranks)
        gm.meta[GROUPS_KEY] = {SHARED["dc"]: (len(ranks), ranks)}
    nodes, partly = list(gm.graph.nodes), "deepcompile_profile_incomplete"  # (``profilers/graph_profile.py``)
    if settings.cost is None and any(map(measured, nodes)) and not any(partly in node.meta for node in nodes):
        settings = replace(settings, cost=measured)
    try:
        with zero3_values(gm.graph):
            schedule_fx(gm, settings, "backward" if bwd else "forward")
    finally:
        gm.meta.pop(GROUPS_KEY, None)
    return gm


def measured(node: fx.Node) -> float | None:
    """Return the microseconds that DeepCompile has measured for a node that computes; ``None``: nothing, or not that.

    Raises:
        CostError: What was measured is no time.
    """
    milliseconds = node.meta.get("device_time")
    if called(node) or node.op != "call_function" or not isinstance(milliseconds, int | float) or not milliseconds:
        return None
    return float(milliseconds) * 1e3


measured.source = "profile"  # type: ignore[attr-defined]


def _ranks_of(group: Any) -> tuple[int, ...]:
    """The ranks over which parameters are sharded; none: there is no process group, so nobody to agree with."""
    if not (dist.is_available() and dist.is_initialized()):
        return ()
    try:
        return tuple(dist.get_process_group_ranks(dist.group.WORLD if group is None else group))
    except Exception as error:
        warn("overlap_sched does not know the ranks that share these parameters, and takes all", error)
        return tuple(range(dist.get_world_size()))


# What DeepCompile's operators give, as ``meta["val"]``, which its graphs leave out or leave stale.
#
# | node | as DeepCompile leaves it | as it is |
# | --- | --- | --- |
# | a parameter | its full shape, or nothing | the shard: nothing that a graph makes or frees |
# | ``allgather_param`` | a cast of the parameter's: often the same storage | a new storage of the full shape |
# | ``wait_allgather``, ``release_param`` | the gather's; ``None`` | what they are given |
# | ``reduce_grad`` | ``None`` | nothing, new (``csrc/compile/deepcompile.cpp``) |


VAL = "val"


@contextmanager
def zero3_values(graph: fx.Graph) -> Iterator[None]:
    """Give the nodes of a graph of ZeRO-3 their true values inside the block, and back what they had behind it.

    Warns where that fails.
    """
    kept = [(node, {VAL: node.meta[VAL]} if VAL in node.meta else {}) for node in graph.nodes]
    try:
        try:
            _give(graph)
        except Exception as error:  # the other ranks wait for what this one shows: it goes on
            warn("overlap_sched does not know what DeepCompile's operators give", error)
        yield
    finally:
        for node, val in kept:
            node.meta.pop(VAL, None)
            node.meta.update(val)


def called(node: fx.Node) -> str:
    """Return which of DeepCompile's operators a node calls: ``"allgather_param"``; ``""``: none."""
    is_one = isinstance(node.target, OpOverload) and node.target.namespace == "dc"
    return node.target.overloadpacket.__name__ if is_one else ""


def _give(graph: fx.Graph) -> None:
    mode = next((node.meta[VAL].fake_mode for node in graph.nodes if isinstance(node.meta.get(VAL), FakeTensor)), None)
    with mode or FakeTensorMode():
        for node in graph.nodes:
            name, of = called(node), node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            if of is None:
                continue
            tensors = [one.meta[VAL] for one in (node, of) if isinstance(one.meta.get(VAL), torch.Tensor)]
            if name in ("wait_allgather", "release_param") and VAL in of.meta:
                node.meta[VAL] = of.meta[VAL]
            elif name == "reduce_grad" and tensors:
                node.meta[VAL] = tensors[-1].new_empty(0)
            elif name == "allgather_param" and tensors:  # else nobody knows how large it is: what is read of it says so
                node.meta[VAL] = tensors[0].new_empty(tensors[0].shape)
                if of.op == "placeholder":
                    of.meta[VAL] = tensors[0].new_empty(0)
