"""Do these boxes fit below a limit? Many short searches, each learning from where those before failed.

How long a search takes depends on its rule of preference by orders of magnitude, and no rule is good everywhere. So
each search is cut off after some work, which grows slowly, and the next one runs by the next rule. *Blame* says in
which sections searches failed; boxes that are live there go first (as constraint solvers weigh failing constraints:
Boussemart et al., "Boosting systematic search by weighting constraints", 2004). What failed long ago counts less. No
clock and no chance: the same boxes give the same offsets.

:func:`smallest_arena` finds the smallest arena that such a search finds: the peak if it can be had, else halving what
lies between. Work is what bounds it: three fifths for the peak, the rest for targets between the lowest that is still
open and the best that was found, a tenth for each at most.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Literal, NamedTuple

import numpy as np

from overlap_sched.peak_memory.addresses.boxes import Floats, Ints, Sectioned, sectioned
from overlap_sched.peak_memory.addresses.search import OutOfWorkError, Rule, Search
from overlap_sched.simulate.ledger import LiveRange

FIRST_RUN, GROWTH, FORGETTING = 2, 1.05, 0.9
"""Work of the first search per box; by how much it grows from one to the next; what is left of blame after each."""
BLAME_WEIGHTS = (0.3, 1.0, 3.0)
"""Of blame, beside what a box is by itself: each is good for some problems; one per round of all rules."""

MOST_CELLS = 1_000_000
"""Boxes times sections: above, one step of this search costs too much, and memory grows with the square of boxes."""
NOT_WORTH = 1000
"""An arena above the peak by less than one in so many is left as it is."""

Key = Literal["crowd-width", "crowd-area", "area"]
Width = Literal["neighbours", "sections"]
RULES: tuple[tuple[Key, Width], ...] = (
    ("crowd-width", "neighbours"),
    ("area", "sections"),
    ("crowd-width", "sections"),
    ("area", "neighbours"),
    ("crowd-area", "sections"),
    ("crowd-area", "neighbours"),
)


def rule_of(key: Key, width: Width, weight: float) -> Rule:
    """Which boxes go first.

    Args:
        key: ``crowd-``: what is live where most is live and most has failed; ties by ``width`` and then area, or by
            ``area`` and then width (MiniMalloc's preorderings TWA and TAW, with blame). ``area``: what is largest on
            a logarithmic scale, or is live where most has failed.
        width: How long a box lives: in sections, or in others that live meanwhile.
        weight: Of blame.
    """

    def order(boxes: Sectioned, blame: Floats) -> Ints:
        widths = boxes.together.sum(axis=1) + 1 if width == "neighbours" else boxes.end - boxes.begin
        areas = widths * boxes.bytes
        blamed = weight * _highest(boxes, blame)
        if key == "area":
            scaled = np.log(areas.astype(np.float64))
            keys: tuple[Floats | Ints, ...] = (-widths, -(scaled / max(scaled.max(), 1.0) + blamed))
        else:
            crowd = -(_highest(boxes, boxes.live_bytes) + blamed)
            keys = (-areas, -widths, crowd) if key == "crowd-width" else (-widths, -areas, crowd)
        return np.lexsort(keys)

    return order


class PackingResult(NamedTuple):
    """What came of looking for offsets below a limit.

    Attributes:
        offsets: Per box, in the unit of the boxes; ``None`` where none were found.
        ended: Whether the search came to its end: then there are none that it has not found.
        work: What it spent, in the unit of :class:`Search`.
    """

    offsets: Ints | None
    ended: bool
    work: int


def fit_below(boxes: Sectioned, limit: int, most_work: int) -> PackingResult:
    """Offsets with no end above the limit.

    Args:
        boxes: What is to be placed.
        limit: In the unit of the boxes.
        most_work: Give up after so much.
    """
    blame = np.zeros(boxes.sections)
    run, spent = float(FIRST_RUN * len(boxes.bytes)), 0
    for rule in _rules():
        allowed = min(int(run), most_work - spent)
        search = Search(limit, allowed, blame, rule)
        try:
            offsets = search.offsets(boxes)
        except OutOfWorkError:
            spent += allowed
        else:
            return PackingResult(offsets, True, spent + allowed - search.work_left)
        if spent >= most_work:
            break
        blame *= FORGETTING
        run *= GROWTH
    return PackingResult(None, False, spent)


def _rules() -> Iterator[Rule]:
    """All rules with the first weight, all with the next, and so on without end."""
    for weight, (key, width) in cycle(product(BLAME_WEIGHTS, RULES)):
        yield rule_of(key, width, weight)


def _highest(boxes: Sectioned, per_section: Floats | Ints) -> Floats:
    """Per box, the highest value of the sections where it is live, as a part of the highest of all."""
    highest: Floats = np.where(boxes.covers, per_section, 0).max(axis=1) / max(float(per_section.max()), 1e-9)
    return highest


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
