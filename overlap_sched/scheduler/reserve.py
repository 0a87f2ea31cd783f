"""An order that torch's caching allocator can hold in what the original order needs.

Live bytes within the budget are not enough: another order leaves other holes. What the original order needs is replayed
once (:mod:`overlap_sched.peak_memory.allocator.reserved`); the order found must, in plain figures:

    reserve at most 3 % more on a device without a limit,
    run, with at most one retry, in as much as the original reserves there without any,
    run in the smallest capacity in which the original runs, plus 0.2 %;

each plus the headroom; and plus two segments where the original reserves less than 1 GiB: single ones decide there.
Where it does not: the same order without its shift; then runs beside an allocator that admits no more than the original
reserves (:mod:`overlap_sched.scheduler.allocator_gate`); then the nearest of them mended where they fail
(:mod:`overlap_sched.scheduler.repair`). Where none of these can be held within two percent of the step: runs within
tighter budgets, between what is live in the original order at each place and its peak, as less that is in flight leaves
fewer holes; then orders nearer and nearer to the original one, which can be held itself
(:func:`overlap_sched.scheduler.relink.between`). Where what can be held is not close to the best: a random walk from
those that can be held, or nearly, and from those that are short (:mod:`overlap_sched.scheduler.wander`). The shortest
that can be held at the price asked for (``Options.allocator_cost``). Where nothing can be held at that price, what
loses least within it, a percent of memory counting as much as a percent of the step. Then shifts that go less far.

What would not run where the original order does, not even with a few MiB more, is never taken: instead the shortest
that does, whatever it costs. Runs within tighter budgets once more, mended; walks to steps between the best one and the
shortest that runs; then orders nearer to the original one, which is the last resort itself.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise, takewhile

from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve, Tried, held_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.repair import ROOMS
from overlap_sched.scheduler.reserve_runs import nearer_orders, runs_beside_an_allocator, tighter_runs
from overlap_sched.scheduler.result import Faster, Work
from overlap_sched.scheduler.shift import shift
from overlap_sched.scheduler.wander import WORTH, wandered

CLOSE, HELD = 1.005, 1.02
"""Parts of the best step. Where an order can be held within the first, nothing more is tried; within the second, no
tighter budgets and no nearer orders."""
MENDED = 1.03
"""Orders whose step is within this part of the best, or may be taken, are mended, those first that break least."""
RUNS, REPAIRS = 2, 0.5
"""Per unit of effort: runs beside an allocator, and orders mended, each of which takes as long as several runs."""
MENDABLE = 0.2
"""What lacks more of what the original order reserves is not mended: that does not come to an end."""
MENDED_THERE = 2
"""So many of the orders within tighter budgets are mended."""
LONGER = (HELD, 1.05, 1.1, 1.2, 1.5, math.inf)
"""Parts of the best step that are short enough for a walk, in turn, up to the first that is no less than what may be
taken. A higher price begins with the same walks as a lower one, so that it seldom ends with a longer order."""
OTHERS = 4
"""Walks go part of the way to so many of the orders that break least, too, and to those that all runs start from."""
WALK_NODES, MOST_TRIALS = 1_000_000, 300
"""Trials that a walk may make in vain, per unit of effort: so many nodes in all of them, and so many at most."""
SHORTER = 0.6
"""Part of them, where an order is held already and a walk looks for a shorter one."""
HALVINGS, HALVING_NODES = 4, 350_000
"""Walks between a step that is too short and one that is not, and the nodes in all orders that each may try in vain,
per unit of effort."""
SHIFTS = (400, 100, 25, 6)
"""Positions that a shift goes at most, in turn."""


def within_reserve(reserve: Reserve, reference: Reference, best: Candidate, walks: bool = True) -> Candidate:
    """The phase: the best order, or one near it that an allocator can hold.

    Args:
        reserve: What the order may need.
        reference: The order that runs start from.
        best: The best order behind all other phases.
        walks: Where nothing close to the best holds, also walk at random: what takes longest.
    """
    breaks = reserve.overdraft(best.order)
    if breaks == NOTHING:
        return best
    looked = _Held(reserve, reference, best, breaks)
    broken, held = looked.look(walks)
    if not reserve.runs(broken):
        broken, held = looked.at_any_price(broken, held)
    limit = reserve.task.limit_after(best)
    for farthest in SHIFTS:
        moved = shift(reserve.task, held, limit, farthest)
        if moved.step_us <= held.step_us:
            after = reserve.overdraft(moved.order)
            if after == NOTHING or (after < broken and reserve.no_worse(after, broken)):
                return moved
    return held


class _Held:
    """Orders that were tried, with what each breaks.

    Attributes:
        made: By runs. tried: all, mended and moved ones, too.
        work: What the runs took.
    """

    def __init__(self, reserve: Reserve, reference: Reference, best: Candidate, breaks: Overdraft) -> None:
        self._reserve, self._reference, self._best, self._breaks = reserve, reference, best, breaks
        self._original = reserve.task.measured(reserve.task.problem.original_order)
        self._most_us = min(best.step_us * (1 + reserve.task.options.allocator_cost / 100), self._original.step_us)
        self.made, self._seen, self.work = [(breaks, best)], {best.order}, best.work
        if best.unshifted is not None and best.unshifted not in self._seen:
            self._note(reserve.task.remeasured(best, best.unshifted))
        self.tried = list(self.made)

    def look(self, walks: bool) -> Tried:
        """The shortest order that breaks nothing; where there is none, the one near the best that breaks least."""
        effort, enough_us = self._reserve.task.options.effort, min(self._most_us, self._best.step_us * HELD)
        self._run_beside_an_allocator()
        self._mend(int(REPAIRS * effort))
        if self.held_us > enough_us:
            for found in tighter_runs(self._reserve, self._reference, self._limit_us):
                self._run(found)
            self._mend(MENDED_THERE)
        if self.held_us > enough_us:
            self._try_nearer()
        if walks and self.held_us > self._best.step_us * CLOSE:
            self._walk()
        broken, found = chosen(self.tried, self._best.step_us, self._most_us, self._reserve.reserved_bytes)
        return broken, replace(found, work=self.work)

    def at_any_price(self, broken: Overdraft, found: Candidate) -> Tried:
        """The shortest that runs where the original order does, or with a few MiB more; else what was found."""
        strict, self._reserve, self._most_us = self._reserve, self._reserve.lenient, self._original.step_us
        if strict.task.within_budget(self._original.order):
            self.tried.append((NOTHING, self._original))
        self.made, self.tried = self._again(self.made), self._again(self.tried)
        for run in tighter_runs(self._reserve, self._reference, self._most_us):
            self._run(run)
        self._mend(MENDED_THERE)
        self._halve()
        if self.held_us >= self._original.step_us:
            self._try_nearer()
        self._reserve = strict
        for lacks, shortest in sorted(self.tried, key=lambda pair: pair[1].step_us):
            if lacks == NOTHING and strict.runs(lacks := strict.overdraft(shortest.order)):
                faster = Faster(self._best.step_us, self._breaks.over_bytes)
                return lacks, replace(shortest, work=self.work, faster=faster)
        return broken, replace(found, work=self.work)

    def _again(self, tried: Iterable[Tried]) -> list[Tried]:
        """The same, with what they break now."""
        return [(self._reserve.overdraft(found.order), found) for _, found in tried]

    def _halve(self) -> None:
        """Walk to a step between one that is too short and the shortest that breaks nothing."""
        trials = self._reserve.task.options.effort * HALVING_NODES // max(len(self._best.order), 1)
        low_us, high_us = self._best.step_us, min(self.held_us, self._most_us)
        for _ in range(HALVINGS if trials else 0):
            middle_us = math.sqrt(low_us * high_us)
            self._wander(middle_us, min(trials, MOST_TRIALS))
            if self.held_us <= high_us * (1 - WORTH):
                high_us = self.held_us
                low_us = low_us if low_us < high_us else self._best.step_us
            else:
                low_us = middle_us
            if high_us <= low_us * HELD:
                break

    @property
    def held_us(self) -> float:
        """The shortest step in microseconds of what breaks nothing; infinite where all do."""
        return held_us(self.tried)

    @property
    def _limit_us(self) -> float:
        """What takes longer is not taken."""
        return min(self._most_us, self.held_us)

    @property
    def _mended_us(self) -> float:
        """What takes longer is not worth mending."""
        return min(max(self._best.step_us * MENDED, self._most_us), self.held_us)

    def _note(self, found: Candidate) -> Tried:
        pair = self._reserve.overdraft(found.order), found
        self._seen.add(found.order)
        self.made.append(pair)
        return pair

    def _run(self, found: Candidate | Work) -> None:
        """Note a run, and what it has made where that is new."""
        self.work = self.work.plus(found if isinstance(found, Work) else found.work)
        if not isinstance(found, Work) and found.order not in self._seen:
            self.tried.append(self._note(found))

    def _run_beside_an_allocator(self) -> None:
        """Until an order near the best is held, or no shorter one has been for a while."""
        task, best_us, after_us, in_vain = self._reserve.task, self._best.step_us, self.held_us, 0
        for run in islice(runs_beside_an_allocator(self._reserve, self._reference), RUNS * task.options.effort):
            after_us, before_us = self.held_us, after_us
            in_vain = 0 if after_us < before_us or after_us == math.inf else in_vain + 1
            if after_us <= best_us * CLOSE or in_vain >= task.options.effort:
                break
            self._run(run(beat_us=min(self._original.step_us, self._mended_us)))  # what is longer is never chosen

    def _mend(self, most: int) -> None:
        """Mend the nearest of what was made, so many at most."""
        for found in self._nearest()[:most]:
            if self.held_us <= self._best.step_us * CLOSE:
                break
            self.tried += self._repairs(found)

    def _nearest(self) -> list[Candidate]:
        """What is worth mending: shorter than what can be held already, not far from the best, lacking not too much.

        First what breaks least, to a hundredth of what may be reserved; of those, the shortest, to a thousandth.
        """
        reserved_bytes, best_us = max(self._reserve.reserved_bytes, 1), self._best.step_us

        def key(pair: Tried) -> tuple[int, ...]:
            broken, found = pair
            hundredths, thousandths = 100 * broken.over_bytes // reserved_bytes, int(1000 * found.step_us / best_us)
            return broken.out_of_memory, broken.retries, hundredths, thousandths, broken.over_bytes

        worth = [pair for pair in self.made if pair[0] != NOTHING and pair[1].step_us < self._mended_us]
        return [found for broken, found in sorted(worth, key=key) if broken.over_bytes <= MENDABLE * reserved_bytes]

    def _repairs(self, found: Candidate) -> Iterator[Tried]:
        """A candidate mended by moving little; where that fits and takes longer, also by what keeps the step short."""
        for rooms in ROOMS:
            mended = self._reserve.repaired(found, rooms)
            broken = self._reserve.overdraft(mended.order)
            yield broken, mended
            if broken != NOTHING or mended.step_us <= self._best.step_us * CLOSE:
                break

    def _walk(self) -> None:
        """Move at random: to what is held, first to what is short; if in vain, to what is shorter than is held."""
        nodes, before_us = max(len(self._best.order), 1), self.held_us
        trials = self._reserve.task.options.effort * min(WALK_NODES // nodes, MOST_TRIALS)
        for enough_us in self._enough_us():
            if self.held_us == before_us and enough_us < before_us:
                self._wander(enough_us, trials)
        if self.held_us == before_us and before_us <= self._most_us:
            self._wander(before_us * (1 - WORTH), int(SHORTER * trials))

    def _enough_us(self) -> list[float]:
        """Steps that are short enough for a walk, in turn.

        The last may be longer than what may be taken: once an order is held there, the walk goes on to shorter ones.
        """
        most, original_us = 1 + self._reserve.task.options.allocator_cost / 100, self._original.step_us
        parts = [min(HELD, most), *(part for before, part in pairwise(LONGER) if before < most)]
        return [min(self._best.step_us * part, original_us) for part in parts]

    def _wander(self, enough_us: float, trials: int) -> None:
        """Move so often, from all that was tried."""
        others = [self._original.order, tuple(self._reference.order)]
        others += [found.order for found in _distinct(self.tried)[:OTHERS]]
        found = wandered(self._reserve, self.tried, self._best, others, enough_us, trials)
        self.tried += [(self._reserve.overdraft(each.order), each) for each in found]

    def _try_nearer(self) -> None:
        """The original order, and others nearer and nearer to what runs start from, until some can be held."""
        task, original = self._reserve.task, self._original
        if original.step_us <= self._most_us and task.within_budget(original.order):
            self.tried.append((self._reserve.overdraft(original.order), original))
        for alike in nearer_orders(task, self._reference, self._best):
            short = list(takewhile(lambda found: found.step_us <= self._limit_us, alike))
            judged = [(self._reserve.overdraft(found.order), found) for found in short]
            self.tried += judged
            if not judged or any(broken == NOTHING for broken, _ in judged):
                break  # those that come nearer take longer still


def chosen(tried: Sequence[Tried], best_us: float, most_us: float, reserved_bytes: int) -> Tried:
    """The shortest that breaks nothing; else what runs at all, with the fewest retries; of that, what loses the least.

    Args:
        tried: Orders, with what each breaks.
        best_us: The shortest step, in microseconds.
        most_us: What takes longer is not taken.
        reserved_bytes: By the original order. A percent of it is worth as much as a percent of the best step.
    """
    far = [pair for pair in tried if pair[1].step_us <= most_us]
    kept = [pair for pair in far if pair[0] == NOTHING]
    if kept:
        return min(kept, key=lambda pair: pair[1].step_us)

    def key(pair: Tried) -> tuple[bool, int, float]:
        broken, found = pair
        lost = broken.over_bytes / max(reserved_bytes, 1) + found.step_us / (best_us or 1.0)
        return broken.out_of_memory, broken.retries, lost

    return min(far, key=key)


def _distinct(tried: Iterable[Tried]) -> list[Candidate]:
    """Those that break least first; of all that break as much, the shortest: most of them fail for the same reason."""
    ordered = sorted(tried, key=lambda pair: (pair[0], pair[1].step_us), reverse=True)
    return list(dict(ordered).values())[::-1]
