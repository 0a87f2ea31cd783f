"""What a rank of a pipeline takes and holds with some of a model's units, before there is a schedule.

No schedule is shorter than what :mod:`~overlap_sched.pipeline.judge.bound` says of a rank with the units ``[a, b)``,
transfers left out; of several stages all are counted, and the least in front::

    F in front of a + m x (F and whole backwards of the units) + where no backward has halves, D in front of a
    F in front of a + m x (F and D of the units) + D in front of a

Within a memory limit a rank recomputes units until it fits, those first that free most bytes per time: a rule, and not
exact.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from overlap_sched.pipeline.durations import least_part
from overlap_sched.pipeline.job import PipelineJob, PipelineStage
from overlap_sched.pipeline.layout import StageLayout

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


def way_us(job: PipelineJob) -> float:
    """At least, of one micro-batch."""
    first = job.stages[job.routes[0].stages[0]]
    return sum(stage.forward.time_us + _down_us(stage) for stage in job.stages) + _whole_us(first) - _down_us(first)


def _down_us(stage: PipelineStage) -> float:
    """The least until the gradient goes on: D."""
    return min(one.time_us for one in (stage.backward, stage.input_gradient) if one is not None)


def _whole_us(stage: PipelineStage) -> float:
    if stage.input_gradient is None or stage.weight_gradient is None:
        return stage.backward.time_us
    return min(stage.backward.time_us, stage.input_gradient.time_us + stage.weight_gradient.time_us)


def _sums(values: Iterable[float]) -> list[float]:
    return [0.0, *accumulate(values)]


class RankNeeds:
    """Of a job in a layout, with ``part`` of 1F1B's micro-batches in flight; ``None``: limits are left aside."""

    def __init__(self, job: PipelineJob, layout: StageLayout, part: float | None) -> None:
        self._job, self._layout, self._part = job, layout, part
        self._units = [job.stages[stage] for stage in job.routes[0].stages]
        self._stages = layout.count(job.ranks)
        self._forward = _sums(unit.forward.time_us for unit in self._units)
        self._down, self._whole = _sums(map(_down_us, self._units)), _sums(map(_whole_us, self._units))
        self._halves = any(unit.splits for unit in self._units)
        self._scale = least_part(job)
        self._known: dict[tuple[int, Pieces], RankNeed] = {}

    def of(self, rank: int, pieces: Pieces) -> RankNeed:
        """The need of a rank; computed once."""
        if (rank, pieces) not in self._known:
            self._known[rank, pieces] = self._need_of(rank, pieces)
        return self._known[rank, pieces]

    def spread_us(self) -> float:
        """At least, of the worst rank, whatever units it has: of the kR + 1 longest some rank has k + 1."""
        ranks, batches = self._job.ranks, self._job.micro_batches
        each = sorted((b - a for a, b in zip(self._both(), self._both()[1:], strict=False)), reverse=True)
        if self._layout.kind == "mirrored":  # half of the micro-batches of each unit are on one rank, half on another
            return self._scale * batches * sum(each) / ranks
        most_us = max(sum(each[k * ranks - k : k * ranks + 1]) for k in range((len(each) - 1) // ranks + 1))
        if self._scale < 1.0:
            return self._scale * batches * most_us
        waits = sum(self._forward[:ranks]) + (0.0 if self._halves else sum(self._down[:ranks]))
        return max(batches * most_us, (waits + batches * sum(each)) / ranks)

    def _both(self) -> list[float]:
        return [f + b for f, b in zip(self._forward, self._whole, strict=True)]

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
            flying = min(count, ceil((self._stages - stage) / self._layout.chunks))
            passing |= dict.fromkeys(range(a, b), (count, flying))
        held = self._bytes(passing, 1.0, ())
        limit = 0 if self._job.memory_limit_bytes is None else self._job.memory_limit_bytes[rank]
        recomputed, over = self._fitted(passing, limit)
        more_us = sum(passing[unit][0] * self._longer_us(unit) for unit in recomputed)
        least_us = self._scale * whole_us
        if self._scale == 1.0:
            head_us, tail_us = (min(sums[a] for a, _ in pieces) for sums in (forward, down))
            least_us = head_us + max(whole_us + (0.0 if self._halves else tail_us), down_us + tail_us)
        return RankNeed(least_us, whole_us + more_us, stage_us, held / (limit or 1), over, recomputed)

    def _longer_us(self, unit: int) -> float:
        again = self._units[unit].recomputed
        return 0.0 if again is None else _whole_us(again) - _whole_us(self._units[unit])

    def _fitted(self, passing: dict[int, tuple[int, int]], limit: int) -> tuple[tuple[int, ...], int]:
        """The units that have to be recomputed, and the bytes that are lacking even so."""
        part, chosen = self._part, list[int]()
        if part is None:
            return (), 0
        over = self._bytes(passing, part, ()) - limit
        if over <= 0:
            return (), 0
        may = [unit for unit in passing if self._units[unit].recomputed is not None] if part else []
        for unit in sorted(may, key=lambda one: self._freed(one, passing[one]), reverse=True):
            chosen.append(unit)
            over = self._bytes(passing, part, chosen) - limit
            if over <= 0:
                break
        return tuple(chosen), max(over, 0)

    def _freed(self, unit: int, passing: tuple[int, int]) -> float:
        """Bytes per microsecond."""
        again, (count, flying) = self._units[unit].recomputed, passing
        freed = 0 if again is None else flying * (self._units[unit].saved_bytes - again.saved_bytes)
        return freed / max(count * self._longer_us(unit), 1e-9)

    def _bytes(self, passing: dict[int, tuple[int, int]], part: float, recomputed: Sequence[int]) -> int:
        """Bytes that a rank holds at once, about; with no micro-batch in flight, at least."""
        total = most = 0
        for unit, (_, flying) in passing.items():
            one = self._units[unit]
            if unit in recomputed and one.recomputed is not None:
                one = one.recomputed
            total += one.static_bytes + ceil(part * flying) * one.saved_bytes
            blocks = (one.forward, one.backward) if one.input_gradient is None else (one.forward, one.input_gradient)
            most = max([most, *(block.transient_bytes + block.output_bytes for block in blocks)])
        return total + most if part else total
