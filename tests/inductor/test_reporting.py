"""Reports: kept, one line on rank 0, one line on all graphs, all of it where asked for; and the names of graphs."""

import logging
import os
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import overlap_sched
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.inductor import reporting
from overlap_sched.inductor.reporting import CACHED, HOOKS, GraphReport, Tally, dynamo_frame, name_graph, record
from tests.inductor.conftest import Compiled
from tests.support.examples import at_night
from tests.support.inductor.models import step

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def none_kept() -> Any:
    overlap_sched.clear_reports()
    yield
    overlap_sched.clear_reports()


def test_the_last_256_are_kept() -> None:
    for number in range(300):
        record(GraphReport(str(number), "inductor", Report("x", reason="none")))
    kept = overlap_sched.reports()
    assert (len(kept), kept[0].name, kept[-1].name) == (256, "44", "299")


def test_the_plan_by_which_a_graph_was_rewritten_is_reported_once() -> None:
    plan: Any = object()
    reporting.note("backward 0/0", made=plan)
    for name in ("forward 0/0", "backward 0/0", "backward 0/0"):
        record(GraphReport(name, "inductor", Report(name, reason="none")))
    assert [one.report.made for one in overlap_sched.reports()] == [None, plan, None]


def test_one_line_says_what_became_of_a_graph(ours: Compiled) -> None:
    us, kib = (rf"\d+\.\d -> \d+\.\d {unit}" for unit in ("us", "KiB"))
    assert re.fullmatch(
        rf"backward 0/0 of Net \(inductor\): 12 collectives, exposed {us} of a step of {us}, peak {kib} "
        r"\(predicted for H100\)",
        ours.reports[1].line,
    )
    report = GraphReport("forward 0/0", "backend", Report("forward 0/0", reason="no better order was found"))
    assert report.line == "forward 0/0 (backend): left as it was: no better order was found"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("logs", "seen", "said"),
    [at_night(None, 0, 1), at_night("overlap_sched", 1, 1), ("+overlap_sched", 2, 1), ("-overlap_sched", 0, 0)],
)
def test_torch_logs_knows_our_name(logs: str | None, seen: int, said: int) -> None:
    """What is logged of a graph, and what is said in any case unless torch is told to be quiet."""
    code = (
        "import torch\n"
        "from overlap_sched.fx.apply import Report\n"
        "from overlap_sched.inductor.reporting import GraphReport, record, say\n"
        "record(GraphReport('a', 'inductor', Report('a', reason='the graph has no collectives')))\n"
        "say('a line')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_LOGS"}
    environment |= {"PYTHONPATH": str(ROOT), **({} if logs is None else {"TORCH_LOGS": logs})}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stderr.count("left as it was: "), ran.stderr.count("a line")) == (seen, said)


def test_the_same_sentence_is_warned_of_once_and_where_warnings_are_errors_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for message in ("one", "one", "another", "one"):
            reporting.warn(message)
        overlap_sched.clear_reports()
        reporting.warn("one")
    assert [(w.category, str(w.message)) for w in caught] == [
        (OverlapSchedWarning, message) for message in ("one", "another", "one")
    ]
    overlap_sched.clear_reports()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reporting.warn("one")
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, "one")]


@pytest.mark.parametrize(("given", "rank"), [(None, 0), ("3", 3), ("", 0), ("x", 0)])
def test_the_rank_before_anything_is_distributed(given: str | None, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting.dist, "is_initialized", lambda: False)
    monkeypatch.delenv("RANK", raising=False)
    if given is not None:
        monkeypatch.setenv("RANK", given)
    assert reporting.rank() == rank


PLAN = overlap_sched.schedule(overlap_sched.EXAMPLE)
DONE = Report("a", PLAN, True)
NONE = Report("a", reason=NO_COLLECTIVES)
HIDDEN = Report("a", PLAN, reason="no better order was found: nothing is exposed")
DIFFER = Report("a", PLAN, reason="the ranks differ in sizes: rank 0 against rank 1. See the documents.")


@pytest.mark.parametrize(
    ("reports", "line", "level"),
    [
        ([NONE], "1 graph, none with collectives", 20),
        ([HIDDEN, HIDDEN], "2 graphs, 2 with collectives, 2 not: no better order was found: nothing is exposed", 20),
        (
            [HIDDEN, DIFFER, DONE, DIFFER],
            "4 graphs, 4 with collectives, 1 reordered or rewritten (exposed 80.0 -> 40.0 us predicted for H100), "
            "3 not: the ranks differ in sizes: rank 0 against rank 1 (2), and other reasons",
            30,
        ),
    ],
)
def test_one_line_on_all_graphs(reports: list[Report], line: str, level: int) -> None:
    tally = Tally()
    for one in reports:
        tally.add(one, "H100")
    assert tally.line() == (f"overlap_sched: {line}. Details: overlap_sched.reports()", level)


@pytest.mark.parametrize(
    ("tally", "line", "hooks", "level"),
    [
        (Tally(became=Counter({CACHED: 2}), communicates=True, several=True), "2 graphs out of torch's caches", 0, 20),
        (Tally(became=Counter({CACHED: 2}), missed=1), "caches; 1 graph compiled without it", 0, 20),
        (Tally(missed=2), "2 graphs compiled, none reached it. ", 0, 30),
        (Tally(became=Counter({NO_COLLECTIVES: 2}), several=True), "nothing to reorder", 1, 30),
        (Tally(became=Counter({CACHED: 2}), several=True), "nothing to reorder", 1, 30),
        (Tally(became=Counter({NO_COLLECTIVES: 2})), "2 graphs, none with collectives", 0, 20),
    ],
)
def test_graphs_that_did_not_come_or_have_no_collectives(tally: Tally, line: str, hooks: int, level: int) -> None:
    text, found = tally.line()
    assert line in text
    assert (HOOKS in text, found) == (bool(hooks), level)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_line_is_said_once_by_rank_0_on_what_is_new(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    monkeypatch.setattr(reporting, "rank", lambda: rank)
    with caplog.at_level(logging.INFO, logger="overlap_sched"):
        for graphs in (2, 1):
            for _ in range(graphs):
                tally.add(DONE, "H100")
            tally.say()
            tally.say()
        record(GraphReport("a", "inductor", Report("a", reason="b")))
    said = [one.getMessage().split(",")[0] for one in caplog.records]
    lines = ["overlap_sched: 2 graphs", "overlap_sched: 1 graph", "a (inductor): left as it was: b"]
    assert said == ([] if rank else lines)
    assert tally.seen == 3


class Plain(nn.Module):
    """One matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sum()

    def other(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()


class Broken(Plain):
    """Compiled in two parts."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return self.linear(x).sum()


def halved(x: Tensor) -> Tensor:
    return x / 2


def names(call: Any) -> list[str]:
    """Of the graphs that were compiled in a call."""
    with overlap_sched.enabled():
        call()
    return [report.name for report in overlap_sched.reports()]


@pytest.mark.private
@pytest.mark.usefixtures("clean")
class TestNamesOfGraphs:
    @pytest.mark.parametrize("in_place", [True, False])
    def test_a_module_by_its_class(self, in_place):
        model = Plain()
        if in_place:
            model.compile()
        compiled = model if in_place else torch.compile(model)
        assert names(lambda: step(model, compiled)) == ["forward 0/0 of Plain", "backward 0/0 of Plain"]

    def test_a_method_and_a_function(self):
        model, x = Plain(), torch.ones(4, 32)

        def calls() -> None:
            with torch.no_grad():
                torch.compile(model.other)(x)
                torch.compile(halved)(x)
                torch.compile(lambda x: x + 1)(x)

        assert names(calls) == ["inference 0/0 of Plain.other", "inference 1/0 of halved", "inference 2/0 of <lambda>"]

    def test_where_it_goes_on_after_a_graph_break(self):
        def call() -> None:
            with torch.no_grad():
                torch.compile(Broken())(torch.ones(4, 32))

        first, second = names(call)
        assert first == "inference 0/0 of Broken"
        assert re.fullmatch(r"inference [12]/0 of Broken\.torch_dynamo_resume_in_forward_at_\d+", second)

    def test_a_torch_that_has_changed(self, monkeypatch):
        """Then less is said."""
        monkeypatch.setattr(reporting, "dynamo_frame", lambda: 1 / 0)
        model = Plain()
        assert names(lambda: step(model, torch.compile(model))) == ["forward 0/0", "backward 0/0"]


def test_nothing_is_compiled() -> None:
    assert dynamo_frame() is None
    assert name_graph("forward") == "forward"
    assert name_graph("forward", "inner", 3) == "forward 3 inner"
