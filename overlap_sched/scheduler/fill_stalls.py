"""Where compute stands still: independent compute goes behind the launch it waits for, or that launch skips the queue.

::

    before    |= wgrad =|== chain ==|u . . . .|== needs u ==|       compute stands still until u has arrived
    after     |== chain ==|u= wgrad =|== needs u ==|                what u does not need hides it

A run of the list scheduler decides node by node: what stands in front in the order given runs first, and that the
launch comes late for it shows only at the wait. So behind each such launch goes as much compute as hides it, the last
in front of it first, each with all in front of the launch that needs it.

Where what is waited for was launched in time but queues on its stream, it goes in front of what is before it there, or
that goes behind it: a long reduce_scatter, say, that nobody waits for. ::

    stream    |== scatter, nobody waits ==|= gather =|          stream    |= gather =|== scatter ==|
    compute   |== ... ==|. . . . . . . . . . . . . . |== user   compute   |== ... ==||== user

A move stays where memory admits it and the step becomes shorter.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice, takewhile

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Order
from overlap_sched.problem.precedence import moving_with, neighbours, positions, with_sooner
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate
from overlap_sched.scheduler.result import Reason
from overlap_sched.scheduler.stage import Context
from overlap_sched.scheduler.step_time import StepTrail

WORTH = 1e-4
"""A stall is left as it is below this part of the step."""
GRAIN = 0.1
"""Compute of less than this part of the stall is not worth a move."""
FARTHEST = 1_000
"""Compute is looked for so many positions in front of the launch."""
MOST_NODES = 24
"""What moves with one node, at most: weight gradients are needed by few."""
QUEUED = 6
"""So many collectives are passed in a queue, the last first."""
TRIED_NODES = 1_000_000
"""A unit of effort is so many nodes of orders that are tried."""
MOST_IN_VAIN = 300
"""So many in turn that make no step shorter are the last: where the network binds, compute stands still elsewhere."""


def stalls_filled(context: Context, best: Candidate) -> Candidate:
    """The stage: the order with its stalls filled, the first one first, over and over until nothing is gained."""
    if not best.reasons:
        return best
    filler = _StallFiller(context, best, context.task.options.effort * TRIED_NODES // len(best.order))
    while filler.fill_all():
        pass
    if filler.order is best.order:
        return best
    reasons: dict[NodeId, Reason] = {**best.reasons, **dict.fromkeys(filler.deferred, "deferred")}
    return replace(context.task.remeasured(best, filler.order), reasons=reasons)


class _StallFiller:
    """The best order so far, its step, and the collectives that went behind another."""

    def __init__(self, context: Context, best: Candidate, tries: int) -> None:
        self._task, self._nodes = context.task, context.task.problem.nodes
        self._before, self._after = neighbours(self._task.problem, self._task.pairs)
        self._tries, self._in_vain = tries, 0
        self.step_us, self.deferred = best.step_us, set[NodeId]()
        self._take(best.order)

    def fill_all(self) -> bool:
        """Try to fill each stall once; whether that has gained anything, and more may be tried."""
        before_us = self.step_us
        for wait in [v for v in self.order if self._nodes[v].kind is Kind.WAIT]:
            launch = self._nodes[wait].collective
            stall_us = self._timeline.stall_us[wait]
            if launch is None or stall_us < WORTH * self.step_us:
                continue
            for order, moved in self._orders(launch, stall_us):
                if self._tries <= 0 or self._in_vain == MOST_IN_VAIN:
                    return False
                if self._try(order, moved):
                    break
        return self.step_us < before_us * (1 - SAME_STEP)

    def _take(self, order: Order) -> None:
        self.order, self._position = order, positions(order)
        self._timeline = replay(self._task.problem, order)
        self._trail = StepTrail(self._task.step_times, order)

    def _movable(self, launch: NodeId, stall_us: float) -> list[frozenset[NodeId]]:
        """Compute in front of a launch that it does not need, with what needs that: as much as the stall is long."""
        at, found, taken = self._position[launch], list[frozenset[NodeId]](), set[NodeId]()
        needed = {launch}
        for v in reversed(self.order[max(at - FARTHEST, 0) : at]):
            node = self._nodes[v]
            if not needed.isdisjoint(self._after[v]):
                needed.add(v)
            elif node.kind is Kind.COMPUTE and node.time_us >= GRAIN * stall_us and v not in taken:
                moved = moving_with(v, self._after, self._position, range(at), MOST_NODES)
                if moved and taken.isdisjoint(moved):
                    found.append(moved)
                    taken |= moved
                    stall_us -= sum(self._task.problem.compute_us[u] for u in moved)
                    if stall_us <= 0.0:
                        break
        return found

    def _orders(self, launch: NodeId, stall_us: float) -> Iterator[tuple[Order, frozenset[NodeId]]]:
        """Orders in which compute may stand still for less time, each with what goes behind the launch in it."""
        at, jobs = self._position[launch], self._movable(launch, stall_us)
        while jobs:
            moved = frozenset[NodeId]().union(*jobs)
            yield self._with_behind(launch, moved), moved
            jobs = jobs[: len(jobs) // 2]
        for other in self._queue(launch):
            to = self._position[other]
            if needs := moving_with(launch, self._before, self._position, range(to, at), MOST_NODES):
                yield with_sooner(self.order, needs, to), frozenset()
            moved = moving_with(other, self._after, self._position, range(to, at + 1), MOST_NODES)
            if moved and launch not in moved:
                yield self._with_behind(launch, moved), moved

    def _queue(self, launch: NodeId) -> list[NodeId]:
        """List what is on the launch's stream when it is launched: the last first."""
        nodes, launched_us = self._nodes, self._timeline.at_us[launch]
        before = (v for v in reversed(self.order[: self._position[launch]]) if nodes[v].kind is Kind.COLLECTIVE)
        same = (v for v in before if nodes[v].group == nodes[launch].group)
        return list(islice(takewhile(lambda v: self._timeline.finish_us[v] > launched_us, same), QUEUED))

    def _with_behind(self, launch: NodeId, moved: Collection[NodeId]) -> Order:
        """The order with nodes from in front of a launch right behind it."""
        at, first = self._position[launch], min(self._position[v] for v in moved)
        front = self.order[first:at]
        stay, go = (v for v in front if v not in moved), (v for v in front if v in moved)
        return (*self.order[:first], *stay, launch, *go, *self.order[at + 1 :])

    def _try(self, order: Order, deferred: Collection[NodeId]) -> bool:
        """Take an order, if memory admits it and the step is shorter."""
        self._tries -= 1
        if not self._task.within_budget(order):
            return False
        step_us = self._trail.of(order)
        if step_us >= self.step_us * (1 - SAME_STEP):
            self._in_vain += 1
            return False
        self.step_us, self._in_vain = step_us, 0
        self.deferred |= {v for v in deferred if self._nodes[v].kind is Kind.COLLECTIVE}
        self._take(order)
        return True
