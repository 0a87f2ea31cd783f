"""Schedules made by hand, so that reports are tested without the scheduler."""

from collections.abc import Callable

import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options, headroom_bytes
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Order, Problem, Storage
from overlap_sched.scheduler.driver import Figures, Schedule
from overlap_sched.scheduler.explain import Decision
from overlap_sched.scheduler.task import NO_WORK

ByHand = Callable[..., Schedule]


def figures_of(problem: Problem, order: Order) -> Figures:
    run = replay(problem, order)
    return Figures(run.step_us, run.exposed_us, *peak_memory(problem, order))


def schedule_by_hand(problem: Problem, order: Order, options: Options | None = None, **fields: object) -> Schedule:
    options = options or Options()
    original = figures_of(problem, problem.original_order)
    run, position = replay(problem, order), {v: i for i, v in enumerate(order)}
    decisions = []
    for v in sorted(problem.collectives, key=lambda v: position[v]):
        waits = problem.waits.get(v, ())
        exposed = sum(run.stall_us[w] for w in waits)
        decisions.append(
            Decision(
                collective=v,
                position=position[v],
                original_position=v,
                reason="latest start",
                launch_us=run.at_us[v],
                start_us=run.start_us[v],
                finish_us=run.finish_us[v],
                wait_us=run.at_us[waits[0]] if waits else run.step_us,
                hidden_us=problem.nodes[v].time_us - exposed,
                exposed_us=exposed,
                under=(),
                held_by="nothing",
                held_node=None,
                over_bytes=0,
                over_position=None,
            )
        )
    made = {
        "problem": problem, "options": options, "order": order, "original": original,
        "scheduled": figures_of(problem, order),
        "headroom_bytes": headroom_bytes(options.headroom, original.peak_bytes),
        "base_bytes": original.peak_bytes, "decisions": tuple(decisions), "fell_back": None, "work": NO_WORK,
        "schedule_s": 0.25,
    }  # fmt: skip
    return Schedule(**{**made, **fields})  # type: ignore[arg-type]


@pytest.fixture
def by_hand() -> ByHand:
    return schedule_by_hand


@pytest.fixture
def reordered() -> Schedule:
    """The reordered EXAMPLE of problem.py: 120 us instead of 190, for 5 MiB more."""
    return schedule_by_hand(EXAMPLE, (0, 1, 2, 4, 6, 7, 3, 5, 8, 9), Options(headroom="5MiB"))


@pytest.fixture
def odd() -> Problem:
    """Two groups, a collective that nobody waits for, a wait from outside, no times at all, names that bite."""
    return Problem(
        name="odd $x_1$ \x1b[31m",
        nodes=(
            Node("in [bold]", Kind.INPUT, alloc=(0,)),
            Node("earlier", Kind.WAIT, (0,), (), (0,)),
            Node("a\nb", Kind.COLLECTIVE, (0,), (1,), (0,), 0.0, "all_reduce", "g $1$"),
            Node("漢字", Kind.COLLECTIVE, (0,), (2,), (0,), 0.0, "", "h"),
            Node("out", Kind.OUTPUT, (), (), (1, 2)),
        ),
        storages=(Storage(0), Storage(0), Storage(0)),
        groups={"unused": Group(4, True), "h": Group(2, True), "g $1$": Group(2, False)},
    )
