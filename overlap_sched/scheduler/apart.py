"""Collectives of groups that share ranks, kept apart: none is launched while one of such a group is in flight.

Nor does anything run then that communicates itself, or may (``Node.launches``).

::

    as found        gather (a)  reduce (b)  mm  wait (a)  wait (b)
    the launch      gather (a)  mm  wait (a)  reduce (b)  wait (b)      where a has finished before b is waited for
    or the wait     gather (a)  wait (a)  reduce (b)  mm  wait (b)      where b is needed sooner

A wait makes the compute stream wait, and a launch comes behind what the compute stream has reached: so a launch behind
a wait starts when that collective has finished, whatever times turn out to be. Memory does not grow: a launch that
comes later allocates later, and what it takes is live until its wait in either case; a wait that comes sooner frees
sooner.

Which groups may not meet says ``Options.concurrent_groups``. What is in flight together in the original order may be.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from overlap_sched.options import Concurrent
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.problem.precedence import launched_on

Clash = Callable[[NodeId, NodeId], bool]
"""Whether two collectives must not be in flight together."""


class _CannotBeError(Exception):
    """What is in flight cannot be waited for yet."""


def clashes(problem: Problem, concurrent: Concurrent, as_originally: bool = True) -> Clash:
    """Return a test of whether two nodes that launch must not be in flight together.

    Args:
        problem: With the ranks of its groups, where they are known; else they are taken to share all.
        concurrent: See ``Options.concurrent_groups``.
        as_originally: Two that are in flight together in the original order may be.
    """
    on = {v: groups for v, node in enumerate(problem.nodes) if (groups := launched_on(node))}
    names = {name for groups in on.values() for name in groups}
    shared = {(a, b): _share(problem, a, b, concurrent) for a in names for b in names}
    end = {v: v if problem.nodes[v].launches else problem.ends.get(v, (len(problem.nodes),))[0] for v in on}

    def clash(u: NodeId, v: NodeId) -> bool:
        share = any(shared[a, b] for a in on[u] for b in on[v])
        return share and not (as_originally and u < end[v] and v < end[u])

    return clash


def _share(problem: Problem, one: str, other: str, concurrent: Concurrent) -> bool:
    a, b = (problem.groups[name].ranks if name in problem.groups else () for name in (one, other))
    return one != other and (concurrent == "one" or not a or not b or len(set(a) & set(b)) > 1)


def on_one_stream(problem: Problem, concurrent: Concurrent) -> Problem:
    """The problem with groups that share ranks, directly or through others, on one stream: its best orders hardly
    change once they are kept apart.
    """
    first = {name: name for name in problem.groups}
    for one in problem.groups:
        for other in problem.groups:
            if _share(problem, one, other, concurrent) and first[one] != first[other]:
                gone, stays = first[other], first[one]
                first = {name: stays if at == gone else at for name, at in first.items()}
    nodes = (node if node.group is None else node._replace(group=first[node.group]) for node in problem.nodes)
    return replace(problem, nodes=tuple(nodes))


def kept_apart(
    problem: Problem, order: Sequence[NodeId], clash: Clash, defers: bool = True, stalls: float = 0.0
) -> Order | None:
    """The order with launches later and waits sooner, so that no two clash; ``None``: that cannot be had.

    Args:
        problem: What the order is of.
        order: A valid one.
        clash: What must be kept apart.
        defers: Whether launches may pass each other; else waits alone move.
        stalls: For what part of its time a compute node waits for a launch that it would delay. The more the network
            binds, the more is right.
    """
    run = _Run(problem, clash)
    try:
        for v in order:
            if stalls and run.deferred:
                run.stall_before(v, stalls)
            run.come(v, defers)
        for v in run.deferred.copy():
            run.emit(v)
    except _CannotBeError:
        return None
    return tuple(run.order)


class _Run:
    """An order as far as it is made, and simulated time.

    Attributes:
        order: Nodes that have run. deferred: launches whose turn has come, and that wait for others to finish.
    """

    def __init__(self, problem: Problem, clash: Clash) -> None:
        self.order, self.deferred = list[NodeId](), list[NodeId]()
        self._problem, self._clash = problem, clash
        self._ended: dict[NodeId, list[NodeId]] = {}  # per node, the collectives that the program waits for there
        for u, ends in problem.ends.items():
            for v in ends:
                self._ended.setdefault(v, []).append(u)
        self._done = [False] * len(problem.nodes)
        self._in_flight = list[NodeId]()
        self._clock_us, self._free_us, self._finish_us = 0.0, dict[str | None, float](), dict[NodeId, float]()

    def come(self, v: NodeId, defers: bool) -> None:
        """It is v's turn."""
        if self._done[v]:
            return
        if defers and self._problem.nodes[v].kind is Kind.COLLECTIVE and self._waits_for_others(v):
            self.deferred.append(v)
            return
        self.emit(v)
        for u in self.deferred.copy():
            if self._done[u]:
                continue
            if self._busy(u):
                break  # what comes behind it stays behind it
            self.emit(u)

    def stall_before(self, v: NodeId, part: float) -> None:
        """Launch what was deferred first, with the waits that takes, if v stalls for less than a part of its time."""
        first = self.deferred[0]
        finish_us = max((self._finish_us[u] for u in self._in_flight if self._clash(u, first)), default=0.0)
        stall_us, time_us = finish_us - self._clock_us, self._problem.compute_us[v]
        if stall_us < part * time_us:
            self.emit(first)

    def emit(self, v: NodeId) -> None:
        """Run v, behind what it needs; a launch behind waits for all that it clashes with."""
        for u in self._problem.predecessors[v]:
            if not self._done[u]:
                self.emit(u)
        if self._done[v]:
            return
        node = self._problem.nodes[v]
        if launched_on(node):
            for u in [u for u in self._in_flight if self._clash(u, v)]:
                self._wait_for(u)
        if node.kind is Kind.COLLECTIVE:
            self._launch(v)
        elif node.kind is Kind.WAIT and node.collective is not None:
            self._clock_us = max(self._clock_us, self._finish_us[node.collective])
        elif node.kind is not Kind.WAIT:
            self._clock_us += node.time_us
        ended = self._ended.get(v, ())
        self._in_flight = [u for u in self._in_flight if u not in ended] if ended else self._in_flight
        self._done[v] = True
        self.order.append(v)

    def _launch(self, v: NodeId) -> None:
        node = self._problem.nodes[v]
        start_us = max(self._clock_us, self._free_us.get(node.group, 0.0))
        self._finish_us[v] = self._free_us[node.group] = start_us + node.time_us
        self._in_flight.append(v)
        if v in self.deferred:
            self.deferred.remove(v)

    def _waits_for_others(self, v: NodeId) -> bool:
        """Is it better launched later: where what it clashes with has not finished, or waits itself?"""
        nodes = self._problem.nodes
        ahead = any(self._clash(u, v) or nodes[u].group == nodes[v].group for u in self.deferred)
        return ahead or self._busy(v)

    def _busy(self, v: NodeId) -> bool:
        return any(self._clash(u, v) and self._finish_us[u] > self._clock_us for u in self._in_flight)

    def _wait_for(self, u: NodeId) -> None:
        """A wait for u, now, with what takes it there."""
        for end in self._problem.ends.get(u, ()):
            needs, open_ = list[NodeId](), [end]
            while open_:
                v = open_.pop()
                if self._done[v] or v in needs:
                    continue
                if launched_on(self._problem.nodes[v]):
                    break
                needs.append(v)
                open_ += self._problem.predecessors[v]
            else:
                self.emit(end)
                return
        raise _CannotBeError
