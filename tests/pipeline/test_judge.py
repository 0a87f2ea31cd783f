"""Judges: they agree with the replay, reject what is broken, and no schedule beats a bound."""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlap_sched.pipeline.judge
import tests.support.pipeline_judge
from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import BESIDE, Action, ActionKind, Item, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.compare import named
from overlap_sched.pipeline.csv_file import with_transfers
from overlap_sched.pipeline.cuts import least_step_us
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage
from overlap_sched.pipeline.judge import limited_bound_us, pipeline_bound_us, violation
from overlap_sched.pipeline.named import lay_out_named, one_f_one_b
from overlap_sched.pipeline.replay import item_us, memory_curves, pipeline_peaks, replay_pipeline, transfer_us
from tests.support.examples import examples
from tests.support.pipeline_judge import Sending, measure_pipeline, transfer_violation
from tests.support.pipelines import random_job, random_schedule, read_item, read_schedule, swapped, uniform

SEEDS = st.integers(0, 2**32)


def test_the_judges_share_only_the_data() -> None:
    for judge in (overlap_sched.pipeline.judge, tests.support.pipeline_judge):
        for node in ast.walk(ast.parse(Path(judge.__file__).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("overlap_sched."):
                assert node.module in {f"overlap_sched.pipeline.{name}" for name in ("action", "job", "judge")}


@examples(120)
@given(SEEDS)
def test_replay_and_judge_agree(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    schedule = random_schedule(job, rng)
    assert violation(job, schedule) is None
    replay, judged = replay_pipeline(job, schedule), measure_pipeline(job, schedule)
    assert tuple(tuple((run.start_us, run.end_us) for run in runs) for runs in replay.items) == judged.spans_us
    assert replay.step_us == judged.step_us
    assert replay.busy_us == judged.busy_us
    assert replay.exposed_us == judged.exposed_us
    assert tuple((peak.bytes, peak.at_us) for peak in pipeline_peaks(job, replay)) == judged.peaks
    for sending in get_args(Sending):
        assert transfer_violation(job, with_transfers(job, schedule, replay), sending) is None


@examples(40)
@given(SEEDS)
def test_what_the_judge_lets_through_runs_and_what_it_refuses_does_not(seed: int) -> None:
    """Two items change places: then the replay either ends or hangs, or runs an action before its own forward."""
    rng = random.Random(seed)
    job = random_job(rng)
    schedule = random_schedule(job, rng)
    if max(map(len, schedule.orders)) < 2:
        return
    broken = swapped(schedule, rng)
    found = violation(job, broken)
    if found is None:
        assert replay_pipeline(job, broken).step_us == measure_pipeline(job, broken).step_us
    elif found.startswith("ranks wait"):
        with pytest.raises(PipelineError, match="a deadlock"):
            replay_pipeline(job, broken)
    else:
        assert re.search(" before | where its parameters are | never runs ", found)


@examples(400)
@given(SEEDS)
def test_what_shares_links_takes_turns(seed: int) -> None:
    """What is sent later is at half its rate beside gathers and reductions, which lose as much."""
    rng = random.Random(seed)
    job = random_job(rng)
    schedule, shared = random_schedule(job, rng), replace(job, shared_links=True)
    replay = replay_pipeline(shared, schedule)
    assert replay.step_us >= replay_pipeline(job, schedule).step_us
    places = {action: k for runs in replay.items for k, run in enumerate(runs) for action in parts(run.item)}
    for rank, runs in enumerate(replay.items):
        beside = {k: run for k, run in enumerate(runs) if parts(run.item)[0].kind in BESIDE}
        own_us = {k: run.end_us - run.start_us for k, run in beside.items()}
        for one in replay.sent:
            if job.rank_of[one.action.stage] == rank != job.rank_of[one.needed_by.stage]:
                us = one.end_us - one.start_us
                for k, run in beside.items():
                    if k < places[one.action]:
                        shared_us = max(min(run.end_us, one.end_us) - max(run.start_us, one.start_us), 0.0) / 2
                        us, own_us[k] = us - shared_us, own_us[k] - shared_us
                assert us == transfer_us(job, one.action, job.rank_of[one.needed_by.stage])
        for k, run in beside.items():
            assert own_us[k] == item_us(job, run.item)


ZERO, ONE = "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"


@pytest.mark.parametrize(
    ("zero", "one", "why"),
    [
        (ONE, ZERO, "rank 0 runs 1F0, but stage 1 is on rank 1"),
        (ZERO + " 2F0", ONE, "rank 0 runs 2F0; the job has no such action"),
        (ZERO + " 0F2", ONE, "rank 0 runs 0F2; the job has no such action"),
        (ZERO + " 0STEP", ONE, "rank 0 runs 0STEP; the job has no such action"),
        (ZERO + " 0SEND_F0", ONE, "rank 0 runs 0SEND_F0; the job has no such action"),
        (ZERO + " 0F0", ONE, "rank 0 runs 0F0 again"),
        ("0F0 0F1 0B0", ONE, "0B1 or 0I1 and 0W1 never runs"),
        ("0F0 0F1 0B0 0I1", ONE, "0B1 or 0I1 and 0W1 never runs"),
        ("0F1 0B0 0B1", ONE, "rank 0 runs 0B0 before 0F0"),
        ("0F1 0B1", ONE.replace("1B0", "").replace("1F0", ""), "0F0 never runs"),
        (ZERO + " 0I0 0W0", ONE, "0B0 and 0I0 and 0W0 all run"),
        (ZERO, "1B0 1F0 1F1 1B1", "rank 1 runs 1B0 before 1F0"),
        (ZERO, "1F0 1B0 1F1 1W1 1I1", "rank 1 runs 1W1 before 1I1"),
        ("(0F0;0B0)OVERLAP_F_B 0F1 0B1", ONE, "rank 0 runs 0B0 before 0F0"),
        (ZERO, "1F0 (1B0;1F1)OVERLAP_F_B 1B1", "rank 1 runs (1B0;1F1)OVERLAP_F_B together; a pair is a forward and a"),
        ("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1", "ranks wait for each other: rank 0 at 0B0, rank 1 at 1F1"),
    ],
)
def test_refused(zero: str, one: str, why: str) -> None:
    assert str(violation(uniform(2, 2), read_schedule(zero, one))).startswith(why)


def test_the_good_one_is_good() -> None:
    assert read_schedule(ZERO, ONE).orders == one_f_one_b(2, 2).orders
    assert violation(uniform(2, 2), one_f_one_b(2, 2)) is None
    assert violation(uniform(2, 2), read_schedule(ZERO)) == "there are orders for 1 ranks; the job has 2"
    nameless = PipelineSchedule("by hand", ((Action(ActionKind.FORWARD, 0),), ()))
    assert violation(uniform(2, 2), nameless) == "rank 0 runs 0F; the job has no such action"


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("0F0 0B0 0REDUCE_GRAD 0STEP", None),
        ("0F0 0B0 0STEP", "0REDUCE_GRAD never runs"),
        ("0F0 0B0 0STEP 0REDUCE_GRAD", "rank 0 runs 0STEP before 0REDUCE_GRAD"),
        ("0F0 0I0 0REDUCE_GRAD 0W0 0STEP", "rank 0 runs 0REDUCE_GRAD before 0W0"),
    ],
)
def test_updates_come_last(order: str, why: str | None) -> None:
    job = uniform(1, 1)
    stage = replace(job.stages[0], reduce=PipelineBlock(5.0), step=PipelineBlock(2.0))
    assert violation(replace(job, stages=(stage,)), read_schedule(order)) == why


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("0UNSHARD 0F0 0B0 0RESHARD", None),
        ("0UNSHARD 0F0 0RESHARD 0UNSHARD1 0B0 0RESHARD1", None),
        ("0UNSHARD 0F0 0RESHARD 0B0", "rank 0 runs 0B0 where its parameters are not there"),
        ("0F0 0UNSHARD 0B0 0RESHARD", "rank 0 runs 0F0 where its parameters are not there"),
        ("0UNSHARD 0F0 0UNSHARD1 0B0 0RESHARD", "rank 0 runs 0UNSHARD where its parameters are there"),
        ("0RESHARD 0UNSHARD 0F0 0B0", "rank 0 runs 0RESHARD where its parameters are not there"),
        ("0UNSHARD 0F0 0B0", "0RESHARD never runs"),
    ],
)
def test_parameters_are_gathered(order: str, why: str | None) -> None:
    job = uniform(1, 1)
    stage = replace(job.stages[0], unshard=PipelineBlock(5.0, 0, 7))
    assert violation(replace(job, stages=(stage,)), read_schedule(order)) == why
    assert str(violation(job, read_schedule(order))).endswith("SHARD; the job has no such action")


@pytest.mark.parametrize(("size", "send", "gather"), [(4, (3.0, 11.0), (2.0, 16.0)), (30, (3.0, 42.0), (2.0, 21.0))])
def test_turns_by_hand(size: int, send: tuple[float, float], gather: tuple[float, float]) -> None:
    """The output of 0F0 [2, 3) beside a gather of 10 takes twice its time, or as much more as is left of that.

    A reduction does not wait for what is sent when it begins. Ranks have stages 0 and 2, 1 and 3.
    """
    job = replace(uniform(2, 1, 2), shared_links=True, link=PipelineLink(0.0, 1e6))
    first = replace(job.stages[0], forward=PipelineBlock(1.0, 0, size), unshard=PipelineBlock(2.0))
    third = PipelineStage(
        *[PipelineBlock(1.0, 0, 4)] * 2, unshard=PipelineBlock(10.0, 0, 999), reduce=PipelineBlock(5.0)
    )
    job = replace(job, stages=(first, job.stages[1], third, job.stages[3]))
    replay = replay_pipeline(job, job.with_updates(read_schedule("0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0")))
    runs = {str(run.item): run[1:] for run in replay.items[0]}
    sent = {str(one.action): one[3:] for one in replay.sent}
    assert (sent["0F0"], runs["2UNSHARD"]) == (send, gather)
    assert dict(memory_curves(job, replay)[0])[2.0] == 999 + job.stages[0].saved_bytes
    begun = runs["2B0"][1]
    assert (sent["2B0"], runs["2REDUCE_GRAD"]) == ((begun, begun + 4), (begun, begun + 5))


def test_a_reduction_runs_beside_what_is_left() -> None:
    job = uniform(1, 1, 2)
    job = replace(job, stages=(job.stages[0], replace(job.stages[1], reduce=PipelineBlock(3.0))))
    schedule = job.with_updates(read_schedule("0F0 1F0 1B0 0B0"))
    assert measure_pipeline(job, schedule).step_us == 7.0  # 4 until its gradients are there
    assert pipeline_bound_us(job) <= 7.0


FIRST = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
LAST = "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
EARLY = "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1SEND_B1"
RING = "ranks wait for each other where sends are blocking: rank 0 at 0SEND_F1, rank 1 at 1SEND_B0"
NOT_THOSE = "sends and receives are not those of what is made, on its rank and once"


@pytest.mark.parametrize(
    ("first", "last", "blocking", "buffered"),
    [
        (FIRST, LAST, RING, None),
        (FIRST, EARLY, None, None),
        (FIRST.replace("0SEND_F0 ", ""), EARLY, NOT_THOSE, NOT_THOSE),
        (FIRST + " 0SEND_F0", EARLY, NOT_THOSE, NOT_THOSE),
        (FIRST.replace("0F0 0SEND_F0", "0SEND_F0 0F0"), EARLY, *["0SEND_F0 comes before 0F0"] * 2),
        (FIRST, EARLY.replace("1RECV_F0 1F0", "1F0 1RECV_F0"), *["1F0 comes before 1RECV_F0"] * 2),
        (
            FIRST,
            "1RECV_F1 1RECV_F0 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
            "",
            "rank 1 is at 1RECV_F1, but that is not what",
        ),
    ],
)
def test_sends_and_receives(first: str, last: str, blocking: str | None, buffered: str | None) -> None:
    job, schedule = uniform(2, 2), read_schedule(first, last)
    wanted: dict[Sending, str | None] = {"blocking": blocking, "buffered": buffered}
    for sending, why in wanted.items():
        said = transfer_violation(job, schedule, sending)
        assert (said is None) == (why is None)
        assert (said or "").startswith(why or "")


def orders_of(job: PipelineJob, rank: int) -> Iterator[tuple[Item, ...]]:
    """All orders of a rank's actions that keep to its own dependencies, with all pairs of neighbours and all halves."""
    chains = [
        [tuple(read_item(f"{s}{kind}{m}") for kind in way) for way in ("FB", "FIW")[: 1 + job.stages[s].splits]]
        for route in job.routes
        for s, m in product(route.stages, route.micro_batches)
        if job.rank_of[s] == rank
    ]
    for chosen in product(*chains):
        yield from interleavings(chosen)


def interleavings(chains: tuple[tuple[Item, ...], ...]) -> Iterator[tuple[Item, ...]]:
    if not any(chains):
        yield ()
    for k, (one, *left) in ((k, chain) for k, chain in enumerate(chains) if chain):
        for rest in interleavings((*chains[:k], tuple(left), *chains[k + 1 :])):
            yield (one, *rest)
            back = rest[0] if rest else one
            if isinstance(one, Pair) or isinstance(back, Pair) or one[1:] == back[1:]:
                continue
            if (one.kind, back.kind) == (ActionKind.FORWARD, ActionKind.BACKWARD):
                yield (Pair(one, back), *rest[1:])


def all_of(job: PipelineJob, own: bool = False) -> list[tuple[float, tuple[int, ...]]]:
    """Of all schedules, the step (``own``: the time of the longest rank from its first action on) and the peaks."""
    found = []
    for orders in product(*(list(orders_of(job, rank)) for rank in range(job.ranks))):
        schedule = job.with_updates(PipelineSchedule("any", orders))
        if violation(job, schedule) is None:
            judged = measure_pipeline(job, schedule)
            spans = (max(end for _, end in items) - items[0][0] for items in judged.spans_us)
            found.append((max(spans) if own else judged.step_us, tuple(peak for peak, _ in judged.peaks)))
    return found


@pytest.mark.slow
def test_no_schedule_of_a_small_job_beats_the_bound() -> None:
    """Nor, within some limits, any that keeps to them."""
    rng, reached, tried, sharper = random.Random(0), 0, 0, 0
    while tried < 25:
        job = random_job(rng, 3, 2)
        runs = sum(len(route.stages) * len(route.micro_batches) for route in job.routes)  # by which schedules grow
        if not 2 <= runs <= 4 or runs / job.ranks > 2:
            continue
        tried += 1
        own = tried % 3 == 0
        every, bound = all_of(job, own), pipeline_bound_us(job, own)
        best = min(us for us, _ in every)
        assert bound <= best + 1e-9
        assert len(job.routes) > 1 or least_step_us(job) <= best + 1e-9
        reached += best <= bound + 1e-9
        for limits in {need for _, need in every}:
            best = min(us for us, need in every if all(a <= b for a, b in zip(need, limits, strict=True)))
            limited = limited_bound_us(replace(job, memory_limit_bytes=limits), own)
            assert limited <= best + 1e-9
            sharper += limited > bound
    assert reached >= 6  # it says something
    assert sharper >= 6


def test_a_pair_may_need_less_than_its_parts() -> None:
    """Eight micro-batches in pairs hold 20 bytes; one behind the other a forward alone needs 5 more than is saved."""
    block = PipelineBlock(10.0, transient_bytes=5)
    stage, pair = PipelineStage(block, block, saved_bytes=10), PipelineBlock(10.0)
    job = replace(uniform(1, 8), stages=(stage,), memory_limit_bytes=(20,), pairs={(0, 0): pair})
    pairs = [f"(0F{m + 1};0B{m})OVERLAP_F_B" for m in range(7)]
    judged = measure_pipeline(job, read_schedule(" ".join(["0F0", *pairs, "0B7"])))
    assert (judged.step_us, judged.peaks[0][0]) == (90.0, 20)
    assert limited_bound_us(job) <= 90.0


def test_one_micro_batch_at_a_time_waits_for_the_way_there_and_back() -> None:
    job = uniform(2, 3, saved=4)
    assert pipeline_bound_us(job) == 3 * 3.0 + 1.0
    assert limited_bound_us(replace(job, memory_limit_bytes=(8, 8))) == 10.0
    assert (
        limited_bound_us(replace(job, memory_limit_bytes=(7, 8))) == 3 * 5.0
    )  # F F I I W: what is kept leaves no room
    assert limited_bound_us(replace(job, memory_limit_bytes=(3, 8))) == float("inf")


def test_it_is_reached() -> None:
    """By 1F1B where backward is whole; by ZBV where forward and both halves take as long as each other."""
    job, schedule = lay_out_named(uniform(4, 8), named("1f1b"))
    whole = tuple(replace(s, input_gradient=None, weight_gradient=None) for s in job.stages)
    assert replay_pipeline(job, schedule).step_us == 33.0 == pipeline_bound_us(replace(job, stages=whole))
    assert pipeline_bound_us(job) == 8 * 3.0 + 3.0 + 0.0
    job, schedule = lay_out_named(uniform(4, 8, 2), named("zbv"))
    assert replay_pipeline(job, schedule).step_us == pipeline_bound_us(job)
