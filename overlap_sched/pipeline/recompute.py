"""Stages that run forward again in their backward (activation checkpointing), and so save little until then.

While it runs, and again in backward, all that the stage would save is live; in between only what it says it saves, by
default what its forward has received::

    saved    F [ all ]---- what is received ----[ F again, B: all ]
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage


class Recomputation(NamedTuple):
    """How a file says it: microseconds that are added to backward, bytes that are saved; ``None``: by default."""

    time_us: float | None = None
    saved_bytes: int | None = None


def with_recomputation(
    stages: Sequence[PipelineStage], ways: Sequence[Recomputation | None]
) -> tuple[PipelineStage, ...]:
    """Give stages, in the order of forward, their other way to run. By default F runs again and its input is saved."""
    received = [0, *(stage.forward.output_bytes for stage in stages)]
    return tuple(
        stage if way is None else replace(stage, recomputed=_recomputed(stage, way, size))
        for stage, way, size in zip(stages, ways, received, strict=False)
    )


def _recomputed(stage: PipelineStage, way: Recomputation, received_bytes: int) -> PipelineStage:
    more_us = stage.forward.time_us if way.time_us is None else way.time_us
    saved = min(stage.saved_bytes, received_bytes if way.saved_bytes is None else way.saved_bytes)

    def holding(block: PipelineBlock, us: float) -> PipelineBlock:
        """With what is not saved live while it runs."""
        transient = block.transient_bytes + stage.saved_bytes - saved
        part = us / stage.forward.time_us if stage.forward.time_us else 0.0
        exposed_us = block.exposed_us + part * stage.forward.exposed_us
        return replace(block, time_us=block.time_us + us, transient_bytes=transient, exposed_us=exposed_us)

    half = stage.input_gradient
    return replace(
        stage,
        forward=replace(holding(stage.forward, 0.0), sent_bytes=None),
        backward=holding(stage.backward, more_us),
        input_gradient=None if half is None else holding(half, more_us),
        saved_bytes=saved,
    )


def recomputing(job: PipelineJob, units: Iterable[int]) -> PipelineJob:
    """The job with some stages run the other way, those that have one. What pairs take is known of the first way."""
    again = {unit for unit in units if job.stages[unit].recomputed is not None}
    if not again:
        return job
    stages = [(one.recomputed or one) if unit in again else one for unit, one in enumerate(job.stages)]
    kept = {both: block for both, block in job.pairs.items() if again.isdisjoint(both)}
    return replace(job, stages=tuple(stages), pairs=kept)
