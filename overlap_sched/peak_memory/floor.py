"""What must be live whatever the order: a lower bound on every peak.

While ``v`` runs, these are live in every order: what is always; what ``v`` uses and makes; and each storage whose
maker cannot come after ``v`` (it is ``v``, before it, or an input) while some user cannot come before it.
The bound is the most over all ``v``; the bytes live at the very start count, too, and those at the end.

One bit per pair of nodes: 12 MiB and well under a second for ten thousand nodes. It ignores that two storages may
exclude each other's absence; :mod:`overlap_sched.peak_memory.cut` counts that, node by node.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from overlap_sched.peak_memory.memory_graph import MemoryGraph
from overlap_sched.peak_memory.walk import Backward, Forward

Bits = npt.NDArray[np.uint8]


def floor_profile(graph: MemoryGraph) -> npt.NDArray[np.int64]:
    """Bytes that must be live while each node runs, by node id (inputs: 0)."""
    n = len(graph.makes)
    up, down = _closure(graph.before, range(n)), _closure(graph.after, reversed(range(n)))
    floor = np.full(n, graph.always_bytes, dtype=np.int64) + np.array(graph.passing_bytes, dtype=np.int64)
    kept = set(graph.kept)
    for s, size in enumerate(graph.size):
        maker = graph.maker[s]
        if size and (graph.users[s] or s in kept):
            bits = np.full(up.shape[1], 255, np.uint8) if maker < 0 else down[maker].copy()
            if s not in kept:
                bits &= np.bitwise_or.reduce(up[list(graph.users[s])], axis=0)
            floor += np.unpackbits(bits, count=n).astype(np.int64) * size
    floor[list(graph.first)] = 0
    return floor


def floor_bytes(graph: MemoryGraph) -> int:
    """No order's peak is lower."""
    ends = max(Forward(graph).live_bytes, Backward(graph).live_bytes)
    return max(int(floor_profile(graph).max()), ends)


def _closure(edges: tuple[tuple[int, ...], ...], order: Iterable[int]) -> Bits:
    """One row of bits per node: itself and all that its edges reach, which ``order`` lists before it."""
    n = len(edges)
    rows = np.zeros((n, (n + 7) // 8), np.uint8)
    for v in order:
        row = rows[v]
        if edges[v]:
            np.bitwise_or.reduce(rows[list(edges[v])], axis=0, out=row)
        row[v >> 3] |= 128 >> (v & 7)
    return rows
