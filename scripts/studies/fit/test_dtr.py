"""DTR, simulated: it keeps to its budget by our judge, and evicts what its rule says."""

import random

import pytest

from overlap_sched.problem import Problem
from scripts.studies.fit.dtr import dtr_run
from scripts.studies.fit.errors import OverBudgetError
from scripts.studies.fit.points import point
from scripts.studies.fit.repeats import repeated
from scripts.studies.fit.steps_of_chains import chain


def names(problem: Problem, run: list[int]) -> list[str]:
    return [problem.nodes[v].name for v in run]


def again(problem: Problem, budget: int) -> list[str]:
    """What runs a second time, or more often."""
    run = names(problem, dtr_run(problem, budget))
    return [name for at, name in enumerate(run) if name in run[:at]]


def test_within_the_original_peak_nothing_is_evicted() -> None:
    problem = chain(sizes=(5, 5, 5, 5))
    peak = point(problem).peak_bytes
    assert dtr_run(problem, peak) == list(problem.original_order)
    assert again(problem, peak - 1)


def test_what_is_cheap_large_and_stale_goes_first() -> None:
    sizes = (10, 10, 10, 10, 10, 10)
    peak = point(chain(sizes)).peak_bytes
    assert again(chain(sizes), peak - 1) == ["f0"]  # all alike: the one untouched for longest
    dear = (90.0, 10.0, 10.0, 10.0, 10.0, 10.0)
    assert again(chain(sizes, dear), peak - 1) == ["f1"]
    large = (10, 10, 40, 10, 10, 10)
    assert again(chain(large), point(chain(large)).peak_bytes - 1) == ["f2"]


def test_a_neighbourhood_of_evicted_values_costs_as_a_whole() -> None:
    """f1 between two evicted ones would cost three runs: another one goes."""
    sizes = (10,) * 8
    peak = point(chain(sizes)).peak_bytes
    first = again(chain(sizes), peak - 11)
    assert len(first) == 2
    a, b = sorted(int(name[1:]) for name in first)
    assert b - a > 1


def test_a_chain_of_evicted_values_is_made_again_from_its_beginning() -> None:
    problem = chain(sizes=(10,) * 6)
    run = dtr_run(problem, 33)
    assert point(repeated(problem, run)).peak_bytes <= 33
    shown = names(problem, run)
    assert shown.count("f0") >= 2
    last = len(shown) - 1 - shown[::-1].index("f2")
    assert "b3" in shown[last:]  # made for b3, and not kept from forward


@pytest.mark.parametrize("seed", range(25))
def test_the_judge_finds_it_within_the_budget(seed: int) -> None:
    draw = random.Random(seed)
    n = draw.randrange(3, 25)
    problem = chain([draw.randrange(1, 50) for _ in range(n)], [draw.uniform(1, 100) for _ in range(n)])
    peak = point(problem).peak_bytes
    kept = 0
    for share in (0.95, 0.8, 0.6, 0.4):
        try:
            run = dtr_run(problem, int(share * peak))
        except OverBudgetError:
            continue
        kept += 1
        assert set(run) == set(problem.original_order)
        assert point(repeated(problem, run)).peak_bytes <= int(share * peak)
    assert kept or peak < 150


def test_what_cannot_fit_is_an_error() -> None:
    problem = chain(sizes=(50, 50, 50))
    with pytest.raises(OverBudgetError) as error:
        dtr_run(problem, 60)
    assert str(error.value) == "a budget of 60 bytes: 102 are needed"


def test_thrashing_is_an_error() -> None:
    problem = chain(sizes=(10,) * 200, times=(10.0,) * 200)
    with pytest.raises(OverBudgetError, match="a budget of 34 bytes: more than 4 times the program"):
        dtr_run(problem, 34)
