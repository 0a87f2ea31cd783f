"""Wander to an order that an allocator can hold: moves at random, from orders that lack little and from short ones.

Where an order's results land is chance. Of orders that differ a little from one that nearly fits, one in some dozens
lacks less. But what lacks little is often too long, and what is short lacks much. So the walk keeps the Pareto front of
both (:mod:`overlap_sched.scheduler.front`). It moves one order of it a few times, more often one that is near the goal
(:mod:`overlap_sched.scheduler.moves`), and keeps what comes of that where none dominates it; those that it dominates
go::

    lacking   600 MiB  a
              200         b        c is moved; what it becomes lacks as much and is shorter: it takes its place
               40           c<-c
                0                  d
                       ---------|-------->  step
                                short enough

(SEMO: Laumanns, Thiele, Zitzler, *Running time analysis of multiobjective evolutionary algorithms on pseudo-Boolean
functions*, 2004.)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from overlap_sched.peak_memory.allocator.reserved import AllocatorDevice
from overlap_sched.peak_memory.allocator.trail import Trail
from overlap_sched.problem import Order
from overlap_sched.problem.allocator_settings import NO_LIMIT
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.front import Front, FrontMember
from overlap_sched.scheduler.moves import Moves
from overlap_sched.scheduler.needs import Reserve, Tried
from overlap_sched.scheduler.step_time import StepTrail

BATCH = 16
"""So many orders like one are tried in turn: what that one holds is replayed once for them."""
OVERDRAFT = 3
"""To look at all that an order breaks takes as long as so many trials."""
MOST, MOST_SHORTER = 4, 2
"""So many times the trials that may be in vain are tried at most; once an order fits, so many for a shorter one."""
HOPELESS, LOOK = 0.2, 0.33
"""Where all that is short enough lacks more than the first part of what the original order reserves, after the second
part of the trials that may be in vain, the walk ends: none that was so far off by then has been seen to fit in the end.
"""
MOST_UNLUCKY = 3
"""So many devices are looked at besides those on which an order must run: larger ones on which one did not."""
WORTH = 0.004
"""Once an order breaks nothing, what is shorter by more than this part is looked for."""


def wandered(
    reserve: Reserve,
    starts: Iterable[Tried],
    best: Candidate,
    others: Sequence[Order],
    enough_us: float,
    trials: int,
    seed: int = 0,
) -> list[Candidate]:
    """The front at the end of a walk, shortest first: in it what breaks nothing, where that was found.

    Args:
        reserve: What an order may need; the budget of its task is kept.
        starts: Valid orders within the budget, with what each breaks.
        best: The best one, whatever it breaks.
        others: Valid orders that parts are moved towards.
        enough_us: A step that is short enough, in microseconds; what is a little longer is kept, too.
        trials: So many orders may be tried in vain, one after the other: what is short enough lacks no less for any.
        seed: Of what is tried at random.
    """
    walk = _Walk(reserve, Moves.of(reserve.task, best, others, seed), Front.of(reserve, starts, enough_us), trials)
    while walk.goes_on():
        walk.try_some()
    found = walk.front.members
    if walk.held is not None and walk.held not in found:
        found = [*found, walk.held]
    remeasured = reserve.task.remeasured
    return [remeasured(member.made_from, member.order) for member in sorted(found, key=lambda each: each.step_us)]


@dataclass
class Trials:
    """How many orders are tried.

    Attributes:
        most: In all, at most. most_in_vain: in turn, each of which gains nothing.
        tried, in_vain: So far. least: what lacks least of what is short enough, in bytes, so far.
    """

    most: int
    most_in_vain: int
    tried: int = 0
    in_vain: int = 0
    least: int = NO_LIMIT

    def count(self, tried: int, least: int) -> None:
        """So many more were tried; what lacks least, of what is short enough, lacks so many bytes now."""
        self.tried += tried
        self.in_vain = 0 if least < self.least else self.in_vain + tried
        self.least = min(least, self.least)

    def go_on(self, hopeless: float) -> bool:
        """Are there orders to try, and is there hope: does what lacks least lack no more than so many bytes by now?"""
        if self.tried >= self.most or self.in_vain >= self.most_in_vain:
            return False
        return self.tried < LOOK * self.most_in_vain or self.least <= hopeless


class _Walk:
    """A walk under way.

    Attributes:
        front: As far as it has come. held: the shortest that breaks nothing.
    """

    def __init__(self, reserve: Reserve, moves: Moves, front: Front, trials: int) -> None:
        self._reserve, self._moves, self.front = reserve, moves, front
        self._trials, self._unlucky = Trials(MOST * trials, trials), list[AllocatorDevice]()
        self.held: FrontMember | None = None

    def goes_on(self) -> bool:
        """Are there orders to try, and is there hope?"""
        return bool(self.front.members) and self._trials.go_on(HOPELESS * self._reserve.reserved_bytes)

    def _count(self, tried: int) -> None:
        self._trials.count(tried, self.front.most_lacking(self.front.enough_us))

    def try_some(self) -> None:
        """Some orders like one of the front, which keeps what it does not dominate."""
        start, devices = self.front.pick(self._moves.rng), len(self._unlucky)
        trail = self._reserve.trail(start.order, self._unlucky)
        steps = StepTrail(self._reserve.task.step_times, start.order)
        for _ in range(min(BATCH, self._trials.most - self._trials.tried)):
            self._count(1)
            order = self._moves.moved(start, self.front)
            if order != start.order and self._reserve.task.within_budget(order):
                self._try(order, steps.of(order), start, trail)
            if len(self._unlucky) > devices:
                break  # the trail does not know the new one

    def _try(self, order: Order, step_us: float, start: FrontMember, trail: Trail) -> None:
        most_bytes = self.front.most_lacking(step_us)
        if most_bytes < 0:
            return
        lacking = trail.lacking_of(order, most_bytes)
        if lacking.lent_bytes > most_bytes:
            return
        new = FrontMember(order, step_us, lacking.lent_bytes, lacking.storages, start.made_from)
        if not new.lacking and step_us <= self.front.enough_us:
            new = self._looked_at(new)
        if new.lacking <= self.front.most_lacking(step_us):  # the front may be another one by now
            self.front.keep(new)

    def _looked_at(self, new: FrontMember) -> FrontMember:
        """With all that it breaks, as it may suffice by luck alone; where that is nothing, what is shorter is next."""
        self._count(OVERDRAFT)
        broken, unlucky = self._reserve.looked_at(new.order)
        if unlucky and len(self._unlucky) < MOST_UNLUCKY:
            self._unlucky += unlucky
            self.front = self.front.anew(self._on_all_devices)
            self._trials.least = NO_LIMIT
            return self._on_all_devices(new)
        new = replace(new, lacking=broken.over_bytes)
        if not new.lacking:
            self._look_for_shorter(new)
        return new

    def _look_for_shorter(self, held: FrontMember) -> None:
        if self.held is None:
            in_vain = self._trials.most_in_vain
            self._trials = Trials(MOST_SHORTER * in_vain, in_vain)
        self._trials.least = NO_LIMIT
        self.front, self.held = self.front.shorter(held.step_us * (1 - WORTH)), held

    def _on_all_devices(self, member: FrontMember) -> FrontMember:
        """With what it lacks on those that were found to matter, too."""
        lacking = self._reserve.trail(member.order, self._unlucky).lacking_of(member.order)
        return replace(member, lacking=lacking.lent_bytes, lacking_for=lacking.storages)
