"""The driver: promises, fallbacks, all ranks alike, contention, and the record of each decision."""

import importlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Group, Kind, Node, Options, Problem, Schedule, Storage, schedule
from overlap_sched.errors import OverlapSchedWarning, ProblemError, VerificationError
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, peak_memory, violation
from overlap_sched.options import headroom_bytes
from overlap_sched.peak_memory.best import best_order
from overlap_sched.problem import Order
from overlap_sched.problem.contention import Contention
from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.explain import Decision, decisions
from overlap_sched.scheduler.list_scheduler import Policy, list_schedule
from overlap_sched.scheduler.task import Candidate, Reference, Refusal, Task
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import layers, with_stage
from tests.support.oracle import all_orders, peak_by_definition
from tests.support.small_graphs import small_graph

MIB = 2**20
under_test = importlib.import_module("overlap_sched.scheduler.driver")

HEADROOMS = st.sampled_from([0, 1, 3, 7, "5%", "50%", "1GiB", "1TiB", 10**30])


@st.composite
def cases(draw: st.DrawFn, max_steps: int = 14) -> tuple[Problem, Options]:
    problem = draw(problems(max_steps=max_steps))
    return problem, Options(
        headroom=draw(HEADROOMS),
        budget=draw(st.sampled_from(["peak", "profile"])),
        memory_model=problem.memory_model,
        preserve_collective_order=draw(st.sampled_from(["none", "group", "all", "waits"])),
        effort=draw(st.integers(1, 6)),
        strict=True,
    )


def check_promises(problem: Problem, options: Options, result: Schedule) -> None:
    """Everything we promise of a result, from the definitions."""
    assert violation(problem, result.order) is None
    assert result.fell_back is None
    original = peak_by_definition(problem, list(range(len(problem.nodes))))
    headroom = headroom_bytes(options.headroom, max(original))
    profile = peak_by_definition(problem, list(result.order))
    limits = original if options.budget == "profile" else [max(original)] * len(original)
    assert all(live <= limit + headroom for live, limit in zip(profile, limits, strict=True))
    assert result.scheduled.peak_bytes == max(profile)
    before, after = replay(problem, problem.original_order), replay(problem, result.order)
    assert after.step_us <= before.step_us * (1 + 1e-9)
    assert lower_bound_us(problem) <= after.step_us * (1 + 1e-9)
    assert result.scheduled.step_us == after.step_us


@given(cases(max_steps=30))
@examples(80)
def test_promises_hold_on_random_graphs(case: tuple[Problem, Options]) -> None:
    problem, options = case
    result = schedule(problem, options)
    check_promises(problem, options, result)
    assert schedule(problem, options).order == result.order
    check_launch_order(problem, options, result.order)
    check_decisions(problem, result)


@pytest.mark.slow
@given(cases(max_steps=6))
@examples(200)
def test_bound_and_budget_against_every_order(case: tuple[Problem, Options]) -> None:
    problem, options = case
    if len(problem.nodes) > 8:
        return
    budget = max(peak_by_definition(problem, list(range(len(problem.nodes)))))
    budget += headroom_bytes(options.headroom, budget)
    fitting = [order for order in all_orders(problem) if max(peak_by_definition(problem, order)) <= budget]
    optimum = min(replay(problem, order).step_us for order in fitting)
    result = schedule(problem, options)
    assert result.scheduled.step_us >= optimum * (1 - 1e-9)
    assert lower_bound_us(problem) <= optimum * (1 + 1e-9)
    assert list(result.order) in fitting


def check_launch_order(problem: Problem, options: Options, order: Order) -> None:
    launches = [v for v in order if problem.nodes[v].kind is Kind.COLLECTIVE]
    if options.preserve_collective_order in ("all", "waits"):
        assert launches == sorted(launches)
        if options.preserve_collective_order == "waits":
            for at, w in enumerate(order):
                assert problem.nodes[w].kind is not Kind.WAIT or {v for v in launches if v < w} <= {*order[:at]}
    elif options.preserve_collective_order == "group":
        for group in problem.groups:
            mine = [v for v in launches if problem.nodes[v].group == group]
            assert mine == sorted(mine)


def check_decisions(problem: Problem, result: Schedule) -> None:
    timeline = replay(problem, result.order)
    launches = [v for v in result.order if problem.nodes[v].kind is Kind.COLLECTIVE]
    assert [d.collective for d in result.decisions] == launches
    waited_for = {w: v for v, waits in problem.waits.items() for w in waits}
    assert sum(d.exposed_us for d in result.decisions) == pytest.approx(timeline.exposed_us)
    assert all(stall == 0 or w in waited_for for w, stall in enumerate(timeline.stall_us))
    for d in result.decisions:
        time_us = problem.nodes[d.collective].time_us
        assert result.order[d.position] == d.collective
        assert 0 <= d.hidden_us <= time_us * (1 + 1e-9)
        assert d.launch_us <= d.start_us <= d.finish_us == d.start_us + time_us
        assert len(d.under) <= 3
        assert (d.held_by == "nothing") == (d.exposed_us <= 1e-9 * timeline.step_us)
        assert (d.over_bytes > 0) == (d.over_position is not None)


def test_the_example() -> None:
    roomy = schedule(EXAMPLE, Options(headroom="5MiB"))
    assert (roomy.scheduled.step_us, roomy.scheduled.exposed_us, roomy.scheduled.peak_bytes) == (120.0, 10.0, 26 * MIB)
    assert schedule(EXAMPLE, Options(effort=0)).order == EXAMPLE.original_order
    result = schedule(EXAMPLE)
    assert (result.original.step_us, result.scheduled.step_us) == (190.0, 150.0)
    assert result.scheduled.peak_bytes == result.original.peak_bytes == 21 * MIB
    gather, scatter = result.decisions
    assert (gather.reason, gather.held_by, gather.hidden_us, gather.under) == ("reference", "nothing", 40.0, (4,))
    assert (scatter.exposed_us, scatter.held_by, scatter.held_node) == (40.0, "dependency", 6)


def test_other_memory_model_is_an_error() -> None:
    with pytest.raises(ProblemError) as caught:
        schedule(EXAMPLE, Options(memory_model="tracker"))
    assert str(caught.value).startswith("problem 'example' is in the 'runtime' memory model, but 'tracker' was asked")
    assert str(caught.value).endswith("capture the graph again in the other one, or ask for memory_model='runtime'.")


def _raise(*_: object) -> None:
    raise ZeroDivisionError("a bug")


def _with_order(order: tuple[int, ...]) -> Callable[..., object]:
    return lambda real, *given: replace(real(*given), order=order)


FAULTS = [
    (_raise, "failed: ZeroDivisionError: a bug"),
    (_with_order((0, 1, 2, 3, 4, 5, 6, 7, 8)), "output never runs"),
    (_with_order((0, 1, 2, 4, 3, 6, 5, 7, 9, 8)), "output runs before grad, on which it depends"),
    (_with_order((0, 1, 2, 4, 3, 6, 7, 5, 8, 9)), "4194304 above the peak budget"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS)
def test_a_broken_scheduler_costs_nothing(fault: Callable[..., object], said: str) -> None:
    stages = with_stage("shift", fault, ALL.without("relink", "fill stalls"))  # in the last stage
    with pytest.warns(OverlapSchedWarning, match="overlap_sched keeps the original order of 'example': "):
        result = schedule(EXAMPLE, Options(), stages=stages)  # which would find another order
    assert result.order == EXAMPLE.original_order
    assert result.scheduled == result.original
    assert result.fell_back is not None
    assert said in result.fell_back
    assert {d.reason for d in result.decisions} == {"original"}
    with pytest.raises(VerificationError, match=re.escape(said)):
        schedule(EXAMPLE, Options(strict=True), stages=stages)


@given(problems(max_steps=30), st.randoms(use_true_random=False))
@examples(50)
def test_a_scheduler_that_returns_nonsense_never_wins(problem: Problem, draw: object) -> None:
    """Orders at random in the scheduler's place: either they keep every promise or the original stays."""
    real = under_test.best_order

    def nonsense(*args: object) -> object:
        best, base_bytes = real(*args)
        order = list(problem.original_order)
        draw.shuffle(order)  # type: ignore[attr-defined]
        return replace(best, order=tuple(order)), base_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(under_test, "best_order", nonsense)
        with warnings.catch_warnings(record=True, action="always") as caught:
            result = schedule(problem, Options(memory_model=problem.memory_model))
    if result.fell_back is None:
        check_promises(problem, Options(memory_model=problem.memory_model), result)
    else:
        assert result.order == problem.original_order
        assert [warning.category for warning in caught] == [OverlapSchedWarning]


@pytest.mark.slow
def test_same_order_under_another_hash_seed() -> None:
    script = (
        "from hypothesis import find\n"
        "from overlap_sched import schedule, Options, EXAMPLE\n"
        "from tests.support.layers import layers\n"
        "print(schedule(layers(12)).order, schedule(EXAMPLE, Options(headroom='5MiB')).decisions)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            check=True, capture_output=True, text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }  # fmt: skip
    assert len(outputs) == 1
    assert "Decision" in outputs.pop()


def test_a_backward_pass_is_hidden_within_the_budget() -> None:
    problem = layers(12)
    original_peak = max(memory_profile(problem, problem.original_order))
    tight, roomy = schedule(problem), schedule(problem, Options(headroom=8))
    assert tight.original.step_us == 12 * (30 + 40 + 40 + 30)
    assert peak_memory(problem, tight.order)[0] <= original_peak
    assert peak_memory(problem, roomy.order)[0] <= original_peak + 8
    # the first layers cannot hold a second gathered weight within the original peak; one more fits 8 bytes above
    assert tight.scheduled.step_us <= 1170
    assert roomy.scheduled.step_us <= 1.07 * lower_bound_us(problem)
    assert any(d.held_by == "memory" for d in tight.decisions)
    # work, not seconds: about one rescoring and two range operations per node and run
    assert tight.work.rescored <= 2 * tight.work.runs * len(problem.nodes)
    assert tight.work.updates <= 2 * tight.work.runs * len(problem.nodes)


@given(problems(), st.sampled_from(["memory", "memory-peak"]), st.integers(0, 12), st.sampled_from([0, 1, 4, 9]))
@examples(150)
def test_another_base_is_never_worse_than_the_default_at_the_same_budget(
    problem: Problem, base: Any, headroom: int, effort: int
) -> None:
    wanted = Options(headroom, base=base, effort=effort, memory_model=problem.memory_model, strict=True)
    asked = schedule(problem, wanted)
    assert violation(problem, asked.order) is None
    assert asked.scheduled.peak_bytes <= asked.budget_bytes
    assert asked.scheduled.step_us <= asked.original.step_us * (1 + 1e-9)
    base_bytes = asked.original.peak_bytes
    if base == "memory-peak":
        base_bytes = best_order(problem, "none", min(effort, 2)).peak_bytes
        assert asked.base_bytes == base_bytes or asked.order == problem.original_order
    spare_bytes = base_bytes + headroom - asked.original.peak_bytes
    if spare_bytes >= 0:
        default = schedule(problem, replace(wanted, base="original", headroom=spare_bytes))
        assert asked.scheduled.step_us <= default.scheduled.step_us * (1 + 1e-9)


def test_less_memory_first() -> None:
    """The example's gathered weight need not be live beside `g`: 18 MiB instead of 21, in the same 190 us."""
    result = schedule(EXAMPLE, Options(base="memory-peak", strict=True))
    assert (result.scheduled.peak_bytes, result.budget_bytes) == (18 * MIB, 18 * MIB)
    assert result.scheduled.step_us == 190.0
    roomier = schedule(EXAMPLE, Options(base="memory-peak", headroom="3MiB", strict=True))
    assert roomier.budget_bytes == 21 * MIB
    assert roomier.scheduled.step_us == 150.0
    assert schedule(EXAMPLE, Options(base="memory", strict=True)).scheduled.step_us == 150.0


NODES = (
    Node("make", Kind.COMPUTE, (), (0,), (), 10.0),
    Node("one", Kind.COLLECTIVE, (), (1,), (), 30.0, "all_gather_into_tensor", "fsdp"),
    Node("two", Kind.COLLECTIVE, (0,), (2,), (0,), 20.0, "all_gather_into_tensor", "fsdp"),
    Node("mm", Kind.COMPUTE, (), (3,), (), 5.0),
    Node("one.wait", Kind.WAIT, (1,), (), (1,), collective=1),
    Node("two.wait", Kind.WAIT, (2,), (), (0, 2), collective=2),
    Node("long", Kind.COMPUTE, (), (4,), (), 100.0),
)
PROBLEM = Problem("holders", NODES, tuple(Storage(1) for _ in range(5)), {"fsdp": Group(8, True)})


def of(collective: str, order: str, refused: bool = False, task: Task | None = None) -> Decision:
    """The decision on a collective in an order given by names; of what a task asks for, or of no task."""
    problem = PROBLEM if task is None else task.problem
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    best = (task or Task(problem, Options(), 99)).measured(tuple(ids[name] for name in order.split()))
    refusals = {ids[collective]: Refusal(7, ids["mm"])} if refused else {}
    made = Candidate(best.order, best.step_us, best.peak_bytes, {}, refusals)
    told = decisions(problem, replay(problem, best.order), made, task)
    return next(d for d in told if d.collective == ids[collective])


@pytest.mark.parametrize(
    ("collective", "order", "refused", "held_by", "held_node"),
    [
        ("one", "one long make two mm one.wait two.wait", False, "nothing", None),
        ("one", "one mm one.wait make two two.wait long", False, "start", None),  # at once, waited for too soon
        ("two", "one make two mm two.wait one.wait long", False, "stream", "one"),  # `one` is on the stream until 30
        ("two", "make two mm two.wait one one.wait long", False, "dependency", "make"),  # launched as soon as it can be
        ("two", "make mm two two.wait one one.wait long", False, "choice", None),  # 5 us later than it could be
        ("two", "make mm two two.wait one one.wait long", True, "memory", None),  # the same, and it had been refused
        ("two", "make two mm two.wait one one.wait long", True, "dependency", "make"),  # refused, yet not delayed by it
    ],
)
def test_what_held_it_back(collective: str, order: str, refused: bool, held_by: str, held_node: str | None) -> None:
    found = of(collective, order, refused)
    assert found.held_by == held_by
    assert (None if found.held_node is None else NODES[found.held_node].name) == held_node
    assert (found.over_bytes, found.over_position) == ((7, 3) if refused else (0, None))


@pytest.mark.parametrize(
    ("order", "base_bytes", "asked", "held_by", "held_node"),
    [
        ("make mm two two.wait one one.wait long", 3, {}, "choice", None),
        ("make mm two two.wait one one.wait long", 2, {}, "memory", None),  # its byte does not fit beside `mm`
        ("make mm two two.wait one one.wait long", 0, {"budget": "profile"}, "memory", None),
        ("make mm two two.wait one one.wait long", 99, {"pins": ("not before blk: two",)}, "dependency", "mm"),
        ("make one one.wait two mm two.wait long", 99, {}, "choice", None),
        ("make one one.wait two mm two.wait long", 99, {"concurrent_groups": "one"}, "dependency", "one.wait"),
        ("make mm one two two.wait one.wait long", 99, {"preserve_collective_order": "all"}, "dependency", "one"),
        ("make mm one two two.wait one.wait long", 99, {"preserve_collective_order": "group"}, "choice", None),
    ],
)
def test_what_was_asked_for_may_forbid_an_earlier_launch(
    order: str, base_bytes: int, asked: dict[str, Any], held_by: str, held_node: str | None
) -> None:
    """Of `two`, 5 us and more later than it could be; `one` is on another stream, and not beside it originally."""
    make, one, two, mm, waited, *others = NODES
    listed = (make, mm._replace(module="blk"), one._replace(group="tp"), waited._replace(deps=(2,), collective=2), two)
    nodes = (*listed, others[0]._replace(deps=(4,), collective=4), others[1])
    problem = replace(PROBLEM, nodes=nodes, groups={"fsdp": Group(8, True), "tp": Group(8, True)})
    found = of("two", order, task=Task(problem, Options(**asked), base_bytes))
    assert found.held_by == held_by
    assert (None if found.held_node is None else nodes[found.held_node].name) == held_node


def test_where_it_ran_and_what_hid_it() -> None:
    found = of("one", "make one mm two long one.wait two.wait")
    assert (found.position, found.original_position) == (1, 1)
    assert (found.launch_us, found.start_us, found.finish_us, found.wait_us) == (10.0, 10.0, 40.0, 115.0)
    assert (found.hidden_us, found.exposed_us) == (30.0, 0.0)
    assert [NODES[v].name for v in found.under] == ["long", "mm"]
    behind = of("two", "make one mm two long one.wait two.wait")
    assert (behind.launch_us, behind.start_us, behind.finish_us) == (15.0, 40.0, 60.0)


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
    reference = Reference(problem, problem.original_order)
    run = list_schedule(reference, np.array(0), Policy(0.0, -1.0, beside=1.0)).made
    assert run is not None
    assert run.reasons[4] == reason
    assert run.step_us == pytest.approx(step_us)


@pytest.mark.parametrize("contention", [Contention({"": 1.2}), Contention({"all_gather": 1.5})])
def test_contention_makes_no_step_longer_than_that_of_the_order_found_without(contention: Contention) -> None:
    shorter = 0
    for problem in map(small_graph, range(12)):
        slowed, few = replace(problem, contention=contention), ALL.without("without contention")
        plain_us = replay(slowed, schedule(problem).order).step_us
        step_us = schedule(slowed).scheduled.step_us
        assert step_us <= min(plain_us, replay(slowed, problem.original_order).step_us) * (1 + 1e-9)
        shorter += step_us < schedule(slowed, stages=few).scheduled.step_us * 0.98
    assert shorter
