"""How many collectives of a group are in flight at once: what measurements say, and a replay of it."""

import pytest

from overlap_sched.cost.cluster.contention import measured_contention
from overlap_sched.cost.measured.lanes import InFlight, Lanes, lanes_of, together
from overlap_sched.cost.measured.table import SlowdownFactor, Tables
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.problem.contention import Contention


def seen(two: float, four: float, kind: str = "all_gather") -> tuple[InFlight, ...]:
    return InFlight(kind, 2, two, 0.1), InFlight(kind, 4, four, 0.1)


@pytest.mark.parametrize(
    ("two", "four", "lanes"),
    [
        (2.0, 4.0, Lanes(1)),  # one after the other, as on NCCL's stream
        (1.5, 3.0, Lanes(2, 1.5)),  # gloo's two threads
        (1.0, 2.0, Lanes(2, 1.0)),
        (1.5, 2.5, Lanes(4, 2.5)),
        (1.0, 1.0, Lanes(4, 1.0)),
    ],
)
def test_what_fits_exactly_is_found(two: float, four: float, lanes: Lanes) -> None:
    found = lanes_of(seen(two, four))
    assert found.number == lanes.number
    assert found.crowding == pytest.approx(lanes.crowding, abs=2e-3)


def test_noise_is_evened_out_over_kinds() -> None:
    found = lanes_of((*seen(1.22, 3.7), *seen(1.51, 2.73, "reduce_scatter"), *seen(1.43, 3.0, "all_reduce")))
    assert found.number == 2
    assert found.crowding == pytest.approx(1.47, abs=0.02)


def test_one_lane_where_nothing_was_measured_and_where_more_explain_nothing() -> None:
    assert lanes_of(()) == Lanes(1, 1.0)
    assert lanes_of(seen(2.0, 3.96)).number == 1


@pytest.mark.parametrize("lanes", [Lanes(1), Lanes(2, 1.4), Lanes(4, 2.2)])
@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 6])
def test_together_is_what_a_replay_takes(lanes: Lanes, at_once: int) -> None:
    nodes = [Node(f"c{k}", Kind.COLLECTIVE, time_us=10.0, op="all_gather", group="g") for k in range(at_once)]
    contention = Contention(lanes=lanes.number, crowding=lanes.crowding)
    problem = Problem("together", tuple(nodes), (), {"g": Group(2, True)}, contention=contention)
    assert replay(problem, range(at_once)).step_us == pytest.approx(10.0 * together(lanes, at_once))


def test_it_is_part_of_the_contention_that_was_measured() -> None:
    slowdowns = (SlowdownFactor("all_gather", 1.5, 0.0, 1.2), SlowdownFactor("all_reduce", 1.0, 0.0, 0.7))
    tables = Tables(slowdowns=(*slowdowns, SlowdownFactor("all_to_all", 1.0, 0.0)), in_flight=seen(1.5, 3.0))
    contention = measured_contention(tables)
    assert (contention.lanes, contention.crowding) == (2, pytest.approx(1.5, abs=1e-3))
    assert (contention.slowdown, contention.stretch) == ({"all_gather": 1.5}, {"all_gather": 1.2, "all_reduce": 0.7})
