"""The bound: true of the best of all schedules of small jobs, and reached by some."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from overlap_sched.pipeline.action import ActionKind, Item, Pair, backward, forward, input_gradient, weight_gradient
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.bound import pipeline_bound_us
from overlap_sched.pipeline.judge.measure import measure_pipeline
from overlap_sched.pipeline.judge.validate import violation
from overlap_sched.pipeline.named.catalogue import NAMED, laid_out
from overlap_sched.pipeline.replay import replay_pipeline
from overlap_sched.pipeline.schedule import PipelineSchedule
from overlap_sched.pipeline.updates import with_updates
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


def best_us(job: PipelineJob) -> float:
    found = []
    for orders in product(*(list(orders_of(job, rank)) for rank in range(job.ranks))):
        schedule = with_updates(job, PipelineSchedule("any", orders))
        if violation(job, schedule) is None:
            found.append(measure_pipeline(job, schedule).step_us)
    return min(found)


def size(job: PipelineJob) -> int:
    """How often a stage runs, by which schedules grow in number."""
    return sum(len(route.stages) * len(route.micro_batches) for route in job.routes)


@pytest.mark.slow
def test_no_schedule_of_a_small_job_beats_the_bound() -> None:
    rng, reached, tried = random.Random(0), 0, 0
    while tried < 25:
        job = random_job(rng, 3, 2)
        if not 2 <= size(job) <= 4 or size(job) / job.ranks > 2:
            continue
        tried += 1
        best, bound = best_us(job), pipeline_bound_us(job)
        assert bound <= best + 1e-9
        reached += best <= bound + 1e-9
    assert reached >= 6  # it says something


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
