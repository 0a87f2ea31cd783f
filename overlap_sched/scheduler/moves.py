"""Moves at random, from one valid order to another one like it.

A part of the order goes some of the way to how another one has it; or some single nodes go to places near their own::

    order     a b c d e|f g h i|j k l
    another   i a f b h c g e d l j k
    like it   a b c d e|i f h g|j k l          these four as they stand there; what is in both stays in order

    like it   a c b d e f g i j k h l          b and h are moved a little way; others stand as they stood

Most moves bring a part that is anywhere nearer to the best order: that makes steps shorter. Others are aimed at places
where something is lacking, and bring a part nearer to some other order. Random numbers come from a seed of their own:
the same orders lead to the same moves.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from overlap_sched.problem import Kind, NodeId, Order, StorageId
from overlap_sched.problem.precedence import Neighbours, neighbours, positions
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.front import Front, FrontMember
from overlap_sched.scheduler.relink import between

AIMED, SINGLE = 0.5, 0.2
"""Parts of moves: at a place where something is lacking, of an order that lacks something; and of single nodes."""
OF_FRONT = 0.5
"""Part of the moves that are aimed, and bring a part nearer to another order: to one of the front."""
PERCENTS = (25, 50, 75, 100)
"""Of the way to how another order has a part."""
FEWEST_NEAR, MOST_NEAR = 20, 1000
"""Nodes of a part before its place: so many, few more often than many."""
MOST_MOVED, FARTHEST = 30, 100
"""Single nodes that are moved at once, few more often than many; and positions that each of them goes, at most."""

Move = tuple[NodeId, int]
"""A node, and how many positions later it goes; below zero: sooner."""


@dataclass(frozen=True)
class Moves:
    """Ways from an order to others.

    Attributes:
        rules: What must run before and after each node. movable: the nodes that may be moved alone.
        makers: Per storage, the node that makes it.
        best: Per node, its position in the best order. others: in other ones.
    """

    rules: Neighbours
    movable: Sequence[NodeId]
    makers: Mapping[StorageId, NodeId]
    best: Sequence[int]
    others: Sequence[Sequence[int]]
    rng: random.Random

    @classmethod
    def of(cls, task: Task, best: Candidate, others: Sequence[Order], seed: int = 0) -> "Moves":
        """Moves of valid orders of the task's problem, towards the best one and others."""
        nodes = task.problem.nodes
        movable = [v for v, node in enumerate(nodes) if node.kind not in (Kind.INPUT, Kind.OUTPUT)]
        makers = {s: v for v, node in enumerate(nodes) for s in node.alloc}
        places = [positions(other) for other in others]
        rules = neighbours(task.problem, task.pairs)
        return cls(rules, movable, makers, positions(best.order), places, random.Random(seed))

    def moved(self, start: FrontMember, front: Front) -> Order:
        """A valid order like one of the front; or that one, where nothing could be moved."""
        rng, aimed = self.rng, self.rng.random() < AIMED and bool(start.lacking_for)
        if rng.random() < SINGLE:
            around = set(start.order[self._part(start, aimed)]) if aimed else ()
            among = [v for v in self.movable if v in around] if aimed else self.movable
            return with_moves(start.order, singles(among, rng), self.rules)
        part = self._part(start, aimed)
        places = self._another(front) if aimed else self.best
        return as_another(start.order, part, places, rng.choice(PERCENTS))

    def _another(self, front: Front) -> Sequence[int]:
        """Return the position of each node in an order of the front, or in another one."""
        if self.rng.random() < OF_FRONT or not self.others:
            return positions(self.rng.choice(front.members).order)
        return self.rng.choice(self.others)

    def _part(self, start: FrontMember, aimed: bool) -> slice:
        """A part of the order: where something is lacking, or anywhere."""
        v = self.makers[self.rng.choice(start.lacking_for)] if aimed else self.rng.choice(start.order)
        return near(start.order.index(v), self.rng)


def near(at: int, rng: random.Random) -> slice:
    """A place in an order, so much as chance will have it before it, and a little behind it."""
    count = int(FEWEST_NEAR * (MOST_NEAR / FEWEST_NEAR) ** rng.random())
    return slice(max(at - count, 0), at + count // 4 + 1)


def as_another(order: Order, part: slice, places: Sequence[int], percent: int) -> Order:
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


def singles(among: Sequence[NodeId], rng: random.Random) -> list[Move]:
    """Moves of some of the nodes, more often few than many, each a little way."""
    count = min(int(MOST_MOVED ** rng.random()), len(among))
    return [(rng.choice(among), rng.randint(-FARTHEST, FARTHEST)) for _ in range(count)]


def with_moves(order: Sequence[NodeId], moves: Iterable[Move], rules: Neighbours) -> Order:
    """A valid order with each of some nodes at another place near its own, as far as its neighbours admit."""
    (before, after), moved = rules, list(order)
    for v, distance in moves:
        at = moved.index(v)
        begin = max(at - FARTHEST, 0)
        places = {u: place for place, u in enumerate(moved[begin : at + FARTHEST + 1], begin)}
        first = max((places[u] + 1 for u in before[v] if u in places), default=begin)
        last = min((places[u] - 1 for u in after[v] if u in places), default=begin + len(places) - 1)
        del moved[at]
        moved.insert(min(max(at + distance, first), last), v)
    return tuple(moved)
