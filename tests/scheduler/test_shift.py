"""Launch sooner, wait later: never a longer step, whatever the times; never above the budget, and up to it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Options, read_problem
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, violation
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.precedence import launch_pairs, neighbours
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.polish import _Line, shift, shifted
from overlap_sched.scheduler.task import SAME_STEP, Reference, Task
from overlap_sched.simulate.ledger import LiveRanges
from tests.judge.test_contention import contended, contentions
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import INSTANCES, peak_by_definition, random_order, step_by_definition


def launches(problem: Problem, order: list[int]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for v in order:
        if problem.nodes[v].kind is Kind.COLLECTIVE:
            found.setdefault(problem.nodes[v].group, []).append(v)
    return found


@given(problems(), st.integers(0, 99), st.integers(0, 12))
def test_users_of_a_storage_are_counted_alike_few_or_many(problem: Problem, seed: int, room: int) -> None:
    order, live_ranges = random_order(problem, seed), LiveRanges(problem)
    limit = np.array(max(peak_by_definition(problem, order)) + room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlap_sched.scheduler.polish._MANY", 0)
        many = shifted(live_ranges, order, limit)
    assert shifted(live_ranges, order, limit) == many


@examples(150)
@given(problems(), st.integers(0, 99), st.integers(0, 12), st.booleans(), st.data())
def test_within_the_budget_and_never_slower_whatever_the_times(
    problem: Problem, seed: int, room: int, flat: bool, data: st.DataObject
) -> None:
    order = random_order(problem, seed)
    profile = peak_by_definition(problem, order)
    limit = np.array(max(profile) + room) if flat else np.array(profile) + room
    wide = list(shifted(LiveRanges(problem), order, limit))
    assert violation(problem, wide) is None
    assert all(np.array(peak_by_definition(problem, wide)) <= limit)
    assert launches(problem, wide) == launches(problem, order)
    assert sorted(wide) == sorted(order)
    times = data.draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 10.0]), min_size=len(order), max_size=len(order)))
    nodes = (
        node._replace(time_us=times[v])
        if node.kind is Kind.COLLECTIVE
        or (node.kind is Kind.COMPUTE and node.time_us > 0)  # what takes no time may move
        else node
        for v, node in enumerate(problem.nodes)
    )
    other = replace(problem, nodes=tuple(nodes))
    for graph in (problem, other):
        before, after = step_by_definition(graph, order), step_by_definition(graph, wide)
        assert after <= before * (1 + 1e-12)


@examples(60)
@given(problems(), st.integers(0, 99))
def test_without_a_limit_nothing_stands_between_a_wait_and_its_first_user(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    wide = list(shifted(LiveRanges(problem), order, np.array(2**61)))
    needed = [set(after) for after in problem.successors]
    for at, v in enumerate(wide):
        if problem.nodes[v].kind is not Kind.WAIT:
            continue
        first = next((k for k in range(at + 1, len(wide)) if wide[k] in needed[v]), len(wide))
        for w in wide[at + 1 : first]:  # only what has gone to its own first user, the same one
            node = problem.nodes[w]
            assert node.kind is Kind.WAIT or (node.kind is Kind.COMPUTE and node.time_us == 0)


@examples(60)
@given(problems(), st.integers(0, 99), st.integers(0, 8))
def test_memory_is_counted_exactly_move_by_move(problem: Problem, seed: int, room: int) -> None:
    order = random_order(problem, seed)
    live_ranges, limit = LiveRanges(problem), np.array(max(peak_by_definition(problem, order)) + room)
    line = _Line(live_ranges, order, limit)

    def check() -> None:
        """What is live during each step, and behind it."""
        assert line.during == peak_by_definition(problem, line.order.tolist())
        assert line._between.tolist() == _Line(live_ranges, line.order.tolist(), limit)._between.tolist()

    before, after = neighbours(problem, launch_pairs(problem, order, "group"))
    for v in order:  # any node: more kinds of moves than are made
        if problem.nodes[v].kind is not Kind.INPUT:
            line.move_later(v, min((int(line.position[w]) for w in after[v]), default=len(order)) - 1)
            check()
            line.move_sooner(v, max((int(line.position[u]) for u in before[v]), default=-1) + 1)
            check()


@pytest.mark.slow
def test_a_real_graph_loses_little_when_times_are_wrong() -> None:
    """20 % of error on every time: the mean step is within 1.2 % of the prediction, and nearer than before."""
    problem = read_problem(INSTANCES / "llama3_8b_bw_64_2d.json.gz")
    peak = np.array(max(memory_profile(problem, problem.original_order)))
    run = list_schedule(Reference(problem, problem.original_order), peak, Policy(lead=0.005, slack=0.12)).made
    assert run is not None
    order, wide = run.order, shifted(LiveRanges(problem), run.order, peak)
    before, after = (mean_with_errors(problem, one) for one in (order, wide))
    assert max(memory_profile(problem, wide)) <= peak
    predicted_us = replay(problem, wide).step_us
    assert predicted_us <= replay(problem, order).step_us
    assert after < before * 0.999
    assert after < predicted_us * 1.012


def mean_with_errors(problem: Problem, order: Order) -> float:
    """The mean step of 100 replays, every duration wrong by about 20 %."""
    random, steps = np.random.default_rng(0), []
    for _ in range(100):
        factors = np.exp(0.2 * random.standard_normal(len(problem.nodes)) - 0.02).tolist()
        nodes = (node._replace(time_us=node.time_us * f) for node, f in zip(problem.nodes, factors, strict=True))
        steps.append(replay(replace(problem, nodes=tuple(nodes)), order).step_us)
    return float(np.mean(steps))


def named(*names: str) -> list[int]:
    ids = {node.name: v for v, node in enumerate(EXAMPLE.nodes)}
    return [ids[name] for name in names]


def test_on_the_example() -> None:
    order = named("w", "x", "mm", "gather", "full", "wgrad", "dgrad", "scatter", "grad", "output")
    wide = shifted(LiveRanges(EXAMPLE), order, np.array(2**40))
    assert wide == tuple(named("w", "x", "gather", "mm", "wgrad", "scatter", "full", "dgrad", "grad", "output"))


def test_memory_stops_a_move_half_way() -> None:
    """At the original peak the launch of `scatter` cannot go before `dgrad`: its byte does not fit beside."""
    order = named("w", "x", "gather", "full", "mm", "wgrad", "dgrad", "scatter", "grad", "output")
    peak = max(peak_by_definition(EXAMPLE, order))
    tight = shifted(LiveRanges(EXAMPLE), order, np.array(peak))
    loose = shifted(LiveRanges(EXAMPLE), order, np.array(peak + 2**20))
    scatter = named("scatter")[0]
    assert tight.index(scatter) > tight.index(named("dgrad")[0])
    assert loose.index(scatter) < loose.index(named("dgrad")[0])


def test_pairs_are_kept() -> None:
    order = named("w", "x", "mm", "gather", "full", "wgrad", "dgrad", "scatter", "grad", "output")
    mm, gather = named("mm", "gather")
    free = shifted(LiveRanges(EXAMPLE), order, np.array(2**40))
    kept = shifted(LiveRanges(EXAMPLE), order, np.array(2**40), [(mm, gather)])
    assert free.index(gather) < free.index(mm)
    assert kept.index(mm) < kept.index(gather)


@examples(150)
@given(problems(max_steps=20), contentions, st.integers(0, 99))
def test_under_contention_the_phase_keeps_what_it_would_make_longer(
    problem: Problem, contention: Contention, seed: int
) -> None:
    problem = contended(problem, contention)
    task = Task(problem, Options(memory_model=problem.memory_model), 0)
    best = task.measured(tuple(random_order(problem, seed)))
    made = shift(task, best, best.order, np.array(2**61))
    assert made.step_us <= best.step_us * (1 + SAME_STEP)
    assert made.step_us == pytest.approx(replay(problem, made.order).step_us, rel=1e-9)
