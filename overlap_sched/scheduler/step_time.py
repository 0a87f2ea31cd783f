"""How long the step of an order takes, and nothing else of it: what is asked of thousands of orders of one problem.

The rules are those of the judge (:mod:`overlap_sched.judge.replay`), which keeps all that a report shows.
"""

from collections.abc import Sequence

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Node, NodeId, Problem

_COMPUTE, _LAUNCH, _WAIT, _NO_WAIT = range(4)


class StepTimes:
    """Of the orders of one problem."""

    def __init__(self, problem: Problem) -> None:
        """Looks at each node once."""
        self._problem = problem
        self._kinds = [_kind(node) for node in problem.nodes]
        self._times = [node.time_us for node in problem.nodes]
        groups = {group: at for at, group in enumerate({node.group for node in problem.nodes})}
        self._streams = [groups[node.group] for node in problem.nodes]
        self._waited_for = [node.collective or 0 for node in problem.nodes]
        self._groups = len(groups)

    def of(self, order: Sequence[NodeId]) -> float:
        """Microseconds of a valid order, as the judge says. O(n)."""
        if self._problem.contention:
            return replay(self._problem, order).step_us
        kinds, times, streams, waited_for = self._kinds, self._times, self._streams, self._waited_for
        free, finish, clock = [0.0] * self._groups, dict[NodeId, float](), 0.0
        for v in order:
            kind = kinds[v]
            if kind == _COMPUTE:
                clock += times[v]
            elif kind == _LAUNCH:
                stream = streams[v]
                start = free[stream]
                finish[v] = free[stream] = (clock if clock > start else start) + times[v]
            elif kind == _WAIT and (done := finish[waited_for[v]]) > clock:
                clock = done
        return max([clock, *free])


def _kind(node: Node) -> int:
    if node.kind is Kind.COLLECTIVE:
        return _LAUNCH
    if node.kind is Kind.WAIT:
        return _NO_WAIT if node.collective is None else _WAIT
    return _COMPUTE
