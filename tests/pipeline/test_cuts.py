"""Cuts: held against all contiguous ones of small jobs, and joined stages against their sums."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import pytest

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.cuts import best_cut, unit_cuts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage
from overlap_sched.pipeline.judge import pipeline_bound_us
from overlap_sched.pipeline.layout import Cut, StageLayout
from tests.pipeline.test_search import uneven

ONE, TWO = StageLayout("looped"), StageLayout("looped", 2)
FOLD, MIRROR = StageLayout("folded", 2), StageLayout("mirrored")


def units(rng: random.Random, ranks: int, count: int, micro_batches: int = 3, **changes: object) -> PipelineJob:
    """Unlike units, no multiple of the ranks; their transfers take no time."""
    job = uneven(1, micro_batches, count, rng)
    return replace(job, ranks=ranks, rank_of=tuple(s % ranks for s in range(count)), link=type(job.link)(), **changes)


def all_cuts(count: int, stages: int) -> Iterator[Cut]:
    for ends in combinations(range(1, count), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, count)))


def whole_us(stage: PipelineStage) -> float:
    halves = stage.input_gradient, stage.weight_gradient
    return stage.forward.time_us + sum(half.time_us for half in halves if half is not None)


def busiest_us(job: PipelineJob, layout: StageLayout, cut: Cut) -> tuple[float, float]:
    """Of the job as it is laid out: of its ranks, for all micro-batches, and of its stages."""
    placed = layout.put(job, cut)
    times = [whole_us(stage) for stage in placed.stages]
    ranks = [sum(len(placed.route_of[s].micro_batches) * times[s] for s in stages) for stages in placed.stages_of]
    return max(ranks), max(times)


@pytest.mark.parametrize("layout", [ONE, FOLD, MIRROR], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_the_busiest_rank_is_least_busy(layout: StageLayout, seed: int) -> None:
    """Of all cuts, and of those that are alike the longest stage is shortest; none is below the bound of any."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 3)
    job = units(rng, ranks, rng.randint(layout.count(ranks), layout.count(ranks) + 4), rng.randint(2, 5))
    every = list(all_cuts(len(job.stages), layout.count(ranks)))
    cut = best_cut(job, layout)
    assert cut in every
    assert busiest_us(job, layout, cut) == min(busiest_us(job, layout, one) for one in every)
    _, low_us = unit_cuts(job, layout)
    bounds = [pipeline_bound_us(layout.put(job, one)) for one in every]
    assert 0.85 * min(bounds) <= low_us <= min(bounds) + 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_stages_that_are_dealt_out_are_cut_by_a_local_search(seed: int) -> None:
    rng = random.Random(seed)
    job = units(rng, 2, rng.randint(4, 8), rng.randint(1, 4))
    every = list(all_cuts(len(job.stages), 4))
    (one,), low_us = unit_cuts(job, TWO)
    assert low_us <= min(pipeline_bound_us(TWO.put(job, cut)) for cut in every) + 1e-9
    ordered = sorted(busiest_us(job, TWO, cut) for cut in every)
    assert busiest_us(job, TWO, one.cut) <= ordered[len(ordered) // 10]  # near the best


@pytest.mark.parametrize("layout", [ONE, TWO, FOLD, MIRROR], ids=str)
def test_joined_stages_have_the_sums_of_their_units(layout: StageLayout) -> None:
    job = units(random.Random(7), 2, 7, 2)
    cut = best_cut(job, layout)
    assert cut is not None
    stages = layout.put(job, cut).stages[: len(cut)]
    for a, stage in zip(accumulate((0, *cut)), stages, strict=False):
        own = job.stages[a : a + cut[stages.index(stage)]]
        assert whole_us(stage) == sum(map(whole_us, own))
        for name in ("saved_bytes", "kept_bytes", "static_bytes"):
            assert getattr(stage, name) == sum(getattr(one, name) for one in own)
        assert stage.forward.output_bytes == own[-1].forward.output_bytes


def test_fewer_units_than_stages() -> None:
    job = units(random.Random(0), 2, 3)
    assert best_cut(job, FOLD) is None
    assert unit_cuts(job, FOLD)[0] == []
    with pytest.raises(PipelineError) as caught:
        FOLD.put(job, (1, 2, 0, 0))
    assert str(caught.value) == "uneven: 3 stages cannot be joined to 4 of 1, 2, 0, 0, which 2 ranks need."


def test_a_tight_limit_moves_the_cut() -> None:
    """The first rank holds two micro-batches: with its limit it has one unit, and is not the busiest any more."""
    job = units(random.Random(0), 2, 4, 4)
    stage = PipelineStage(PipelineBlock(2.0), PipelineBlock(4.0), saved_bytes=10)
    job = replace(job, stages=(stage,) * 4, pairs={})
    assert [one.cut for one in unit_cuts(job, ONE)[0]] == [(2, 2)]
    tight = replace(job, memory_limit_bytes=(25, 100))
    assert [one.cut for one in unit_cuts(tight, ONE)[0]] == [(1, 3), (2, 2)]  # (2, 2) with one in flight
    heavy = replace(tight, stages=(replace(stage, static_bytes=60),) * 4, memory_limit_bytes=(100, 300))
    assert [one.cut for one in unit_cuts(heavy, ONE)[0]] == [(1, 3)]
