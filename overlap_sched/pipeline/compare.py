"""Named schedules of one job side by side: judged, replayed, and held against their bounds and each rank's memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from overlap_sched.errors import PipelineError
from overlap_sched.options import close_to
from overlap_sched.pipeline.action import Item, PipelineSchedule
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge import pipeline_bound_us, violation
from overlap_sched.pipeline.layout import Cut
from overlap_sched.pipeline.named import NAMED, NamedSchedule, cut_for, interleaved_in, lay_out_named
from overlap_sched.pipeline.replay import PipelineReplay, RankPeak, item_block, pipeline_peaks, replay_pipeline

INTERLEAVED = "interleaved", "interleaved-zb"
FEW = 4
"""Stages per rank, where no number of them joins equally many neighbours to each."""


@dataclass(frozen=True)
class RankShortage:
    """A rank that lacks memory: how many bytes, and for what."""

    rank: int
    bytes: int
    item: Item


@dataclass(frozen=True)
class PlannedPipeline:
    """A schedule of a job, and what it takes.

    Attributes:
        name: Of the schedule.
        job: As the schedule lays it out.
        bound_us: No schedule of that layout has a shorter step.
        cut: How many stages of the job as it was read are joined to each.
        recomputed: Which of them run forward again in backward.
    """

    name: str
    job: PipelineJob
    schedule: PipelineSchedule
    replay: PipelineReplay
    peaks: tuple[RankPeak, ...]
    bound_us: float
    cut: Cut = ()
    recomputed: tuple[int, ...] = ()

    @property
    def inside_us(self) -> tuple[float, ...]:
        """Per rank, the time in which compute waits for collectives inside of its graphs."""
        return tuple(sum(item_block(self.job, run.item).exposed_us for run in items) for items in self.replay.items)

    @property
    def shortage(self) -> RankShortage | None:
        """The rank that lacks most; ``None``: all fit."""
        limits = self.job.memory_limit_bytes or ()
        lacks = [
            RankShortage(rank, peak.bytes - limit, peak.item)
            for rank, (peak, limit) in enumerate(zip(self.peaks, limits, strict=False))
            if peak.bytes > limit
        ]
        return max(lacks, key=lambda one: one.bytes, default=None)


def named_schedules(job: PipelineJob) -> tuple[NamedSchedule, ...]:
    """All that a job may be asked for: with so many stages per rank as its stages can be joined to, interleaved."""
    dealt = [interleaved_in(v, zero) for zero in (False, True) for v in stages_per_rank(job)]
    folded = [one for one in NAMED[2:] if one.name != "waves" or one.layout.count(job.ranks) <= len(job.stages)]
    return (*NAMED[:2], *dealt, *folded)


def stages_per_rank(job: PipelineJob) -> list[int]:
    """List how many stages each rank may have, from 2: all that are equally many, and a few."""
    most, ranks = len(job.stages) // job.ranks, job.ranks
    uneven = len(job.stages) % ranks > 0
    return [v for v in range(2, most + 1) if len(job.stages) % (v * ranks) == 0 or (uneven and v <= FEW)]


def named(name: str) -> NamedSchedule:
    """A schedule by its name: ``1f1b``, ``interleaved:4``.

    Raises:
        PipelineError: There is none of that name.
    """
    known, (what, _, chunks) = {one.name: one for one in NAMED}, name.partition(":")
    if what in INTERLEAVED and chunks.isdecimal() and 1 <= len(chunks) <= 4 and int(chunks) > 0:
        return interleaved_in(int(chunks), what == INTERLEAVED[1])
    if name not in known:
        raise PipelineError(
            f"{name[:40]!r} is no schedule. Give some of {', '.join(known)}, and {':V, '.join(INTERLEAVED)}:V with V "
            f"stages per rank.{close_to(name.lower(), known)}"
        )
    return known[name]


def plan_pipeline(job: PipelineJob, of: NamedSchedule, cut: Cut | None = None) -> PlannedPipeline:
    """Lay out a job for a schedule, make it, judge it and measure it; ``cut`` as of :func:`lay_out_named`.

    Raises:
        PipelineError: The job cannot have it.
    """
    cut = cut or cut_for(job, of)
    placed, schedule = lay_out_named(job, of, cut)
    wrong = violation(placed, schedule)
    if wrong is not None:
        raise PipelineError(f"{job.name}: {of.name} fails verification: {wrong}. This is a bug: please report it.")
    return measure_schedule(placed, replace(schedule, name=of.name), pipeline_bound_us(placed), cut)


def measure_schedule(
    job: PipelineJob, schedule: PipelineSchedule, bound_us: float, cut: Cut, recomputed: tuple[int, ...] = ()
) -> PlannedPipeline:
    """Replay a valid schedule of a job that is laid out for it; raises as :func:`replay_pipeline`."""
    replay = replay_pipeline(job, schedule)
    peaks = pipeline_peaks(job, replay)
    return PlannedPipeline(schedule.name, job, schedule, replay, peaks, bound_us, cut, recomputed)


def compare_schedules(
    job: PipelineJob, of: Sequence[NamedSchedule]
) -> tuple[tuple[PlannedPipeline, ...], dict[str, str]]:
    """Plan each of some schedules; and why the job cannot have the others, by name."""
    planned: list[PlannedPipeline] = []
    cannot: dict[str, str] = {}
    for one in of:
        try:
            planned.append(plan_pipeline(job, one))
        except PipelineError as error:
            cannot[one.name] = str(error).removeprefix(f"{job.name}: ")
    return tuple(planned), cannot


LEAST = 2**24
"""Bytes: for less nothing is ordered anew."""


def left_bytes(planned: PlannedPipeline) -> int:
    """The bytes that no rank of a schedule needs of its limit; 0 without limits.

    A power of two, so that schedules of one job ask for few headrooms.
    """
    limits = planned.job.memory_limit_bytes
    if limits is None:
        return 0
    least = min(limit - peak.bytes for limit, peak in zip(limits, planned.peaks, strict=True))
    return 1 << (least.bit_length() - 1) if least >= LEAST else 0


def with_room(planned: PlannedPipeline, plan: Callable[[int], PlannedPipeline]) -> PlannedPipeline:
    """The same schedule with its graphs ordered in what it leaves, where that is shorter and fits; else as it was.

    Args:
        planned: With its graphs ordered in no more than their peaks.
        plan: Makes the schedule with its graphs ordered with so many bytes above their peaks.
    """
    more = plan(room) if (room := left_bytes(planned)) else planned
    return more if more.shortage is None and more.replay.step_us < planned.replay.step_us else planned
