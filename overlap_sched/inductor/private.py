"""The names of Inductor's scheduler, all that we use of them in one place, for the versions in which we have seen them.

torch says of its scheduler that it may change at any time. So nothing else of this package imports from it, and this
module is imported only behind :func:`overlap_sched.inductor.versions.check_torch`.
"""

import shutil
from collections.abc import Callable, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any, Protocol

from torch._inductor import config, ir
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.wrapper import can_match_buffer_size
from torch._inductor.comms import is_async_collective
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.scheduler import (
    FusedSchedulerNode,
    GroupedSchedulerNode,
    NopKernelSchedulerNode,
    OutputNode,
    Scheduler,
    SchedulerNode,
)
from torch._inductor.utils import (
    contains_collective,
    contains_wait,
    is_collective,
    is_nonfreeable_buffers,
    is_wait,
    sympy_product,
)
from torch._inductor.virtualized import V

from overlap_sched.inductor import names
from overlap_sched.inductor.settings import Settings

__all__ = [
    "BackendFeature",
    "FusedSchedulerNode",
    "GroupedSchedulerNode",
    "MemoryDep",
    "NopKernelSchedulerNode",
    "OutputNode",
    "SchedulerNode",
    "V",
    "WeakDep",
    "annotate",
    "at_the_end",
    "can_match_buffer_size",
    "config",
    "contains_collective",
    "contains_wait",
    "cuda_graphs",
    "graph_name",
    "ir",
    "is_async_collective",
    "is_collective",
    "is_nonfreeable_buffers",
    "is_wait",
    "members",
    "passes_behind",
    "runs",
    "sympy_product",
    "watch_cache",
    "when_written",
]


def members(node: Any) -> Sequence[Any]:
    """The unfused nodes in a scheduler node: of fused, foreach and grouped ones, nested ones too."""
    parts = node.get_nodes()
    if len(parts) == 1 and parts[0] is node:
        return parts
    return [one for part in parts for one in members(part)]


def runs(member: Any) -> bool:
    """Whether an unfused node runs an operator as it is, a collective or a sub-graph: it may communicate, then.

    One output of several is a node of its own, which runs nothing.
    """
    node = member.node
    return node is not None and member.is_extern() and not isinstance(node, ir.MultiOutput) and not is_wait(node)


def _scheduler(snodes: Sequence[Any]) -> Scheduler | None:
    """Whose nodes these are."""
    owner = getattr(snodes[0], "scheduler", None) if snodes else None
    return owner if isinstance(owner, Scheduler) else None


def at_the_end(snodes: Sequence[Any], order: Callable[[list[Any]], list[Any]]) -> bool:
    """Have the nodes put in order when all passes of torch's scheduler have run, last of all; nothing global changes.

    ``False``: that cannot be, as torch unpacks nodes in groups on the way, or this is no scheduler of torch's.
    """
    scheduler = _scheduler(snodes)
    if scheduler is None or any(isinstance(snode, GroupedSchedulerNode) for snode in snodes):
        return False
    finish = scheduler.compute_last_usage  # what torch calls first behind its passes, and once

    def ordered_and_finished() -> None:
        vars(scheduler).pop("compute_last_usage", None)
        scheduler.nodes = order(list(scheduler.nodes))
        finish()

    scheduler.compute_last_usage = ordered_and_finished
    return True


def when_written(snodes: Sequence[Any], tell: Callable[[list[Any]], None]) -> bool:
    """Tell once of the nodes in the order in which their code was written; ``False``: nobody will be told.

    Args:
        snodes: Those of a scheduler that has not written its code.
        tell: Must not raise. It is told also where torch fails on the way, of as many as there are by then.
    """
    scheduler = _scheduler(snodes)
    if scheduler is None:
        return False
    write, write_part = scheduler.codegen, scheduler._codegen
    written: list[Any] = []

    def noted(nodes: list[Any]) -> None:
        written.extend(nodes)
        write_part(nodes)

    def told() -> None:
        vars(scheduler).pop("codegen", None)
        scheduler._codegen = noted
        try:
            write()
        finally:
            vars(scheduler).pop("_codegen", None)
            tell(written)

    scheduler.codegen = told
    return True


def passes_behind() -> list[str]:
    """Which passes of torch reorder behind those of ``reorder_for_compute_comm_overlap_passes``, as it is set now."""
    distributed = config.aten_distributed_optimizations
    joins = config.graph_partition and config.triton.cudagraphs and config.triton.reorder_for_reducing_graph_partitions
    return [
        *(["simple_overlap"] if getattr(distributed, "enable_simple_overlap", False) else []),
        *(["Scheduler.maybe_reorder_for_minimizing_partition"] if joins else []),
    ]


def cuda_graphs(snodes: Sequence[Any]) -> int:
    """Into how many parts torch cuts the graph for CUDA graphs, which are replayed one by one; 1: it does not."""
    scheduler = _scheduler(snodes)
    if scheduler is None or not (config.graph_partition and config.triton.cudagraphs):
        return 1
    apart = [bool(scheduler.should_partition(snode)) for snode in snodes]
    return 1 + sum(one != other for one, other in pairwise(apart))


def annotate(text: str) -> None:
    """Put a comment of one line into the code that is being generated."""
    V.graph.wrapper_code.header.writeline(f"{'//' if V.graph.cpp_wrapper else '#'} {text}")


class Loading(Protocol):
    """Told of code that was found in a cache: may it be used, and is it to be dropped from there?"""

    def __call__(self, owner: Any, source: str, traced: bool) -> tuple[bool, bool]: ...


_CACHE = {
    "cache_hit_post_compile": ["graph", "cache_info", "constants"],
    "_save_graph": ["key", "compiled_graph", "example_inputs", "local", "remote_cache"],
}
"""The functions through which torch's cache of FX graphs uses and saves code, and their parameters."""
_watching: list[tuple[Loading, Callable[[Any, str], bool]]] = []


def watch_cache(may_load: Loading, may_save: Callable[[Any, str], bool]) -> bool:
    """Have torch's cache ask before it uses or saves code; from the first call on, for good.

    Nothing is asked unless a pass of ours is set, which is then given as the ``owner``; ``traced``: the graph is there,
    it is not AOTAutograd's cache that loads forward and backward at once. ``False``: this torch works in another way.
    """
    from torch._functorch import config as functorch_config
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstantsWithGm

    if _watching:
        _watching[0] = (may_load, may_save)
    else:
        _keys_without_hashes_of_meshes()
        for name, parameters in _CACHE.items():
            if list(signature(getattr(FxGraphCache, name)).parameters) != parameters:
                return False
        load, save = FxGraphCache.cache_hit_post_compile, FxGraphCache._save_graph
        _watching.append((may_load, may_save))

        def loaded(graph: Any, cache_info: Any, constants: Any) -> Any:
            owner = _owner()
            if owner is not None:
                traced = isinstance(constants, CompiledFxGraphConstantsWithGm)
                use, drop = _watching[0][0](owner, graph.source_code, traced)
                if drop:
                    shutil.rmtree(FxGraphCache._get_tmp_dir_for_key(graph._fx_graph_cache_key), ignore_errors=True)
                if not use:
                    return None, cache_info
            return load(graph, cache_info, constants)

        def saved(key: str, compiled_graph: Any, *more: Any, **by_name: Any) -> None:
            owner = _owner()
            if owner is None or _watching[0][1](owner, getattr(compiled_graph, "source_code", "")):
                save(key, compiled_graph, *more, **by_name)

        FxGraphCache.cache_hit_post_compile = staticmethod(loaded)
        FxGraphCache._save_graph = staticmethod(saved)
    return not functorch_config.bundled_autograd_cache  # which loads without asking


def _keys_without_hashes_of_meshes() -> None:
    """Have a graph that takes DTensors the same cache key in every process.

    torch pickles their mesh into the key, with the hash that it remembers. It is one of strings, so each process has
    another. It is computed anew where it is missing.
    """
    from torch.distributed.device_mesh import DeviceMesh

    state_of = vars(DeviceMesh).get("__getstate__")
    if state_of is None:
        return

    def state(mesh: Any) -> dict[str, Any]:
        found: dict[str, Any] = state_of(mesh)
        return {**found, "_hash": None} if "_hash" in found else found

    DeviceMesh.__getstate__ = state


def _owner() -> Any | None:
    """Our pass, where torch is to run it."""
    if not config.reorder_for_compute_comm_overlap:
        return None
    passes = [
        p for p in config.reorder_for_compute_comm_overlap_passes if isinstance(getattr(p, "settings", None), Settings)
    ]
    return passes[-1] if passes else None


def graph_name() -> str:
    """What is being compiled, see :func:`overlap_sched.inductor.names.graph_name`."""
    graph = V.graph
    kind = "inference" if graph.is_inference else "backward" if graph.is_backward else "forward"
    return names.graph_name(kind, graph.name or "", graph.graph_id)
