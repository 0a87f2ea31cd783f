"""A fault at any boundary: the job goes on with the results that it would have had, and one warning says why."""

import json
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from tests.inductor.conftest import Compiled, compiled_step
from tests.support.inductor.models import Net
from tests.support.ranks import filled_once, run_ranks


class InjectedError(Exception):
    """Thrown into the works."""


def fails(*_: Any, **__: Any) -> Any:
    raise InjectedError("injected")


def a_node_short(lifted: Any, order: Any) -> list[Any]:
    return [snode for snode in lifted.nodes if snode is not None][1:]


def twice_the_first(lifted: Any, order: Any) -> list[Any]:
    snodes = [snode for snode in lifted.nodes if snode is not None]
    return [snodes[0], *snodes[:-1]]


BEFORE: dict[str, tuple[str, Any]] = {
    "name": ("overlap_sched.inductor.kernel_graph.name_graph", fails),
    "buffers": ("overlap_sched.inductor.lifting.read_buffers", fails),
    "schedule": ("overlap_sched.inductor.decision.schedule", fails),
    "missing node": ("overlap_sched.inductor.lifting.LiftedKernels.reordered", a_node_short),
    "node twice": ("overlap_sched.inductor.lifting.LiftedKernels.reordered", twice_the_first),
}
"""Before an order is settled: the graph stays as it was."""

AFTER: dict[str, tuple[str, Any]] = {
    "line": ("overlap_sched.inductor.reporting.GraphReport.line", property(fails)),
    "log": ("overlap_sched.inductor.reporting.log.info", fails),
    "planner": ("overlap_sched.inductor.kernel_graph.tell_sizes", fails),
}
"""When it is settled: nothing changes it any more."""


def fast(faults: Mapping[str, object], *names: str) -> list[Any]:
    """Each compiles a step: all but these are for the long run."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in faults]


@pytest.fixture(scope="module")
def plain(ranks: None) -> Compiled:
    return compiled_step(Net(blocks=1))


@pytest.fixture(scope="module")
def ours(ranks: None) -> Compiled:
    return compiled_step(Net(blocks=1), options=overlap_sched.inductor_options(Options(headroom="20%", strict=True)))


def run(options: Options, **arguments: Any) -> tuple[Compiled, list[str]]:
    """One step, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = compiled_step(Net(blocks=1), options=overlap_sched.inductor_options(options, **arguments))
    return compiled, [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]


@pytest.mark.private
@pytest.mark.parametrize("where", fast(BEFORE, "name", "schedule", "missing node"))
def test_before_an_order_is_settled(where: str, plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = BEFORE[where]
    monkeypatch.setattr(target, fault)
    compiled, warned = run(Options(headroom="20%"))
    assert all(map(torch.equal, plain.results, compiled.results))
    assert [r.report.changed for r in compiled.reports] == [False, False]
    assert len(warned) == (1 if where == "name" else 2)  # one for each graph, but the same sentence once
    assert all(message.startswith("overlap_sched leaves ") for message in warned)
    assert all(re.search("injected|the order has", str(r.report.reason)) for r in compiled.reports)


@pytest.mark.private
@pytest.mark.parametrize("where", fast(AFTER, "line", "planner"))
def test_after_it_is_settled(where: str, ours: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = AFTER[where]
    monkeypatch.setattr(target, fault)
    logging.getLogger("overlap_sched").setLevel(logging.DEBUG)
    compiled, warned = run(Options(headroom="20%"))
    logging.getLogger("overlap_sched").setLevel(logging.NOTSET)
    assert all(map(torch.equal, ours.results, compiled.results))
    assert len(warned) == (1 if where == "planner" else 2)
    if where != "planner":  # whose sizes decide how memory is reused
        assert [code_of(code) for code in compiled.code] == [code_of(code) for code in ours.code]


def code_of(code: str) -> list[str]:
    from tests.support.inductor.generated import body

    return [line for line in body(code) if not line.startswith("#")]


@pytest.mark.private
@pytest.mark.parametrize("where", ["buffers", "schedule", "node twice"])
def test_strict_raises(where: str, ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault = BEFORE[where]
    monkeypatch.setattr(target, fault)
    with pytest.raises(Exception, match=r"VerificationError: scheduling 'forward .*' failed: "):
        run(Options(strict=True))


@pytest.mark.private
def test_warnings_that_are_errors_do_not_stop_a_job(plain: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap_sched.inductor.lifting.read_buffers", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverlapSchedWarning)
        compiled = compiled_step(Net(blocks=1), options=overlap_sched.inductor_options())
    assert all(map(torch.equal, plain.results, compiled.results))


RUNS = int(os.environ.get("FAULT_RUNS", "40"))
RANKS = 2


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each fault, and what came of it on each rank."""

    def run(folder: Path) -> None:
        limit_s = 120 + 5 * (RUNS or 1000)
        run_ranks("tests.support.inductor.fault_runs", RUNS, folder, ranks=RANKS, limit_s=limit_s)

    folder = filled_once(tmp_path_factory, "faults", run)
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert ranks[0]["there are"] == ranks[1]["there are"]
    print(f"faults there are: {ranks[0]['there are']}; run: {len(ranks[0]['done'])}")
    both = zip(ranks[0]["done"], ranks[1]["done"], strict=True)
    return [(first[0], [first[1], second[1]]) for first, second in both]


@pytest.mark.slow
def test_no_loss_changes(done: list[Any]) -> None:
    assert len(done) == RUNS or RUNS == 0
    assert [fault for fault, outcomes in done if not all(outcome["equal"] for outcome in outcomes)] == []


@pytest.mark.slow
def test_both_ranks_launch_in_one_order(done: list[Any]) -> None:
    """Or each in its own, where one has a collective more."""
    for fault, (one, other) in done:
        lonely = fault["way"].endswith("launches differ")
        assert (one["launches"] != other["launches"]) == lonely, fault
        assert not lonely or not any(one["moved"] + other["moved"]), fault


@pytest.mark.slow
def test_ranks_that_launch_differently_reorder(done: list[Any]) -> None:
    """One may be back at its original order meanwhile: no fault on either keeps the other from it."""
    lonely = [outcomes for fault, outcomes in done if fault["way"].endswith("launches differ")]
    assert any(one["reordered"] == other["reordered"] == 2 for one, other in lonely)


@pytest.mark.slow
def test_launches_move_only_where_the_ranks_run_one_order(done: list[Any]) -> None:
    for fault, (one, other) in done:
        assert one["moved"] == other["moved"], fault
        assert not (fault["way"].endswith("ranks differ") and any(one["moved"])), fault
        for here, there, moved in zip(one["orders"], other["orders"], one["moved"], strict=True):
            assert here == there or not moved or fault["way"].endswith("graphs differ"), fault


@pytest.mark.slow
def test_ranks_with_other_graphs_launch_as_one_of_them_does(done: list[Any]) -> None:
    """Unless a fault keeps them from it."""
    unlike = [outcomes for fault, outcomes in done if fault["way"].endswith("graphs differ")]
    assert any(any(outcome["moved"]) for outcome, _ in unlike)
    assert all(one["orders"] != other["orders"] for one, other in unlike)


@pytest.mark.slow
def test_an_interrupt_comes_through(done: list[Any]) -> None:
    found = [(fault, outcomes) for fault, outcomes in done if fault["kind"] == "interrupt"]
    assert found
    for _, outcomes in found:
        assert [outcome["interrupted"] for outcome in outcomes] == [outcome["struck"] for outcome in outcomes]


@pytest.mark.slow
def test_faults_strike_where_they_should(done: list[Any]) -> None:
    """Not each of them on each rank: only rank 0 logs, and how often a rank looks for a verdict depends on time."""
    meant = [outcomes[rank] for fault, outcomes in done for rank in range(RANKS) if fault["on"] in (None, rank)]
    spared = [outcomes[1 - fault["on"]] for fault, outcomes in done if fault["on"] is not None]
    assert sum(outcome["struck"] for outcome in meant) >= 0.8 * len(meant)
    assert not any(outcome["struck"] for outcome in spared)


@pytest.mark.slow
def test_faults_leave_the_new_order_or_the_launches_or_the_original_order(done: list[Any]) -> None:
    """All of what may come of a fault does: else this would say little."""
    assert Counter(outcomes[0]["reordered"] for _, outcomes in done).keys() >= {0, 1, 2}
    assert Counter(sum(outcomes[0]["moved"]) for _, outcomes in done).keys() >= {0, 2}
    assert any(outcomes[0]["reordered"] > sum(outcomes[0]["moved"]) for _, outcomes in done)
