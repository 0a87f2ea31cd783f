"""The same problem listed in another order: what the scheduler then takes for the original one.

The scheduler can reach only orders of which every beginning fits the budget when the rest follows as listed. From a
listing that needs less memory it reaches others, and budgets below the original peak.
"""

from collections.abc import Sequence
from dataclasses import replace

from overlap_sched.errors import OrderError
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order, Problem


def relisted(problem: Problem, order: Sequence[int]) -> Problem:
    """The problem with node ``order[k]`` as its k-th; node k of the result is ``order[k]`` of the problem.

    Raises:
        OrderError: The order cannot run.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise OrderError(f"{problem.name!r} cannot be listed in this order: {broken}.")
    place = {v: at for at, v in enumerate(order)}
    nodes = (problem.nodes[v] for v in order)
    return replace(
        problem,
        nodes=tuple(
            node._replace(
                deps=tuple(sorted(place[u] for u in node.deps)),
                collective=None if node.collective is None else place[node.collective],
            )
            for node in nodes
        ),
    )


def as_listed_before(order: Sequence[int], relisting: Sequence[int]) -> Order:
    """An order of the relisted problem as one of the problem itself."""
    return tuple(relisting[v] for v in order)
