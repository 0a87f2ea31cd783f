"""Addresses: an offset in one arena for every storage of an order, so that two that live together never overlap.

The arena can never be smaller than the peak of live bytes; what it is larger is fragmentation. Storages that live
from the first step to the last lie at the bottom. The others are placed one after the other, each at the lowest
offset where it fits among those placed before, in an order that decides everything::

    size        the largest first
    conflicts   what is live together with the most bytes first
    longest     the longest-lived first: activations, in the order in which they nest
    area        bytes times steps

The best of the four is improved by hill climbing: what lies at the top of the arena goes to the front of the order.
Where that leaves fragmentation, a search looks for offsets in a smaller arena. Work is counted, not timed.

**Place or postpone**, depth first, exact unless it runs out of work. After MiniMalloc (Moffitt, "MiniMalloc: A
lightweight memory allocator for hardware-accelerated machine learning", ASPLOS 2023), whose canonical solutions are
built from the lowest offset upward, each box on the ground or on another:

1. of the boxes that may lie at the lowest offset that the placed ones leave them, take one with the lowest such
   offset, the first by a given rule;
2. place it there and go on; where that fails, *postpone* it: something open must come under it first (as SetTimes does
   in scheduling, see Le Pape et al., "Time-versus-capacity compromises in project scheduling", 1994);
3. after either, look whether all can still fit, and who else must wait (:func:`failing_section`).

MiniMalloc tries every other box at the same offset after a failure; postponing tells at once when none can help. Once
no open box crosses a moment, both sides are independent problems and are solved on their own, each in its own order.

**What can no longer fit.** Only moments at which as much as possible is live constrain anything: where something
begins, and something else ends before anything more begins. They are called *sections*, as in MiniMalloc. Every
section is one machine on which the boxes that are live there run one after the other (its bytes are the time), each
not before its lowest offset. Three arguments, each valid in every solution in which no box can be moved down alone:

    blocked   a box that is not at the lowest offset that the placed boxes leave it is kept from there by an open box
              below it: it lies on or above the lowest end that such a box can have
    not first what lies lowest in a section must leave room for all the rest above it; who cannot, lies on or above
              the lowest end of those who can
    machine   boxes that lie at or above some offset need all of their bytes above it (Jackson's bound; MiniMalloc's
              section inference is the case of the lowest offset)

**Restarts.** How long a search takes depends on its rule of preference by orders of magnitude, and no rule is good
everywhere. So each search is cut off after some work, which grows slowly, and the next one runs by the next rule.
*Blame* says in which sections searches failed; boxes that are live there go first (as constraint solvers weigh failing
constraints: Boussemart et al., "Boosting systematic search by weighting constraints", 2004). What failed long ago
counts less. The smallest arena is the peak if it can be had, else what lies between is halved: three fifths of the
work for the peak, the rest for targets between the lowest that is still open and the best that was found, a tenth for
each at most.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, pairwise, product
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.problem import Kind, Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges


def address_violation(
    problem: Problem, order: Sequence[int], offsets: Mapping[int, int], align_bytes: int = 1
) -> str | None:
    """The first thing wrong with the offsets in words, or ``None``: missing, negative, unaligned, overlapping."""
    nodes, storages = problem.nodes, problem.storages
    for node in nodes:
        for s in node.alloc:
            if s not in offsets:
                return f"storage {s} of {node.name} has no offset"
            if offsets[s] < 0 or offsets[s] % align_bytes:
                return f"storage {s} of {node.name} lies at {offsets[s]}, which is not a multiple of {align_bytes}"
    users_left = dict.fromkeys(offsets, 0)
    for node in nodes:
        for s in set(node.use):
            users_left[s] += 1
    used = {s for s, count in users_left.items() if count}
    live = {s for node in nodes if node.kind is Kind.INPUT for s in node.alloc}
    for at, v in enumerate(order):
        node = nodes[v]
        if node.kind is not Kind.INPUT:
            live.update(node.alloc)
        if at == 0 or (node.alloc and node.kind is not Kind.INPUT):  # only then can anything new overlap
            broken = _overlap(storages, live, offsets)
            if broken is not None:
                a, b = broken
                return f"storages {a} and {b} overlap while {node.name} runs"
        for s in set(node.use):
            users_left[s] -= 1
            if not users_left[s] and not storages[s].pinned:
                live.discard(s)
        if node.kind not in (Kind.INPUT, Kind.OUTPUT):
            live.difference_update([s for s in node.alloc if s not in used])
    return None


def _overlap(
    storages: Sequence[tuple[int, bool]], live: set[int], offsets: Mapping[int, int]
) -> tuple[int, int] | None:
    here = sorted((offsets[s], s) for s in live if storages[s][0])
    for (low, a), (high, b) in pairwise(here):
        if low + storages[a][0] > high:
            return a, b
    return None


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sectioned:
    """Boxes over sections; n boxes, s sections.

    Attributes:
        bytes: Per box, its height, in any unit (n).
        begin, end: Per box, its first section and the one after its last (n).
        sections: How many.
    """

    bytes: Ints
    begin: Ints
    end: Ints
    sections: int

    @cached_property
    def covers(self) -> Bools:
        """Per box and section, whether it is live there (n x s)."""
        at = np.arange(self.sections)
        return (self.begin[:, None] <= at) & (at < self.end[:, None])

    @cached_property
    def together(self) -> Bools:
        """Per pair of boxes, whether they live together at some time; no box with itself (n x n)."""
        result = (self.begin[:, None] < self.end) & (self.begin < self.end[:, None])
        np.fill_diagonal(result, False)
        return result

    @cached_property
    def live_bytes(self) -> Ints:
        """Per section, the sum of the boxes that are live there (s)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.bytes)
        np.subtract.at(change, self.end, self.bytes)
        return np.cumsum(change[:-1])

    @cached_property
    def crossings(self) -> Ints:
        """Per section, how many boxes are live there and also in the next (s)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, 1)
        np.subtract.at(change, self.end - 1, 1)
        return np.cumsum(change[:-1])

    def part(self, boxes: Ints, first: int, last: int) -> "Sectioned":
        """Some boxes, in this order, all of them within sections ``first`` to ``last - 1``."""
        return Sectioned(self.bytes[boxes], self.begin[boxes] - first, self.end[boxes] - first, last - first)

    def in_units_of(self, unit: int) -> "Sectioned":
        """The same with smaller numbers; ``unit`` divides all sizes."""
        return Sectioned(self.bytes // unit, self.begin, self.end, self.sections)


def sectioned(ranges: Sequence[LiveRange]) -> Sectioned:
    """Boxes of these lifetimes, by their position there."""
    first = np.array([span.first for span in ranges], np.int64)
    last = np.array([span.last for span in ranges], np.int64)
    begins, ends = np.unique(first), np.unique(last)
    # The last begin before each end: no more begins until something has ended, so this moment is a maximum.
    moments = np.unique(begins[np.searchsorted(begins, ends, side="right") - 1])
    return Sectioned(
        np.array([span.bytes for span in ranges], np.int64),
        np.searchsorted(moments, first),
        np.searchsorted(moments, last, side="right"),
        len(moments),
    )


NEVER = np.int64(2**62)


class Standing(NamedTuple):
    """A partial placement; arrays are replaced, not changed, except ``low``, which only ever rises.

    Attributes:
        open: Per box, whether it is still to be placed (n).
        least: Per box, the lowest offset above all placed boxes that it is live together with (n).
        low: Per box, no solution from here has it lower (n).
        rest: Per section, the sum of open boxes (s).
        crossings: Per section, how many open boxes are live there and in the next (s).
    """

    open: Bools
    least: Ints
    low: Ints
    rest: Ints
    crossings: Ints


def failing_section(boxes: Sectioned, now: Standing, limit: int, first: int, last: int) -> int | None:
    """Raise ``now.low`` of what is live in sections ``first`` to ``last - 1``; where one of them cannot hold, which.

    Time: some vector operations on (boxes that are open there) x (sections).
    """
    here = np.flatnonzero(now.open & (boxes.begin < last) & (boxes.end > first))
    if not len(here):
        return None
    size, low = boxes.bytes[here], now.low[here]
    blocked = np.flatnonzero(low > now.least[here])
    if len(blocked):
        who = here[blocked]
        below = boxes.together[who] & now.open & (now.low < (now.least + boxes.bytes)[who, None])
        raised = np.where(below, now.low + boxes.bytes, NEVER).min(axis=1)
        if raised.max() == NEVER:
            return int(boxes.begin[who[raised.argmax()]])
        low[blocked] = np.maximum(low[blocked], raised)
    covers, room = boxes.covers[here, first:last], limit - now.rest[first:last]
    late = covers & (low[:, None] > room)
    if late.any():
        lowest_end = np.where(covers & ~late, (low + size)[:, None], NEVER).min(axis=0)
        low = np.maximum(low, np.where(late, lowest_end, 0).max(axis=1))
        if low.max() == NEVER:
            return first + int((late.any(axis=0) & (lowest_end == NEVER)).argmax())
    now.low[here] = low
    falling = np.argsort(-low, kind="stable")
    needed = np.cumsum(covers[falling] * size[falling, None], axis=0) + low[falling, None]
    if needed.max() > limit:
        return first + int(needed.max(axis=0).argmax())
    return None


Rule = Callable[[Sectioned, Floats], Ints]
"""From boxes and blame per section: the boxes by falling preference."""


CELLS_PER_WORK = 2**15
"""Boxes times sections that are looked at within one unit of work, beside what any look costs."""


class OutOfWorkError(Exception):
    """The search ended before it knew."""


@dataclass
class Search:
    """One run: what it may spend, and where it failed.

    Attributes:
        limit: No box ends above it, in the unit of the boxes.
        work_left: Partial placements that may still be looked at; a large one counts as several.
        blame: Per section of the whole problem, how often it could not hold.
        rule: Preference among boxes at one offset.
    """

    limit: int
    work_left: int
    blame: Floats
    rule: Rule
    _found: dict[int, int] = field(default_factory=dict)

    def offsets(self, boxes: Sectioned) -> Ints | None:
        """Offsets of all boxes; ``None``: there are none.

        Raises:
            OutOfWorkError: Neither is known.
        """
        n = len(boxes.bytes)
        start = Standing(
            np.ones(n, np.bool_),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            boxes.live_bytes.copy(),
            boxes.crossings,
        )
        if (start.rest > self.limit).any():
            return None
        if not self._pieces(boxes, np.arange(n), start, 0):
            return None
        return np.array([self._found[i] for i in range(n)], np.int64)

    def _pieces(self, boxes: Sectioned, names: Ints, now: Standing, at: int) -> bool:
        """Solve what no open box joins, piece by piece. ``names``: of the boxes; ``at``: where their sections begin."""
        left = np.flatnonzero(now.open)
        cuts = np.flatnonzero(now.crossings == 0) + 1
        piece_of = np.searchsorted(cuts, boxes.begin[left], side="right")
        for piece in np.unique(piece_of):
            inside = left[piece_of == piece]
            first = int(cuts[piece - 1]) if piece else 0
            if not self._piece(boxes, inside, names, now, at, first, int(cuts[piece])):
                return False
        return True

    def _piece(
        self, boxes: Sectioned, inside: Ints, names: Ints, now: Standing, at: int, first: int, last: int
    ) -> bool:
        part = boxes.part(inside, first, last)
        at += first
        chosen = self.rule(part, self.blame[at : at + part.sections])
        inside = inside[chosen]
        part = part.part(chosen, 0, part.sections)
        start = Standing(
            np.ones(len(inside), np.bool_), now.least[inside], now.low[inside], part.live_bytes.copy(), part.crossings
        )
        return self._search(part, names[inside], start, at)

    def _search(self, boxes: Sectioned, names: Ints, start: Standing, at: int) -> bool:
        path, tried = [start], [-1]
        while path:
            now, i = path[-1], tried[-1]
            if i >= 0 and not self._postpone(boxes, now, i, at):
                path.pop(), tried.pop()
                continue
            free = now.open & (now.low == now.least)
            if not free.any():
                path.pop(), tried.pop()
                continue
            i = tried[-1] = int(np.where(free, now.least, NEVER).argmin())
            after = self._place(boxes, now, i, at)
            if after is None:
                continue
            if not after.open.any() or (after.crossings[boxes.begin[i] : boxes.end[i] - 1] == 0).any():
                if not self._pieces(boxes, names, after, at):
                    continue
                self._found.update({int(names[k]): int(was.least[k]) for was, k in zip(path, tried, strict=True)})
                return True
            path.append(after)
            tried.append(-1)
        return False

    def _place(self, boxes: Sectioned, now: Standing, i: int, at: int) -> Standing | None:
        """The state with box i where it can lie lowest; ``None`` where the others do not fit then."""
        begin, end = int(boxes.begin[i]), int(boxes.end[i])
        top = now.least[i] + boxes.bytes[i]
        is_open, least, rest, crossings = now.open.copy(), now.least.copy(), now.rest.copy(), now.crossings.copy()
        is_open[i] = False
        near = is_open & boxes.together[i]
        lifted = np.flatnonzero(near & (least < top))
        least[lifted] = top
        rest[begin:end] -= boxes.bytes[i]
        crossings[begin : end - 1] -= 1
        after = Standing(is_open, least, np.maximum(now.low, least), rest, crossings)
        free = is_open & (after.low == least)
        if free.any():
            np.maximum(after.low, least[free].min(), out=after.low)  # who lies lowest of all open boxes is free
        elif is_open.any():
            return None
        if len(lifted):
            begin, end = min(begin, int(boxes.begin[lifted].min())), max(end, int(boxes.end[lifted].max()))
        return after if self._holds(boxes, after, begin, end, at) else None

    def _postpone(self, boxes: Sectioned, now: Standing, i: int, at: int) -> bool:
        """Box i does not lie where it could: does all still fit?"""
        now.low[i] = max(now.low[i], now.least[i] + 1)
        return self._holds(boxes, now, int(boxes.begin[i]), int(boxes.end[i]), at)

    def _holds(self, boxes: Sectioned, now: Standing, first: int, last: int, at: int) -> bool:
        if self.work_left <= 0:
            raise OutOfWorkError
        self.work_left -= 1 + len(boxes.bytes) * (last - first) // CELLS_PER_WORK
        failing = failing_section(boxes, now, self.limit, first, last)
        if failing is not None:
            self.blame[at + failing] += 1
        return failing is None


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
        width: How long a box is live: in sections, or in others that are live meanwhile.
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


MOST_CLIMBS, CLIMB_BOXES, SEARCH_WORK = 40, 30_000, 130_000
"""Per unit of effort: placements of all boxes while climbing, and boxes placed in these; partial placements that the
search looks at."""


@dataclass(frozen=True)
class AddressPlan:
    """Offsets of all storages of an order in one arena, checked.

    Attributes:
        offsets: Per storage id, its first byte.
        arena_bytes: The end of the highest.
        peak_bytes: The most live at once, each storage rounded up to ``align_bytes``: no arena is smaller.
        align_bytes: Offsets and sizes are multiples of it.
        found_by: ``size``, ``conflicts``, ``longest``, ``area``, ``climbing`` or ``search``.
    """

    offsets: Mapping[int, int]
    arena_bytes: int
    peak_bytes: int
    align_bytes: int
    found_by: str

    @property
    def fragmentation(self) -> float:
        """The part of the arena that is above the peak: 0.0 is perfect, and cannot be better."""
        return (self.arena_bytes - self.peak_bytes) / self.arena_bytes if self.arena_bytes else 0.0


def plan_addresses(problem: Problem, order: Sequence[int], align_bytes: int = 512, effort: int = 2) -> AddressPlan:
    """Offsets for an order that can run.

    Args:
        problem: Whose storages.
        order: Its nodes in the order in which they run.
        align_bytes: Offsets and sizes are multiples of it; 512 is what torch's CUDA allocator aligns to.
        effort: 0: the four orders only; each unit more allows as much climbing and searching again.

    Raises:
        OptionsError: ``align_bytes`` is not a positive whole number.
        VerificationError: The checker refuses the result: a bug.
    """
    if isinstance(align_bytes, bool) or not isinstance(align_bytes, int) or align_bytes < 1:
        raise OptionsError(f"align_bytes is {align_bytes!r}; it is a whole number of bytes, 1 or more.")
    rounded = [
        span._replace(bytes=-(-span.bytes // align_bytes) * align_bytes) for span in LiveRanges(problem).of(order)
    ]
    offsets, found_by = place(rounded, len(order), effort)
    broken = address_violation(problem, order, offsets, align_bytes)
    if broken is not None:
        raise VerificationError(
            f"addresses of {problem.name!r} are not valid: {broken}. This is a bug: please report it."
        )
    arena = max((offsets[span.storage] + span.bytes for span in rounded), default=0)
    return AddressPlan(offsets, arena, most_live(rounded, len(order)), align_bytes, found_by)


def most_live(ranges: Sequence[LiveRange], steps: int) -> int:
    """The most bytes live at once."""
    change = np.zeros(steps + 1, np.int64)
    for span in ranges:
        change[span.first] += span.bytes
        change[span.last + 1] -= span.bytes
    return int(np.cumsum(change).max())


def place(ranges: Sequence[LiveRange], steps: int, effort: int) -> tuple[dict[int, int], str]:
    """Offsets by storage, and what found them."""
    offsets: dict[int, int] = {}
    bottom = 0
    moving = []
    for span in ranges:
        if span.bytes and span.first == 0 and span.last == steps - 1:
            offsets[span.storage] = bottom
            bottom += span.bytes
        elif span.bytes:
            moving.append(span)
        else:
            offsets[span.storage] = 0
    best, found_by = _place_moving(moving, steps, effort)
    offsets.update({span.storage: bottom + at for span, at in zip(moving, best, strict=True)})
    return offsets, found_by


def _place_moving(ranges: Sequence[LiveRange], steps: int, effort: int) -> tuple[list[int], str]:
    if not ranges:
        return [], "size"
    boxes = Boxes(ranges)
    least = most_live(ranges, steps)
    best: tuple[int, str, list[int], Ints] | None = None
    for name, order in boxes.orders().items():
        offsets = boxes.place(order)
        arena = boxes.arena(offsets)
        if best is None or arena < best[0]:
            best = (arena, name, order, offsets)
        if arena == least:
            break
    assert best is not None
    arena, found_by, order, offsets = best
    if effort and arena > least:
        climbed = boxes.climb(order, offsets, least, min(MOST_CLIMBS, CLIMB_BOXES // len(ranges)) * effort)
        if boxes.arena(climbed) < arena:
            arena, found_by, offsets = boxes.arena(climbed), "climbing", climbed
    if effort and arena > least:
        searched = smallest_arena(ranges, least, arena, SEARCH_WORK * effort)
        if searched is not None:
            return searched, "search"
    return [int(at) for at in offsets], found_by


class Boxes:
    """Storages as boxes in time and space, in arrays."""

    def __init__(self, ranges: Sequence[LiveRange]) -> None:
        self.bytes = np.array([span.bytes for span in ranges], np.int64)
        self.first = np.array([span.first for span in ranges], np.int64)
        self.last = np.array([span.last for span in ranges], np.int64)

    def orders(self) -> dict[str, list[int]]:
        """Orders of placement by name; ties go to who comes to life first."""
        spans = self.last - self.first + 1
        keys = {
            "size": -self.bytes,
            "longest": -spans,
            "area": -self.bytes * spans,
            "conflicts": -self._conflicts(),
        }
        return {name: [int(i) for i in np.lexsort((-self.bytes, self.first, key))] for name, key in keys.items()}

    def _conflicts(self) -> Ints:
        """Per box, the bytes of all boxes that it is live together with at some time."""
        by_first, by_last = np.argsort(self.first, kind="stable"), np.argsort(self.last, kind="stable")
        begun = np.concatenate(([0], np.cumsum(self.bytes[by_first])))
        ended = np.concatenate(([0], np.cumsum(self.bytes[by_last])))
        have_begun = begun[np.searchsorted(self.first[by_first], self.last, side="right")]
        have_ended = ended[np.searchsorted(self.last[by_last], self.first, side="left")]
        result: Ints = have_begun - have_ended
        return result

    def place(self, order: Sequence[int]) -> Ints:
        """Each box of the order at the lowest offset that is free for all its life."""
        n = len(order)
        firsts, lasts = np.empty(n, np.int64), np.empty(n, np.int64)
        lows, highs = np.empty(n, np.int64), np.empty(n, np.int64)
        offsets = np.zeros(n, np.int64)
        for k, i in enumerate(order):
            first, last, size = self.first[i], self.last[i], self.bytes[i]
            together = np.flatnonzero((firsts[:k] <= last) & (lasts[:k] >= first))
            at = _lowest_gap(lows[together], highs[together], int(size))
            offsets[i] = at
            firsts[k], lasts[k], lows[k], highs[k] = first, last, at, at + size
        return offsets

    def arena(self, offsets: Ints) -> int:
        """The end of the highest box."""
        return int((offsets + self.bytes).max())

    def climb(self, order: Sequence[int], offsets: Ints, least: int, placements: int) -> Ints:
        """Place again with the boxes at the top moved forward, half as far each time it does not help."""
        best, arena, order, share = offsets, self.arena(offsets), list(order), 0.0
        for _ in range(placements):
            if arena == least:
                break
            place_of = {i: k for k, i in enumerate(order)}
            top = [int(i) for i in np.flatnonzero(best + self.bytes == arena)]
            changed = list(order)
            for i in sorted(top, key=place_of.__getitem__):
                changed.remove(i)
                changed.insert(int(place_of[i] * share), i)
            tried = self.place(changed)
            if self.arena(tried) < arena:
                best, arena, order, share = tried, self.arena(tried), changed, 0.0
            elif share > 0.95:
                break
            else:
                share = (1 + share) / 2
        return best


def _lowest_gap(lows: Ints, highs: Ints, size: int) -> int:
    """The lowest offset where so many bytes are free of all [low, high)."""
    if not len(lows):
        return 0
    order = np.argsort(lows, kind="stable")
    lows, highs = lows[order], np.maximum.accumulate(highs[order])
    below = np.concatenate(([0], highs[:-1]))
    gaps = np.flatnonzero(lows - below >= size)
    return int(below[gaps[0]]) if len(gaps) else int(highs[-1])
