"""Cuts and schedules that are found."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, combinations, pairwise, product

import pytest

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import ActionKind, PipelineSchedule, forward, input_gradient, weight_gradient
from overlap_sched.pipeline.best import FOUND, LayoutSearch, find_pipeline
from overlap_sched.pipeline.blocks import BLOCKS, block_orders
from overlap_sched.pipeline.cuts import UnitCut, best_cut, least_step_us, unit_cuts
from overlap_sched.pipeline.exact import exact_pipeline, solvable
from overlap_sched.pipeline.greedy import Lead, greedy_schedule
from overlap_sched.pipeline.improve import improve_schedule
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage
from overlap_sched.pipeline.judge import limited_bound_us, pipeline_bound_us, violation
from overlap_sched.pipeline.layout import FOLDED, MIRRORED, ONE_EACH, Cut, StageLayout
from overlap_sched.pipeline.named import NAMED, lay_out_named
from overlap_sched.pipeline.replay import PipelineClock
from tests.pipeline.test_judge import all_of
from tests.support.pipeline_judge import measure_pipeline
from tests.support.pipelines import random_job, random_schedule, uniform
from tests.support.published_v import published


def uneven(ranks: int, micro_batches: int, chunks: int = 1, rng: random.Random | None = None) -> PipelineJob:
    """Stages that differ, with transfers; what halves need, whole backwards need, too."""
    rng, job = rng or random.Random(0), uniform(ranks, micro_batches, chunks)

    def stage() -> PipelineStage:
        f, i, w, out = (rng.randint(1, 6) for _ in range(4))
        saved = rng.randint(2, 9)
        return PipelineStage(
            PipelineBlock(f, rng.randint(0, 3), out), PipelineBlock(i + w, 2 + out, out), PipelineBlock(i, 1, out),
            PipelineBlock(w, 2), saved, rng.randint(0, saved), rng.randint(0, 9),
        )  # fmt: skip

    return replace(job, name="uneven", stages=tuple(stage() for _ in job.stages), link=PipelineLink(1.0, 4e6))


def peaks(job: PipelineJob, schedule: PipelineSchedule) -> tuple[int, ...]:
    return tuple(most for most, _ in measure_pipeline(job, schedule).peaks)


def fits(job: PipelineJob, schedule: PipelineSchedule) -> bool:
    limits = job.memory_limit_bytes
    return limits is None or all(most <= limit for most, limit in zip(peaks(job, schedule), limits, strict=True))


def search_of(job: PipelineJob) -> LayoutSearch:
    """Of a job that is laid out already."""
    return LayoutSearch(ONE_EACH, UnitCut((), ()), job, PipelineClock(job))


def in_blocks(job: PipelineJob) -> list[PipelineSchedule]:
    made = [greedy_schedule(job, block_orders(job, shape)) for shape in BLOCKS]
    return [one for one in made if one is not None]


@pytest.mark.parametrize("seed", range(10))
def test_a_clock_that_knows_other_schedules_times_as_the_judge_does(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    clock = PipelineClock(job)
    for schedule in (random_schedule(job, rng) for _ in range(4)):
        assert clock.step_us(clock.orders_of(schedule)) == measure_pipeline(job, schedule).step_us


@pytest.mark.parametrize("seed", range(10))
def test_what_is_run_in_any_order_of_blocks_or_ahead_is_valid(seed: int) -> None:
    """One stage without halves; stages dealt out, folded, or in two directions."""
    rng = random.Random(seed)
    ranks, chunks = rng.randint(1, 4), rng.randint(1, 3)
    job = uneven(ranks, rng.randint(2, 6), chunks, rng)
    whole = replace(job.stages[0], input_gradient=None, weight_gradient=None)
    layouts = StageLayout("looped", chunks), *([FOLDED] if chunks == 2 else []), *([MIRRORED] if chunks == 1 else [])
    job = rng.choice(layouts).put(replace(job, stages=(whole, *job.stages[1:])))
    job = replace(job, pair_factor=rng.choice((0.7, 1.0)))
    leads = [Lead(forwards, rng.randint(0, 3)) for forwards in (-1, 0, 4)]
    ways = product((*(block_orders(job, shape) for shape in BLOCKS[::3]), *leads), (False, True), (False, True))
    for wanted, steady, pairs in ways:
        made = greedy_schedule(job, wanted, steady, pairs)
        assert made is not None
        assert violation(job, job.with_updates(made)) is None
        assert measure_pipeline(job, made).step_us >= pipeline_bound_us(job) - 1e-9


@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_of_blocks_fits(seed: int) -> None:
    """Links are slow: outputs that wait to be sent are what the list scheduler does not count."""
    job = replace(uneven(3, 6, 2, random.Random(seed)), link=PipelineLink(9.0))
    every = [peaks(job, one) for one in in_blocks(job)]
    job = replace(job, memory_limit_bytes=sorted(every, key=sum)[len(every) // 2])
    for add in (LayoutSearch.add_blocks, LayoutSearch.add_leads):
        add(search := search_of(job))
        assert len(search.made) >= 5
        assert all(fits(job, made.schedule) for made in search.made)
        assert all(a.step_us < b.step_us for a, b in pairwise(search.made))


def test_what_does_not_fit_is_run_with_less_room() -> None:
    """Outputs wait for a slow link, for which the list scheduler leaves no room: one micro-batch after another fits."""
    stage = PipelineStage(*(PipelineBlock(us, 0, 5) for us in (1.0, 2.0, 1.0)), PipelineBlock(1.0), 10, 10)
    job = replace(uniform(3, 6), stages=(stage,) * 3, link=PipelineLink(3.0), memory_limit_bytes=(25,) * 3)
    for add in (LayoutSearch.add_blocks, LayoutSearch.add_leads):
        add(search := search_of(job))
        assert search.made


@pytest.mark.parametrize("ahead", [-1, 0, 2])
@pytest.mark.parametrize("waiting", [0, 2])
def test_a_rank_runs_ahead_by_its_lead(ahead: int, waiting: int) -> None:
    """As 1F1B does, by one forward less, or by two more; and no more weight gradients wait than are to."""
    job = uniform(4, 8)
    made = greedy_schedule(job, Lead(ahead, waiting))
    assert made is not None
    for rank, order in enumerate(made.orders):
        kinds = [item.kind for item in order]
        flight, late = (
            max(accumulate((kind is more) - (kind is less) for kind in kinds))
            for more, less in (
                (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT),
                (ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT),
            )
        )
        assert flight <= max(4 - rank + ahead, 1) <= flight + 2 * (rank > 0)
        assert rank < 3 or flight == 1  # each backward is there at once, and goes first
        assert late == 1 + waiting * (ahead >= 0)
    whole = replace(job.stages[0], input_gradient=None, weight_gradient=None)
    made = greedy_schedule(job := replace(job, stages=(whole,) * 4), Lead(0, waiting))
    assert made == replace(lay_out_named(job, NAMED[1])[1], name="found")
    tight = replace(job, memory_limit_bytes=(2,) * 4)
    assert fits(tight, greedy_schedule(tight, Lead(ahead + 9, waiting)) or made)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_improved_is_no_longer_and_within_the_limits(seed: int) -> None:
    rng = random.Random(seed)
    job = uneven(rng.randint(2, 4), rng.randint(2, 6), rng.randint(1, 2), rng)
    schedule = job.with_updates(random_schedule(job, rng))
    schedule = replace(schedule, orders=tuple(tuple(schedule.actions(rank)) for rank in range(job.ranks)))
    if violation(job, schedule) is not None:
        return
    job = replace(job, memory_limit_bytes=peaks(job, schedule))
    found = improve_schedule(PipelineClock(job), schedule, pipeline_bound_us(job), 400)
    assert violation(job, found) is None
    assert fits(job, found)
    assert measure_pipeline(job, found).step_us <= measure_pipeline(job, schedule).step_us


def test_a_weight_gradient_goes_into_the_gap() -> None:
    job = uniform(2, 3)
    halves = [(forward, input_gradient, weight_gradient)] * 3
    orders = tuple(tuple(half(s, m) for m, each in enumerate(halves) for half in each) for s in range(2))
    schedule = PipelineSchedule("halves", orders)
    found = improve_schedule(PipelineClock(job), schedule, 0.0, 2000)
    assert measure_pipeline(job, schedule).step_us == 15.0
    assert measure_pipeline(job, found).step_us < 13.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_solver_finds_the_optimum(seed: int) -> None:
    """Held against all schedules of the judge; at limits that most of them break it is a bound. Rounded or not."""
    pytest.importorskip("ortools", reason="ortools is not installed")
    rng = random.Random(seed)
    job = uneven(2, 2, 1, rng)
    if seed % 2:  # no common unit
        job = replace(job, link=PipelineLink(1 / 3, 4e6))
    every = all_of(job)
    assert solvable(job, 100)
    longest, best = (end(us for us, _ in every) for end in (max, min))
    schedule, bound_us = exact_pipeline(job, None, longest, 20.0)
    assert schedule is not None
    assert measure_pipeline(job, schedule).step_us == best
    assert best * 0.999 <= bound_us <= best
    needs = sorted({need for _, need in every}, key=sum)
    for limits in (needs[0], needs[len(needs) // 4]):
        best = min(us for us, need in every if all(a <= b for a, b in zip(need, limits, strict=True)))
        job = replace(job, memory_limit_bytes=limits)
        schedule, bound_us = exact_pipeline(job, None, longest, 20.0)
        assert 0.8 * best <= bound_us <= best  # below it where idling on purpose would help
        if schedule is not None and fits(job, schedule):
            assert measure_pipeline(job, schedule).step_us >= best


def test_what_is_made_is_not_below_the_bound_within_what_it_needs() -> None:
    """More micro-batches than can be enumerated; the best of some schedules in the memory of each."""
    rng, sharper, reached = random.Random(3), 0, 0
    for _ in range(80):
        job = uneven(rng.randint(1, 4), rng.randint(2, 9), rng.randint(1, 3), rng)
        job = FOLDED.put(job) if len(job.stages) == 2 * job.ranks and rng.random() < 0.5 else job
        need = peaks(job, in_blocks(job)[0])
        tight = [replace(job, memory_limit_bytes=tuple(part * most // 8 for most in need)) for part in range(3, 12)]
        schedules = [one for within in tight for one in in_blocks(within)[::4]]
        made = [(measure_pipeline(job, one), peaks(job, one)) for one in schedules]
        for (_, need), own in product(made, (False, True)):
            within = [one for one, other in made if all(a <= b for a, b in zip(other, need, strict=True))]
            spans = (max(max(end for _, end in items) - items[0][0] for items in one.spans_us) for one in within)
            best_us = min(spans if own else (one.step_us for one in within))
            bound_us = limited_bound_us(replace(job, memory_limit_bytes=need), own)
            assert bound_us <= best_us + 1e-9
            sharper += bound_us > pipeline_bound_us(job, own)
            reached += bound_us > best_us - 1e-9
    assert sharper > 400
    assert reached > 200


def test_what_cannot_fit_is_proved_and_what_is_not_solved() -> None:
    pytest.importorskip("ortools", reason="ortools is not installed")
    job = replace(uniform(2, 2, saved=4), memory_limit_bytes=(3, 3))
    assert exact_pipeline(job, None, float("inf"), 20.0) == (None, float("inf"))
    assert find_pipeline(job, 1) is None
    assert find_pipeline(replace(uniform(2, 2, f=0.0, i=0.0, w=0.0, saved=4), memory_limit_bytes=(3, 3)), 1) is None
    job = uniform(2, 2)
    assert solvable(job, 12)
    assert not solvable(job, 11)
    assert not solvable(replace(job, pair_factor=0.9), 12)
    quicker, sends_more, heavier = (  # what is sent is live beside W then
        {"backward": PipelineBlock(1.0)}, {"input_gradient": PipelineBlock(1.0, 0, 5)}, {"kept_bytes": 2},
    )  # fmt: skip
    for change in (quicker, sends_more, heavier):
        assert not solvable(replace(job, stages=(replace(job.stages[0], **change),) * 2), 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_what_is_found_is_no_longer_than_any_named_schedule_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    job = uneven(2, 3, 2, rng)
    named = []
    for of in NAMED[:4]:
        placed, schedule = lay_out_named(job, of)
        named.append((measure_pipeline(placed, schedule).step_us, max(peaks(placed, schedule))))
    limit = sorted(need for _, need in named)[1]
    found = find_pipeline(replace(job, memory_limit_bytes=(limit,) * 2), 1)
    assert found is not None
    plan = found.plan
    assert plan.name == plan.schedule.name == FOUND
    assert violation(plan.job, plan.schedule) is None
    assert fits(plan.job, plan.schedule)
    assert plan.replay.step_us <= min(us for us, need in named if need <= limit) + 1e-9
    assert found.bound_us <= plan.replay.step_us * (1 + 1e-9)


@pytest.mark.slow
def test_zbv_is_found_to_be_the_best_where_it_is() -> None:
    job = uniform(2, 4, 2)
    heavy = tuple(replace(stage, static_bytes=100) for stage in job.stages)
    job = replace(job, stages=heavy, memory_limit_bytes=(220, 220))  # parameters twice do not fit
    found = find_pipeline(job, 1)
    assert found is not None
    assert found.proved
    assert found.plan.replay.step_us == pipeline_bound_us(FOLDED.put(job)) == 25.0
    own = find_pipeline(job, 1, post_validation=True)
    assert own is not None
    assert own.aim_us == own.bound_us == 24.0
    assert measure_pipeline(own.plan.job, own.plan.schedule).step_us >= 25.0


def test_a_job_in_two_directions_is_refused() -> None:
    with pytest.raises(PipelineError, match="it has 2 routes"):
        find_pipeline(MIRRORED.put(uniform(2, 2)), 1)


def test_stages_without_halves_are_searched() -> None:
    """In each way but by OR-tools, which wants halves."""
    whole, told = replace(uneven(3, 3).stages[0], input_gradient=None, weight_gradient=None), list[str]()
    found = find_pipeline(replace(uneven(3, 3), stages=(whole,) * 3), 1, told.append)
    assert len({text.partition(":")[0] for text in told}) == 4
    assert found is not None
    assert violation(found.plan.job, found.plan.schedule) is None


def test_whole_backwards_may_be_what_fits() -> None:
    """Behind an input gradient its output is live beside what is kept: halves do not fit, and nothing is proved so."""
    blocks = PipelineBlock(10.0, 0, 5), PipelineBlock(20.0, 0, 5), PipelineBlock(10.0, 0, 5), PipelineBlock(10.0)
    stage = PipelineStage(*blocks, saved_bytes=10, kept_bytes=10)
    job = replace(uniform(3, 1), stages=(stage,) * 3, link=PipelineLink(5.0), memory_limit_bytes=(100, 100, 12))
    found = find_pipeline(job, 1)
    assert found is not None
    assert found.bound_us <= found.plan.replay.step_us < float("inf")


TWO = StageLayout("looped", 2)


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


@pytest.mark.parametrize("layout", [ONE_EACH, TWO, FOLDED, MIRRORED], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_the_busiest_rank_is_least_busy(layout: StageLayout, seed: int) -> None:
    """Of all cuts, and of those that are alike the longest stage is shortest; none is below the bound of any.

    Stages that are dealt out in turn are cut by a local search: nearly so.
    """
    rng = random.Random(seed)
    ranks = 2 if layout is TWO else rng.randint(2, 3)
    job = units(rng, ranks, rng.randint(layout.count(ranks), layout.count(ranks) + 4), rng.randint(2, 5))
    every = list(all_cuts(len(job.stages), layout.count(ranks)))
    (one,) = unit_cuts(job, layout)
    assert best_cut(job, layout) == one.cut
    ordered = sorted(busiest_us(job, layout, cut) for cut in every)
    assert busiest_us(job, layout, one.cut) <= ordered[len(ordered) // 10 if layout is TWO else 0]
    bound_us = min(pipeline_bound_us(layout.put(job, cut)) for cut in every)
    assert 0.5 * bound_us <= least_step_us(job) <= bound_us + 1e-9
    stages = layout.put(job, one.cut).stages[: len(one.cut)]
    for end, size, stage in zip(accumulate(one.cut), one.cut, stages, strict=True):
        own = job.stages[end - size : end]
        assert whole_us(stage) == sum(map(whole_us, own))
        for name in ("saved_bytes", "kept_bytes", "static_bytes"):
            assert getattr(stage, name) == sum(getattr(unit, name) for unit in own)
        assert stage.forward.output_bytes == own[-1].forward.output_bytes
        assert [block.output_bytes for block in stage.backs] == [block.output_bytes for block in own[0].backs]


def test_fewer_units_than_stages() -> None:
    job = units(random.Random(0), 2, 3)
    assert best_cut(job, FOLDED) is None
    assert unit_cuts(job, FOLDED) == []
    with pytest.raises(PipelineError, match="3 stages cannot be joined to 4 of 1, 2, 0, 0, which 2 ranks need"):
        FOLDED.put(job, (1, 2, 0, 0))


def test_a_tight_limit_moves_the_cut() -> None:
    """The first rank holds two micro-batches: with its limit it has one unit, and is not the busiest any more."""
    job = units(random.Random(0), 2, 4, 4)
    stage = PipelineStage(PipelineBlock(2.0), PipelineBlock(4.0), saved_bytes=10)
    job = replace(job, stages=(stage,) * 4, pairs={})
    assert [one.cut for one in unit_cuts(job, ONE_EACH)] == [(2, 2)]
    tight = replace(job, memory_limit_bytes=(25, 100))
    assert [one.cut for one in unit_cuts(tight, ONE_EACH)] == [(1, 3), (2, 2)]  # (2, 2) with one in flight
    heavy = replace(tight, stages=(replace(stage, static_bytes=60),) * 4, memory_limit_bytes=(100, 300))
    assert [one.cut for one in unit_cuts(heavy, ONE_EACH)] == [(1, 3)]


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), [("v-min", 4, 16), ("v-half", 4, 8), ("v-half", 8, 16)])
@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0, 0.0), (10.419, 10.207, 7.715, 0.408)])
def test_starts_are_no_longer_than_published_ones_in_their_memory(
    name: str, ranks: int, micro_batches: int, times: tuple[float, ...]
) -> None:
    """Equal times, and those of 28B parameters: Qi et al. 2023, arXiv 2401.10241, of their profiles."""
    f, i, w, link_us = times
    units = replace(uniform(ranks, micro_batches, 2, f, i, w), link=PipelineLink(link_us))
    theirs = published(name, ranks, micro_batches)
    units = replace(units, memory_limit_bytes=(max(peaks(FOLDED.put(units), theirs)),) * ranks)
    job = FOLDED.put(units)
    search = LayoutSearch(FOLDED, UnitCut((1,) * 2 * ranks, ()), units, PipelineClock(job))
    search.add_named()
    search.add_blocks()
    assert all(fits(job, made.schedule) and violation(job, made.schedule) is None for made in search.made)
    assert search.made[0].step_us <= measure_pipeline(job, theirs).step_us + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_blocks_of_unlike_stages_fit(seed: int) -> None:
    """In what a schedule needs, and a little more; one stage without halves, of two per rank dealt out or folded."""
    rng = random.Random(seed)
    job = uneven(rng.randint(1, 4), rng.randint(1, 6), 2, rng)
    whole = replace(job.stages[0], input_gradient=None, weight_gradient=None)
    job = rng.choice((TWO, FOLDED)).put(replace(job, stages=(whole, *job.stages[1:])))
    ahead = in_blocks(job)[0]
    job = replace(job, memory_limit_bytes=tuple(most + 9 for most in peaks(job, job.with_updates(ahead))))
    search = search_of(job)
    search.add_blocks()
    assert search.made
    assert all(fits(job, made.schedule) and violation(job, made.schedule) is None for made in search.made)
