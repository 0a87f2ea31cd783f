"""What a memory limit leaves, given to the graphs of a job: with more room each hides more of its communication.

A rank runs one graph at a time, or one pair. Where each of them may need so much more than before, so may the rank::

    limit     - - - - - - - - - -
                   | left                 the least of all ranks is the headroom with which graphs are ordered anew
    a rank    _.-._.-._.-._.-._
"""

from collections.abc import Callable

from overlap_sched.pipeline.compare import PlannedPipeline
from overlap_sched.pipeline.job import PipelineJob

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


def with_room(
    planned: PlannedPipeline, job_with: Callable[[int], PipelineJob], plan: Callable[[PipelineJob], PlannedPipeline]
) -> PlannedPipeline:
    """The same schedule with its graphs ordered in what it leaves, where that is shorter and fits; else as it was.

    Args:
        planned: With its graphs ordered in no more than their peaks.
        job_with: The job with its graphs ordered with so many bytes above their peaks.
        plan: Makes the schedule for a job.
    """
    room = left_bytes(planned)
    if not room:
        return planned
    more = plan(job_with(room))
    shorter = more.shortage is None and more.replay.step_us < planned.replay.step_us
    return more if shorter else planned
