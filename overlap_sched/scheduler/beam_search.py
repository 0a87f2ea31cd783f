"""Small graphs: a beam search over what has run, instead of one greedy choice after another.

A state is a set of nodes that have run, with the clock, the streams and the memory that its best order leaves. From
every state the next few ready nodes are tried; of the states with equally many nodes run the best few are kept, by a
bound on the step that can still come of them::

    bound = max( clock + compute that is left,  longest path from what is ready or in flight,
                 per group: when its stream is free + its time that is left )

A wait that would stall is tried as well: to stand still right behind a launch may pay, where what that collective lets
go of is what the next launch needs (FSDP that gathers its weights again, where the network binds)::

    as compute goes   scatter_3  dgrad_3 ....... scatter_3's wait  gather_2  ......  wgrad_2
    with a stall      scatter_3  scatter_3's wait  gather_2  dgrad_3  wgrad_2

What costs neither time nor memory (views, waits for what is finished) runs at once and is never a choice. As
the main loop does (:mod:`overlap_sched.scheduler.admission`), a search may keep only states behind which all the rest
fits in the reference order: then few states are enough, as none of them leads nowhere. Without that it also finds
orders that no such run can reach, and may find none. As long as no state is dropped, what it finds is optimal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
import numpy.typing as npt

from overlap_sched.problem.precedence import Pair
from overlap_sched.scheduler.beam_states import Beam, BeamState, BeamTables
from overlap_sched.scheduler.candidate import SAME_STEP, Candidate
from overlap_sched.scheduler.portfolio import close_enough, lowest_peak, simple_bound_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.stage import Context

LOOKS, FEWEST = 1_000, 4
"""A unit of effort is worth so many states, by their nodes; no search is worth it with fewer states than the second."""

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


@dataclass(frozen=True)
class BeamSearchResult:
    """What the search found: an order, its step and peak; and how many states it looked at."""

    order: tuple[int, ...] | None
    step_us: float
    peak_bytes: int
    looked: int


def search_small(context: Context, best: Candidate) -> Candidate:
    """The stage: what searches find on a graph so small that they are worth it, else the candidate given."""
    task, widest = context.task, context.task.options.effort * LOOKS // len(context.reference.order)
    if widest < FEWEST or task.problem.contention:
        return best
    enough_us = simple_bound_us(task.problem, context.reference.priorities()) * close_enough(task)
    for search in SEARCHES:
        if best.step_us <= enough_us:
            break
        reference = _reference(context, best, search)
        if reference is None or (not search.falls_back and widest < search.width):
            continue
        found = beam_search(
            reference,
            task.limit,
            task.pairs,
            best.step_us * (1 - SAME_STEP),
            search._replace(width=min(search.width, widest)),
        )
        work = Work(looked=found.looked)
        if found.order is None:
            best = best.after(work)
            continue
        reasons: dict[int, Reason] = dict.fromkeys(task.problem.collectives, "searched")
        best = Candidate(found.order, found.step_us, found.peak_bytes, reasons, {}, best.work.plus(work))
    return best


def _reference(context: Context, best: Candidate, search: Beam) -> Reference | None:
    """The order that a search starts from; ``None``: it is not within the budget, or no other than the base."""
    task, base = context.task, context.reference
    if search.start == "base":
        return base
    order = best.order if search.start == "best" else lowest_peak(task).order
    if list(order) == base.order or not task.within_budget(order):
        return None
    return Reference(task.problem, order, base.live_ranges)


def beam_search(
    reference: Reference, limit: npt.NDArray[np.int64], pairs: Sequence[Pair], beat_us: float, search: Beam
) -> BeamSearchResult:
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
    ended = list(layers[-1].values())
    if not ended:
        return BeamSearchResult(None, beat_us, 0, tables.looked)
    order = tuple(reference.order[at] for at in _unwound(ended[0]))
    return BeamSearchResult(order, ended[0].bound_us, ended[0].peak_bytes, tables.looked)


_SCORES: dict[str, Callable[[BeamState], tuple[float, float, float]]] = {
    "clock": lambda state: (state.bound_us, state.clock_us + state.left_us, state.live_bytes),
    "bytes": lambda state: (state.bound_us, state.live_bytes, state.clock_us + state.left_us),
    "streams": lambda state: (
        state.bound_us,
        sum(state.streams_us) + sum(state.free_us),
        state.clock_us + state.left_us,
    ),
    "launches": lambda state: (state.bound_us, sum(state.streams_us), state.live_bytes),
}


def _unwound(state: BeamState) -> tuple[int, ...]:
    order = []
    while state.trail is not None:
        v, state = state.trail
        order.append(v)
    return tuple(reversed(order))
