"""Replays under errors, against one replay by definition per draw; the distribution of the errors themselves."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE
from overlap_sched.analysis.robustness import robustness, steps_us
from overlap_sched.cost.noise import HEAVY_TAILS, LOG_NORMAL, Noise
from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.contention import Contention
from tests.judge.test_contention import contended, with_lanes
from tests.support.contention_oracle import contended_step
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import random_order, step_by_definition

GATHER = next(node for node in EXAMPLE.nodes if node.kind is Kind.COLLECTIVE)
MATMUL = next(node for node in EXAMPLE.nodes if node.kind is Kind.COMPUTE)


def with_times(problem: Problem, times: dict[int, float]) -> Problem:
    nodes = [node._replace(time_us=float(times.get(v, node.time_us))) for v, node in enumerate(problem.nodes)]
    return replace(problem, nodes=tuple(nodes))


@examples(60)
@given(problems(), st.integers(0, 99), st.sampled_from([LOG_NORMAL, Noise(0.5, tail=0.5)]))
def test_every_draw_is_a_replay_of_the_graph_with_other_times(problem: Problem, seed: int, noise: Noise) -> None:
    order = random_order(problem, seed)
    timed = [v for v, node in enumerate(problem.nodes) if node.time_us and node.kind is not Kind.WAIT]
    times = noise.times_us([problem.nodes[v] for v in timed], 3, (seed, 0))
    expected = [step_by_definition(with_times(problem, dict(zip(timed, draw, strict=True))), order) for draw in times.T]
    assert steps_us(problem, order, noise, 3, seed) == pytest.approx(expected, rel=1e-12)


@examples(40)
@example(EXAMPLE, Contention({"": 3.0}, shares={"flops": 0.0, "bytes": 2.0}, flops_per_byte=2.0), 1)
@given(problems(), with_lanes, st.integers(0, 99))
def test_with_contention_too(problem: Problem, contention: Contention, seed: int) -> None:
    problem, noise = contended(problem, contention), Noise(0.5, tail=0.5)
    order = random_order(problem, seed)
    timed = [v for v, node in enumerate(problem.nodes) if node.time_us and node.kind is not Kind.WAIT]
    times = noise.times_us([problem.nodes[v] for v in timed], 3, (seed, 0))
    drawn = [with_times(problem, dict(zip(timed, draw, strict=True))) for draw in times.T]
    expected = [float(contended_step(each, order).step_us) for each in drawn]
    assert steps_us(problem, order, noise, 3, seed) == pytest.approx(expected, rel=1e-9)


def test_without_errors_it_is_the_replay() -> None:
    found = robustness(EXAMPLE, EXAMPLE.original_order, Noise(sigma=0.0), draws=5)
    assert (found.predicted_us, found.mean_us, found.p95_us, found.rise_percent) == (190.0, 190.0, 190.0, 0.0)


def test_mean_and_percentile_are_of_the_draws() -> None:
    steps = steps_us(EXAMPLE, EXAMPLE.original_order, LOG_NORMAL, 400, 3)
    found = robustness(EXAMPLE, EXAMPLE.original_order, draws=400, seed=3)
    assert found.mean_us == pytest.approx(np.mean(steps))
    assert sum(steps <= found.p95_us) == 380
    assert found.predicted_us == 190.0


def test_many_draws_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part is the same however many follow; parts differ from each other."""
    monkeypatch.setattr("overlap_sched.analysis.robustness._CELLS", 5 * 4)  # five timed nodes: four draws at once
    steps = steps_us(EXAMPLE, EXAMPLE.original_order, LOG_NORMAL, 10, 0)
    assert len(steps) == len(set(steps)) == 10
    assert steps[:4].tolist() == steps_us(EXAMPLE, EXAMPLE.original_order, LOG_NORMAL, 4, 0).tolist()


@pytest.mark.parametrize("draws", [1, 2, 3, 19, 20, 21, 40, 399, 1000])
def test_the_percentile_is_exact_however_the_draws_are_parted(draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.analysis.robustness._CELLS", 5 * 7)  # five timed nodes: seven draws at once
    found = robustness(EXAMPLE, EXAMPLE.original_order, draws=draws)
    steps = steps_us(EXAMPLE, EXAMPLE.original_order, LOG_NORMAL, draws, 0)
    assert found.p95_us == np.percentile(steps, 95)
    assert found.mean_us == pytest.approx(steps.mean(), rel=1e-12)


def test_memory_does_not_grow_with_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak(draws: int) -> int:
        tracemalloc.start()
        robustness(EXAMPLE, EXAMPLE.original_order, draws=draws)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    monkeypatch.setattr("overlap_sched.analysis.robustness._CELLS", 5 * 10_000)
    assert peak(400_000) - peak(10_000) < 400_000 * 8 / 2  # all steps would take 3.2 MB


def test_steps_that_add_up_to_infinity() -> None:
    problem = with_times(EXAMPLE, {4: 1e308})
    with pytest.raises(ProblemError) as error:
        robustness(problem, problem.original_order)
    assert str(error.value) == (
        "the steps of 'example' under errors add up to infinity. Are its times in microseconds?"
    )


@pytest.mark.parametrize("draws", [0, 10**12])
def test_draws_that_nobody_needs(draws: int) -> None:
    with pytest.raises(OptionsError) as error:
        robustness(EXAMPLE, EXAMPLE.original_order, draws=draws)
    assert str(error.value) == f"draws is {draws}; it is a number of replays, 1 to 1000000."


def test_seeds_give_errors_and_the_same_seed_the_same() -> None:
    one, same, other = (robustness(EXAMPLE, EXAMPLE.original_order, draws=20, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.mean_us != other.mean_us


def test_factors_are_one_on_average_and_as_wide_as_asked() -> None:
    factors = Noise(0.2).times_us([MATMUL], 20_000, (0,))[0] / MATMUL.time_us
    assert np.mean(factors) == pytest.approx(1.0, abs=0.005)
    assert np.std(np.log(factors)) == pytest.approx(0.2, abs=0.005)


def test_tails_delay_some_collectives_and_nothing_else() -> None:
    plain, tailed = (noise.times_us([MATMUL, GATHER], 20_000, (0,)) for noise in (LOG_NORMAL, HEAVY_TAILS))
    ratio = tailed / plain
    assert (ratio[0] == 1.0).all()
    assert (ratio[1] >= 1.0).all()
    delayed = ratio[1][ratio[1] > 1.0 + 1e-9]
    assert len(delayed) / 20_000 == pytest.approx(0.02, abs=0.004)
    assert np.mean(delayed > 10) == pytest.approx(0.01, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": -0.1}, "sigma is -0.1; it is a number, 0 or more (0.2: errors of about 20 %)."),
        ({"sigma": float("nan")}, "sigma is nan; it is a number, 0 or more (0.2: errors of about 20 %)."),
        ({"tail": 1.5}, "tail is 1.5; it is the share of collectives that are delayed, 0 to 1."),
        ({"tail_index": 1.0}, "tail_index is 1.0; it is above 1, or delays would have no mean."),
    ],
)
def test_errors_of_errors(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(OptionsError) as error:
        Noise(**arguments)
    assert str(error.value) == message
