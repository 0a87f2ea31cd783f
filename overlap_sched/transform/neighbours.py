"""Buckets by size: neighbours in an order go together as long as a bucket takes no longer than a cap.

The cap is a time, a multiple of the latency: by 16 latencies, a sixteenth of a full bucket's time is latency, on every
group and at every speed of the network. Caps may differ from part to part of the order.

No compute of any weight is moved for a bucket: a collective joins only if all that it needs, but for cheap
preparations, runs before the first use of what is in the bucket already::

    order     cast w1  cast w2  mm w1  mm w2  wgrad  mm w3 ...
    w1, w2    ready at once; w1 is used at `mm w1`: w2 joins, its cast is pulled ahead
    an activation of `mm w1` that is gathered for `mm w3` cannot join: it is ready after the first use of w1
"""

from collections.abc import Mapping, Sequence

from overlap_sched.problem import Kind, NodeId, Position, Problem
from overlap_sched.scheduler.task import CHEAP
from overlap_sched.transform.keys import SMALL_BYTES, BatchTime, Key


class Windows:
    """Between which positions of an order each collective can be launched without moving compute of any weight.

    Attributes:
        ready: Per node id, the last position of compute of weight that it needs (-1: none).
        first_use: Per collective, the first position of a node that uses a wait of it; the end where only outputs do.
    """

    def __init__(self, problem: Problem, order: Sequence[NodeId]) -> None:
        """Linear."""
        nodes, compute_us = problem.nodes, problem.compute_us
        weight_us = CHEAP * sum(compute_us)
        self.ready: list[Position] = [-1] * len(nodes)
        position = [0] * len(nodes)
        for at, v in enumerate(order):
            position[v] = at
            heavy = nodes[v].kind is Kind.COMPUTE and compute_us[v] > weight_us
            self.ready[v] = at if heavy else max([self.ready[u] for u in problem.predecessors[v]], default=-1)
        self.first_use = {
            v: min(
                [position[u] for w in waits for u in problem.successors[w] if nodes[u].kind is not Kind.OUTPUT],
                default=len(order),
            )
            for v, waits in problem.waits.items()
        }


def neighbours(
    problem: Problem,
    order: Sequence[NodeId],
    keys: Mapping[NodeId, Key],
    time_us: BatchTime,
    latencies: Sequence[float],
    windows: Windows,
) -> list[list[NodeId]]:
    """All collectives that have a key, in buckets of one or more, each in the order given.

    Args:
        problem: What they are of.
        order: A valid order.
        keys: Of the collectives that may go together.
        time_us: Of a bucket.
        latencies: The cap of each part of the launches (parts of as many each), in latencies of its key.
        windows: Of the order.
    """
    launches = [v for v in order if v in keys]
    open_buckets: dict[Key, list[NodeId]] = {}
    buckets: list[list[NodeId]] = []
    held: dict[Key, int] = {}
    used: dict[Key, Position] = {}
    for at, v in enumerate(launches):
        key, nbytes = keys[v], problem.nodes[v].bytes
        cap_us = latencies[at * len(latencies) // len(launches)] * time_us(key, SMALL_BYTES)
        if key in open_buckets and windows.ready[v] < used[key] and time_us(key, held[key] + nbytes) <= cap_us:
            open_buckets[key].append(v)
            held[key] += nbytes
            used[key] = min(used[key], windows.first_use[v])
        else:
            open_buckets[key] = [v]
            buckets.append(open_buckets[key])
            held[key], used[key] = nbytes, windows.first_use[v]
    return buckets
