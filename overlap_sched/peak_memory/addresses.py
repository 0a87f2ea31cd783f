"""Addresses: an offset in one arena for every storage of an order, so that two that live together never overlap.

The arena can never be smaller than the peak of live bytes; what it is larger is fragmentation. Storages that live
from the first step to the last lie at the bottom. The others are placed one after the other, each at the lowest
offset where it fits among those placed before, in an order that decides everything: the largest first, then the
longest-lived first (activations, in the order in which they nest), each improved by hill climbing: what lies at the top
of the arena goes to the front of the order. Where that leaves fragmentation, a search looks for offsets in a smaller
arena. Work is counted, not timed.

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
constraints: Boussemart et al., "Boosting systematic search by weighting constraints", 2004). The smallest arena is the
peak if it can be had, else what lies between is halved: half of the work for the peak, half of what is left for each
target between the lowest that is still open and the best that was found.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import cycle, product
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import OptionsError, VerificationError
from overlap_sched.peak_memory.tuning import TUNING
from overlap_sched.problem import Kind, Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges


def address_violation(
    problem: Problem, order: Sequence[int], offsets: Mapping[int, int], align_bytes: int = 1
) -> str | None:
    """The first thing wrong with the offsets in words, or ``None``: missing, negative, unaligned, overlapping.

    Reads the problem alone: when storages live is counted anew.
    """
    nodes, storages = problem.nodes, problem.storages
    first, last, made_by = dict[int, int](), dict[int, int](), dict[int, int]()
    for at, v in enumerate(order):
        for s in nodes[v].alloc:
            first[s], last[s], made_by[s] = 0 if nodes[v].kind is Kind.INPUT else at, at, v
    used = {s for node in nodes for s in node.use}
    for at, v in enumerate(order):
        last.update(dict.fromkeys(nodes[v].use, at))
    for s, v in made_by.items():
        if s not in offsets:
            return f"storage {s} of {nodes[v].name} has no offset"
        if offsets[s] < 0 or offsets[s] % align_bytes:
            return f"storage {s} of {nodes[v].name} lies at {offsets[s]}, which is not a multiple of {align_bytes}"
        if storages[s].pinned if s in used else nodes[v].kind in (Kind.INPUT, Kind.OUTPUT):
            last[s] = len(order)
    live: list[tuple[int, int, int]] = []  # begin, end and storage, none overlapping, by place
    ends: list[tuple[int, tuple[int, int, int]]] = []
    for s in sorted((s for s in first if storages[s].bytes), key=lambda s: (first[s], s)):
        while ends and ends[0][0] < first[s]:
            del live[bisect_left(live, heappop(ends)[1])]
        here = (offsets[s], offsets[s] + storages[s].bytes, s)
        k = bisect_left(live, here)
        for low, high, other in live[max(k - 1, 0) : k + 1]:
            if low < here[1] and here[0] < high:
                a, b = sorted((other, s), key=lambda one: (offsets[one], one))
                return f"storages {a} and {b} overlap while {nodes[order[first[s]]].name} runs"
        live.insert(k, here)
        heappush(ends, (last[s], here))
    return None


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Storages as boxes in space and time, which goes by sections; n boxes, s sections.

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

    def counted(self, first: Ints, last: Ints, what: Ints | int) -> Ints:
        """Per section, the sum over boxes that have it between their first and before their last (s)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, first, what)
        np.subtract.at(change, last, what)
        return np.cumsum(change[:-1])

    @cached_property
    def live_bytes(self) -> Ints:
        """Per section, the sum of the boxes that are live there (s)."""
        return self.counted(self.begin, self.end, self.bytes)

    @cached_property
    def crossings(self) -> Ints:
        """Per section, how many boxes are live there and also in the next (s)."""
        return self.counted(self.begin, self.end - 1, 1)

    def part(self, boxes: Ints, first: int, last: int) -> "Boxes":
        """Some boxes, in this order, all of them within sections ``first`` to ``last - 1``."""
        return Boxes(self.bytes[boxes], self.begin[boxes] - first, self.end[boxes] - first, last - first)

    def arena(self, offsets: Ints) -> int:
        """The end of the highest box."""
        return int((offsets + self.bytes).max())

    def place(self, order: Sequence[int]) -> Ints:
        """Each box of the order at the lowest offset that is free for all its life."""
        placed, offsets = np.array(order, np.int64), np.zeros(len(order), np.int64)
        begin, end, size = self.begin[placed], self.end[placed], self.bytes[placed]
        for k in range(len(order)):
            near = np.flatnonzero((begin[:k] < end[k]) & (end[:k] > begin[k]))
            near = near[np.argsort(offsets[near], kind="stable")]
            free = np.concatenate(([0], np.maximum.accumulate(offsets[near] + size[near])))  # what lies below is taken
            gaps = np.flatnonzero(offsets[near] - free[:-1] >= size[k])
            offsets[k] = free[gaps[0] if len(gaps) else -1]
        return offsets[np.argsort(placed)]

    def climb(self, order: list[int], placements: int) -> tuple[Ints, int]:
        """Place, then again with the boxes at the top moved forward, half as far each time it does not help.

        Returns:
            The best offsets, and how often they got better.
        """
        best, share, better = self.place(order), 0.0, 0
        for _ in range(placements):
            arena = self.arena(best)
            if arena == self.live_bytes.max() or len(order) * (1 - share) < 1:  # not even one place forward
                break
            changed, place_of = list(order), {i: k for k, i in enumerate(order)}
            for i in sorted(np.flatnonzero(best + self.bytes == arena).tolist(), key=place_of.__getitem__):
                changed.remove(i)
                changed.insert(int(place_of[i] * share), i)
            tried, share = self.place(changed), (1 + share) / 2
            if self.arena(tried) < arena:
                best, order, share, better = tried, changed, 0.0, better + 1
        return best, better


def boxes_of(ranges: Sequence[LiveRange]) -> Boxes:
    """Boxes of these lifetimes, by their position there."""
    size, first, last = np.array([(span.bytes, span.first, span.last) for span in ranges], np.int64).T
    begins, ends = np.unique(first), np.unique(last)
    # The last begin before each end: no more begins until something has ended, so this moment is a maximum.
    moments = np.unique(begins[np.searchsorted(begins, ends, side="right") - 1])
    end = np.searchsorted(moments, last, side="right")
    return Boxes(size, np.searchsorted(moments, first), end, len(moments))


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


def failing_section(boxes: Boxes, now: Standing, limit: int, first: int, last: int) -> int | None:
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


Rule = Callable[[Boxes, Floats], Ints]
"""From boxes and blame per section: the boxes by falling preference."""


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

    def offsets(self, boxes: Boxes) -> Ints | None:
        """Offsets of all boxes; ``None``: there are none.

        Raises:
            OutOfWorkError: Neither is known.
        """
        if boxes.live_bytes.max() > self.limit:
            return None
        n = len(boxes.bytes)
        lowest = np.zeros(n, np.int64)
        start = Standing(np.ones(n, np.bool_), lowest, lowest, boxes.live_bytes, boxes.crossings)
        if not self._pieces(boxes, np.arange(n), start, 0):
            return None
        return np.array([self._found[i] for i in range(n)], np.int64)

    def _pieces(self, boxes: Boxes, names: Ints, now: Standing, at: int) -> bool:
        """Solve what no open box joins, piece by piece. ``names``: of the boxes; ``at``: where their sections begin."""
        left = np.flatnonzero(now.open)
        cuts = np.flatnonzero(now.crossings == 0) + 1
        piece_of = np.searchsorted(cuts, boxes.begin[left], side="right")
        for piece in np.unique(piece_of):
            inside = left[piece_of == piece]
            first, last = int(cuts[piece - 1]) if piece else 0, int(cuts[piece])
            part = boxes.part(inside, first, last)
            chosen = self.rule(part, self.blame[at + first : at + last])
            inside, part = inside[chosen], part.part(chosen, 0, part.sections)
            is_open = np.ones(len(inside), np.bool_)
            start = Standing(is_open, now.least[inside], now.low[inside], part.live_bytes, part.crossings)
            if not self._search(part, names[inside], start, at + first):
                return False
        return True

    def _search(self, boxes: Boxes, names: Ints, start: Standing, at: int) -> bool:
        path, tried = [start], [-1]
        while path:
            now, i = path[-1], tried[-1]
            if i >= 0:  # it does not lie where it could: does all still fit?
                now.low[i] = max(now.low[i], now.least[i] + 1)
                if not self._holds(boxes, now, int(boxes.begin[i]), int(boxes.end[i]), at):
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

    def _place(self, boxes: Boxes, now: Standing, i: int, at: int) -> Standing | None:
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

    def _holds(self, boxes: Boxes, now: Standing, first: int, last: int, at: int) -> bool:
        if self.work_left <= 0:
            raise OutOfWorkError
        self.work_left -= 1 + len(boxes.bytes) * (last - first) // TUNING.look_cells
        failing = failing_section(boxes, now, self.limit, first, last)
        if failing is not None:
            self.blame[at + failing] += 1
        return failing is None


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
        weight: Of blame, beside what a box is by itself.
    """

    def order(boxes: Boxes, blame: Floats) -> Ints:
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


def fit_below(boxes: Boxes, limit: int, most_work: int) -> tuple[Ints | None, int]:
    """Offsets with no end above the limit, and the work left; ``None``: there are none, or too little work.

    Args:
        boxes: What is to be placed.
        limit: In the unit of the boxes.
        most_work: Give up after so much.
    """
    blame, run = np.zeros(boxes.sections), 2.0 * len(boxes.bytes)  # twice what it takes where nothing fails
    for weight, (key, width) in cycle(product(TUNING.blame_weights, RULES)):
        allowed = min(int(run), most_work)
        search = Search(limit, allowed, blame, rule_of(key, width, weight))
        try:
            return search.offsets(boxes), most_work - allowed + search.work_left
        except OutOfWorkError:
            most_work -= allowed
        if most_work <= 0:
            break
        run *= TUNING.longer_run
    return None, 0


def _highest(boxes: Boxes, per_section: Floats | Ints) -> Floats:
    """Per box, the highest value of the sections where it is live, as a part of the highest of all."""
    highest: Floats = np.where(boxes.covers, per_section, 0).max(axis=1) / max(float(per_section.max()), 1e-9)
    return highest


def smallest_arena(boxes: Boxes, arena: int, most_work: int) -> Ints | None:
    """Offsets with an arena below ``arena``; ``None`` where none were found.

    Args:
        boxes: What is to be placed, each larger than 0 bytes.
        arena: Bytes that are needed without this search.
        most_work: See :func:`fit_below`.
    """
    if len(boxes.bytes) ** 2 * boxes.sections > most_work * TUNING.look_cells:  # not even one way down
        return None
    unit = int(np.gcd.reduce(boxes.bytes))
    boxes, best = replace(boxes, bytes=boxes.bytes // unit), None
    low, high = int(boxes.live_bytes.max()), arena // unit
    target = low
    while (high - low) > low * TUNING.close and most_work > 0:
        allowed = -(-most_work // 2)
        found, left = fit_below(boxes, target, allowed)
        most_work -= allowed - left
        if found is None:
            low = target + 1
        else:
            best, high = found, boxes.arena(found)
        target = (low + high) // 2
    return None if best is None else best * unit


@dataclass(frozen=True)
class AddressPlan:
    """Offsets of all storages of an order in one arena, checked.

    Attributes:
        offsets: Per storage id, its first byte.
        arena_bytes: The end of the highest.
        peak_bytes: The most live at once, each storage rounded up to ``align_bytes``: no arena is smaller.
        align_bytes: Offsets and sizes are multiples of it.
        found_by: ``size``, ``longest``, ``climbing`` or ``search``.
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
        effort: 0: the two orders only; each unit more allows as much climbing and searching again.

    Raises:
        OptionsError: ``align_bytes`` is not a positive whole number.
        VerificationError: The checker refuses the result: a bug.
    """
    if type(align_bytes) is not int or align_bytes < 1:
        raise OptionsError(f"align_bytes is {align_bytes!r}; it is a whole number of bytes, 1 or more.")
    ranges = LiveRanges(problem).of(order)
    rounded = [span._replace(bytes=-(-span.bytes // align_bytes) * align_bytes) for span in ranges if span.bytes]
    found, found_by = place(rounded, effort)
    offsets = dict.fromkeys((span.storage for span in ranges), 0)
    offsets.update((span.storage, int(at)) for span, at in zip(rounded, found, strict=True))
    if (broken := address_violation(problem, order, offsets, align_bytes)) is not None:
        raise VerificationError(
            f"addresses of {problem.name!r} are not valid: {broken}. This is a bug: please report it."
        )
    arena = max((offsets[span.storage] + span.bytes for span in rounded), default=0)
    peak = int(boxes_of(rounded).live_bytes.max()) if rounded else 0
    return AddressPlan(offsets, arena, peak, align_bytes, found_by)


def place(ranges: Sequence[LiveRange], effort: int) -> tuple[Ints, str]:
    """Offsets, one per lifetime of more than 0 bytes, and what found them."""
    if not ranges:
        return np.zeros(0, np.int64), "size"
    boxes = boxes_of(ranges)
    always = boxes.end - boxes.begin == boxes.sections
    if always.any():  # at the bottom: whatever is below such a box may as well lie above it
        offsets = np.where(always, np.cumsum(boxes.bytes * always) - boxes.bytes, 0)
        others, found_by = place([span for span, stays in zip(ranges, always, strict=True) if not stays], effort)
        offsets[~always] = others + boxes.bytes[always].sum()
        return offsets, found_by
    found: list[tuple[int, str, Ints]] = []
    least, climbs = int(boxes.live_bytes.max()), TUNING.climb_boxes // len(ranges) * effort
    for name, key in (("size", -boxes.bytes), ("longest", boxes.begin - boxes.end)):
        offsets, better = boxes.climb(np.lexsort((-boxes.bytes, boxes.begin, key)).tolist(), climbs)
        found.append((boxes.arena(offsets), "climbing" if better else name, offsets))
        if found[-1][0] == least:
            break
    arena, found_by, offsets = min(found, key=itemgetter(0))
    searched = smallest_arena(boxes, arena, TUNING.looks * effort) if effort and arena > least else None
    return (offsets, found_by) if searched is None else (searched, "search")
