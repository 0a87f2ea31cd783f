"""Hold a launch back until what it makes lands in nobody's way.

::

    order      ... scatter, mm, mul ...              scatter makes 3 MiB that last to the end of the graph
    segments   | gather, 60 | free 440 |             only here is room when it runs: the 500 MiB never go back,
               | a: to the end | b, 16 |             and no large result finds room in them any more

    held back  ... mm, scatter, mul ...              mm is the last to use b
    segments   | gather, 60 | free 440 |             both go back when the gather's 60 are gone
               | a: to the end | 3 | 13 |

Torch takes the smallest free block that is large enough. Which one that is when a small result comes that lasts, is
chance; and as a segment goes back to the device only as a whole, it *lands badly* where it keeps one from going back
for longer than all that is in it: by more byte-time than some times what a segment of its own would take.

:func:`held_back` walks through a finished order with its allocator. A collective that would land badly waits, while the
order goes on, until it would not, or something needs it. That costs no memory: what it reads is held until its wait in
any case. It may cost time, of which the caller judges. O(n) allocator steps, and one look per node for each that waits.
"""

from collections.abc import Sequence

from overlap_sched.peak_memory.allocator.caching import Block, CachingAllocator
from overlap_sched.peak_memory.allocator.run import AllocatorRun
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Kind, NodeId, Order
from overlap_sched.problem.precedence import neighbours
from overlap_sched.scheduler.candidate import Task


def ends_of(live_ranges: LiveRanges, order: Sequence[NodeId]) -> list[int]:
    """Per storage, the position in an order at which it ends; what lasts ends behind them all."""
    problem = live_ranges.problem
    end = len(problem.nodes)
    position = [0] * end
    for at, v in enumerate(order):
        position[v] = end if problem.nodes[v].kind is Kind.OUTPUT else at
    return [
        end if storage.pinned else max([position[v] for v in users], default=0)
        for storage, users in zip(problem.storages, live_ranges.users, strict=True)
    ]


class Landing:
    """An allocator with plain segments beside an order that is being made.

    Attributes:
        run: The allocator, and what it holds.
    """

    def __init__(self, live_ranges: LiveRanges, order: Sequence[NodeId], allocator: CachingAllocator) -> None:
        """Only the inputs are there; what is made ends where it does in an order like the one that will be made."""
        self._ends = ends_of(live_ranges, order)
        self.run = AllocatorRun(live_ranges, allocator, self._ends)
        self._nodes, self._storages = live_ranges.problem.nodes, live_ranges.problem.storages

    def badness(self, v: NodeId, now: int) -> float:
        """By how much worse than in segments of its own would land what v makes, if it ran at this position?"""
        return max([self._badness(s, now) for s in self._nodes[v].alloc], default=0.0)

    def _badness(self, s: int, now: int) -> float:
        size, until = self._storages[s].bytes, self._ends[s]
        block = self.run.allocator.would_take(size) if size and until > now else None
        if block is None:
            return 0.0
        segment = segment_of(block)
        in_use_until = max([other.until for other in segment if not other.free], default=now)
        longer = max(until - max(in_use_until, now), 0)
        own_bytes = self.run.allocator.segment_bytes(size)
        return sum([other.size for other in segment]) * longer / (own_bytes * (until - now))


def segment_of(block: Block) -> list[Block]:
    """The blocks of its segment, by address."""
    while block.before is not None:
        block = block.before
    chain = [block]
    while (after := chain[-1].after) is not None:
        chain.append(after)
    return chain


def held_back(task: Task, order: Order, allocator: CachingAllocator, most_badness: float, most_us: float) -> Order:
    """The order with collectives held back that would land badly.

    Args:
        task: Whose order it is.
        order: A valid order.
        allocator: New, with plain segments; it must not run out of memory.
        most_badness: Of what need not wait.
        most_us: Compute that may run meanwhile.
    """
    landing = Landing(task.live_ranges, order, allocator)
    nodes = task.problem.nodes
    before, _ = neighbours(task.problem, task.pairs)
    made: list[NodeId] = []
    waiting: dict[NodeId, float] = {}
    clock_us = 0.0

    def run(v: NodeId) -> None:
        for u in before[v]:
            if u in waiting:
                run(u)
        waiting.pop(v, None)
        landing.run.step(v)
        made.append(v)

    for v in order:
        if nodes[v].kind is Kind.COLLECTIVE and landing.badness(v, len(made)) > most_badness:
            waiting[v] = clock_us + most_us
        else:
            run(v)
            clock_us += nodes[v].time_us if nodes[v].kind is Kind.COMPUTE else 0.0
        for u, until_us in list(waiting.items()):
            if u in waiting and (clock_us > until_us or landing.badness(u, len(made)) <= most_badness):
                run(u)
    for u in list(waiting):
        run(u)
    return tuple(made)
