"""What the page shows is what the judges and the other reports say."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.report.causes import causes
from overlap_sched.report.html.collect import page_of
from overlap_sched.report.html.data import Page, PageRun
from overlap_sched.report.memory_kinds import MEMORY_KINDS, memory_by_kind
from overlap_sched.report.words.reserved import reserved_figures, reserved_of
from overlap_sched.report.words.schedule import figures
from overlap_sched.scheduler.driver import Schedule, schedule
from tests.report.conftest import ByHand
from tests.support.examples import examples
from tests.support.graphs import problems


def stacks(page: Page, run: PageRun) -> dict[str, list[int]]:
    """Bytes by kind at each position, counted as the page's script counts them."""
    change = {name: [0] * (len(run.order) + 1) for name in page.memory_kinds}
    storages = page.graphs[run.graph].storages

    def add(kind: int, first: int, last: int, size: int) -> None:
        change[page.memory_kinds[kind]][first] += size
        change[page.memory_kinds[kind]][last + 1] -= size

    for s, (first, last) in enumerate(zip(run.first, run.last, strict=True)):
        add(storages.kind[s], first, last, storages.bytes[s])
    for s, since, until in run.flights:
        first, last = max(since, run.first[s]), min(until, run.last[s])
        if first <= last:
            add(storages.kind[s], first, last, -storages.bytes[s])
            add(page.in_flight, first, last, storages.bytes[s])
    return {name: list(accumulate(steps[:-1])) for name, steps in change.items()}


def check_memory(problem: Problem, page: Page, graph: int = 0) -> None:
    for run in (run for run in page.runs if run.graph == graph):
        found = stacks(page, run)
        assert found == {str(kind): of for kind, of in memory_by_kind(problem, run.order).items()}
        live = [sum(step) for step in zip(*found.values(), strict=True)]
        assert live == memory_profile(problem, run.order)
        assert run.peak_bytes == max(live) == live[run.peak_at]


def test_figures_are_those_of_plan(reordered: Schedule) -> None:
    page = page_of(reordered, {"prices": {"from": "here"}})
    reserved = reserved_figures(reserved_of(reordered))
    assert page.figures == {**figures(reordered), "prices": {"from": "here"}, **reserved}
    assert page.summary[:3] == (
        ("step", "190.0 us", "120.0 us", "-36.8 %", "120.0 us"),
        ("exposed", "80.0 us", "10.0 us", "-87.5 %", ""),
        ("peak memory", "21.0 MiB", "26.0 MiB", "+23.8 %", "26.0 MiB"),
    )
    assert {len(row) for row in page.summary} == {5}
    assert "reserved, plain segments" in [row[0] for row in page.summary]


def test_the_example_in_time(reordered: Schedule) -> None:
    before, after = page_of(reordered).runs
    assert [run.title for run in (before, after)] == ["original", "scheduled"]
    assert [(run.step_us, run.exposed_us) for run in (before, after)] == [(190.0, 80.0), (120.0, 10.0)]
    assert after.at_us == (0.0, 0.0, 0.0, 0.0, 50.0, 80.0, 80.0, 80.0, 110.0, 120.0)
    assert [(after.start_us[v], after.finish_us[v]) for v in (2, 4, 7, 8)] == [(0, 40), (0, 50), (80, 120), (110, 120)]
    assert (before.first[2], before.last[2]) == (2, 5)  # full: from its gather to its last user


def test_nodes_by_column(reordered: Schedule) -> None:
    page = page_of(reordered)
    assert page.graphs[0].nodes.name[:3] == ("w", "x", "gather")
    assert [page.ops[at] for at in page.graphs[0].nodes.op[:3]] == ["", "", "all_gather_into_tensor"]
    assert page.graphs[0].nodes.group == (-1, -1, 0, -1, -1, -1, -1, 0, -1, -1)
    assert page.graphs[0].nodes.collective == (-1, -1, -1, 2, -1, -1, -1, -1, 7, -1)
    assert page.groups == ("fsdp (8 ranks)",)


def test_modules_where_they_are_known(reordered: Schedule) -> None:
    assert set(page_of(reordered).graphs[0].nodes.module) == {-1}
    nodes = (node._replace(module="layers.\n0" if node.group else "") for node in EXAMPLE.nodes)
    page = page_of(replace(reordered, problem=replace(EXAMPLE, nodes=tuple(nodes))))
    assert page.modules == ("layers.\\n0",)
    assert page.graphs[0].nodes.module == (-1, -1, 0, -1, -1, -1, -1, 0, -1, -1)


def test_one_colour_per_purpose(by_hand: ByHand) -> None:
    ops = ("send", "all_to_all_single", "all_gather_into_tensor", "all_to_all_single")
    nodes = tuple(Node(f"c{k}", Kind.COLLECTIVE, time_us=1.0, op=op, group=str(k)) for k, op in enumerate(ops))
    four = Problem("four", nodes, (), {str(k): Group(1 + k, True) for k in range(4)})
    page = page_of(by_hand(four, four.original_order))
    assert page.groups == ("FSDP 2 (3 ranks)", "expert 1 (2 ranks)", "expert 3 (4 ranks)", "other 0")
    colours = dict(page.legend)
    assert list(colours) == ["compute", "exposed: compute stalls", "FSDP", "expert parallel", "other collectives"]
    fsdp, expert, other = list(colours.values())[2:]
    assert page.colours["groups"] == [fsdp, expert, expert, other]
    assert [page.groups[g] for g in page.graphs[0].nodes.group] == [page.groups[k] for k in (3, 1, 0, 2)]


def test_no_groups_at_all(by_hand: ByHand) -> None:
    alone = Problem("alone", (Node("mm", Kind.COMPUTE, time_us=1.0),), (), {})
    page = page_of(by_hand(alone, alone.original_order))
    assert (page.groups, page.colours["groups"], page.collectives, page.modules) == ((), [], (), ())
    assert [words for words, _ in page.legend] == ["compute", "exposed: compute stalls"]


def test_a_row_per_collective_the_most_exposed_first(reordered: Schedule) -> None:
    first, second = page_of(reordered).collectives
    assert (first.node, first.earlier, first.original_exposed_us, first.exposed_us) == (7, 2, 40.0, 10.0)
    assert (second.node, second.earlier, second.original_exposed_us, second.exposed_us) == (2, 0, 40.0, 0.0)
    assert first.why == "blocked by nothing"
    assert first.more == "launched there because: its latest start would have passed while the next compute ran"
    assert first.causes == ((0, 10.0),)
    assert second.causes == ()


def test_why_says_what_memory_refused(reordered: Schedule) -> None:
    decisions = tuple(
        replace(d, held_by="memory", over_bytes=2**20, over_position=5) if d.collective == 7 else d
        for d in reordered.decisions
    )
    row = page_of(replace(reordered, decisions=decisions)).collectives[0]
    assert row.why == "blocked by memory: launched sooner, it would not have fitted into the budget"
    assert row.more == (
        "launched there because: its latest start would have passed while the next compute ran; memory refused an "
        "earlier launch: 1.0 MiB (1,048,576 bytes) over the budget while dgrad runs (position 5 of the original order)"
    )


def test_remarks(reordered: Schedule) -> None:
    assert page_of(reordered).remarks[0] == (
        "Every figure on this page is simulated, in the runtime memory model: one compute stream, one stream per "
        "process group. Limits: a lower bound on any order's step; the memory budget, the original peak plus 5.0 MiB."
    )
    fell_back = replace(reordered, order=EXAMPLE.original_order, fell_back="it was wrong")
    assert "The original order was kept: it was wrong." in page_of(fell_back).remarks


def test_the_example_in_memory(reordered: Schedule) -> None:
    page = page_of(reordered)
    assert page.memory_kinds == MEMORY_KINDS
    assert page.budget_bytes == 26 * 2**20
    check_memory(EXAMPLE, page)


@given(problem=problems())
@examples(60)
def test_random_graphs_add_up(problem: Problem) -> None:
    found = schedule(problem, Options(headroom="10%", memory_model=problem.memory_model))
    page = page_of(found)
    check_memory(problem, page)
    for run in page.runs:
        expected = replay(problem, run.order)
        assert run.start_us == tuple(round(us, 3) for us in expected.start_us)
        assert run.finish_us == tuple(round(us, 3) for us in expected.finish_us)
    total = sum(us for row in page.collectives for _, us in row.causes)
    assert total == pytest.approx(found.scheduled.exposed_us)
    for at, cause in enumerate(causes(found)):
        mine = [us for row in page.collectives for number, us in row.causes if number == at]
        assert sum(mine) == pytest.approx(cause.exposed_us)
        assert page.causes[at][1:] == (cause.exposed_us, cause.collectives)
    assert sum(row.original_exposed_us for row in page.collectives) == pytest.approx(found.original.exposed_us)


def test_names_that_bite(odd: Problem) -> None:
    page = page_of(schedule(odd))
    assert page.graphs[0].nodes.name[2:4] == ("a\\nb", "漢字")
    assert page.groups == ("g $1$ (2 ranks)", "h (2 ranks)")
