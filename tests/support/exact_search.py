"""A small graph as bit sets (a node's id is its bit), from the fields of its nodes alone.

The shortest step within a memory budget, by search over the sets of nodes that have run.

What is live after some nodes have run does not depend on their order: only on the set. Neither does what may run
next. So an order is a path of sets, from none to all, along edges that fit the budget; what the path adds is time: the
clock, when each stream is free, when each collective in flight ends. Of two paths to one set, one that is no later in
all of these is as good as the other everywhere after. The search (A*: Hart, Nilsson and Raphael 1968) takes the path
with the least lower bound first, so the first one that is complete is the best.

Shares nothing with the scheduler, nor with the judges: it reads the fields of the nodes.
"""

import heapq
from functools import cache
from operator import add, le
from typing import NamedTuple

from overlap_sched.problem import Kind, Problem


class Facts:
    """What the search asks.

    Attributes:
        need: Per node, what must have run before it. waits: its waits if it is a collective.
        takes_bytes: Per node, what its step brings to life. keeps_bytes: the part of it that outlives the step.
        dying: (all users, bytes) of each storage that dies once they have run.
        inputs_bytes: Live from the start.
        bottom_level_us: Per node, the longest path from its begin to the end; of a collective, through its waits.
        launched_us: Per node, the same from its launch through what needs its launch only; 0 for all but collectives.
    """

    def __init__(self, problem: Problem) -> None:
        nodes, storages = problem.nodes, problem.storages
        maker, users, self.waits = [0] * len(storages), [0] * len(storages), [0] * len(nodes)
        for v, node in enumerate(nodes):
            for s in node.alloc:
                maker[s] = v
            for s in node.use:
                users[s] |= 1 << v
            if node.collective is not None:
                self.waits[node.collective] |= 1 << v
        self.need, self.takes_bytes, self.keeps_bytes, self.inputs_bytes = [], [], [], 0
        for v, node in enumerate(nodes):
            before = (1 << v) - 1 if node.kind is Kind.OUTPUT else 0
            for u in (*node.deps, *(maker[s] for s in node.use)):
                before |= 1 << u
            if node.collective is not None:
                before |= 1 << node.collective
            self.need.append(before & ~(1 << v))
            brought = [] if node.kind is Kind.INPUT else node.alloc
            self.takes_bytes.append(sum(storages[s].bytes for s in brought))
            self.keeps_bytes.append(sum(storages[s].bytes for s in brought if node.kind is Kind.OUTPUT or users[s]))
            if node.kind is Kind.INPUT:
                self.inputs_bytes += sum(storages[s].bytes for s in node.alloc)
        self.dying = [(users[s], size) for s, (size, pinned) in enumerate(storages) if users[s] and not pinned]
        self.bottom_level_us, self.launched_us = [0.0] * len(nodes), [0.0] * len(nodes)
        for v in range(len(nodes) - 1, -1, -1):
            self._set_levels(problem, v)

    def _set_levels(self, problem: Problem, v: int) -> None:
        """Whoever waits for a collective begins to end when it does; others that need it need its launch only."""
        node, bottom, launched = problem.nodes[v], self.bottom_level_us, self.launched_us
        bottom[v] = 0.0 if node.kind is Kind.WAIT else node.time_us
        for w in range(v + 1, len(problem.nodes)):
            if self.need[w] >> v & 1:
                after = max(bottom[w], launched[w])
                if node.kind is Kind.COLLECTIVE and problem.nodes[w].collective != v:
                    launched[v] = max(launched[v], after)
                else:
                    bottom[v] = max(bottom[v], after if node.kind is Kind.WAIT else node.time_us + after)


MOST_PATHS = 500_000
"""Paths kept, at most, before the search gives up: counted, so that every machine solves the same graphs."""


class Exact(NamedTuple):
    """The optimum.

    Attributes:
        step_us: No order that was allowed is shorter.
        order: One that is as short.
        paths: Paths kept: the work done.
    """

    step_us: float
    order: tuple[int, ...]
    paths: int


class TooLargeError(Exception):
    """More than ``MOST_PATHS`` paths."""


def shortest_step(problem: Problem, limit_bytes: int, completed_as_listed: bool = False) -> Exact | None:
    """The optimum over all valid orders that never have more than ``limit_bytes`` live; ``None``: there is none.

    Args:
        problem: A small graph.
        limit_bytes: The budget.
        completed_as_listed: Only orders every beginning of which fits the budget too when all the rest follows as
            it is listed: what a scheduler can reach that always keeps the original order to fall back on.

    Raises:
        TooLargeError: The search was given up.
    """
    search = _Search(problem, limit_bytes)
    start = _Path(0.0, (0.0,) * len(search.groups), ())
    best = {0: [start]}  # per set, paths none of which is as good as another
    # (lower bound, nodes still to run, tie, set, path, order as a linked list)
    queue: list[tuple[float, int, int, int, _Path, tuple]] = [(0.0, 0, 0, 0, start, ())]
    paths = 0
    while queue:
        least, _, _, done, path, trail = heapq.heappop(queue)
        if done == search.everything:
            order = list[int]()
            while trail:
                trail, v = trail
                order.append(v)
            return Exact(least, tuple(reversed(order)), paths)
        if path not in best[done]:
            continue  # a better one to this set has come since
        for v in search.next(done, path):
            now, then = done | 1 << v, search.after(v, done, path)
            if completed_as_listed and not search.completes(now):
                continue
            others = best.setdefault(now, [])
            if any(other.no_later(then) for other in others):
                continue
            best[now] = [other for other in others if not then.no_later(other)] + [then]
            paths += 1
            if paths > MOST_PATHS:
                raise TooLargeError(f"{problem.name}: more than {MOST_PATHS:,} paths")
            least_now = max(least, search.bound_us(now, then))
            heapq.heappush(queue, (least_now, -now.bit_count(), paths, now, then, (trail, v)))
    return None


class _Path(NamedTuple):
    """What an order so far has made of time; ends in the past count as now.

    Attributes:
        clock_us: Of the compute stream.
        free_us: When each stream is free.
        in_flight: (collective, end) of those that some wait is still to be run for, by id.
    """

    clock_us: float
    free_us: tuple[float, ...]
    in_flight: tuple[tuple[int, float], ...]

    def no_later(self, other: "_Path") -> bool:
        """Is this as good as another path to the same set?"""
        ends = [[*path.free_us, *(end for _, end in path.in_flight)] for path in (self, other)]
        return self.clock_us <= other.clock_us and all(map(le, *ends))

    def end_us(self, collective: int | None) -> float:
        """When the clock can pass a wait."""
        return max([self.clock_us, *(end for u, end in self.in_flight if u == collective)])


class _Search:
    """The graph, and what is known of the sets met so far."""

    def __init__(self, problem: Problem, limit_bytes: int) -> None:
        self.facts = Facts(problem)
        self.nodes = problem.nodes
        self.limit_bytes = limit_bytes
        self.everything = (1 << len(problem.nodes)) - 1
        self.groups = sorted({node.group for node in problem.nodes if node.group is not None})
        self.stream = [-1 if node.group is None else self.groups.index(node.group) for node in problem.nodes]
        self.left, self.live_bytes, self.completes = cache(self._left), cache(self._live_bytes), cache(self._completes)

    def next(self, done: int, path: _Path) -> list[int]:
        """The nodes to try: all that are ready and fit; or one alone that takes neither time nor memory.

        Such a node may as well run now: it only lets go of memory, and lets others run.
        """
        live = self.live_bytes(done)
        fits = [v for v in self.left(done)[2] if live + self.facts.takes_bytes[v] <= self.limit_bytes]
        for v in fits:
            still = self.stream[v] < 0 and self.after(v, done, path).clock_us == path.clock_us
            if still and self.facts.takes_bytes[v] == 0:
                return [v]
        return fits

    def after(self, v: int, done: int, path: _Path) -> _Path:
        """The path with v run behind it."""
        clock, free, in_flight = path
        if self.stream[v] >= 0:
            k = self.stream[v]
            end = free[k] + self.nodes[v].time_us
            free = (*free[:k], end, *free[k + 1 :])
            in_flight = tuple(sorted((*in_flight, (v, end))))
        elif self.nodes[v].kind is Kind.WAIT:
            clock = path.end_us(self.nodes[v].collective)
        else:
            clock += self.nodes[v].time_us
        now = done | 1 << v
        in_flight = tuple((u, max(end, clock)) for u, end in in_flight if self.facts.waits[u] & ~now)
        return _Path(clock, tuple(max(end, clock) for end in free), in_flight)

    def bound_us(self, done: int, path: _Path) -> float:
        """No order that begins so ends sooner: all compute, all of each stream, the longest path from here."""
        compute_us, stream_us, ready = self.left(done)
        least = max([path.clock_us + compute_us, *map(add, path.free_us, stream_us)])
        for v in ready:
            k = self.stream[v]
            begin = path.free_us[k] if k >= 0 else path.end_us(self.nodes[v].collective)
            least = max(least, begin + self.facts.bottom_level_us[v], path.clock_us + self.facts.launched_us[v])
        return least

    def _left(self, done: int) -> tuple[float, list[float], list[int]]:
        """What a set leaves to do: compute, time per stream, and the nodes that may run next."""
        compute, streams, ready = 0.0, [0.0] * len(self.groups), []
        for v, node in enumerate(self.nodes):
            if done >> v & 1:
                continue
            if self.stream[v] >= 0:
                streams[self.stream[v]] += node.time_us
            elif node.kind is not Kind.WAIT:
                compute += node.time_us
            if not self.facts.need[v] & ~done:
                ready.append(v)
        return compute, streams, ready

    def _live_bytes(self, done: int) -> int:
        """What is live between two steps."""
        kept = sum(bytes_ for v, bytes_ in enumerate(self.facts.keeps_bytes) if done >> v & 1)
        freed = sum(size for users, size in self.facts.dying if not users & ~done)
        return self.facts.inputs_bytes + kept - freed

    def _completes(self, done: int) -> bool:
        """Does all that has not run fit as it is listed?"""
        v = (~done & done + 1).bit_length() - 1  # the first that has not run
        fits = done == self.everything or self.live_bytes(done) + self.facts.takes_bytes[v] <= self.limit_bytes
        return fits and (done == self.everything or self.completes(done | 1 << v))
