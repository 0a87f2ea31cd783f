r"""Orders in between two that were tried: one that an allocator can hold, and one whose step is short.

What both of them gain by being as they are is seldom gained at the same places. Part of the way from the one to the
other there is often an order that has enough of both::

    can be held       a b c d e f     2.3 % longer than the best
    short             f a b c d e     lacks 600 MiB
    30 % of the way   a b f c d e     1.2 % longer, and can be held

In between (:func:`overlap_sched.scheduler.relink.between`) live bytes may exceed the budget. Then the order is followed
as far as the budget allows, starting from the one that can be held: of the nodes that are ready the first that may run
now, by the same test as in the main loop (:mod:`overlap_sched.scheduler.admission`). (Scatter search: Glover, Laguna,
Martí, *Fundamentals of scatter search and path relinking*, 2000.)
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from sortedcontainers import SortedList

from overlap_sched.problem import Order
from overlap_sched.problem.precedence import Neighbours, neighbours, positions
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.needs import NOTHING, Overdraft, Reserve
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.relink import between
from overlap_sched.scheduler.shift import shifted

PARTS = (10, 30, 50, 70, 90)
"""Percent of the way from what can be held."""
WIDTH = 3
"""So many that break least are each combined with so many that are short."""
FARTHEST = 100
"""Positions that launches and waits of each order in between are shifted at most, in a second order like it."""
FAR = 1.1
"""What takes longer than this part of the best step is no use, neither as a result nor to start from."""
ALIKE = 0.002
"""Steps that differ by less than this part count as equally short."""
ROUNDS = 8
"""More have not been seen to gain anything."""
LOOK = 8
"""Nodes that are asked for, first to last, before the next one of the order that can be held runs."""

Tried = tuple[Overdraft, Candidate]
"""An order, and what it breaks."""


def combined(
    reserve: Reserve, tried: Iterable[Tried], best_us: float, enough_us: float, most_us: float, trials: int
) -> list[Tried]:
    """Orders in between those that were tried, round by round, until a round gains nothing.

    Args:
        reserve: What an order may need; the budget of its task is kept.
        tried: Valid orders within the budget.
        best_us: The shortest step, in microseconds.
        enough_us: A step that is short enough for an order that breaks nothing: nothing more is looked at.
        most_us: What takes longer is no result, but orders in between may start from it.
        trials: Orders that the allocator is replayed for, at most; of each couple others take too long.

    Returns:
        What is new.
    """
    rules, pool, new = neighbours(reserve.task.problem, reserve.task.pairs), list(tried), list[Tried]()
    done, seen = set[tuple[Order, Order]](), {found.order for _, found in pool}
    before = None
    for _ in range(ROUNDS):
        now = held_us(pool), _least(pool, most_us)
        if now == before:
            break
        before = now
        for first, second in _couples(pool, best_us):
            if (first.order, second.order) in done:
                continue
            done.add((first.order, second.order))
            for order in _in_between(reserve.task, first, second, rules):
                if len(new) == trials or held_us(pool) <= enough_us:
                    return new
                if order in seen:
                    continue
                seen.add(order)
                found = replace(reserve.task.remeasured(second, order), unshifted=None)
                if found.step_us < min(held_us(pool), best_us * FAR):
                    new.append((reserve.overdraft(order), found))
                    pool.append(new[-1])
    return new


def _couples(pool: Iterable[Tried], best_us: float) -> list[tuple[Candidate, Candidate]]:
    """Of what is not too long: each of those that break least with each of those that are short."""
    near = [pair for pair in pool if pair[1].step_us <= best_us * FAR]
    alike_us = best_us * ALIKE or 1.0  # a graph may take no time at all
    short = {found.step_us // alike_us: found for _, found in sorted(near, key=_breaks_then_step, reverse=True)}
    seconds = [short[step] for step in sorted(short)[:WIDTH]]
    return [(first, second) for first in distinct(near)[:WIDTH] for second in seconds if first.order != second.order]


def _in_between(task: Task, first: Candidate, second: Candidate, rules: Neighbours) -> Iterator[Order]:
    """Orders within the budget; each also with its launches and waits shifted."""
    reference = Reference(task.problem, first.order, task.live_ranges)
    for percent in PARTS:
        order = between(first.order, second.order, percent)
        if not task.within_budget(order):
            order = followed(task, reference, order, rules)
        yield order
        yield shifted(task.live_ranges, order, task.limit, task.pairs, FARTHEST)


def followed(task: Task, reference: Reference, order: Order, rules: Neighbours) -> Order:
    """A valid order within the budget that is near to a given one.

    Args:
        task: With the budget.
        reference: A valid order within it: what may always run next.
        order: A valid order; it need not keep to the budget.
        rules: What must run before and after each node.
    """
    (before, after), profile, at = rules, CompletionProfile(reference, task.limit), positions(order)
    missing, run = [len(nodes) for nodes in before], list[int]()
    ready = SortedList(at[v] for v in order if not missing[v])
    while ready:
        may_always_run = reference.order[profile.first]
        first = (order[place] for place in islice(ready, LOOK))
        v = next((u for u in first if profile.admits(u)), may_always_run)
        ready.remove(at[v])
        profile.run(v)
        run.append(v)
        for u in after[v]:
            missing[u] -= 1
            if not missing[u]:
                ready.add(at[u])
    return tuple(run)


def _least(pool: Iterable[Tried], most_us: float) -> Overdraft | None:
    """The least that anything breaks whose step is no longer than that; ``None``: there is no such step."""
    return min((broken for broken, found in pool if found.step_us <= most_us), default=None)


def held_us(pool: Iterable[Tried]) -> float:
    """The shortest step in microseconds of what breaks nothing; infinite where all do."""
    return min((found.step_us for broken, found in pool if broken == NOTHING), default=math.inf)


def distinct(pairs: Iterable[Tried]) -> list[Candidate]:
    """Those that break least first; of all that break as much, the shortest: most of them fail for the same reason."""
    ordered = sorted(pairs, key=_breaks_then_step, reverse=True)
    return list(dict(ordered).values())[::-1]


def _breaks_then_step(pair: Tried) -> tuple[Overdraft, float]:
    return pair[0], pair[1].step_us
