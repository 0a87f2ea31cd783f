"""Reports: kept, one line on rank 0, all of it where asked for, in torch's structured trace."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import overlap_sched
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import reporting
from overlap_sched.inductor.reporting import GraphReport, Session, record
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import look
from tests.inductor.conftest import Compiled
from tests.support.examples import at_night

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
    assert len(kept) == reporting.KEPT == 256
    assert (kept[0].name, kept[-1].name) == ("44", "299")


def test_the_plan_by_which_a_graph_was_rewritten_is_told_once() -> None:
    plan: Any = object()
    reporting.note("backward 0/0", made=plan)
    for name in ("forward 0/0", "backward 0/0", "backward 0/0"):
        record(GraphReport(name, "inductor", Report(name, reason="none")))
    assert [one.report.made for one in overlap_sched.reports()] == [None, plan, None]
    reporting.note("forward 1/0", made=plan)
    overlap_sched.clear_reports()
    record(GraphReport("forward 1/0", "inductor", Report("x", reason="none")))
    assert overlap_sched.reports()[0].report.made is None


def test_plans_of_graphs_that_were_never_reported_are_not_kept_for_ever() -> None:
    for number in range(reporting.KEPT + 2):
        reporting.note(str(number), made=object())
    for name in ("1", "2"):
        record(GraphReport(name, "inductor", Report("x", reason="none")))
    assert [one.report.made is None for one in overlap_sched.reports()] == [True, False]


@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_code_out_of_torchs_caches_is_reported(stage: Any) -> None:
    with overlap_sched.enabled(stage=stage):
        settings = Settings(stage=stage)
        look(Session(graphs=1, ours=0, cached=1), settings)
        look(Session(graphs=0, ours=0, cached=1), settings)
        look(Session(graphs=1, ours=1, cached=1), settings)  # it has come to us
        look(Session(graphs=0, ours=0, cached=0), settings)
    lines = [f"{name} ({stage}): out of torch's caches, in the order that was cached" for name in ("graph", "backward")]
    assert [one.line for one in overlap_sched.reports()] == lines


def test_one_line_says_what_became_of_a_graph(ours: Compiled) -> None:
    us, kib = (rf"\d+\.\d -> \d+\.\d {unit}" for unit in ("us", "KiB"))
    assert re.fullmatch(
        rf"backward 0/0 of Net \(inductor\): 12 collectives, exposed {us} of a step of {us}, peak {kib} "
        r"\(predicted for H100\)",
        ours.reports[1].line,
    )
    assert "\n" not in ours.reports[1].line


def test_one_line_says_why_not() -> None:
    report = GraphReport("forward 0/0", "backend", Report("forward 0/0", reason="no better order was found"))
    assert report.line == "forward 0/0 (backend): left as it was: no better order was found"


def test_all_of_it_names_the_settings(ours: Compiled) -> None:
    setting = "torch's pass 'sink_waits' is turned off"
    report = GraphReport("forward 0/0", "inductor", ours.reports[1].report, (setting,), "this CPU")
    lines = str(report).split("\n")
    assert lines[0] == "inductor: backward 0/0 of Net: reordered"
    assert lines[-2] == "  times are predicted for this CPU"
    assert lines[-1] == "  setting: torch's pass 'sink_waits' is turned off"


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_only_rank_0_logs_the_line(
    rank: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting, "rank", lambda: rank)
    with caplog.at_level(logging.INFO, logger="overlap_sched"):
        record(GraphReport("a", "inductor", Report("a", reason="b")))
    assert len(caplog.records) == lines


def test_structured_trace(ours: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        reporting,
        "trace_structured",
        lambda name, metadata_fn, payload_fn: traced.append((metadata_fn(), json.loads(payload_fn()))),
    )
    record(ours.reports[1])
    ((metadata, payload),) = traced
    plan = ours.reports[1].report.schedule
    assert plan is not None
    assert metadata == {"name": "overlap_sched_report", "encoding": "json"}
    assert payload["changed"] is True
    assert payload["scheduled"]["step_us"] == plan.scheduled.step_us
    assert payload["order"][-1] == "output"


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
        "from overlap_sched.inductor.reporting import say\n"
        "from overlap_sched.inductor.reporting import GraphReport, record\n"
        "record(GraphReport('a', 'inductor', Report('a', reason='b')))\n"
        "say('a line')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_LOGS"}
    environment |= {"PYTHONPATH": str(ROOT), **({} if logs is None else {"TORCH_LOGS": logs})}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stderr.count("left as it was: b"), ran.stderr.count("a line")) == (seen, said)
