"""Small graphs: a beam search over what has run, instead of one greedy choice after another.

A state is a set of nodes that have run, with the clock, the streams and the memory that its best order leaves. From
every state each ready node that fits is tried; of the states with equally many nodes run the best few are kept, by a
bound on the step that can still come of them::

    bound = max( clock + compute that is left,  longest path from what is ready or in flight,
                 per group: when its stream is free + its time that is left )

What costs neither time nor memory (views, waits for what is finished) runs at once and is never a choice. Memory is
counted step by step against the budget; there is no reference order to fall back on, so the search also finds orders
that a list scheduler cannot reach, and may find none. As long as no state is dropped, what it finds is optimal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate
from overlap_sched.scheduler.portfolio import close_enough, simple_bound_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.stage import Context

LOOKS, MOST_WIDE, LEAST_WIDE = 1_000, 64, 32
"""States that a unit of effort may look at, the widest beam, and the narrowest that is worth it."""


class _State(NamedTuple):
    """Nodes that have run (as bits), and where that leaves everything; ``trail`` leads back to the beginning.

    A named tuple, as hundreds of thousands are made: a frozen dataclass takes several times as long.
    """

    done: int
    ready: tuple[int, ...]
    clock_us: float
    left_us: float  # compute
    free_us: tuple[float, ...]  # per group: when its stream is free
    streams_us: tuple[float, ...]  # per group: time of what has not been launched
    in_flight: tuple[tuple[int, float], ...]  # collectives with waits still to come: when each is finished
    live_bytes: int
    peak_bytes: int
    steps: int
    bound_us: float
    trail: "tuple[int, _State] | None"


@dataclass(frozen=True)
class BeamSearchResult:
    """What the search found: an order, its step and peak; and how many states it looked at."""

    order: tuple[int, ...] | None
    step_us: float
    peak_bytes: int
    looked: int


def search_small(context: Context, best: Candidate) -> Candidate:
    """The stage: what the search finds on a graph so small that it is worth it, else the candidate given."""
    task, reference = context.task, context.reference
    width = min(task.options.effort * LOOKS // len(reference.order), MOST_WIDE)
    if width < LEAST_WIDE or task.problem.contention:
        return best
    if best.step_us <= simple_bound_us(task.problem, reference.priorities()) * close_enough(task):
        return best
    found = beam_search(reference, task.limit, task.pairs, best.step_us * (1 - SAME_STEP), width)
    work = Work(looked=found.looked)
    if found.order is None:
        return best.after(work)
    reasons: dict[int, Reason] = dict.fromkeys(task.problem.collectives, "searched")
    return Candidate(found.order, found.step_us, found.peak_bytes, reasons, {}, best.work.plus(work))


def beam_search(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    pairs: Sequence[Pair],
    beat_us: float,
    width: int,
) -> BeamSearchResult:
    """The best order found that is shorter than ``beat_us``.

    Args:
        reference: The original order, with its keys.
        limit: Budget in bytes, a scalar or one value per position.
        pairs: Extra pairs (before, after) that the order must keep.
        beat_us: A step that has been reached already.
        width: States kept per number of nodes run.
    """
    tables = _Tables(reference, limit, pairs)
    layers: list[dict[int, _State]] = [{} for _ in range(len(reference.order) + 1)]  # by nodes run, by which
    first = tables.settled(tables.start())
    layers[first.steps][first.done] = first
    for layer in layers[:-1]:
        for state in nsmallest(width, layer.values(), key=_score):
            for after in tables.successors(state):
                others = layers[after.steps]
                known = others.get(after.done)
                if after.bound_us < beat_us and (known is None or _score(after) < _score(known)):
                    others[after.done] = after
        layer.clear()
    ended = list(layers[-1].values())
    if not ended:
        return BeamSearchResult(None, beat_us, 0, tables.looked)
    return BeamSearchResult(_unwound(ended[0]), ended[0].bound_us, ended[0].peak_bytes, tables.looked)


def _score(state: _State) -> tuple[float, float, int]:
    return state.bound_us, state.clock_us + state.left_us, state.live_bytes


def _unwound(state: _State) -> tuple[int, ...]:
    order = []
    while state.trail is not None:
        v, state = state.trail
        order.append(v)
    return tuple(reversed(order))


class _Tables:
    """What stays the same for all states, as bits and tables, most of them by node id."""

    def __init__(self, reference: Reference, limit: npt.NDArray[np.int64], pairs: Sequence[Pair]) -> None:
        problem, ranges = reference.problem, reference.live_ranges
        self.nodes, self.reference, self.looked = problem.nodes, reference, 0
        self.limit = np.broadcast_to(limit, len(self.nodes)).tolist()
        before, self.after = neighbours(problem, pairs)
        self.before = [_bits(b) for b in before]
        self.users = [_bits(reference.order[at] for at in users) for users in reference.users]
        self.waits = {v: _bits(w) for v, w in problem.waits.items()}
        self.groups = {group: k for k, group in enumerate(problem.groups)}
        self.stream = [self.groups[node.group or ""] if node.kind is Kind.COLLECTIVE else None for node in self.nodes]
        self.alloc, self.kept, self.freed = list(ranges.alloc_bytes), list(ranges.kept_bytes), list(ranges.freed_size)
        self.costs = reference.costs
        self.level_us = list(reference.priorities().bottom_level_us)
        self.waited_us = {  # per collective: the longest path from its start to the end through its waits
            v: self.nodes[v].time_us + max((self.level_us[w] for w in problem.waits.get(v, ())), default=0.0)
            for v in problem.collectives
        }

    def start(self) -> _State:
        """Nothing has run."""
        ready = tuple(v for v in self.reference.order if not self.before[v])
        idle = (0.0,) * len(self.groups)
        streams = tuple(
            sum(node.time_us for node in self.nodes if node.kind is Kind.COLLECTIVE and node.group == group)
            for group in self.groups
        )
        live = self.reference.live_ranges.input_bytes
        return _State(0, ready, 0.0, self.reference.priorities().total_us, idle, streams, (), live, 0, 0, 0.0, None)

    def successors(self, state: _State) -> Iterator[_State]:
        """One state per ready node that fits, with all that costs nothing run after it."""
        room = self.limit[state.steps] - state.live_bytes
        for v in state.ready:
            if self.alloc[v] <= room:
                self.looked += 1
                yield self.settled(self.run(state, v))

    def settled(self, state: _State) -> _State:
        """Run everything that takes neither time nor memory, and say what can still come of it."""
        while (v := self._free(state)) is not None:
            state = self.run(state, v)
        return state._replace(bound_us=self._bound_us(state))

    def _free(self, state: _State) -> int | None:
        """The first ready node that takes neither."""
        for v in state.ready:
            if (
                not self.costs[v]
                and state.live_bytes + self.alloc[v] <= self.limit[state.steps]
                and self._finish_us(state, v) <= state.clock_us
            ):
                return v
        return None

    def _finish_us(self, state: _State, v: int) -> float:
        """When the collective that v waits for is finished; 0 where it waits for none of this graph."""
        collective = self.nodes[v].collective
        if collective is not None:
            for u, us in state.in_flight:
                if u == collective:
                    return us
        return 0.0

    def run(self, state: _State, v: int) -> _State:
        """The state after v."""
        done, ready, clock_us, left_us, free_us, streams_us, in_flight, live, peak, steps, _, _ = state
        node, k = self.nodes[v], self.stream[v]
        done |= 1 << v
        if k is not None:
            finish_us = max(clock_us, free_us[k]) + node.time_us
            free_us = (*free_us[:k], finish_us, *free_us[k + 1 :])
            streams_us = (*streams_us[:k], streams_us[k] - node.time_us, *streams_us[k + 1 :])
            in_flight = (*in_flight, (v, finish_us)) if v in self.waits else in_flight
        elif node.kind is Kind.WAIT:
            clock_us = max(clock_us, self._finish_us(state, v))
            in_flight = tuple(pair for pair in in_flight if self.waits[pair[0]] & ~done)
        else:
            clock_us += node.time_us
            left_us -= node.time_us
        peak = max(peak, live + self.alloc[v])
        live += self.kept[v]
        for s in node.use:
            if not self.users[s] & ~done:
                live -= self.freed[s]
        at = ready.index(v)
        ready = (*ready[:at], *ready[at + 1 :], *[w for w in self.after[v] if not self.before[w] & ~done])
        trail = (v, state)
        return _State(done, ready, clock_us, left_us, free_us, streams_us, in_flight, live, peak, steps + 1, 0.0, trail)

    def _bound_us(self, state: _State) -> float:
        """No order that goes on from here is shorter."""
        clock_us, free_us, level_us = state.clock_us, state.free_us, self.level_us
        bound_us = max(clock_us + state.left_us, *free_us)
        for is_free_us, left_us in zip(free_us, state.streams_us, strict=True):
            if left_us > 0:
                bound_us = max(bound_us, max(clock_us, is_free_us) + left_us)
        for v in state.ready:
            at_us, k = clock_us, self.stream[v]
            if k is not None:  # who needs its launch only does not wait for its stream
                bound_us = max(bound_us, max(at_us, free_us[k]) + self.waited_us[v])
            elif self.nodes[v].collective is not None:
                at_us = max(at_us, self._finish_us(state, v))
            bound_us = max(bound_us, at_us + level_us[v])
        return bound_us


def _bits(ids: Iterable[int]) -> int:
    """A set of ids as one integer."""
    bits = 0
    for v in ids:
        bits |= 1 << v
    return bits
