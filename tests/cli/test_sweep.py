"""``overlap-sched sweep``: what is scaled and what is not, orders carried over, noise, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from overlap_sched import EXAMPLE, Options
from overlap_sched.cli import sweep as module
from overlap_sched.cli.sweep import SweepPoint, sweep
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.repricing import on_machine, placed_on
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.scheduler.driver import Schedule, schedule
from tests.support.examples import Command
from tests.support.oracle import step_by_definition
from tests.support.sharded import sharded

pytestmark = pytest.mark.usefixtures("plain_terminal")
H100 = read_cluster("dgx-h100")


def gather() -> Problem:
    """A parameter's shard is cast, gathered over 16 ranks and used."""
    nodes = (
        Node("shard", Kind.INPUT, alloc=(0,), use=(0,)),
        Node("cast", Kind.COMPUTE, (0,), (1,), (0, 1), 10.0),
        Node("gather", Kind.COLLECTIVE, (1,), (2,), (1, 2), 50.0, "all_gather_into_tensor", "fsdp", bytes=1600),
        Node("wait", Kind.WAIT, (2,), (), (1, 2), collective=2),
        Node("mm", Kind.COMPUTE, (3,), (3,), (2, 3), 100.0),
        Node("output", Kind.OUTPUT, (4,), (), (3,)),
    )
    storages = (Storage(200, True), Storage(100), Storage(1600), Storage(77))
    return Problem("gather", nodes, storages, {"fsdp": Group(16, False, 2)})


def test_groups_of_unknown_nodes_are_placed() -> None:
    problem = replace(gather(), groups={"fsdp": Group(16, False)})
    assert placed_on(problem, H100).groups == {"fsdp": Group(16, False, 2)}
    assert placed_on(EXAMPLE, H100).groups == EXAMPLE.groups


def steps(points: tuple[SweepPoint, ...]) -> list[float]:
    return [point.scheduled.step_us for point in points]


def test_a_faster_machine_never_makes_the_step_longer() -> None:
    vary = {"network": (0.25, 1.0, 4.0), "compute": (1.0, 2.0)}
    points = sweep(lambda varied: on_machine(gather(), H100, varied, True), vary, Options())
    assert [tuple(point.varied.values()) for point in points] == [
        (0.25, 1.0), (0.25, 2.0), (1.0, 1.0), (1.0, 2.0), (4.0, 1.0), (4.0, 2.0),
    ]  # fmt: skip
    found = steps(points)
    assert found[::2] == sorted(found[::2], reverse=True)
    assert all(fast < slow for slow, fast in zip(found[::2], found[1::2], strict=True))


class Missing:
    """A scheduler that finds nothing at some calls."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.at = calls, -1

    def __call__(self, problem: Problem, options: Options) -> Schedule:
        self.at += 1
        found = schedule(problem, options)
        original = replace(found, order=problem.original_order, scheduled=found.original)
        return original if self.at in self.calls else found


@pytest.mark.parametrize("budget", ["peak", "profile"])
def test_more_headroom_takes_the_orders_of_less_and_not_the_other_way(
    budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, vary = sharded([[10**6]] * 4, compute_us=200_000.0), {"headroom": (0.0, 2.0**21, 2.0**22, 2.0**23)}
    options = Options(budget=budget)  # type: ignore[arg-type]
    whole = steps(sweep(lambda _: problem, vary, options))
    assert whole == sorted(whole, reverse=True)
    assert whole[-1] < problem_step(problem)
    monkeypatch.setattr(module, "schedule", Missing(2, 3))
    assert steps(sweep(lambda _: problem, vary, options)) == [*whole[:2], whole[1], whole[1]]
    monkeypatch.setattr(module, "schedule", Missing(0))
    assert steps(sweep(lambda _: problem, vary, options)) == [problem_step(problem), *whole[1:]]


def problem_step(problem: Problem) -> float:
    return step_by_definition(problem, problem.original_order)


def test_orders_are_carried_over_along_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, vary = sharded([[10**8]] * 4, compute_us=5000.0), {"inside": (0.25, 1.0, 2.0, 4.0)}

    def swept() -> list[float]:
        return steps(sweep(lambda at: on_machine(problem, H100, at, True), vary, Options(headroom="100%")))

    whole = swept()
    monkeypatch.setattr(module, "schedule", Missing(1, 3))
    assert swept() == whole


def test_what_does_not_run_in_the_limit_takes_an_order_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limit = sharded([[10**6]] * 4, compute_us=200_000.0), 2**40

    def short(problem: Problem, options: Options) -> Schedule:
        found, lack = schedule(problem, options), limit - int(options.memory_limit or 0)
        return replace(found, short_bytes=lack, order=problem.original_order if lack else found.order)

    monkeypatch.setattr(module, "schedule", short)
    points = sweep(lambda _: problem, {"memory_limit": (float(limit - 7), float(limit))}, Options(headroom="100%"))
    assert [point.short_bytes for point in points] == [7, 0]


def test_noise_is_the_quantiles_of_replays_by_definition() -> None:
    (quiet, noisy) = sweep(lambda _: EXAMPLE, {"noise": (0.0, 0.3)}, Options())
    for order, without, found in (
        (EXAMPLE.original_order, quiet.original, noisy.original),
        (schedule(EXAMPLE).order, quiet.scheduled, noisy.scheduled),
    ):
        random, drawn = np.random.default_rng(0), []
        for _ in range(100):
            factors = np.exp(0.3 * random.standard_normal(len(EXAMPLE.nodes)) - 0.045)
            nodes = [node._replace(time_us=node.time_us * f) for node, f in zip(EXAMPLE.nodes, factors, strict=True)]
            drawn.append(step_by_definition(replace(EXAMPLE, nodes=tuple(nodes)), order))
        assert (without.median_us, without.p95_us) == (without.step_us, without.step_us)
        assert (found.median_us, found.p95_us) == pytest.approx(tuple(np.quantile(drawn, (0.5, 0.95))))
        assert found.step_us == without.step_us


@pytest.mark.slow
def test_points_and_a_picture(inputs: Path, cli: Command) -> None:
    pytest.importorskip("matplotlib")
    asked = ("sweep", "example.json", "--vary", "headroom=0..5MiB", "noise=10%", "--plot", "sweep.png")
    points = cli.json(*asked)["points"]
    assert [point["varied"]["headroom"] >> 16 for point in points] == [0, 5, 10, 20, 40, 80]
    assert [points[0]["scheduled"]["step_us"], points[-1]["scheduled"]["step_us"]] == [150.0, 120.0]
    assert (inputs / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    whole = cli.json("sweep", "example.json", "--vary", "headroom=0..20%")["points"]
    assert {type(point["varied"]["headroom"]) for point in whole} == {int}
