"""What all bounds are made of: times, what has finished before what, and sets of nodes as rows.

Bounds add up times of collectives. Where a collective goes faster beside compute than alone
(``Contention.stretch`` below 1) it may take less than its time, but never less than time * stretch::

    alone             |====== 40 ======|
    beside compute    |=== 20 ===|            stretch 0.5: a bound counts 20

With these times a bound holds whatever runs beside: it never counts on a collective going faster than alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Problem


def with_least_times(problem: Problem) -> Problem:
    """The same problem with the least time of each collective; itself where none goes faster beside compute."""
    contention = problem.contention
    if all(factor >= 1.0 for factor in contention.stretch.values()):
        return problem
    nodes = tuple(
        node._replace(time_us=node.time_us * min(contention.stretch_of(node.op), 1.0))
        if node.kind is Kind.COLLECTIVE
        else node
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes, contention=replace(contention, stretch={}))


def compute_us(problem: Problem) -> list[float]:
    """Per node, microseconds on the compute stream: 0 for collectives and waits."""
    return [0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us for node in problem.nodes]


def unpack(bits: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    """Sets of numbers below ``count`` as rows of 0.0 and 1.0; time and space: their number times ``count``."""
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(b.to_bytes(width, "little") for b in bits), dtype=np.uint8)
    rows = np.unpackbits(packed.reshape(len(bits), width), axis=1, bitorder="little")[:, :count]
    return rows.astype(np.float64)


def reachability(
    problem: Problem, events: Sequence[NodeId], low: int = 0, high: int | None = None
) -> tuple[list[int], list[int]]:
    """Per node two bit sets over events: which have finished before it, which need it to run.

    Args:
        problem: Whose nodes.
        events: Collectives (finished at a wait) and other nodes (when they have run).
        low: Of a window of nodes: the first.
        high: The one behind its last; ``None``: all that follow.
    """
    nodes, before, high = problem.nodes, problem.predecessors, len(problem.nodes) if high is None else high
    bit = {v: 1 << k for k, v in enumerate(events)}
    finished, needed_by = [0] * (high - low), [0] * (high - low)
    for v in range(low, high):
        launch = nodes[v].collective
        done = bit.get(launch, 0) if launch is not None else 0
        for u in before[v]:
            if u >= low:
                done |= finished[u - low]
                if u in bit and nodes[u].kind is not Kind.COLLECTIVE:
                    done |= bit[u]
        finished[v - low] = done
    for v in range(high - 1, low - 1, -1):
        needs = needed_by[v - low] | bit.get(v, 0)
        for u in before[v]:
            if u >= low:
                needed_by[u - low] |= needs
    return finished, needed_by
