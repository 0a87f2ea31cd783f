"""The same problem with its nodes relabelled along another order, which the scheduler then takes for the original one.

The scheduler can reach only orders of which every beginning fits the budget when the rest follows as listed. From a
listing that needs less memory it reaches others, and budgets below the original peak.
"""

from collections.abc import Sequence
from dataclasses import replace

from overlap_sched.errors import ProblemError
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order, Problem


def relabelled(problem: Problem, order: Sequence[int]) -> Problem:
    """The problem with node ``order[k]`` as its k-th; node k of the result is ``order[k]`` of the problem.

    Raises:
        ProblemError: The order cannot run.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise ProblemError(f"{problem.name!r} cannot be listed in this order: {broken}.")
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


def in_original_ids(order: Sequence[int], listing: Sequence[int]) -> Order:
    """An order of the problem relabelled along ``listing``, in the ids of the problem itself."""
    return tuple(listing[v] for v in order)
