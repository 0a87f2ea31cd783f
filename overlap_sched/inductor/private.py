"""What we do with the names of Inductor's scheduler, for the versions in which we have seen them.

torch says of its scheduler that it may change at any time. So nothing else of this package imports from it but
:mod:`~overlap_sched.inductor.kernel_graph`, :mod:`~overlap_sched.inductor.kernels`,
:mod:`~overlap_sched.inductor.lifting` and :mod:`~overlap_sched.inductor.graph_order`, and all of these are imported
only when a pass runs that was switched on behind :func:`overlap_sched.inductor.scheduler_pass.knows_torch`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import sympy
from torch._inductor import config, ir
from torch._inductor.scheduler import GroupedSchedulerNode, Scheduler
from torch._inductor.utils import is_wait
from torch._inductor.virtualized import V


def members(node: Any) -> Sequence[Any]:
    """The unfused nodes in a scheduler node: of fused, foreach and grouped ones, nested ones too."""
    parts = node.get_nodes()
    if len(parts) == 1 and parts[0] is node:
        return parts
    return [one for part in parts for one in members(part)]


def runs(member: Any) -> bool:
    """Tell whether an unfused node runs an operator as it is, a collective or a sub-graph: it may communicate, then.

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


def size_of(size: Any) -> sympy.Expr:
    """An expression in the symbols of the graph; torch gives a plain 0 for a tensor of no elements."""
    return V.graph.sizevars.remove_precomputed_replacements(sympy.sympify(size))


def cuda_graphs(snodes: Sequence[Any]) -> int:
    """Into how many parts torch cuts the graph for CUDA graphs, which are replayed one by one; 1: it does not."""
    scheduler = _scheduler(snodes)
    if scheduler is None or not (config.graph_partition and config.triton.cudagraphs):
        return 1
    apart = [bool(scheduler.should_partition(snode)) for snode in snodes]
    return 1 + sum(one != other for one, other in pairwise(apart))
