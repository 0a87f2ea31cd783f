"""Do these boxes fit below a limit? Many short searches, each learning from where those before failed.

How long a search takes depends on its rule of preference by orders of magnitude, and no rule is good everywhere. So
each search is cut off after some work, which grows slowly, and the next one runs by the next rule. *Blame* says in
which sections searches failed; boxes that are live there go first (as constraint solvers weigh failing constraints:
Boussemart et al., "Boosting systematic search by weighting constraints", 2004). What failed long ago counts less. No
clock and no chance: the same boxes give the same offsets.
"""

from collections.abc import Iterator
from itertools import cycle, product
from typing import Literal, NamedTuple

import numpy as np

from overlap_sched.peak_memory.addresses.boxes import Floats, Ints, Sectioned
from overlap_sched.peak_memory.addresses.search import OutOfWorkError, Rule, Search

FIRST_RUN, GROWTH, FORGETTING = 2, 1.05, 0.9
"""Work of the first search per box; by how much it grows from one to the next; what is left of blame after each."""
BLAME_WEIGHTS = (0.3, 1.0, 3.0)
"""Of blame, beside what a box is by itself: each is good for some problems; one per round of all rules."""

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
