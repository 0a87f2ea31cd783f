"""The page: what it shows is what the judges and the other reports say, in one file that loads nothing."""

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from msgspec import to_builtins

from overlap_sched import __version__
from overlap_sched.fit.answer import Fit, FitPoint
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, peak_memory
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.problem.file import write_problem
from overlap_sched.report.answers import PriceSource, plan_answer
from overlap_sched.report.page import SCRIPTS, Extras, Page, page_data, page_text
from overlap_sched.report.timeline import memory_by_kind
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.schedule import causes, gain_of, reserved_of
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.transform.plan import Plan, plan
from overlap_sched.transform.rewrites import Bucket, Stream
from tests.report.conftest import ByHand
from tests.support.examples import Command, examples, run
from tests.support.graphs import problems
from tests.support.sharded import PRICES, sharded

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "style"}


class Parsed(HTMLParser):
    """Elements with their attributes, the text of each script, and whether every element is closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[self.elements[-1][1].get("id") or str(len(self.scripts))] = data


def embedded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Parsed(text).scripts["data"])
    return found


def stacks(page: Page, one: Page) -> dict[str, list[int]]:
    """Bytes by kind at each position, counted as the page's script counts them."""
    change = {name: [0] * (len(one["order"]) + 1) for name in page["memory_kinds"]}
    storages = page["graphs"][one["graph"]]["storages"]

    def add(kind: int, first: int, last: int, nbytes: int) -> None:
        change[page["memory_kinds"][kind]][first] += nbytes
        change[page["memory_kinds"][kind]][last + 1] -= nbytes

    for s, (first, last) in enumerate(zip(one["first"], one["last"], strict=True)):
        add(storages["kind"][s], first, last, storages["bytes"][s])
    for s, since, until in one["flights"]:
        first, last = max(since, one["first"][s]), min(until, one["last"][s])
        if first <= last:
            add(storages["kind"][s], first, last, -storages["bytes"][s])
            add(page["in_flight"], first, last, storages["bytes"][s])
    return {name: list(accumulate(steps[:-1])) for name, steps in change.items()}


def check_memory(problem: Problem, page: Page, graph: int = 0) -> None:
    for one in (one for one in page["runs"] if one["graph"] == graph):
        found = stacks(page, one)
        assert found == {str(kind): of for kind, of in memory_by_kind(problem, one["order"]).items()}
        live = [sum(step) for step in zip(*found.values(), strict=True)]
        assert live == memory_profile(problem, one["order"])
        assert one["peak_bytes"] == max(live) == live[one["peak_at"]]


def test_figures_are_those_of_plan(reordered: Schedule) -> None:
    prices = PriceSource("dump", 1.0, 0, cluster="a <cluster>")
    page = page_data(reordered, Extras(prices=prices))
    reserved, gain = reserved_of(reordered), gain_of(reordered)
    assert gain is not None
    assert page["figures"] == to_builtins(plan_answer(reordered, None, reserved, prices, gain))
    assert "Times: predicted for a &lt;cluster&gt;." in page_text(page)
    assert page["summary"][0] == ["step", "190.0 us", "120.0 us", "-36.8 %", "120.0 us"]
    assert {len(row) for row in page["summary"]} == {5}


def test_the_example_in_time_and_memory(reordered: Schedule) -> None:
    page = page_data(reordered)
    before, after = page["runs"]
    assert [(one["title"], one["step_us"], one["exposed_us"]) for one in (before, after)] == [
        ("original", 190.0, 80.0),
        ("scheduled", 120.0, 10.0),
    ]
    assert after["at_us"] == [0.0, 0.0, 0.0, 0.0, 50.0, 80.0, 80.0, 80.0, 110.0, 120.0]
    spans = [(after["start_us"][v], after["finish_us"][v]) for v in (2, 4, 7, 8)]
    assert spans == [(0, 40), (0, 50), (80, 120), (110, 120)]
    assert (before["first"][2], before["last"][2]) == (2, 5)  # full: from its gather to its last user
    assert page["budget_bytes"] == 26 * 2**20
    nodes = page["graphs"][0]["nodes"]
    assert nodes["name"][:3] == ["w", "x", "gather"]
    assert [page["ops"][at] for at in nodes["op"][:3]] == ["", "", "all_gather_into_tensor"]
    assert nodes["group"] == [-1, -1, 0, -1, -1, -1, -1, 0, -1, -1]
    assert nodes["collective"] == [-1, -1, -1, 2, -1, -1, -1, -1, 7, -1]
    assert set(nodes["module"]) == {-1}
    check_memory(EXAMPLE, page)


def test_modules_where_they_are_known(reordered: Schedule) -> None:
    nodes = (node._replace(module="layers.\n0" if node.group else "") for node in EXAMPLE.nodes)
    page = page_data(replace(reordered, problem=replace(EXAMPLE, nodes=tuple(nodes))))
    assert page["modules"] == ["layers.\\n0"]
    assert page["graphs"][0]["nodes"]["module"] == [-1, -1, 0, -1, -1, -1, -1, 0, -1, -1]


def test_one_colour_per_purpose(by_hand: ByHand) -> None:
    ops = ("send", "all_to_all_single", "all_gather_into_tensor", "all_to_all_single")
    nodes = tuple(Node(f"c{k}", Kind.COLLECTIVE, time_us=1.0, op=op, group=str(k)) for k, op in enumerate(ops))
    four = Problem("four", nodes, (), {str(k): Group(1 + k, True) for k in range(4)})
    page = page_data(by_hand(four, four.original_order))
    assert page["groups"] == ["FSDP 2 (3 ranks)", "expert 1 (2 ranks)", "expert 3 (4 ranks)", "other 0"]
    colours = dict(page["legend"])
    assert list(colours)[2:] == ["FSDP", "expert parallel", "other collectives"]
    fsdp, expert, other = list(colours.values())[2:]
    assert page["colours"]["groups"] == [fsdp, expert, expert, other]
    assert [page["groups"][g] for g in page["graphs"][0]["nodes"]["group"]] == [page["groups"][k] for k in (3, 1, 0, 2)]


def test_a_row_per_collective_the_most_exposed_first(reordered: Schedule) -> None:
    first, second = page_data(reordered)["collectives"]
    keys = ("node", "earlier", "original_exposed_us", "exposed_us", "causes")
    assert [first[key] for key in keys] == [7, 2, 40.0, 10.0, [(0, 10.0)]]
    assert [second[key] for key in keys] == [2, 0, 40.0, 0.0, []]
    refused = replace(reordered.decisions[1], held_by="memory", over_bytes=2**20, over_position=5)
    kept = replace(reordered, decisions=(reordered.decisions[0], refused), fell_back="it was wrong")
    page = page_data(kept)
    row = page["collectives"][0]
    assert "memory" in row["why"]
    assert "1.0 MiB" in row["more"]
    assert "dgrad" in row["more"]
    assert any("it was wrong" in line for line in page["remarks"])


@given(problem=problems())
@examples(60)
def test_random_graphs_add_up(problem: Problem) -> None:
    found = schedule(problem, Options(headroom="10%", memory_model=problem.memory_model))
    page = page_data(found)
    check_memory(problem, page)
    for one in page["runs"]:
        expected = replay(problem, one["order"])
        assert one["start_us"] == [round(us, 3) for us in expected.start_us]
        assert one["finish_us"] == [round(us, 3) for us in expected.finish_us]
    rows = page["collectives"]
    assert sum(us for row in rows for _, us in row["causes"]) == pytest.approx(found.scheduled.exposed_us)
    for at, cause in enumerate(causes(found)):
        mine = [us for row in rows for number, us in row["causes"] if number == at]
        assert sum(mine) == pytest.approx(cause.exposed_us)
        assert page["causes"][at][1:] == (cause.exposed_us, cause.collectives)
    assert sum(row["original_exposed_us"] for row in rows) == pytest.approx(found.original.exposed_us)


@pytest.fixture(scope="module")
def made() -> Plan:
    """Twelve gathers and twelve scatters, of which some are bucketed, some on a second communicator."""
    options = Options(rewrites=("bucket", "stream"), headroom="100%")
    found = plan(sharded([[2, 2, 2]] * 4, compute_us=4.0), PRICES, options)
    assert found.rewrites
    return found


def test_what_was_rewritten_is_marked_in_both_and_stands_for_what_it_was(made: Plan) -> None:
    page = page_data(made.schedule, Extras(made))
    was, after = made.without.problem, made.schedule.problem
    assert [one["graph"] for one in page["runs"]] == [0, 1]
    steps_us = (made.without.original.step_us, made.schedule.scheduled.step_us)
    assert tuple(one["step_us"] for one in page["runs"]) == steps_us
    check_memory(was, page)
    check_memory(after, page, graph=1)
    names = [graph["nodes"]["name"] for graph in page["graphs"]]
    assert names == [[node.name for node in of.nodes] for of in (was, after)]
    gone, new = ({names[k][v] for v in page["graphs"][k]["marked"]} for k in (0, 1))
    buckets = {one.name: list(one.members) for one in made.rewrites if isinstance(one, Bucket)}
    moved = {one.collective for one in made.rewrites if isinstance(one, Stream)}
    assert buckets
    assert gone >= {name for members in buckets.values() for name in members} | (moved & set(names[0]))
    assert new == (set(names[1]) - set(names[0])) | moved
    rows = {names[1][row["node"]]: row for row in page["collectives"]}
    assert {name: [names[0][v] for v in rows[name]["before"]] for name in buckets} == buckets
    assert sorted(v for row in rows.values() for v in row["before"]) == sorted(made.without.problem.collectives)
    exposed = sum(row["original_exposed_us"] for row in rows.values())
    assert exposed == pytest.approx(made.without.original.exposed_us)


def test_rewrites_are_listed_and_lead_to_their_launch(made: Plan) -> None:
    page = page_data(made.schedule, Extras(made))
    names = page["graphs"][1]["nodes"]["name"]
    assert [names[node] for _, node in page["rewrites"]] == [
        one.name if isinstance(one, Bucket) else one.collective  # type: ignore[union-attr]
        for one in made.rewrites
    ]
    text = page_text(page)
    words, node = page["rewrites"][0]
    assert f'data-node="{node}">{words}</button>' in text
    assert duration(made.without.scheduled.step_us) in text
    assert len(page["tried"]) == len(made.trials)
    assert Parsed(text).open == []


def test_an_order_beside_has_a_column_and_a_run(reordered: Schedule) -> None:
    beside = ("<ours>", reordered.order)
    page = page_data(reordered, Extras(beside=beside))
    assert page["columns"] == ["original", "scheduled", "change", "limit", "<ours>"]
    assert {len(row) for row in page["summary"]} == {6}
    assert all(row[5] == row[2] for row in page["summary"]), page["summary"]
    third = page["runs"][2]
    assert (third["peak_bytes"], third["peak_at"]) == peak_memory(reordered.problem, reordered.order)
    text = page_text(page)
    assert '<th scope="col">&lt;ours&gt;</th>' in text
    assert '<button type="button" data-peak="2">peak of &lt;ours&gt;</button>' in text


def test_the_frontier(reordered: Schedule) -> None:
    problem, original = reordered.problem, reordered.original
    point = FitPoint((), problem, problem.original_order, original.step_us, original.exposed_us, 21 * 2**20, 0)
    page = page_data(reordered, Extras(fit=Fit(point, point, point, None, None, (point,), tried=1)))
    assert [one["peak_bytes"] for one in page["frontier"]] == [21 * 2**20]
    text = page_text(page)
    assert f'<tr><th scope="row">on the frontier</th><td>{size(21 * 2**20)}</td>' in text
    assert f'<tr><th scope="row">scheduled</th><td>{size(26 * 2**20)}</td><td>+23.8 %</td><td>120.0 us</td>' in text


def test_the_file_is_whole_and_loads_nothing(reordered: Schedule) -> None:
    page = page_data(reordered)
    text = page_text(page, "overlap-sched report a<b.json")
    elements = Parsed(text).elements
    ids = Counter(of["id"] for _, of in elements if "id" in of)
    assert set(ids.values()) == {1}
    referred = {of[key] for _, of in elements for key in ("for", "aria-labelledby", "aria-describedby") if key in of}
    looked_up = set(re.findall(r'(?:\$|getElementById)\("([\w-]+)"\)', text)) - {"frontier-legend"}
    assert {"data", "plots", "collectives", "live-where", "tip"} <= looked_up
    assert looked_up | referred <= set(ids)
    assert {f"{what}-{r}" for what in ("streams", "memory", "streams-title", "memory-title") for r in (0, 1)} <= set(
        ids
    )
    assert not [(tag, of) for tag, of in elements if LOADING & set(of)]
    assert not {"link", "img", "iframe", "base", "object", "embed"} & {tag for tag, _ in elements}
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|XMLHttpRequest", text)
    (policy,) = (of["content"] for tag, of in elements if of.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
    assert embedded(text) == json.loads(json.dumps(page))
    assert '<tr><th scope="row">step</th><td>190.0 us</td><td>120.0 us</td>' in text  # needs no script
    assert 'class="reordered"><strong>Reordered</strong> step 190.0 -&gt; 120.0 us (-36.8 %); ' in text
    assert "overlap-sched report a&lt;b.json" in text
    assert __version__ in text
    folder = files("overlap_sched.report").joinpath("page_files")
    assert {path.name for path in folder.iterdir()} == {*SCRIPTS, "page.html", "pipeline.css", "style.css"}
    assert all(folder.joinpath(name).read_text() in text for name in SCRIPTS)


def test_names_are_never_markup(odd: Problem) -> None:
    bad = "</script><script>alert(1)</script><!--<script>"
    nodes = tuple(node._replace(name=f"{bad}{v}") for v, node in enumerate(odd.nodes))
    page = page_data(schedule(replace(odd, name=bad, nodes=nodes)))
    text = page_text(page)
    assert bad not in text
    assert embedded(text)["graphs"][0]["nodes"]["name"][0] == f"{bad}0"
    assert text.count("<script") == 2


@pytest.mark.slow
def test_all_of_it_from_the_command(tmp_path: Path, cli: Command) -> None:
    graph, order, out = tmp_path / "graph.json", tmp_path / "torch.json", tmp_path / "out.html"
    write_problem(sharded([[2, 2, 2]] * 4, compute_us=4.0), graph)
    wanted = ("--rewrites", "bucket", "--headroom", "100%")
    assert run("plan", str(graph), "--out", str(order)) == 0
    told = cli.json("plan", str(graph), *wanted)
    more = ("--beside", str(order))
    assert run("report", str(graph), "--html", str(out), *more, *wanted) == 0
    page = embedded(out.read_text(encoding="utf-8"))
    assert page["columns"][4] == "torch"
    assert page["rewrites"]
    assert {**told, "schedule_s": 0, "schema": 0} == {**page["figures"], "schedule_s": 0, "schema": 0}
