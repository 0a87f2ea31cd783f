"""Many ranks in few words."""

from collections.abc import Sequence

SHOWN_RANGES = 8
"""So many runs of ranks are written out; thousands of ranks would hide the message."""


def ranks_text(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:SHOWN_RANGES])
    left = sum(b - a + 1 for a, b in runs[SHOWN_RANGES:])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{f' and {left} more' if left else ''}"
