"""Wander from an order that nearly fits: a random walk over orders like it, each of which lacks less.

Where an order's results land is chance. What little is lacking is often lacking in all orders that differ from it by
one rule; of those that differ at random, one in some dozens lacks less or nothing::

    order     a b c d e f g h i j k l
    like it   a c b d e f g i j k h l          b and h are moved a little way; others stand as they stood

So some nodes go to some place near their own, and what comes of that is taken where it lacks less. Or, aimed: nodes
that run shortly before something is lacking; or all that runs around it, part of the way to how another order has it::

    order     a b c d e|f g h i|j k l          something is lacking for h
    another   i a f b h c g e d l j k
    like it   a b c d e|i f h g|j k l          these four as they stand there; what is in both stays in order

and what comes of that is taken where it lacks as much, too, as it may be nearer to what lacks less. Either way finds
what the other one does not. Random numbers come from a seed of their own: the same order leads to the same order each
time.
"""

import random
from collections.abc import Iterable, Sequence

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Order
from overlap_sched.problem.precedence import Neighbours, neighbours, positions
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.needs import NOTHING, Reserve
from overlap_sched.scheduler.relink import between

MOST_MOVED, FARTHEST = 300, 100
"""Nodes that are moved at once, few more often than many; and positions that each of them goes, at most."""
FEWEST_NEAR, MOST_NEAR = 10, 1000
"""Nodes that run shortly before something is lacking: so many, few more often than many."""
AS_ANOTHER = 0.5
"""Part of aimed moves in which all that is near goes part of the way to how another order has it."""
PERCENTS = (25, 50, 75, 100)
"""Of that way."""
WORTH = 0.002
"""An order that breaks nothing, and another: the walk goes on for one whose step is shorter by more than this part."""

Move = tuple[NodeId, int]
"""A node, and how many positions later it goes; below zero: sooner."""


def wandered(
    reserve: Reserve, found: Candidate, most_us: float, trials: int, others: Sequence[Order] = ()
) -> Candidate:
    """The candidate, moved on to one that breaks nothing; where none is found, to one that lacks less.

    Args:
        reserve: What the order may need; the budget of its task is kept.
        found: A valid order within the budget.
        most_us: No step becomes longer than this, in microseconds.
        trials: Orders that are tried.
        others: The walk is aimed, and goes part of the way to one of these valid orders; none: any nodes are moved.
    """
    task, rng = reserve.task, random.Random(0)
    rules, places = neighbours(task.problem, task.pairs), [positions(other) for other in others]
    fixed = {v for v, node in enumerate(task.problem.nodes) if node.kind in (Kind.INPUT, Kind.OUTPUT)}
    movable = [v for v in range(len(task.problem.nodes)) if v not in fixed]
    order, least, held = found.order, reserve.lacking(found.order), None
    short = reserve.lacking_at(order) if others else []
    for _ in range(trials if movable else 0):
        near = _near(rng.choice(short), order, rng) if short else None
        if near is not None and rng.random() < AS_ANOTHER:
            moves, moved = [], _as_another(order, near, rng.choice(places), rng.choice(PERCENTS))
        else:
            moves = _moves(movable if near is None else sorted(set(order[near]) - fixed), rng)
            moved = _moved(order, moves, rules)
        if moved == order or not _admitted(task, moved, most_us):
            continue
        lacking = reserve.lacking(moved, least)
        if not lacking and reserve.overdraft(moved) == NOTHING:
            held = _least_moved(reserve, task.remeasured(found, moved), order, moves, rules)
            most_us = held.step_us * (1 - WORTH)
            if most_us <= found.step_us:
                break
        elif held is None and 0 < lacking <= least and (others or lacking < least):
            if others and lacking < least:
                short = reserve.lacking_at(moved)
            order, least = moved, lacking
    return held or task.remeasured(found, order)


def _near(v: NodeId, order: Order, rng: random.Random) -> slice:
    """Where a node stands, so many as chance will have it before it, and a few behind it."""
    at, count = order.index(v), int(FEWEST_NEAR * (MOST_NEAR / FEWEST_NEAR) ** rng.random())
    return slice(max(at - count, 0), at + count // 4 + 1)


def _as_another(order: Order, part: slice, places: Sequence[int], percent: int) -> Order:
    """The order, with a part of it so many percent of the way to how that stands in another valid order.

    Args:
        order: A valid order.
        part: Of it, what is moved.
        places: Per node, its position in the other one.
        percent: 0: as it was; 100: as the other one has it.
    """
    moved, nodes = list(order), order[part]
    as_there = sorted(range(len(nodes)), key=lambda at: places[nodes[at]])
    moved[part] = [nodes[at] for at in between(range(len(nodes)), as_there, percent)]
    return tuple(moved)


def _least_moved(
    reserve: Reserve, held: Candidate, order: Order, moves: Sequence[Move], rules: Neighbours
) -> Candidate:
    """The candidate, which breaks nothing, without those of its moves that only make its step longer."""
    task, kept, size = reserve.task, list(moves), len(moves) // 2
    while size:
        for begin in reversed(range(0, len(kept), size)):
            fewer = kept[:begin] + kept[begin + size :]
            moved = _moved(order, fewer, rules)
            if _admitted(task, moved, held.step_us) and reserve.overdraft(moved) == NOTHING:
                held, kept = task.remeasured(held, moved), fewer
        size //= 2
    return held


def _moves(among: Sequence[NodeId], rng: random.Random) -> list[Move]:
    """Some of the nodes, more often few than many, each a little way."""
    count = min(int(MOST_MOVED ** rng.random()), len(among))
    return [(rng.choice(among), rng.randint(-FARTHEST, FARTHEST)) for _ in range(count)]


def _admitted(task: Task, order: Order, most_us: float) -> bool:
    return task.within_budget(order) and replay(task.problem, order).step_us <= most_us


def _moved(order: Sequence[NodeId], moves: Iterable[Move], rules: Neighbours) -> Order:
    """A valid order with each of some nodes at another place near its own, as far as its neighbours admit."""
    (before, after), moved = rules, list(order)
    for v, distance in moves:
        at = moved.index(v)
        begin = max(at - FARTHEST, 0)
        near = {u: place for place, u in enumerate(moved[begin : at + FARTHEST + 1], begin)}
        first = max((near[u] + 1 for u in before[v] if u in near), default=begin)
        last = min((near[u] - 1 for u in after[v] if u in near), default=begin + len(near) - 1)
        del moved[at]
        moved.insert(min(max(at + distance, first), last), v)
    return tuple(moved)
