"""Named schedules of one job side by side: judged, replayed, and held against their bounds and each rank's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.errors import PipelineError
from overlap_sched.options import close_to
from overlap_sched.pipeline.action import Item
from overlap_sched.pipeline.durations import inside_us
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.bound import pipeline_bound_us
from overlap_sched.pipeline.judge.validate import violation
from overlap_sched.pipeline.layout import Cut
from overlap_sched.pipeline.memory import RankPeak, pipeline_peaks
from overlap_sched.pipeline.named.catalogue import NAMED, NamedSchedule, cut_for, interleaved_in, laid_out
from overlap_sched.pipeline.replay import PipelineReplay, replay_pipeline
from overlap_sched.pipeline.schedule import PipelineSchedule

INTERLEAVED = "interleaved"
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
        return tuple(sum(inside_us(self.job, run.item) for run in items) for items in self.replay.items)

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
    return (*NAMED[:2], *map(interleaved_in, stages_per_rank(job)), *NAMED[2:])


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
    found = next((one for one in NAMED if one.name == name), None)
    what, _, chunks = name.partition(":")
    if found is None and what == INTERLEAVED and chunks.isdecimal() and 1 <= len(chunks) <= 4 and int(chunks) > 0:
        return interleaved_in(int(chunks))
    if found is None:
        known = ", ".join(one.name for one in NAMED)
        raise PipelineError(
            f"{name[:40]!r} is no schedule. Give some of {known}, and {INTERLEAVED}:V with V stages per rank."
            f"{close_to(name.lower(), [one.name for one in NAMED])}"
        )
    return found


def plan_pipeline(job: PipelineJob, of: NamedSchedule, cut: Cut | None = None) -> PlannedPipeline:
    """Lay out a job for a schedule, make it, judge it and measure it; ``cut`` as of :func:`laid_out`.

    Raises:
        PipelineError: The job cannot have it.
    """
    cut = cut or cut_for(job, of)
    placed, schedule = laid_out(job, of, cut)
    wrong = violation(placed, schedule)
    if wrong is not None:
        raise PipelineError(f"{job.name}: {of.name} fails verification: {wrong}. This is a bug: please report it.")
    replay = replay_pipeline(placed, schedule)
    peaks = pipeline_peaks(placed, replay)
    return PlannedPipeline(of.name, placed, schedule, replay, peaks, pipeline_bound_us(placed), cut)


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
