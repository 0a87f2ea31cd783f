"""In which order the parts of a fission run: stage by stage, each part's stage in one piece."""

from collections.abc import Sequence
from itertools import pairwise


def places(at: Sequence[float], waits: Sequence[bool], parts: int) -> list[list[float]]:
    """Per part and node, where it is to stand.

    A stage begins at a wait that follows something else. All of it stands where its first node stood: part by part,
    in the nodes' order, within less than one place.

    Args:
        at: Per node where it stands, ascending.
        waits: Per node whether it is a wait.
        parts: How many.
    """
    starts = [i for i, wait in enumerate(waits) if not i or (wait and not waits[i - 1])]
    result = [[0.0] * len(at) for _ in range(parts)]
    for begin, end in pairwise([*starts, len(at)]):
        size = end - begin
        for p in range(parts):
            for i in range(begin, end):
                result[p][i] = at[begin] + (p * size + i - begin) / (parts * size + 1)
    return result
