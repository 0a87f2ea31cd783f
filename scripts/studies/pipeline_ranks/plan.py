"""What is predicted: a job of measured blocks, its schedules, their steps and their files for torch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from overlap_sched.pipeline.compare import PlannedPipeline, named, plan_pipeline
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.search.best import find_pipeline

ONE_PER_RANK, TWO_PER_RANK = ("gpipe", "1f1b", "zb-h1"), ("interleaved:2", "zbv")
_STATIC = 1 << 40
"""Bytes of a stage: the same model in two directions, which torch's runtime cannot run, is never within the limit."""

Blocks = Mapping[tuple[int, str], float]
"""By stage and letter (F, B, I, W), microseconds."""


class Predicted(NamedTuple):
    """A schedule before it is run: its step and the most compute of a rank, microseconds; its CSV."""

    name: str
    step_us: float
    busy_us: float
    csv: str


def job_of(blocks: Blocks, ranks: int, micro_batches: int, link: PipelineLink, output_bytes: int) -> PipelineJob:
    """The job whose stages take what was measured, dealt out in turn."""
    count = 1 + max(stage for stage, _ in blocks)
    stages = tuple(
        PipelineStage(
            PipelineBlock(blocks[s, "F"], 0, output_bytes),
            PipelineBlock(blocks[s, "B"], 0, output_bytes),
            PipelineBlock(blocks[s, "I"], 0, output_bytes),
            PipelineBlock(blocks[s, "W"]),
            output_bytes,
            output_bytes,
            _STATIC,
        )
        for s in range(count)
    )
    route = Route(tuple(range(count)), range(micro_batches))
    return PipelineJob("measured", stages, tuple(s % ranks for s in range(count)), ranks, (route,), link)


def predictions(one: PipelineJob, two: PipelineJob, form: CsvFormat) -> list[Predicted]:
    """Of a job with one stage per rank and of the same model with two: named schedules, and what is found.

    The latter has as much memory as the named one that needs most.
    """
    plans = [plan_pipeline(job, named(n)) for job, names in ((one, ONE_PER_RANK), (two, TWO_PER_RANK)) for n in names]
    most = max(peak.bytes % _STATIC for plan in plans for peak in plan.peaks)
    found = find_pipeline(replace(two, memory_limit_bytes=(2 * _STATIC + most,) * two.ranks), 1)
    assert found is not None
    print(f"found: {found.layout}, made from {found.made_from}")
    return [_predicted(plan, form) for plan in (*plans, found.plan)]


def _predicted(plan: PlannedPipeline, form: CsvFormat) -> Predicted:
    text = schedule_csv(plan.job, plan.schedule, plan.replay, form)
    return Predicted(plan.name, plan.replay.step_us, max(plan.replay.busy_us), text)
