"""The order of scheduler nodes that is nearest to the one they are in, where some pairs must be the other way round."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any


def nearest(snodes: Sequence[Any], pairs: Iterable[tuple[int, int]]) -> list[int] | None:
    """Positions in an order that keeps torch's dependencies and some pairs, always the smallest that may come next.

    Args:
        snodes: In an order that keeps torch's dependencies.
        pairs: Positions (first, then).

    Returns:
        ``None`` where there is none: the pairs are against the dependencies.
    """
    producer = {name: at for at, snode in enumerate(snodes) for name in snode.get_buffer_names()}
    before = [{producer.get(dep.name, at) for dep in snode.unmet_dependencies} for at, snode in enumerate(snodes)]
    for first, then in pairs:
        before[then].add(first)
    after: list[list[int]] = [[] for _ in snodes]
    left = [0] * len(snodes)
    for at, needed in enumerate(before):
        needed.discard(at)
        left[at] = len(needed)
        for u in sorted(needed):
            after[u].append(at)
    ready = [at for at, count in enumerate(left) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for w in after[order[-1]]:
            left[w] -= 1
            if left[w] == 0:
                heappush(ready, w)
    return order if len(order) == len(snodes) else None
