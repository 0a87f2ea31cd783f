"""Rewrites and an order beside ours on the page: what stands for what, and the figures of each."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import Group
from overlap_sched.problem.file import write_problem
from overlap_sched.report.html.beside import ExtraOrder, Extras
from overlap_sched.report.html.collect import page_of
from overlap_sched.report.html.page import page_text
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.rewrites import left_rows, left_title, record_text
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.transform.left_out import left_out
from overlap_sched.transform.plan import Plan, plan
from overlap_sched.transform.records import Record
from overlap_sched.transform.rewrites import Bucket, Offload, Recompute, Stream
from tests.report.html.test_data import check_memory
from tests.report.html.test_page import LIBRARY, Parsed, embedded
from tests.support.command import Command, run
from tests.support.sharded import PRICES, sharded


@pytest.fixture(scope="module")
def made() -> Plan:
    """Twelve gathers and twelve scatters, of which some are bucketed, some on a second communicator."""
    found = plan(
        sharded([[2, 2, 2]] * 4, compute_us=4.0), PRICES, Options(rewrites=("bucket", "stream"), headroom="100%")
    )
    assert found.rewrites
    return found


def test_the_original_run_is_of_the_graph_as_it_was(made: Plan) -> None:
    page = page_of(made.schedule, extras=Extras(made))
    was, new = made.without.problem, made.schedule.problem
    before, after = page.runs
    assert (before.graph, after.graph) == (0, 1)
    assert len(page.graphs[0].nodes.name) == len(was.nodes)
    assert len(page.graphs[1].nodes.name) == len(new.nodes)
    assert before.finish_us == tuple(round(us, 3) for us in replay(was, was.original_order).finish_us)
    assert (before.step_us, after.step_us) == (made.without.original.step_us, made.schedule.scheduled.step_us)
    check_memory(was, page)
    check_memory(new, page, graph=1)


def test_what_was_rewritten_is_marked_in_both(made: Plan) -> None:
    page = page_of(made.schedule, extras=Extras(made))
    gone, new = (set(graph.marked) for graph in page.graphs)
    names = [graph.nodes.name for graph in page.graphs]
    members = {name for one in made.rewrites if isinstance(one, Bucket) for name in one.members}
    moved = {one.collective for one in made.rewrites if isinstance(one, Stream)}
    assert members
    assert members | (moved & set(names[0])) <= {names[0][v] for v in gone}
    assert {names[1][v] for v in new} == (set(names[1]) - set(names[0])) | moved
    assert set(names[0]) - set(names[1]) <= {names[0][v] for v in gone}


def test_a_bucket_stands_for_its_members(made: Plan) -> None:
    page = page_of(made.schedule, extras=Extras(made))
    names = [graph.nodes.name for graph in page.graphs]
    buckets = {one.name: one.members for one in made.rewrites if isinstance(one, Bucket)}
    rows = {names[1][row.node]: row for row in page.collectives}
    for name, members in buckets.items():
        assert tuple(names[0][v] for v in rows[name].before) == members
    assert sum(row.original_exposed_us for row in page.collectives) == pytest.approx(made.without.original.exposed_us)
    stands = [v for row in page.collectives for v in row.before]
    assert sorted(stands) == sorted(made.without.problem.collectives)


def test_what_was_rewritten_before_is_told_and_marked(made: Plan) -> None:
    """As in a plug-in: the rewritten graph is scheduled anew, and only that is on the page."""
    anew = schedule(made.schedule.problem, Options(effort=1))
    page = page_of(anew, extras=Extras(earlier=made))
    (names,), was = (graph.nodes.name for graph in page.graphs), {node.name for node in made.without.problem.nodes}
    moved = {one.collective for one in made.rewrites if isinstance(one, Stream)}
    assert {names[v] for v in page.graphs[0].marked} == (set(names) - was) | moved
    assert [names[row.node] for row in page.rewrites] == [
        one.name if isinstance(one, Bucket) else one.collective  # type: ignore[union-attr]
        for one in made.rewrites
    ]
    assert page.tried == page_of(made.schedule, extras=Extras(made)).tried
    assert page.figures["step_without_rewrites_us"] == made.without.scheduled.step_us
    (original, _), before = page.runs, made.schedule.original
    assert original.step_us == anew.original.step_us
    assert page.remarks[-1] == (
        f"{len(made.rewrites)} rewrites of collectives came before both orders of this page. The graph as it was, "
        f"before rewrites and fusion: a step of {duration(before.step_us)}, {duration(before.exposed_us)} exposed, a "
        f"peak of {size(before.peak_bytes)}."
    )


def test_rewrites_of_a_graph_that_was_fused_are_told_and_lead_nowhere(made: Plan) -> None:
    problem = made.schedule.problem
    renamed = replace(problem, nodes=tuple(n._replace(name=f"buf{v}") for v, n in enumerate(problem.nodes)))
    page = page_of(schedule(renamed, Options(effort=0)), extras=Extras(earlier=made))
    assert len(page.rewrites) == len(made.rewrites)
    assert {row.node for row in page.rewrites} == {-1}
    assert page.graphs[0].marked == ()


def test_rewrites_are_listed_and_lead_to_their_launch(made: Plan) -> None:
    page = page_of(made.schedule, extras=Extras(made))
    assert len(page.rewrites) == len(made.rewrites)
    names = page.graphs[1].nodes.name
    for row, rewrite in zip(page.rewrites, made.rewrites, strict=True):
        assert names[row.node] == (rewrite.name if isinstance(rewrite, Bucket) else rewrite.collective)  # type: ignore[union-attr]
    text = page_text(page, LIBRARY)
    assert f'data-node="{page.rewrites[0].node}">{page.rewrites[0].words}</button>' in text
    assert f"the best order without rewrites takes {duration(made.without.scheduled.step_us)}." in text
    assert len(page.tried) == len(made.trials)
    assert text.count('<h2 id="rewrites-title">') == 1
    assert Parsed(text).open == []


def test_what_a_rewrite_for_memory_frees_and_costs() -> None:
    """As the page of fit tells it; a plan of collectives knows no bytes, and says nothing of them."""
    offload, recompute = Offload("act", ("mm",)), Recompute(("gelu",), ("mm",))
    assert record_text(Record(offload, -400.0, 0.0, -(2**20))) == (
        "act to the host and back: 1.0 MiB not kept, 400.0 us of copies"
    )
    assert record_text(Record(offload, 0.0, 0.0, 0)) == "act to the host and back"
    assert record_text(Record(recompute, -5.0, 10.0, 0)) == "gelu computed again: 10.0 us more compute"


def test_a_group_of_one_is_a_link_to_the_host(reordered: Schedule) -> None:
    alone = replace(reordered.problem, groups={"fsdp": Group(1, True)})
    assert page_of(replace(reordered, problem=alone)).groups == ("fsdp",)


def test_the_step_without_each_rewrite_where_it_was_asked_for(made: Plan) -> None:
    left = left_out(made, PRICES, most=2)
    text = page_text(page_of(made.schedule, extras=Extras(made, left=left)), LIBRARY)
    assert f"<summary>{left_title(left)}</summary>" in text
    assert '<table id="left-out">' in text
    for what, worth in left_rows(left):
        assert f'<tr><th scope="row">{what}</th><td>{worth}</td></tr>' in text
    assert Parsed(text).open == []
    assert "left-out" not in page_text(page_of(made.schedule, extras=Extras(made)), LIBRARY)


def test_no_rewrite_no_section(reordered: Schedule) -> None:
    page = page_of(reordered)
    text = page_text(page, LIBRARY)
    assert (page.rewrites, page.tried, page.frontier, len(page.graphs)) == ((), (), None, 1)
    assert page.graphs[0].marked == ()
    assert 'id="rewrites' not in text
    assert 'id="frontier' not in text


def test_an_order_beside_has_a_column_and_a_run(reordered: Schedule) -> None:
    problem = reordered.problem
    beside = ExtraOrder("torch", problem.original_order)
    page = page_of(reordered, extras=Extras(beside=beside))
    assert page.columns == ("original", "scheduled", "change", "limit", "torch")
    assert {len(row) for row in page.summary} == {6}
    assert all(row[5] == row[1] for row in page.summary if row[0] != "... within the budget"), page.summary
    assert [run.title for run in page.runs] == ["original", "scheduled", "torch"]
    assert page.runs[2].step_us == reordered.original.step_us
    again = page_of(reordered, extras=Extras(beside=ExtraOrder("ours", reordered.order)))
    assert all(row[5] == row[2] for row in again.summary), again.summary
    assert (again.runs[2].peak_bytes, again.runs[2].peak_at) == peak_memory(problem, reordered.order)
    text = page_text(again, LIBRARY)
    assert '<th scope="col">ours</th>' in text
    assert '<button type="button" data-peak="2">peak of ours</button>' in text


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write_problem(sharded([[2, 2, 2]] * 4, compute_us=4.0), tmp_path / "graph.json")
    return tmp_path / "graph.json"


@pytest.mark.slow
def test_all_of_it_from_the_command(graph: Path, tmp_path: Path, cli: Command) -> None:
    order, out = tmp_path / "torch.json", tmp_path / "out.html"
    wanted = ("--rewrites", "bucket", "--headroom", "100%")
    assert run("plan", str(graph), "--out", str(order)) == 0
    figures = cli.json("plan", str(graph), *wanted)
    with (
        patch("overlap_sched.report.html.page.check_html"),
        patch("overlap_sched.cli.outputs.check_html"),
        patch("overlap_sched.report.html.page.bokeh_library", return_value=LIBRARY),
    ):
        more = ("--beside", str(order))
        assert run("report", str(graph), "--html", str(out), *more, *wanted) == 0
    page = embedded(out.read_text())
    assert page["columns"][4] == "torch"
    assert page["rewrites"]
    assert {**figures, "schedule_s": 0, "schema": 0} == {**page["figures"], "schedule_s": 0, "schema": 0}
