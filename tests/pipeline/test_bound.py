"""The bound: true of the best of all schedules of small jobs, and reached by some."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from overlap_sched.pipeline.action import (
    ActionKind,
    Item,
    Pair,
    PipelineSchedule,
    backward,
    forward,
    input_gradient,
    weight_gradient,
)
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route
from overlap_sched.pipeline.judge import limited_bound_us, pipeline_bound_us, violation
from overlap_sched.pipeline.named import NAMED, laid_out
from overlap_sched.pipeline.replay import replay_pipeline, with_updates
from tests.support.pipeline_judge import measure_pipeline
from tests.support.pipelines import random_job, uniform

BY_NAME = {named.name: named for named in NAMED}


def orders_of(job: PipelineJob, rank: int) -> Iterator[tuple[Item, ...]]:
    """All orders of a rank's actions that keep to its own dependencies, with all pairs of neighbours and all halves."""
    chains = []
    for route in job.routes:
        for s, m in product(route.stages, route.micro_batches):
            if job.rank_of[s] == rank:
                whole = (forward(s, m), backward(s, m))
                halves = (forward(s, m), input_gradient(s, m), weight_gradient(s, m))
                chains.append((whole, halves) if job.stages[s].splits else (whole,))
    for chosen in product(*chains):
        yield from interleavings(chosen)


def interleavings(chains: tuple[tuple[Item, ...], ...]) -> Iterator[tuple[Item, ...]]:
    if not any(chains):
        yield ()
    for k, chain in enumerate(chains):
        if not chain:
            continue
        left = (*chains[:k], chain[1:], *chains[k + 1 :])
        for rest in interleavings(left):
            yield (chain[0], *rest)
            one = chain[0]
            back = rest[0] if rest else one
            if isinstance(one, Pair) or isinstance(back, Pair) or one[1:] == back[1:]:
                continue
            if (one.kind, back.kind) == (ActionKind.FORWARD, ActionKind.BACKWARD):
                yield (Pair(one, back), *rest[1:])


def all_of(job: PipelineJob) -> list[tuple[float, tuple[int, ...]]]:
    """Of all schedules, the step and the peaks."""
    found = []
    for orders in product(*(list(orders_of(job, rank)) for rank in range(job.ranks))):
        schedule = with_updates(job, PipelineSchedule("any", orders))
        if violation(job, schedule) is None:
            judged = measure_pipeline(job, schedule)
            found.append((judged.step_us, tuple(peak for peak, _ in judged.peaks)))
    return found


def size(job: PipelineJob) -> int:
    """How often a stage runs, by which schedules grow in number."""
    return sum(len(route.stages) * len(route.micro_batches) for route in job.routes)


@pytest.mark.slow
def test_no_schedule_of_a_small_job_beats_the_bound() -> None:
    """Nor, within some limits, any that keeps to them."""
    rng, reached, tried, sharper = random.Random(0), 0, 0, 0
    while tried < 25:
        job = random_job(rng, 3, 2)
        if not 2 <= size(job) <= 4 or size(job) / job.ranks > 2:
            continue
        tried += 1
        every, bound = all_of(job), pipeline_bound_us(job)
        best = min(us for us, _ in every)
        assert bound <= best + 1e-9
        reached += best <= bound + 1e-9
        for limits in {need for _, need in every}:
            best = min(us for us, need in every if all(a <= b for a, b in zip(need, limits, strict=True)))
            limited = limited_bound_us(replace(job, memory_limit_bytes=limits))
            assert limited <= best + 1e-9
            sharper += limited > bound
    assert reached >= 6  # it says something
    assert sharper >= 6


def test_a_pair_may_need_less_than_its_parts() -> None:
    """Eight micro-batches in pairs hold 20 bytes; one behind the other a forward alone needs 5 more than is saved."""
    block = PipelineBlock(10.0, transient_bytes=5)
    stage, pair = PipelineStage(block, block, saved_bytes=10), PipelineBlock(10.0)
    job = PipelineJob("", (stage,), (0,), 1, (Route((0,), range(8)),), memory_limit_bytes=(20,), pairs={(0, 0): pair})
    pairs = [Pair(forward(0, m + 1), backward(0, m)) for m in range(7)]
    schedule = PipelineSchedule("", ((forward(0, 0), *pairs, backward(0, 7)),))
    judged = measure_pipeline(job, schedule)
    assert (judged.step_us, judged.peaks[0][0]) == (90.0, 20)
    assert limited_bound_us(job) <= 90.0


def test_one_micro_batch_at_a_time_waits_for_the_way_there_and_back() -> None:
    job = uniform(2, 3, saved=4)
    assert pipeline_bound_us(job) == 3 * 3.0 + 1.0
    assert limited_bound_us(replace(job, memory_limit_bytes=(8, 8))) == 10.0
    assert limited_bound_us(replace(job, memory_limit_bytes=(7, 8))) == 3 * 4.0 + 1.0  # F F I I, and W of the last
    assert limited_bound_us(replace(job, memory_limit_bytes=(3, 8))) == float("inf")


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), [("1f1b", 4, 8), ("zbv", 4, 8)])
def test_it_is_reached(name: str, ranks: int, micro_batches: int) -> None:
    """1F1B where backward is whole; ZBV where forward and both halves take as long as each other."""
    job, schedule = laid_out(uniform(ranks, micro_batches, 2), BY_NAME[name])
    if name == "1f1b":
        job = replace(job, stages=tuple(replace(s, input_gradient=None, weight_gradient=None) for s in job.stages))
    assert replay_pipeline(job, schedule).step_us == pipeline_bound_us(job)


def test_1f1b_is_not_the_best_where_backward_has_halves() -> None:
    job, schedule = laid_out(uniform(4, 8), BY_NAME["1f1b"])
    assert replay_pipeline(job, schedule).step_us == 33.0
    assert pipeline_bound_us(job) == 8 * 3.0 + 3.0 + 0.0
