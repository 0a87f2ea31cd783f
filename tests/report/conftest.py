"""Schedules made by hand, so that reports are tested without the scheduler."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Order, Problem, Storage
from overlap_sched.scheduler.driver import Schedule, schedule_of

ByHand = Callable[..., Schedule]


def schedule_by_hand(problem: Problem, order: Order, options: Options | None = None, **fields: Any) -> Schedule:
    """A given order as if the scheduler had made it, for one reason, and nothing had blocked it."""
    found = schedule_of(problem, order, options)
    free: dict[str, Any] = {"reason": "latest start", "held_by": "nothing", "held_node": None, "under": ()}
    made = tuple(replace(d, **free) for d in found.decisions)
    return replace(found, **{"decisions": made, "schedule_s": 0.25, **fields})


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
