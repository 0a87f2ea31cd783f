"""What lies before or behind a node: one walk along edges, for bounds and for memory."""

from collections.abc import Iterable, Mapping, Sequence


def reached(edges: Sequence[Sequence[int]] | Mapping[int, Sequence[int]], starts: Iterable[int]) -> set[int]:
    """All that can be reached along the edges from the starts, the starts included. Linear; no recursion."""
    seen = set(starts)
    stack = list(seen)
    while stack:
        for w in edges[stack.pop()]:
            if w not in seen:
                seen.add(w)
                stack.append(w)
    return seen
