"""A page for each graph that was scheduled: its rewrites and its frontier are on it."""

from pathlib import Path
from typing import Any

import pytest

import overlap_sched
from overlap_sched import EXAMPLE, Options
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.reporting import GraphReport, record
from overlap_sched.transform.plan import plan
from tests.report.html.test_page import embedded
from tests.support.sharded import PRICES, sharded

pytest.importorskip("bokeh", reason="bokeh is not installed")


@pytest.fixture(autouse=True)
def none_kept() -> Any:
    overlap_sched.clear_reports()
    yield
    overlap_sched.clear_reports()


@pytest.mark.slow
def test_a_page_of_each_graph_that_was_scheduled(tmp_path: Path) -> None:
    problem = sharded([[2, 2, 2]] * 4, compute_us=4.0)
    made = plan(problem, PRICES, Options(rewrites=("bucket",), headroom="100%"))
    anew = overlap_sched.schedule(made.schedule.problem, Options(effort=1))
    reports = [
        Report("left alone", reason="the graph has no collectives"),
        Report("plain", overlap_sched.schedule(EXAMPLE), True),
        Report("rewritten", made.schedule, True, rewrites=made.rewrites, made=made),
        Report("rewritten, then ordered", anew, True, made=made),
    ]
    for one in reports:
        record(GraphReport(one.name, "backend", one))
    found = overlap_sched.write_pages(tmp_path / "new", budgets=3)
    assert found == tuple(tmp_path / "new" / f"graph{number}.html" for number in range(3))
    plain, whole, ordered = (embedded(path.read_text(encoding="utf-8")) for path in found)
    assert (plain["rewrites"], len(plain["graphs"])) == ([], 1)
    assert len(plain["frontier"]["points"]) >= 1
    assert plain["runs"][1]["step_us"] == 150.0
    assert len(whole["rewrites"]) == len(ordered["rewrites"]) == len(made.rewrites) > 0
    assert (len(whole["graphs"]), len(ordered["graphs"])) == (2, 1)
    assert whole["runs"][0]["step_us"] == made.without.original.step_us
    assert "before both orders of this page" in ordered["remarks"][-1]


def test_no_frontier_unless_asked_for(tmp_path: Path) -> None:
    record(GraphReport("plain", "inductor", Report("plain", overlap_sched.schedule(EXAMPLE), True)))
    (page,) = overlap_sched.write_pages(tmp_path)
    assert embedded(page.read_text(encoding="utf-8"))["frontier"] is None
