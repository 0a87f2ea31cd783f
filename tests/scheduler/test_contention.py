"""The scheduler under contention: its own clock is the judges', and its promises hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from overlap_sched.judge.replay import replay
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler import runs
from overlap_sched.scheduler.driver import schedule
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.task import Reference
from overlap_sched.simulate.ledger import LiveRanges
from tests.judge.test_contention import contended, contentions
from tests.support.examples import examples
from tests.support.graphs import problems


@given(problems(max_steps=30), contentions)
@examples(100)
def test_runs_know_the_times_that_the_judges_replay(problem: Problem, contention: Contention) -> None:
    problem = contended(problem, replace(contention, stretch={}))  # which their clock leaves out
    found = []

    def kept(reference, *arguments, **more):
        run = list_schedule(reference, *arguments, **more)
        found.append((reference.problem, run))
        return run

    list_schedule = runs.list_schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "list_schedule", kept)
        schedule(problem, Options(memory_model=problem.memory_model, strict=True))
    for known, run in found:
        if run.made is not None:
            assert run.made.step_us == pytest.approx(replay(known, run.made.order).step_us, rel=1e-9)


def test_from_the_lowest_peak_the_budget_holds_too() -> None:
    """Strict: an order above the budget would raise."""
    slowed = replace(EXAMPLE, contention=Contention({"": 1.5}))
    for base in ("memory-peak", "memory", "original"):
        for headroom in (0, "1MiB", "3MiB"):
            result = schedule(slowed, Options(base=base, headroom=headroom, strict=True))
            assert result.scheduled.peak_bytes <= result.budget_bytes


def rounds(contention: Contention, gather_us: float = 12.0) -> Problem:
    """Compute 30, an exchange of 10 that nothing hides, compute 40; a gather that the last compute, 50, needs::

    compute  |= first 30 =|..........|== second 40 ==|= last 50 =|
    tp                    |exchange 10|
    fsdp                  |gather 12 |                             or anywhere before the last
    """
    nodes = (
        Node("first", Kind.COMPUTE, time_us=30.0),
        Node("exchange", Kind.COLLECTIVE, deps=(0,), time_us=10.0, op="all_to_all", group="tp"),
        Node("exchanged", Kind.WAIT, collective=1),
        Node("second", Kind.COMPUTE, deps=(2,), time_us=40.0),
        Node("gather", Kind.COLLECTIVE, time_us=gather_us, op="all_gather", group="fsdp"),
        Node("full", Kind.WAIT, collective=4),
        Node("last", Kind.COMPUTE, deps=(3, 5), time_us=50.0),
    )
    groups = {"tp": Group(8, intra_node=True), "fsdp": Group(64, intra_node=False)}
    return Problem("rounds", nodes, (), groups, contention=contention)


@pytest.mark.parametrize(
    ("contention", "gather_us", "reason", "step_us"),
    [
        (Contention({"": 1.25}), 12.0, "beside another", 130.0 + 2 * 0.2),
        (Contention({"": 1.25}), 21.0, "latest start", 130.0 + 21 * 0.2),  # less than half of it is beside the exchange
        (Contention({"all_gather": 1.25}), 12.0, "latest start", 130.0 + 12 * 0.2),  # the exchange slows nothing
        (Contention({"": 1.25}, {"tp": "rail", "fsdp": "rail"}), 12.0, "latest start", 130.0 + 12 * 0.2),
    ],
)
def test_a_collective_is_launched_beside_one_of_another_link(
    contention: Contention, gather_us: float, reason: str, step_us: float
) -> None:
    problem = rounds(contention, gather_us)
    live_ranges = LiveRanges(problem)
    reference = Reference(problem, problem.original_order, live_ranges)
    run = list_schedule(reference, np.array(0), Policy(0.0, -1.0, beside=1.0)).made
    assert run is not None
    assert run.reasons[4] == reason
    assert run.step_us == pytest.approx(step_us)


def test_beside_another_no_earlier_than_asked() -> None:
    problem = rounds(Contention({"": 1.25}))
    reference = Reference(problem, problem.original_order, LiveRanges(problem))
    # when the exchange is launched, 30 of 120 us of compute are done; the gather's latest start is at 58
    early, late = (list_schedule(reference, np.array(0), Policy(0.0, -1.0, beside=lead)).made for lead in (0.24, 0.23))
    assert early is not None
    assert late is not None
    assert (early.reasons[4], late.reasons[4]) == ("beside another", "latest start")
