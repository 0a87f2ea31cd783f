"""Cuts: held against all contiguous ones of small jobs, and joined stages against their sums."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from overlap_sched.pipeline.cuts import CLOSE, best_cut, unit_cuts
from overlap_sched.pipeline.job import PipelineJob, PipelineStage
from overlap_sched.pipeline.judge.bound import pipeline_bound_us
from overlap_sched.pipeline.layout import Cut, Layout
from tests.pipeline.test_search import uneven

ONE, TWO, FOLD, MIRROR = Layout("looped"), Layout("looped", 2), Layout("folded", 2), Layout("mirrored")


def units(rng: random.Random, ranks: int, count: int, micro_batches: int = 3, **changes: object) -> PipelineJob:
    """Unlike units, no multiple of the ranks; their transfers take no time."""
    job = uneven(1, micro_batches, count, rng)
    return replace(job, ranks=ranks, rank_of=tuple(s % ranks for s in range(count)), link=type(job.link)(), **changes)


def all_cuts(count: int, stages: int) -> Iterator[Cut]:
    for ends in combinations(range(1, count), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, count)))


def whole_us(stage: PipelineStage) -> float:
    assert stage.input_gradient is not None
    assert stage.weight_gradient is not None
    return stage.forward.time_us + stage.input_gradient.time_us + stage.weight_gradient.time_us


def worst_us(job: PipelineJob, layout: Layout, cut: Cut) -> float:
    """As the head of ``cuts`` says, of the job as it is laid out, rank by rank."""
    placed = layout.put(job, cut)
    heads, tails = {}, {}
    for route in placed.routes:
        head = tail = 0.0
        for s in route.stages:
            heads[s], tails[s] = head, tail
            head += placed.stages[s].forward.time_us
            tail += placed.stages[s].input_gradient.time_us  # type: ignore[union-attr]
    found = []
    for stages in placed.stages_of:
        counts = {s: len(placed.route_of[s].micro_batches) for s in stages}
        whole = sum(counts[s] * whole_us(placed.stages[s]) for s in stages)
        weights = sum(counts[s] * placed.stages[s].weight_gradient.time_us for s in stages)  # type: ignore[union-attr]
        found.append(min(heads[s] for s in stages) + max(whole, whole - weights + min(tails[s] for s in stages)))
    return max(found)


@pytest.mark.parametrize("layout", [ONE, FOLD, MIRROR], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_the_worst_rank_is_as_quick_as_with_any_cut(layout: Layout, seed: int) -> None:
    rng = random.Random(seed)
    ranks = rng.randint(2, 3)
    job = units(rng, ranks, rng.randint(layout.count(ranks), layout.count(ranks) + 4), rng.randint(2, 5))
    every = list(all_cuts(len(job.stages), layout.count(ranks)))
    cut = best_cut(job, layout)
    assert cut in every
    least_us = min(worst_us(job, layout, one) for one in every)
    assert least_us <= worst_us(job, layout, cut) <= least_us * (1 + CLOSE)
    _, low_us = unit_cuts(job, layout)
    assert least_us * (1 - CLOSE) <= low_us <= min(pipeline_bound_us(layout.put(job, one)) for one in every) + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_no_cut_of_stages_that_are_dealt_out_is_below_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    job = units(rng, 2, rng.randint(4, 8), rng.randint(1, 4))
    every = list(all_cuts(len(job.stages), 4))
    (one,), low_us = unit_cuts(job, TWO)
    assert low_us <= min(pipeline_bound_us(TWO.put(job, cut)) for cut in every) + 1e-9
    ordered = sorted(worst_us(job, TWO, cut) for cut in every)
    assert worst_us(job, TWO, one.cut) <= ordered[len(ordered) // 10] * 1.1  # a local search: near the best
