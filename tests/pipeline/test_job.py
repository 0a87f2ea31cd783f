"""Jobs by hand: times and memory, mistakes, recomputation."""

from dataclasses import replace

import pytest

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Action, ActionKind, backward, forward
from overlap_sched.pipeline.best import find_pipeline
from overlap_sched.pipeline.cuts import unit_cuts
from overlap_sched.pipeline.job import (
    PipelineBlock,
    PipelineJob,
    PipelineLink,
    PipelineStage,
    Route,
    recompute_stages,
)
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.layout import FOLDED, MIRRORED, ONE_EACH, StageLayout
from overlap_sched.pipeline.named import NAMED, lay_out_named, one_f_one_b
from overlap_sched.pipeline.replay import pipeline_peaks, replay_pipeline
from tests.pipeline.test_graphs import HEAD, parsed
from tests.support.pipeline_judge import measure_pipeline
from tests.support.pipelines import read_schedule, uniform

STAGE = uniform(1, 1).stages[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_limit_bytes": (1, -1)},
        {"pair_factor": -1.0},
        {"stages": (STAGE, replace(STAGE, forward=PipelineBlock(float("nan"))))},
        {"stages": (STAGE, replace(STAGE, backward=PipelineBlock(1.0, 2**61)))},
    ],
)
def test_numbers_out_of_range(changes: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match=r"^uniform: (stage 1|a pair or a memory limit) has .*: times, sizes and"):
        replace(uniform(2, 2), **changes)


def test_transients_of_joined_stages_count_beside_what_is_saved_by_then() -> None:
    big, small = (
        PipelineStage(PipelineBlock(1.0, t), PipelineBlock(1.0), saved_bytes=s) for t, s in ((50, 10), (5, 20))
    )
    for stages, transient in (((big, small), 30), ((small, big), 50)):
        job = replace(uniform(1, 1, 2), stages=stages)
        assert ONE_EACH.put(job).stages[0].forward.transient_bytes == transient


def test_halves_of_joined_stages_count_beside_what_those_behind_have_kept() -> None:
    """While the first unit's input gradient runs, the second one's is over: it has left 4 bytes for its weights."""
    first, second = (
        PipelineStage(*[PipelineBlock(1.0)] * 2, PipelineBlock(1.0, i), PipelineBlock(1.0, w), s, k)
        for i, w, s, k in ((7, 8, 10, 3), (50, 2, 20, 4))
    )
    for stages, transients in (((first, second), (50, 8)), ((second, first), (43, 8))):
        joined = ONE_EACH.put(replace(uniform(1, 1, 2), stages=stages)).stages[0]
        halves = joined.input_gradient, joined.weight_gradient
        assert tuple(half and half.transient_bytes for half in halves) == transients


def test_places() -> None:
    assert StageLayout("looped", 2).put(uniform(2, 4, 2)).rank_of == (0, 1, 0, 1)
    assert FOLDED.put(uniform(2, 4, 2)).rank_of == (0, 1, 1, 0)
    both = MIRRORED.put(uniform(4, 5))
    assert both.rank_of == (0, 1, 2, 3, 3, 2, 1, 0)
    assert both.routes == (Route((0, 1, 2, 3), range(3)), Route((4, 5, 6, 7), range(3, 5)))
    pair = PipelineBlock(5.0, 7)
    known = replace(uniform(2, 4), pairs={(0, 1): pair})
    assert MIRRORED.put(known).pairs == {(0, 1): pair, (0, 3): pair, (2, 1): pair, (2, 3): pair}
    with pytest.raises(PipelineError, match="has 2 routes already"):
        ONE_EACH.put(both)


def test_what_is_live_when() -> None:
    """Two ranks, one micro-batch, by hand; a transfer takes 2 us.

    rank 0   0F0 [0, 4)                                   0B0 [13, 19)
    0 -> 1             [4, 6)
    rank 1                    1F0 [6, 8)  1B0 [8, 11)
    1 -> 0                                         [11, 13)
    """
    stages = (
        PipelineStage(PipelineBlock(4.0, 1, 16), PipelineBlock(6.0, 2), saved_bytes=100, static_bytes=1000),
        PipelineStage(PipelineBlock(2.0, 4), PipelineBlock(3.0, 8, 32, sent_bytes=64), saved_bytes=200),
    )
    job = replace(uniform(2, 1), stages=stages, link=PipelineLink(2.0))
    replay = replay_pipeline(job, one_f_one_b(2, 1))
    assert [(run.start_us, run.end_us) for runs in replay.items for run in runs] == [(0, 4), (13, 19), (6, 8), (8, 11)]
    assert replay.step_us == 19.0
    assert replay.exposed_us == (2.0, 2.0)
    assert replay.bubble_us == (9.0, 14.0)
    # rank 0: 1000 static, 101 in 0F0; 116 with what is sent; 132 with what comes back
    # rank 1: 16 received, 204 in 1F0, 208 in 1B0, 64 while that is sent
    assert pipeline_peaks(job, replay) == (
        (1132, 11.0, Action(ActionKind.RECEIVE_BACKWARD, 0, 0)),
        (208, 8.0, backward(1, 0)),
    )


def test_outputs_to_one_rank_queue_and_are_live_until_they_have_been_sent() -> None:
    """Of rank 0, 2B0 sends no bytes, but behind the 10 of 0F1: its buffer of 64 is held beside them, from 15 to 24."""
    blocks = PipelineBlock(1.0), PipelineBlock(1.0)
    first, last = PipelineStage(PipelineBlock(1.0, 0, 10), blocks[1]), PipelineStage(blocks[0], blocks[1])
    last = replace(last, backward=PipelineBlock(1.0, sent_bytes=64))
    stages = (first, PipelineStage(*blocks), last)
    job = replace(uniform(1, 2, 3), stages=stages, rank_of=(0, 1, 0), ranks=2, link=PipelineLink(0.0, 1e6))
    texts = "0F0 2F0 0F1 2B0 2F1 0B0 2B1 0B1", "1F0 1F1 1B0 1B1"
    schedule = read_schedule(*texts)
    replay = replay_pipeline(job, schedule)
    times = {str(one.action): one[2:] for one in replay.sent}
    assert (times["0F0"], times["0F1"], times["2B0"]) == ((1, 1, 11), (14, 14, 24), (15, 24, 24))
    peak = pipeline_peaks(job, replay)[0]
    assert peak == (74, 15.0, Action(ActionKind.SEND_BACKWARD, 2, 0))
    assert measure_pipeline(job, schedule).peaks[0] == peak[:2]


def test_what_stays_on_its_rank_is_not_sent() -> None:
    """The last rank of a fold: the output belongs to nobody from the end of 0F0 to the start of 1F0."""
    last = PipelineStage(PipelineBlock(1.0), PipelineBlock(1.0))
    stages = (replace(last, forward=PipelineBlock(1.0, 0, 7)), last)
    job = replace(uniform(1, 2, 2), stages=stages, link=PipelineLink(5.0))
    replay = replay_pipeline(job, read_schedule("0F0 0F1 1F1 1F0 1B0 0B0 1B1 0B1"))
    assert replay.step_us == 8.0
    assert pipeline_peaks(job, replay) == ((7, 1.0, forward(0, 1)),)
    assert all(sent.start_us == sent.end_us == sent.made_us for sent in replay.sent)


def test_what_is_sent_and_used_at_once_is_never_live() -> None:
    """And an idle rank's peak is of its first item; all else here takes no bytes."""
    block, sent = PipelineBlock(1.0), PipelineBlock(1.0, 0, 100, sent_bytes=64)
    stages = (PipelineStage(sent, block, static_bytes=5), PipelineStage(block, sent))
    job = replace(uniform(2, 1), stages=stages)
    replay = replay_pipeline(job, one_f_one_b(2, 1))
    assert pipeline_peaks(job, replay) == ((5, 0.0, forward(0, 0)), (0, 0.0, forward(1, 0)))
    assert replay.bubble == 0.5


def test_reductions_overlap_and_steps_wait() -> None:
    job = uniform(1, 2)
    stage = replace(job.stages[0], reduce=PipelineBlock(5.0, 3), step=PipelineBlock(2.0))
    job = replace(job, stages=(stage,))
    replay = replay_pipeline(job, job.with_updates(one_f_one_b(1, 2)))
    assert [(str(run.item), run.start_us, run.end_us) for run in replay.items[0]][-2:] == [
        ("0REDUCE_GRAD", 6.0, 11.0),
        ("0STEP", 11.0, 13.0),
    ]
    assert (replay.step_us, replay.exposed_us, replay.busy_us) == (13.0, (5.0,), (8.0,))


HALVES = """
[[stage]]
repeat = 2
forward = { time = "1ms", transient = "10B", output = "5B", send_buffer = "0B" }
input_gradient = { time = "2ms", transient = "20B" }
weight_gradient = { time = "3ms" }
saved = "100B"
kept = "60B"
"""


def with_ways(job: PipelineJob, time_us: float | None = None, saved: int | None = None) -> PipelineJob:
    received = [0, *(stage.forward.output_bytes for stage in job.stages)]
    stages = (one.recomputing(had, time_us, saved) for one, had in zip(job.stages, received, strict=False))
    return replace(job, stages=tuple(stages))


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
    plain, again = (lay_out_named(one, NAMED[1]) for one in (job, recompute_stages(with_ways(job), [0])))
    assert measure_pipeline(*plain).step_us == 1 + 3 + 3 + 2
    judged = measure_pipeline(*again)
    assert judged.step_us == 4 + 3 + 3
    assert judged.spans_us[0] == ((0, 1), (1, 2), (4, 7), (7, 10))
    assert [peak for peak, _ in measure_pipeline(*plain).peaks] == [20, 10 + 2]
    assert [peak for peak, _ in judged.peaks] == [10, 10 + 2]


def test_what_is_known_of_the_other_way() -> None:
    """Not what pairs take; what waits in forward waits again."""
    pair = PipelineBlock(1.0)
    job = replace(with_ways(uniform(2, 2)), pairs={(0, 1): pair, (1, 1): pair})
    assert recompute_stages(job, [0]).pairs == {(1, 1): pair}
    assert recompute_stages(job, []) is job
    stage = PipelineStage(PipelineBlock(10.0, exposed_us=6.0), PipelineBlock(20.0, exposed_us=3.0), saved_bytes=10)
    for time_us, exposed_us in ((None, 9.0), (5.0, 6.0)):
        again = recompute_stages(with_ways(replace(uniform(2, 2), stages=(stage, stage)), time_us), [0]).stages[0]
        assert again.backward.exposed_us == exposed_us


def test_as_many_units_recompute_as_have_to() -> None:
    """Rank 0 has two in flight of 2 x 10: a limit of 30 asks for one unit, of 20 for both; nothing fits into 5.

    Those first that free most bytes per time.
    """
    plain = uniform(2, 4, 2, saved=10)
    job = with_ways(plain, saved=0)
    dear, cheap = (job.stages[0].recomputing(0, us, 0) for us in (3.0, 1.0))
    unlike = replace(job, stages=(dear, cheap, *plain.stages[2:]))
    for of, limit, units in ((job, 45, ()), (job, 30, (0,)), (job, 20, (0, 1)), (unlike, 30, (1,))):
        found = unit_cuts(replace(of, memory_limit_bytes=(limit, 1000)), ONE_EACH)
        assert units in [one.recomputed for one in found]
    assert all(one.recomputed == () for one in unit_cuts(job, ONE_EACH))


@pytest.mark.slow
def test_a_job_that_fits_only_so_is_found() -> None:
    job = replace(uniform(2, 3, 2, saved=10), memory_limit_bytes=(14, 14))
    assert find_pipeline(job, 1) is None
    found = find_pipeline(with_ways(job, saved=1), 1)
    assert found is not None
    plan = found.plan
    assert plan.recomputed
    assert violation(plan.job, plan.schedule) is None
    judged = measure_pipeline(plan.job, plan.schedule)
    assert max(peak for peak, _ in judged.peaks) <= 14
    assert found.bound_us <= judged.step_us == plan.replay.step_us
