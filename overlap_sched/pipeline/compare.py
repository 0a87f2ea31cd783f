"""Named schedules of one job side by side: judged, replayed, and held against their bounds and each rank's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Item
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.bound import pipeline_bound_us
from overlap_sched.pipeline.judge.validate import violation
from overlap_sched.pipeline.memory import RankPeak, pipeline_peaks
from overlap_sched.pipeline.named.catalogue import NAMED, NamedSchedule, interleaved_in, laid_out
from overlap_sched.pipeline.replay import PipelineReplay, replay_pipeline
from overlap_sched.pipeline.schedule import PipelineSchedule

INTERLEAVED = "interleaved"


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
    """

    name: str
    job: PipelineJob
    schedule: PipelineSchedule
    replay: PipelineReplay
    peaks: tuple[RankPeak, ...]
    bound_us: float

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
    per_rank = len(job.stages) // job.ranks
    chunks = [v for v in range(2, per_rank + 1) if len(job.stages) % (v * job.ranks) == 0]
    return (*NAMED[:2], *map(interleaved_in, chunks), *NAMED[2:])


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
        )
    return found


def plan_pipeline(job: PipelineJob, of: NamedSchedule) -> PlannedPipeline:
    """Lay out a job for a schedule, make it, judge it and measure it.

    Raises:
        PipelineError: The job cannot have it.
    """
    placed, schedule = laid_out(job, of)
    wrong = violation(placed, schedule)
    if wrong is not None:
        raise PipelineError(f"{job.name}: {of.name} fails verification: {wrong}. This is a bug: please report it.")
    replay = replay_pipeline(placed, schedule)
    return PlannedPipeline(of.name, placed, schedule, replay, pipeline_peaks(placed, replay), pipeline_bound_us(placed))


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
