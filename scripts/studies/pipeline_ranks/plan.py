"""What is predicted: jobs of measured blocks, and their schedules."""

from collections.abc import Mapping
from dataclasses import replace

from overlap_sched.pipeline.best import find_pipeline
from overlap_sched.pipeline.compare import PlannedPipeline, named, plan_pipeline
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route

ONE_PER_RANK, TWO_PER_RANK = ("gpipe", "1f1b", "zb-h1"), ("interleaved:2", "zbv")
_STATIC = 1 << 40
"""Bytes of a stage: the same model in two directions, which torch's runtime cannot run, is never within the limit."""
_FIELDS = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}

Blocks = Mapping[tuple[int, str], float]
"""By stage and letter, microseconds."""


def job_of(blocks: Blocks, ranks: int, micro_batches: int, link: PipelineLink, output_bytes: int) -> PipelineJob:
    """The job whose stages take what was measured, dealt out in turn."""
    count, sends = 1 + max(stage for stage, _ in blocks), PipelineBlock(0.0, 0, output_bytes)
    stage = PipelineStage(sends, sends, sends, PipelineBlock(0.0), output_bytes, output_bytes, _STATIC)
    route, places = Route(tuple(range(count)), range(micro_batches)), tuple(s % ranks for s in range(count))
    return with_blocks(PipelineJob("measured", (stage,) * count, places, ranks, (route,), link), blocks)


def with_blocks(job: PipelineJob, blocks: Blocks) -> PipelineJob:
    """The job with other times, where they are given."""
    stages = list(job.stages)
    for (s, letter), us in blocks.items():
        name = _FIELDS[letter]
        stages[s] = replace(stages[s], **{name: replace(getattr(stages[s], name), time_us=us)})
    return replace(job, stages=tuple(stages))


def plans_of(one: PipelineJob, two: PipelineJob) -> list[PlannedPipeline]:
    """Named schedules of a job with one stage per rank and of the same model with two, and what is found of the latter.

    It has as much memory as the named one that needs most.
    """
    plans = [plan_pipeline(job, named(n)) for job, names in ((one, ONE_PER_RANK), (two, TWO_PER_RANK)) for n in names]
    most = max(peak.bytes % _STATIC for plan in plans for peak in plan.peaks)
    found = find_pipeline(replace(two, memory_limit_bytes=(2 * _STATIC + most,) * two.ranks), 1)
    assert found is not None
    return [*plans, found.plan]
