"""Recomputation: what a file says, times and bytes by hand and by the judge, and that the search uses it."""

from dataclasses import replace

import pytest

from overlap_sched.pipeline.best import find_pipeline
from overlap_sched.pipeline.cuts import unit_cuts
from overlap_sched.pipeline.job import (
    PipelineBlock,
    PipelineJob,
    PipelineStage,
    Recomputation,
    recomputing,
    with_recomputation,
)
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.layout import StageLayout
from overlap_sched.pipeline.named import NAMED, laid_out
from tests.pipeline.test_job_file import HEAD, parsed
from tests.support.pipeline_judge import measure_pipeline
from tests.support.pipelines import uniform

HALVES = """
[[stage]]
repeat = 2
forward = { time = "1ms", transient = "10B", output = "5B", send_buffer = "0B" }
input_gradient = { time = "2ms", transient = "20B" }
weight_gradient = { time = "3ms" }
saved = "100B"
kept = "60B"
"""


def with_ways(job: PipelineJob, way: Recomputation) -> PipelineJob:
    return replace(job, stages=with_recomputation(job.stages, [way] * len(job.stages)))


def test_of_a_file() -> None:
    """By default what a forward has received is saved, the output is sent beside it, and backward is F longer."""
    first, second = (one.recomputed for one in parsed(HEAD + HALVES + "recompute = true").stages)
    assert first is not None
    assert second is not None
    assert (first.saved_bytes, second.saved_bytes, second.kept_bytes) == (0, 5, 60)
    assert second.forward == PipelineBlock(1000.0, 10 + 95, 5)
    assert second.input_gradient == PipelineBlock(3000.0, 20 + 95, 5)
    assert second.weight_gradient == PipelineBlock(3000.0)
    assert second.backward.time_us == 6000.0
    given = parsed(HEAD + HALVES + 'recompute = { time = "0.5ms", saved = "30B" }').stages[1].recomputed
    assert given is not None
    assert (given.saved_bytes, given.backward.time_us) == (30, 5500.0)
    assert [one.recomputed for one in parsed(HEAD + HALVES + "recompute = false").stages] == [None, None]


def test_by_hand() -> None:
    """1F1B, two ranks: rank 0 holds two micro-batches, 10 each; or its input, 0, and 10 while it runs.

    rank 0   |0F0|0F1|   |  0B0  |   |  0B1  |        B: F again, and B
    rank 1       |1F0|1B0|1F1|1B1|
    """
    stages = tuple(
        PipelineStage(PipelineBlock(1.0, 0, output), PipelineBlock(2.0), saved_bytes=10) for output in (2, 0)
    )
    job = replace(uniform(2, 2), stages=stages)
    plain, again = (laid_out(one, NAMED[1]) for one in (job, recomputing(with_ways(job, Recomputation()), [0])))
    assert measure_pipeline(*plain).step_us == 1 + 3 + 3 + 2
    judged = measure_pipeline(*again)
    assert judged.step_us == 4 + 3 + 3
    assert judged.spans_us[0] == ((0, 1), (1, 2), (4, 7), (7, 10))
    assert [peak for peak, _ in measure_pipeline(*plain).peaks] == [20, 10 + 2]
    assert [peak for peak, _ in judged.peaks] == [10, 10 + 2]


def test_what_pairs_take_is_not_known_of_the_other_way() -> None:
    pair = PipelineBlock(1.0)
    job = replace(with_ways(uniform(2, 2), Recomputation()), pairs={(0, 1): pair, (1, 1): pair})
    assert recomputing(job, [0]).pairs == {(1, 1): pair}
    assert recomputing(job, []) is job


def test_what_waits_in_forward_waits_again() -> None:
    stage = PipelineStage(PipelineBlock(10.0, exposed_us=6.0), PipelineBlock(20.0, exposed_us=3.0), saved_bytes=10)
    for way, exposed_us in ((Recomputation(), 9.0), (Recomputation(time_us=5.0), 6.0)):
        again = recomputing(with_ways(replace(uniform(2, 2), stages=(stage, stage)), way), [0]).stages[0]
        assert again.backward.exposed_us == exposed_us


def test_as_many_units_recompute_as_have_to() -> None:
    """Rank 0 has two in flight of 2 x 10: a limit of 30 asks for one unit, of 20 for both; nothing fits into 5."""
    job = with_ways(uniform(2, 4, 2, saved=10), Recomputation(saved_bytes=0))
    for limit, units in ((45, ()), (30, (0,)), (20, (0, 1))):
        found, _ = unit_cuts(replace(job, memory_limit_bytes=(limit, 1000)), StageLayout("looped"))
        assert units in [one.recomputed for one in found]
    assert all(one.recomputed == () for one in unit_cuts(job, StageLayout("looped"))[0])


def test_those_first_that_free_most_bytes_per_time() -> None:
    dear, cheap = Recomputation(3.0, 0), Recomputation(1.0, 0)
    job = uniform(2, 4, 2, saved=10)
    job = replace(job, stages=with_recomputation(job.stages, [dear, cheap, None, None]))
    found, _ = unit_cuts(replace(job, memory_limit_bytes=(30, 1000)), StageLayout("looped"))
    assert (1,) in [one.recomputed for one in found]


@pytest.mark.slow
def test_a_job_that_fits_only_so_is_found() -> None:
    job = replace(uniform(2, 3, 2, saved=10), memory_limit_bytes=(14, 14))
    assert find_pipeline(job, 1) is None
    found = find_pipeline(with_ways(job, Recomputation(saved_bytes=1)), 1)
    assert found is not None
    plan = found.plan
    assert plan.recomputed
    assert violation(plan.job, plan.schedule) is None
    judged = measure_pipeline(plan.job, plan.schedule)
    assert max(peak for peak, _ in judged.peaks) <= 14
    assert found.bound_us <= judged.step_us == plan.replay.step_us
