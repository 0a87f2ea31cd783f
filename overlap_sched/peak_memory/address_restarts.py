"""Do these boxes fit below a limit? Many short searches, each learning from where those before failed.

How long a search takes depends on its rule of preference by orders of magnitude, and no rule is good everywhere. So
each search is cut off after some work, which grows slowly, and the next one runs by the next rule. *Blame* says in
which sections searches failed; boxes that are live there go first (as constraint solvers weigh failing constraints:
Boussemart et al., "Boosting systematic search by weighting constraints", 2004). What failed long ago counts less. No
clock and no chance: the same boxes give the same offsets.
"""

from collections.abc import Iterator
from itertools import cycle, product
from typing import Literal

import numpy as np

from overlap_sched.peak_memory.address_boxes import Floats, Ints, Sectioned
from overlap_sched.peak_memory.address_search import OutOfWork, Rule, Search

FIRST_RUN, GROWTH, FORGETTING = 2, 1.05, 0.9
"""Work of the first search per box; by how much it grows from one to the next; what is left of blame after each."""
BLAME_WEIGHTS = (0.3, 1.0, 3.0)
"""Of blame, beside what a box is by itself: each is good for some problems; one per round of all rules."""

Key = Literal["crowd-width", "crowd-area", "area"]
Width = Literal["steps", "sections"]
RULES: tuple[tuple[Key, Width], ...] = (
    ("crowd-width", "steps"),
    ("area", "sections"),
    ("crowd-width", "sections"),
    ("crowd-area", "sections"),
)


def rule_of(key: Key, width: Width, weight: float) -> Rule:
    """Which boxes go first.

    Args:
        key: ``crowd-``: what is live where most is live and most has failed; ties by ``width`` and then area, or by
            ``area`` and then width (MiniMalloc's preorderings TWA and TAW, with blame). ``area``: what is largest on
            a logarithmic scale, or is live where most has failed.
        width: How the length of a box is counted: in steps or in sections.
        weight: Of blame.
    """

    def order(boxes: Sectioned, blame: Floats) -> Ints:
        widths = boxes.steps if width == "steps" else boxes.end - boxes.begin
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


def fit_below(boxes: Sectioned, limit: int, most_work: int) -> tuple[Ints | None, bool]:
    """Offsets with no end above the limit, if any were found, and whether the search came to its end.

    ``(None, True)``: there are none. ``(None, False)``: none found within the work.

    Args:
        boxes: What is to be placed.
        limit: In the unit of the boxes.
        most_work: Give up after so much, in the unit of :class:`Search`.
    """
    blame = np.zeros(boxes.sections)
    run = float(FIRST_RUN * len(boxes.bytes))
    for rule in _rules():
        search = Search(limit, min(int(run), most_work), blame, rule)
        try:
            return search.offsets(boxes), True
        except OutOfWork:
            most_work -= int(run)
        if most_work <= 0:
            break
        blame *= FORGETTING
        run *= GROWTH
    return None, False


def _rules() -> Iterator[Rule]:
    """All rules with the first weight, all with the next, and so on without end."""
    for weight, (key, width) in cycle(product(BLAME_WEIGHTS, RULES)):
        yield rule_of(key, width, weight)


def _highest(boxes: Sectioned, per_section: Floats | Ints) -> Floats:
    """Per box, the highest value of the sections where it is live, as a part of the highest of all."""
    highest: Floats = np.where(boxes.covers, per_section, 0).max(axis=1) / max(float(per_section.max()), 1e-9)
    return highest
