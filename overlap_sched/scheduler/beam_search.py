"""Small graphs: a beam search over what has run, instead of one greedy choice after another.

A state is a set of nodes that have run, with the clock, the streams and the memory that its best order leaves. From
every state the next few ready nodes are tried; of the states with equally many nodes run the best few are kept, by a
bound on the step that can still come of them::

    bound = max( clock + compute that is left,  longest path from what is ready or in flight,
                 per group: when its stream is free + its time that is left )

A wait that would stall is tried as well: to stall right behind a launch may pay, where what that collective lets
go of is what the next launch needs (FSDP that gathers its weights again, where the network binds)::

    as compute goes   scatter_3  dgrad_3 ....... scatter_3's wait  gather_2  ......  wgrad_2
    with a stall      scatter_3  scatter_3's wait  gather_2  dgrad_3  wgrad_2

What costs neither time nor memory (views, waits for what is finished) runs at once and is never a choice. As
the main loop does (:mod:`overlap_sched.scheduler.admission`), a search may keep only states behind which all the rest
fits in the reference order: then few states are enough, as none of them leads nowhere. Without that it also finds
orders that no such run can reach, and may find none. As long as no state is dropped, what it finds is optimal.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.runs import close_enough, lowest_peak, simple_bound_us
from overlap_sched.scheduler.task import SAME_STEP, TUNING, Candidate, Reason, Reference, SchedulerRun, Task, Work


class Beam(NamedTuple):
    """What one search looks at.

    Attributes:
        width: States kept per number of nodes run.
        tried: So many compute nodes, and launches of each stream, are tried next: the first of the reference order.
        falls_back: Are only states kept from which the rest fits in the reference order?
        by: Which of states with the same bound are kept: those with the earliest clock, the fewest bytes live, the
            streams that are done first, or the least left to launch.
        start: The reference: the order of the base, that with the lowest peak, or the best so far.
    """

    width: int
    tried: int = 1_000_000
    falls_back: bool = True
    by: Literal["clock", "bytes", "streams", "launches"] = "clock"
    start: Literal["base", "lowest", "best"] = "base"


class BeamState(NamedTuple):
    """Nodes that have run (as bits), and where that leaves everything; ``trail`` leads back to the beginning.

    Nodes are called by their places in the reference order. A named tuple, as hundreds of thousands are made: a frozen
    dataclass takes several times as long.
    """

    done: int
    ready: tuple[int, ...]  # what takes time on some stream, or memory
    still: tuple[int, ...]  # what takes neither: views and waits
    clock_us: float
    left_us: float  # compute
    free_us: tuple[float, ...]  # per group: when its stream is free
    streams_us: tuple[float, ...]  # per group: time of what has not been launched
    in_flight: tuple[tuple[int, float], ...]  # collectives with waits still to come: when each is finished
    live_bytes: int
    peak_bytes: int
    steps: int
    bound_us: float
    trail: "tuple[int, BeamState] | None"


class BeamTables:
    """What stays the same for all states, as bits and tables, by places in the reference order."""

    def __init__(self, reference: Reference, limit: npt.NDArray[np.int64], pairs: Sequence[Pair], search: Beam) -> None:
        problem, ranges, order, place = reference.problem, reference.live_ranges, reference.order, reference.position
        priorities, times, (before, after) = reference.priorities(), reference.times, neighbours(problem, pairs)
        self.looked, self._search, self._fits = 0, search, {(1 << len(order)) - 1: True}
        self.limit = np.broadcast_to(limit, len(order)).tolist()
        self.before = [_bits(place[u] for u in before[v]) for v in order]
        self.after = [tuple(sorted(place[u] for u in after[v])) for v in order]
        nodes = [problem.nodes[v] for v in order]
        self.stream = [times.stream[v] if problem.nodes[v].kind is Kind.COLLECTIVE else None for v in order]
        self.waits_for = [-1 if node.collective is None else place[node.collective] for node in nodes]
        self.waits = [_bits(place[w] for w in problem.waits.get(v, ())) for v in order]
        self.alloc, self.kept = [ranges.alloc_bytes[v] for v in order], [ranges.kept_bytes[v] for v in order]
        users = [_bits(at) for at in reference.users]
        self.frees = [[(users[s], size) for s, size in ranges.dying[v]] for v in order]
        self.costs = [reference.costs[v] for v in order]
        self.level_us = [priorities.bottom_level_us[v] for v in order]
        self.time_us = [node.time_us for node in nodes]
        self.waited_us = [  # of a collective: the longest path from its start to the end through its waits
            node.time_us + max((priorities.bottom_level_us[w] for w in problem.waits.get(v, ())), default=0.0)
            for v, node in zip(order, nodes, strict=True)
        ]
        begin = [at for at, need in enumerate(self.before) if not need]
        self.start = BeamState(  # nothing has run
            done=0,
            ready=tuple(at for at in begin if self.costs[at]),
            still=tuple(at for at in begin if not self.costs[at]),
            clock_us=0.0,
            left_us=priorities.total_us,
            free_us=(0.0,) * len(times.streams),
            streams_us=tuple(priorities.stream_us.get(group, 0.0) for group in times.streams),
            in_flight=(),
            live_bytes=ranges.input_bytes,
            peak_bytes=0,
            steps=0,
            bound_us=0.0,
            trail=None,
        )

    def successors(self, state: BeamState) -> Iterator[BeamState]:
        """States behind one more node, with all that costs nothing run after it."""
        room = self.limit[state.steps] - state.live_bytes
        for v in self._tried(state):
            if self.alloc[v] <= room:
                self.looked += 1
                after = self.settled(self.run(state, v))
                if not self._search.falls_back or self._completes(after):
                    yield after

    def _tried(self, state: BeamState) -> list[int]:
        """The first few compute nodes, the first few launches of each stream, and the first wait to end."""
        tried, left = [], dict.fromkeys((None, *range(len(state.free_us))), self._search.tried)
        for v in state.ready:
            if left[self.stream[v]]:
                left[self.stream[v]] -= 1
                tried.append(v)
        if state.still:
            tried.append(min(state.still, key=lambda v: self._finish_us(state, v)))
        return tried

    def _completes(self, state: BeamState) -> bool:
        """Does all that has not run fit in the reference order?"""
        done, live, steps, passed = state.done, state.live_bytes, state.steps, list[int]()
        while (fits := self._fits.get(done)) is None:
            passed.append(done)
            first = ~done & done + 1
            v = first.bit_length() - 1
            if live + self.alloc[v] > self.limit[steps]:
                fits = False
                break
            done |= first
            steps += 1
            live = self._live_after(v, done, live)
        self._fits.update(dict.fromkeys(passed, fits))
        return fits

    def settled(self, state: BeamState) -> BeamState:
        """Run everything that takes neither time nor memory, and say what can still come of it."""
        while (v := next((v for v in state.still if self._is_free(state, v)), None)) is not None:
            state = self.run(state, v)
        return state._replace(bound_us=self._bound_us(state))

    def _is_free(self, state: BeamState, v: int) -> bool:
        fits = state.live_bytes + self.alloc[v] <= self.limit[state.steps]
        return fits and self._finish_us(state, v) <= state.clock_us

    def _finish_us(self, state: BeamState, v: int) -> float:
        """When the collective that v waits for is finished; 0 where it waits for none of this graph."""
        collective = self.waits_for[v]
        for u, us in state.in_flight:
            if u == collective:
                return us
        return 0.0

    def _live_after(self, v: int, done: int, live: int) -> int:
        """Bytes live once v has run, with so many before it; ``done``: what has run then."""
        live += self.kept[v]
        for users, size in self.frees[v]:
            if not users & ~done:
                live -= size
        return live

    def run(self, state: BeamState, v: int) -> BeamState:
        """The state after v."""
        done, ready, still, clock_us, left_us, free_us, streams_us, in_flight, live, peak, steps, _, _ = state
        k = self.stream[v]
        done |= 1 << v
        if k is not None:
            finish_us = max(clock_us, free_us[k]) + self.time_us[v]
            free_us = (*free_us[:k], finish_us, *free_us[k + 1 :])
            streams_us = (*streams_us[:k], streams_us[k] - self.time_us[v], *streams_us[k + 1 :])
            in_flight = (*in_flight, (v, finish_us)) if self.waits[v] else in_flight
        elif self.waits_for[v] >= 0:
            clock_us = max(clock_us, self._finish_us(state, v))
            in_flight = tuple(pair for pair in in_flight if self.waits[pair[0]] & ~done)
        else:
            clock_us += self.time_us[v]
            left_us -= self.time_us[v]
        peak, live = max(peak, live + self.alloc[v]), self._live_after(v, done, live)
        ready, still = tuple(u for u in ready if u != v), tuple(u for u in still if u != v)
        if opened := [w for w in self.after[v] if not self.before[w] & ~done]:
            ready = tuple(sorted((*ready, *(w for w in opened if self.costs[w]))))
            still = (*still, *(w for w in opened if not self.costs[w]))
        trail = (v, state)
        return BeamState(
            done, ready, still, clock_us, left_us, free_us, streams_us, in_flight, live, peak, steps + 1, 0.0, trail
        )

    def _bound_us(self, state: BeamState) -> float:
        """No order that goes on from here is shorter."""
        clock_us, free_us, level_us = state.clock_us, state.free_us, self.level_us
        bound_us = max(clock_us + state.left_us, *free_us)
        for is_free_us, left_us in zip(free_us, state.streams_us, strict=True):
            if left_us > 0:
                bound_us = max(bound_us, max(clock_us, is_free_us) + left_us)
        for v in state.ready:
            k = self.stream[v]
            if k is not None:  # who needs its launch only does not wait for its stream
                bound_us = max(bound_us, max(clock_us, free_us[k]) + self.waited_us[v])
            bound_us = max(bound_us, clock_us + level_us[v])
        for v in state.still:
            bound_us = max(bound_us, max(clock_us, self._finish_us(state, v)) + level_us[v])
        return bound_us


def _bits(places: Iterable[int]) -> int:
    """A set of places as one integer."""
    return sum({1 << at for at in places})


SEARCHES = (
    Beam(8, tried=1),
    Beam(16, tried=2, start="lowest"),
    Beam(16, tried=2, start="best"),
    Beam(64, falls_back=False),
    Beam(64, falls_back=False, by="bytes"),
    Beam(64, falls_back=False, by="streams"),
    Beam(64, falls_back=False, by="launches"),
)
"""In the order in which they are tried, until the step is short enough."""


def search_small(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """The stage: what searches find on a graph so small that they are worth it, else the candidate given."""
    widest = task.options.effort * TUNING.beam_states // len(reference.order)
    if widest < 4 or task.problem.contention:
        return best
    enough_us = simple_bound_us(task.problem, reference.priorities()) * close_enough(task)
    for search in SEARCHES:
        if best.step_us <= enough_us:
            break
        start = _start(task, reference, best, search)
        if start is not None and (search.falls_back or widest >= search.width):
            narrowed = search._replace(width=min(search.width, widest))
            run = beam_search(start, task.limit, task.pairs, best.step_us * (1 - SAME_STEP), narrowed)
            best = replace(run.made or best, work=best.work.plus(run.work))
    return best


def _start(task: Task, base: Reference, best: Candidate, search: Beam) -> Reference | None:
    """The order that a search starts from; ``None``: it is not within the budget, or no other than the base."""
    if search.start == "base":
        return base
    order = best.order if search.start == "best" else lowest_peak(task).order
    return None if list(order) == base.order or not task.within_budget(order) else base.reordered(order)


def beam_search(
    reference: Reference, limit: npt.NDArray[np.int64], pairs: Sequence[Pair], beat_us: float, search: Beam
) -> SchedulerRun:
    """The best order found that is shorter than ``beat_us``.

    Args:
        reference: A valid order within the budget, with its keys.
        limit: Budget in bytes, a scalar or one value per position.
        pairs: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already.
        search: What is looked at.
    """
    tables, score = BeamTables(reference, limit, pairs, search), _SCORES[search.by]
    layers: list[dict[int, BeamState]] = [{} for _ in range(len(reference.order) + 1)]  # by nodes run, by which
    first = tables.settled(tables.start)
    layers[first.steps][first.done] = first
    for layer in layers[:-1]:
        for state in nsmallest(search.width, layer.values(), key=score):
            for after in tables.successors(state):
                others = layers[after.steps]
                known = others.get(after.done)
                if after.bound_us < beat_us and (known is None or score(after) < score(known)):
                    others[after.done] = after
        layer.clear()
    work = Work(looked=tables.looked)
    if not layers[-1]:
        return SchedulerRun(work)
    (end,) = layers[-1].values()
    order, state = list[NodeId](), end
    while state.trail is not None:
        at, state = state.trail
        order.append(reference.order[at])
    reasons: dict[NodeId, Reason] = dict.fromkeys(reference.problem.collectives, "searched")
    return SchedulerRun(work, Candidate(tuple(reversed(order)), end.bound_us, end.peak_bytes, reasons))


_SCORES: dict[str, Callable[[BeamState], tuple[float, float, float]]] = {
    "clock": lambda one: (one.bound_us, one.clock_us + one.left_us, one.live_bytes),
    "bytes": lambda one: (one.bound_us, one.live_bytes, one.clock_us + one.left_us),
    "streams": lambda one: (one.bound_us, sum(one.streams_us) + sum(one.free_us), one.clock_us + one.left_us),
    "launches": lambda one: (one.bound_us, sum(one.streams_us), one.live_bytes),
}
