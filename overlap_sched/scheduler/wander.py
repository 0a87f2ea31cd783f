"""Wander from an order that nearly fits: a random walk over orders like it, of which none lacks more.

Where an order's results land is chance. What lacks little is often lacking in all orders that differ from it by one
rule (:mod:`overlap_sched.scheduler.settle`); so some nodes, whichever they are, are moved a little way each, and what
comes of that is taken where it lacks no more: most moves change nothing of it, and the walk drifts until one does.

Random numbers come from a seed of their own: the same order goes to the same order each time.
"""

import random
from collections.abc import Callable, Sequence

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Order
from overlap_sched.problem.allocator_settings import NO_LIMIT
from overlap_sched.problem.precedence import Neighbours, neighbours
from overlap_sched.scheduler.candidate import Candidate, Task

NODES = 400_000
"""Per unit of effort: an order of so many nodes is moved on once, a smaller one more often."""
MOST_MOVED, FARTHEST = 40, 100
"""Nodes that are moved at once, and positions that each goes, at most."""


def wandered(task: Task, found: Candidate, lacking: Callable[[Order, int], int], most_us: float) -> Candidate:
    """The candidate, moved on until nothing is lacking or the walk has been long enough.

    Args:
        task: What is asked for; the budget is kept.
        found: A valid order within the budget.
        lacking: Of an order, in bytes; of what lacks more than so many, some figure above it.
        most_us: No step becomes longer (microseconds).
    """
    rng, rules = random.Random(0), neighbours(task.problem, task.pairs)
    movable = [v for v, node in enumerate(task.problem.nodes) if node.kind not in (Kind.INPUT, Kind.OUTPUT)]
    order, least = found.order, lacking(found.order, NO_LIMIT)
    for _ in range(task.options.effort * NODES // max(len(order), 1)):
        if not least:
            break
        moved = _moved(order, [rng.choice(movable) for _ in range(rng.randint(1, MOST_MOVED))], rules, rng)
        if replay(task.problem, moved).step_us <= most_us and task.within_budget(moved):
            count = lacking(moved, least)
            if count < least:
                order, least = moved, count
    return task.remeasured(found, order)


def _moved(order: Sequence[NodeId], nodes: Sequence[NodeId], rules: Neighbours, rng: random.Random) -> Order:
    """A valid order with each of some nodes at another place near its own, as far as its neighbours admit."""
    (before, after), moved = rules, list(order)
    for v in nodes:
        at = moved.index(v)
        begin = max(at - FARTHEST, 0)
        near = {u: begin + place for place, u in enumerate(moved[begin : at + FARTHEST + 1])}
        first = max([near[u] + 1 for u in before[v] if u in near], default=begin)
        last = min([near[u] - 1 for u in after[v] if u in near], default=begin + len(near) - 1)
        del moved[at]
        moved.insert(rng.randint(first, last), v)
    return tuple(moved)
