"""The smallest arena that a limited search finds: the peak if it can be had, else halving what lies between.

Work is what bounds it: three fifths for the peak, the rest for targets between the lowest that is still open and the
best that was found, a tenth for each at most.
"""

from collections.abc import Sequence

import numpy as np

from overlap_sched.peak_memory.addresses.boxes import sectioned
from overlap_sched.peak_memory.addresses.restarts import fit_below
from overlap_sched.peak_memory.live_ranges import LiveRange

MOST_CELLS = 1_000_000
"""Boxes times sections: above, one step of this search costs too much, and memory grows with the square of boxes."""
NOT_WORTH = 1000
"""An arena above the peak by less than one in so many is left as it is."""


def smallest_arena(ranges: Sequence[LiveRange], least: int, arena: int, most_work: int) -> list[int] | None:
    """Offsets, one per lifetime, with an arena below ``arena``; ``None`` where none were found.

    Args:
        ranges: What is to be placed, each larger than 0 bytes.
        least: Their peak: no arena is smaller.
        arena: Bytes that are needed without this search.
        most_work: See :func:`fit_below`.
    """
    boxes = sectioned(ranges)
    if len(ranges) * boxes.sections > MOST_CELLS:
        return None
    always = boxes.end - boxes.begin == boxes.sections
    if always.any() and not always.all():  # at the bottom: whatever is below such a box may as well lie above it
        below = int(boxes.bytes[always].sum())
        others = [span for span, stays in zip(ranges, always, strict=True) if not stays]
        found = smallest_arena(others, least - below, arena - below, most_work)
        if found is None:
            return None
        bottom = np.where(always, np.cumsum(boxes.bytes * always) - boxes.bytes, 0)
        bottom[~always] = np.array(found) + below
        return [int(at) for at in bottom]
    unit = int(np.gcd.reduce(boxes.bytes))
    boxes = boxes.in_units_of(unit)
    low, high, best = least // unit, arena // unit, None
    target, share, step = low, 3 * most_work // 5, max(most_work // 10, 1)
    while low < high and (high - low) * NOT_WORTH > low and most_work > 0:
        fit = fit_below(boxes, target, min(share, most_work))
        most_work -= fit.work
        if fit.offsets is None:
            low = target + 1
        else:
            best, high = fit.offsets, int((fit.offsets + boxes.bytes).max())
        target, share = (low + high) // 2, step
    return None if best is None else [int(at) * unit for at in best]
