"""Start from the memory-optimal order: the same problem, listed in another order.

A scheduler that takes the listing as its reference (its peak is the budget, its step the one to beat) then starts
from there; what it returns is put back into the first problem's ids by :meth:`Relisted.original`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from overlap_sched.errors import OrderError
from overlap_sched.memory.best import MemoryPlan, best_order
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from overlap_sched.validate import violation


@dataclass(frozen=True)
class Relisted:
    """A problem whose nodes are listed in another order.

    Attributes:
        problem: With nodes renumbered; storages and groups are the same.
        order: Per new id, the old one.
    """

    problem: Problem
    order: Order

    def original(self, order: Sequence[int]) -> Order:
        """An order of the new problem, in the ids of the old one."""
        return tuple(self.order[v] for v in order)


def relisted(problem: Problem, order: Sequence[int]) -> Relisted:
    """List the nodes in an order that can run.

    Raises:
        OrderError: It cannot.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise OrderError(f"{problem.name!r} cannot be listed in this order: {broken}.")
    number = [0] * len(order)
    for at, v in enumerate(order):
        number[v] = at
    nodes = []
    for v in order:
        node = problem.nodes[v]
        deps = tuple(sorted(number[u] for u in node.deps))
        collective = None if node.collective is None else number[node.collective]
        nodes.append(node._replace(deps=deps, collective=collective))
    return Relisted(replace(problem, nodes=tuple(nodes)), tuple(order))


def memory_base(problem: Problem, options: Options) -> tuple[Relisted, MemoryPlan]:
    """The problem listed in the order with the lowest peak found, and how it was found.

    Launch orders are kept as the options say; ``options.effort`` is the effort.

    Raises:
        VerificationError: The order that came out is not valid: a bug.
    """
    plan = best_order(problem, options.preserve_collective_order, options.effort)
    return relisted(problem, plan.order), plan
