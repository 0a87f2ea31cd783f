"""Where the neighbouring units of a file are cut into the stages of a layout: so that the busiest rank is least busy.

Of cuts that are alike in that, or nearly, the longest stage is shortest; of those, no rank begins or ends late; of
those, the fullest rank holds least.

It is exact for one stage per rank, and where stages are folded or in two directions: what is kept to is kept to with
fewer units, too, so that ranks take as many as they may from both ends (by their number at the front, the most at the
back). Where several stages are dealt out in turn, or units are many, it is a local search: they go from stage to stage
while that helps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, permutations
from math import ceil
from typing import NamedTuple

from overlap_sched.pipeline.job import PipelineJob, PipelineStage
from overlap_sched.pipeline.layout import Cut, StageLayout
from overlap_sched.pipeline.replay import least_part

Pieces = tuple[tuple[int, int], ...]
"""Of a rank, the units ``[a, b)`` of each stage."""


class RankNeed(NamedTuple):
    """What a rank takes and holds with some units.

    Attributes:
        least_us: What no step is below, microseconds.
        busy_us: For all micro-batches; stage_us: of its longest stage.
        held: With as many micro-batches in flight as in 1F1B: bytes, or where there is a limit a part of it.
        over: Bytes beyond the limit that are left, all that may be recomputed.
        recomputed: Units.
    """

    least_us: float
    busy_us: float
    stage_us: float
    held: float
    over: int
    recomputed: tuple[int, ...]


def _longer_us(stage: PipelineStage) -> float:
    """By recomputation."""
    return 0.0 if stage.recomputed is None else stage.recomputed.whole_us - stage.whole_us


@dataclass(frozen=True)
class UnitCut:
    """A cut, and the units that run forward again in backward."""

    cut: Cut
    recomputed: tuple[int, ...]


def best_cut(job: PipelineJob, layout: StageLayout) -> Cut | None:
    """The best cut of a job, its memory limits aside; ``None``: there are fewer units than stages."""
    return _Cutter(job, layout, None).best()


def unit_cuts(job: PipelineJob, layout: StageLayout) -> list[UnitCut]:
    """List cuts worth a try within the limits."""
    parts = (None,) if job.memory_limit_bytes is None else (2.0, 1.0, 0.5, 0.0)  # of 1F1B's micro-batches in flight
    cutters = [_Cutter(job, layout, part) for part in parts]
    return list(dict.fromkeys(UnitCut(cut, one.recomputed(cut)) for one in cutters if (cut := one.best()) is not None))


def least_step_us(job: PipelineJob) -> float:
    """No step is shorter with any cut, nor is the time of the longest rank from its first action to its last.

    Ranks that are never idle, or the way of one micro-batch, which begins and ends on the first stage's rank.
    """
    first = job.stages[job.routes[0].stages[0]]
    way_us = sum(stage.forward.time_us + stage.down_us for stage in job.stages) + first.whole_us - first.down_us
    all_us = job.micro_batches * sum(stage.forward.time_us + stage.whole_us for stage in job.stages)
    return max(least_part(job) * all_us / job.ranks, way_us)


class _Cutter:
    """The search for a cut, with ``part`` of 1F1B's micro-batches in flight; ``None``: limits are left aside."""

    def __init__(self, job: PipelineJob, layout: StageLayout, part: float | None) -> None:
        self._job, self._layout, self._part = job, layout, part
        self._units = [job.stages[stage] for stage in job.routes[0].stages]
        self._count, self._stages = len(self._units), layout.count(job.ranks)
        times = zip(*((one.forward.time_us, one.down_us, one.whole_us) for one in self._units), strict=True)
        self._forward, self._down, self._whole = (list(accumulate(us, initial=0.0)) for us in times)
        self._halves = any(unit.splits for unit in self._units)
        self._scale = least_part(job)
        self._need = cache(self._need_of)
        few = layout.chunks <= (1 if layout.kind == "looped" else 2)
        self._exact = few and self._count <= 40  # it takes their square per rank

    def best(self) -> Cut | None:
        """The best cut, if any fits."""
        if self._count < self._stages:
            return None
        if not self._exact:
            return self._by_moves()
        most = dict[str, float]()
        cut = None
        for what, close in (("busy_us", 0.01), ("stage_us", 0.0), ("least_us", 0.0), ("held", 0.0)):
            cut = self._least(what, most)
            if cut is None:
                return None
            most[what] = self._worst(what, cut) * (1 + close)
        return cut

    def recomputed(self, cut: Cut) -> tuple[int, ...]:
        """The units that are recomputed with a cut."""
        return tuple(sorted({unit for need in self._needs(cut) for unit in need.recomputed}))

    def _worst(self, what: str, cut: Cut) -> float:
        return max(getattr(need, what) for need in self._needs(cut))

    def _least(self, what: str, most: Mapping[str, float]) -> Cut | None:
        """The cut with which the worst rank has least, within the most of others."""
        best, low = self._within(most), 0.0
        high = 0.0 if best is None else self._worst(what, best)
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            cut = self._within({**most, what: middle})
            if cut is None:
                low = middle
            else:
                best, high = cut, self._worst(what, cut)
        return best

    def _within(self, most: Mapping[str, float]) -> Cut | None:
        """A cut with which no rank has more."""

        def ok(rank: int, *pieces: tuple[int, int]) -> bool:
            need = self._need(rank, pieces)
            return not need.over and all(getattr(need, what) <= value for what, value in most.items())

        def both_ok(step: int, front: tuple[int, int], back: tuple[int, int]) -> bool:
            other = self._job.ranks - 1 - step
            if self._layout.kind == "looped":
                return ok(step, front) and (step == other or ok(other, back))
            return ok(step, front, back) and (self._layout.kind == "folded" or step == other or ok(other, back, front))

        return self._from_both_ends(both_ok)

    def _from_both_ends(self, ok: Callable[[int, tuple[int, int], tuple[int, int]], bool]) -> Cut | None:
        """Take stages k and n - 1 - k in step k: by the end of the front, the least start of the back."""
        units, steps, middle = self._count, self._stages // 2, self._stages % 2
        reached: dict[int, tuple[int, Cut, Cut]] = {0: (units, (), ())}
        for step in range(steps):
            left = 2 * (steps - 1 - step) + middle  # stages to come
            after: dict[int, tuple[int, Cut, Cut]] = {}
            for a, (d, front, back) in reached.items():
                c = a + 1 + left
                for b in range(a + 1, d - left):
                    c = max(c, b + left)
                    while c < d and not ok(step, (a, b), (c, d)):
                        c += 1
                    if c >= d:
                        break
                    if b not in after or c < after[b][0]:
                        after[b] = c, (*front, b - a), (d - c, *back)
            reached = after
        for b, (c, front, back) in reached.items():
            if middle and ok(steps, (b, c), (b, c)):
                return (*front, c - b, *back)
            if not middle and b == c:
                return front + back
        return None

    def _by_moves(self) -> Cut | None:
        """Move single units while the worst rank becomes better."""
        size, more = divmod(self._count, self._stages)
        cut = tuple(size + (s < more) for s in range(self._stages))
        best = self._badness(cut)
        while True:
            needs = self._needs(cut)
            worst = max(range(len(needs)), key=lambda rank: (needs[rank].over, needs[rank].busy_us))
            stages = self._layout.stages_of(worst, self._job.ranks)
            moved = [
                tuple(n - (s == p) + (s == q) for s, n in enumerate(cut))
                for p, q in permutations(range(self._stages), 2)
                if cut[p] > 1 and (p in stages or q in stages)
            ]
            found = min(((self._badness(one), one) for one in moved), default=(best, cut))
            if found[0] >= best:
                return None if best[0] else cut
            best, cut = found

    def _badness(self, cut: Cut) -> tuple[float, ...]:
        squares = [sum(getattr(need, what) ** 2 for need in self._needs(cut)) for what in ("busy_us", "stage_us")]
        return self._worst("over", cut), self._worst("busy_us", cut), *squares, self._worst("held", cut)

    def _needs(self, cut: Cut) -> list[RankNeed]:
        ends, ranks = [0, *accumulate(cut)], self._job.ranks
        own = [self._layout.stages_of(rank, ranks) for rank in range(ranks)]
        return [self._need(rank, tuple((ends[s], ends[s + 1]) for s in stages)) for rank, stages in enumerate(own)]

    def _need_of(self, rank: int, pieces: Pieces) -> RankNeed:
        batches, forward, down, whole = self._job.micro_batches, self._forward, self._down, self._whole
        counts = [batches] * len(pieces)
        if self._layout.kind == "mirrored":
            counts = [-(-batches // 2), batches // 2]
        down_us = whole_us = stage_us = 0.0
        passing: dict[int, tuple[int, int]] = {}  # by unit: micro-batches, and those in flight in 1F1B
        for (a, b), count, stage in zip(pieces, counts, self._layout.stages_of(rank, self._job.ranks), strict=True):
            ahead_us = forward[b] - forward[a]
            down_us += count * (ahead_us + down[b] - down[a])
            whole_us += count * (ahead_us + whole[b] - whole[a])
            stage_us = max(stage_us, ahead_us + whole[b] - whole[a])
            in_flight = min(count, ceil((self._stages - stage) / self._layout.chunks))
            passing |= dict.fromkeys(range(a, b), (count, in_flight))
        held = self._bytes(passing, 1.0, ())
        limit = 0 if self._job.memory_limit_bytes is None else self._job.memory_limit_bytes[rank]
        recomputed, over = self._fitted(passing, limit)
        more_us = sum(passing[unit][0] * _longer_us(self._units[unit]) for unit in recomputed)
        least_us = self._scale * whole_us
        if self._scale == 1.0:
            head_us, tail_us = (min(sums[a] for a, _ in pieces) for sums in (forward, down))
            least_us = head_us + max(whole_us + (0.0 if self._halves else tail_us), down_us + tail_us)
        return RankNeed(least_us, whole_us + more_us, stage_us, held / (limit or 1), over, recomputed)

    def _fitted(self, passing: dict[int, tuple[int, int]], limit: int) -> tuple[tuple[int, ...], int]:
        """The units that have to be recomputed, and the bytes that are lacking even so."""
        part, chosen = self._part, list[int]()
        if part is None:
            return (), 0
        may = [unit for unit in reversed(passing) if part and self._units[unit].recomputed is not None]
        may.sort(key=lambda unit: self._freed(unit, *passing[unit]))
        while (over := self._bytes(passing, part, chosen) - limit) > 0 and may:
            chosen.append(may.pop())
        return tuple(chosen), max(over, 0)

    def _freed(self, unit: int, count: int, in_flight: int) -> float:
        """Bytes per microsecond."""
        one, longer_us = self._units[unit], _longer_us(self._units[unit])
        again = one.recomputed or one
        return in_flight * (one.saved_bytes - again.saved_bytes) / max(count * longer_us, 1e-9)

    def _bytes(self, passing: dict[int, tuple[int, int]], part: float, recomputed: Sequence[int]) -> int:
        """Bytes that a rank holds at once, about; with no micro-batch in flight, at least."""
        total = most = 0
        for unit, (_, in_flight) in passing.items():
            one = self._units[unit]
            if unit in recomputed and one.recomputed is not None:
                one = one.recomputed
            total += one.static_bytes + ceil(part * in_flight) * one.saved_bytes
            blocks = one.forward, one.backs[-1]
            most = max([most, *(block.transient_bytes + block.output_bytes for block in blocks)])
        return total + most if part else total
