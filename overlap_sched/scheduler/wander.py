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
from dataclasses import replace

from overlap_sched.problem import Order
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.front import Front, Member
from overlap_sched.scheduler.moves import Moves
from overlap_sched.scheduler.needs import Reserve, Tried

BATCH = 16
"""So many orders like one are tried in turn: what that one holds is replayed once for them."""
OVERDRAFT = 10
"""To look at all that an order breaks takes as long as so many trials."""
HOPELESS, LOOK = 0.2, 0.33
"""Where all that is short enough lacks more than the first part of what the original order reserves, after the second
part of the trials, the walk ends: none that was so far off by then has been seen to fit in the end."""
WORTH, AFTER = 0.004, 0.6
"""Once an order breaks nothing: what is shorter by more than this part is looked for, in so much of the trials left."""


def wandered(
    reserve: Reserve, starts: Iterable[Tried], best: Candidate, others: Sequence[Order], enough_us: float, trials: int
) -> list[Candidate]:
    """The front behind so many trials, shortest first: in it what breaks nothing, where that was found.

    Args:
        reserve: What an order may need; the budget of its task is kept.
        starts: Valid orders within the budget, with what each breaks.
        best: The best one, whatever it breaks.
        others: Valid orders that parts are moved towards.
        enough_us: A step that is short enough, in microseconds; what is a little longer is kept, too.
        trials: Orders that are tried.
    """
    task, moves = reserve.task, Moves.of(reserve.task, best, others)
    front, held, looked_at = Front.of(reserve, starts, enough_us), None, (1 - LOOK) * trials
    while trials > 0 and front.members:
        if trials < looked_at and front.most_lacking(front.enough_us) > HOPELESS * reserve.reserved_bytes:
            break
        start = front.pick(moves.rng)
        trail = reserve.trail(start.order)
        for _ in range(min(BATCH, trials)):
            trials -= 1
            order = moves.moved(start, front)
            if order == start.order or not task.within_budget(order):
                continue
            step_us = task.step_times.of(order)
            most_bytes = front.most_lacking(step_us)
            if most_bytes < 0:
                continue
            lacking = trail.lacking_of(order, most_bytes)
            if lacking.lent_bytes > most_bytes:
                continue
            new = Member(order, step_us, lacking.lent_bytes, lacking.storages, start.made_from)
            if not new.lacking and step_us <= front.enough_us:
                new, trials = replace(new, lacking=reserve.overdraft(order).over_bytes), trials - OVERDRAFT
                if not new.lacking:
                    trials = trials if held is not None else int(AFTER * trials)
                    front, held, looked_at = front.shorter(step_us * (1 - WORTH)), new, (1 - LOOK) * trials
            if new.lacking <= most_bytes:
                front.keep(new)
    found = front.members if held is None or held in front.members else [*front.members, held]
    return [task.remeasured(member.made_from, member.order) for member in sorted(found, key=lambda each: each.step_us)]
