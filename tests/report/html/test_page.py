"""The page as a file: whole, self-contained, and with the figures of ``plan --json`` in it."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched import __version__
from overlap_sched.errors import MissingExtraError
from overlap_sched.problem import Problem
from overlap_sched.report.html.collect import page_of
from overlap_sched.report.html.page import SCRIPTS, Library, check_html, page_text, write_page
from overlap_sched.scheduler.driver import Schedule, schedule
from tests.support.command import Command, run
from tests.support.oracle import INSTANCES

LIBRARY = Library("// draws", "9.9")
MISSING = "the HTML report needs bokeh, which is not installed: pip install 'overlap_sched[html]'"
VOID = {"meta", "input"}
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
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[self.elements[-1][1].get("id") or str(len(self.scripts))] = data


def embedded(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Parsed(text).scripts["data"])
    return found


def test_elements_are_closed_ids_are_unique_and_what_is_referred_to_is_there(reordered: Schedule) -> None:
    elements = Parsed(page_text(page_of(reordered), LIBRARY)).elements
    ids = Counter(of["id"] for _, of in elements if "id" in of)
    assert set(ids.values()) == {1}
    referred = [of[key] for _, of in elements for key in ("for", "aria-labelledby", "aria-describedby") if key in of]
    assert referred
    assert set(referred) <= set(ids)


def test_the_ids_that_the_scripts_look_up_are_there(reordered: Schedule) -> None:
    text = page_text(page_of(reordered), LIBRARY)
    ids = {of["id"] for _, of in Parsed(text).elements if "id" in of}
    wanted = set(re.findall(r'(?:\$|getElementById)\("([\w-]+)"\)', text))
    assert {"data", "plots", "collectives", "live-where"} <= wanted <= ids
    assert {f"{what}-{r}" for what in ("streams", "memory", "streams-title", "memory-title") for r in (0, 1)} <= ids


def test_nothing_is_loaded(reordered: Schedule) -> None:
    text = page_text(page_of(reordered), LIBRARY)
    elements = Parsed(text).elements
    assert not [(tag, of) for tag, of in elements if LOADING & set(of)]
    assert not {"link", "img", "iframe", "base", "object", "embed"} & {tag for tag, _ in elements}
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|XMLHttpRequest", text)
    policy = [of["content"] for tag, of in elements if of.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"]


def test_the_embedded_data_is_all_of_the_page(reordered: Schedule) -> None:
    page = page_of(reordered)
    assert embedded(page_text(page, LIBRARY)) == json.loads(json.dumps(page.to_json()))


def test_the_first_table_needs_no_script(reordered: Schedule) -> None:
    text = page_text(page_of(reordered), LIBRARY)
    assert (
        '<tr><th scope="row">step</th><td>190.0 us</td><td>120.0 us</td><td>-36.8 %</td><td>120.0 us</td></tr>' in text
    )
    assert "<p>Every figure on this page is simulated, in the runtime memory model:" in text
    assert text.count("(simulated)</h2>") == 4 == text.count("<h2")


def test_it_begins_with_a_verdict_and_ends_with_what_made_it(reordered: Schedule) -> None:
    page = page_of(reordered)
    text = page_text(page, LIBRARY, "overlap-sched report a<b.json", "of a <cluster>")
    assert page.verdict.sentence.startswith("The step takes 120.0 us instead of 190.0 us ")
    said = f'<p id="verdict" class="reordered"><strong>Reordered</strong> {page.verdict.sentence}</p>'
    assert f'</header>\n<main>\n{said}\n<section aria-labelledby="time-title">' in text
    made = r"on \d{4}-\d\d-\d\d by <code>overlap-sched report a&lt;b\.json</code>\. Times: of a &lt;cluster&gt;\. Drawn"
    assert re.search(f"<footer>Written by overlap_sched {re.escape(__version__)} {made}", text)
    assert re.search(r"on \d{4}-\d\d-\d\d\. Drawn with", page_text(page, LIBRARY))


def test_the_columns_of_the_table_of_collectives_fit_a_window_of_1400_pixels() -> None:
    """By their widths in rem of 16 pixels: all but ``why``, which is given 16 rem at least."""
    folder = Path(sys.modules[write_page.__module__].__file__ or "").parent / "page_files"
    columns = re.findall(r'^  \["(\w[\w, ]*)", ', (folder / "tables.js").read_text(), re.MULTILINE)
    style = (folder / "style.css").read_text()
    assert len(columns) == 9
    assert re.search(r"#collectives \{ table-layout: fixed; width: 100%; min-width: (\d+)rem; \}", style)
    (usual,) = re.findall(r"#collectives tr\.head th \{ width: ([\d.]+)rem; \}", style)
    widths = dict.fromkeys(range(1, 10), float(usual))
    for rule, rem in re.findall(r"^(#collectives tr\.head th:.*) \{ width: ([\d.]+)rem; \}", style, re.MULTILINE):
        widths |= dict.fromkeys([int(at) for at in re.findall(r"\((\d)\)", rule)] or [1], float(rem))
    widths[1 + columns.index("why")] = 16.0
    assert sum(widths.values()) <= (1400 - 2 * 16) / 16


def test_names_are_never_markup(odd: Problem) -> None:
    bad = "</script><script>alert(1)</script><!--<script>"
    nodes = tuple(node._replace(name=f"{bad}{v}") for v, node in enumerate(odd.nodes))
    page = page_of(schedule(replace(odd, name=bad, nodes=nodes)))
    text = page_text(page, LIBRARY)
    assert bad not in text
    assert embedded(text)["graphs"][0]["nodes"]["name"][0] == f"{bad}0"
    assert text.count("<script") == 3


def test_the_library_and_the_scripts_are_in_it(reordered: Schedule) -> None:
    text = page_text(page_of(reordered), LIBRARY)
    assert "// draws" in text
    assert "Drawn with Bokeh 9.9 (BSD-3-Clause)" in text
    folder = Path(sys.modules[write_page.__module__].__file__ or "").parent / "page_files"
    assert sorted(path.name for path in folder.iterdir()) == sorted([*SCRIPTS, "page.html", "style.css"])
    for name in SCRIPTS:
        assert (folder / name).read_text() in text


def test_no_bokeh_says_what_to_install(reordered: Schedule, tmp_path: Path) -> None:
    with patch.dict(sys.modules, {"bokeh": None, "bokeh.resources": None}):
        with pytest.raises(MissingExtraError) as caught:
            check_html()
        assert str(caught.value) == MISSING
        with pytest.raises(MissingExtraError, match="needs bokeh"):
            write_page(reordered, tmp_path / "out.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_without_bokeh_reads_nothing(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = patch("overlap_sched.cli.command.load", side_effect=AssertionError("the input was read"))
    with patch.dict(sys.modules, {"bokeh": None, "bokeh.resources": None}), unread:
        assert run("report", problem, "--html", str(tmp_path / "out.html")) == 2
    assert capsys.readouterr() == ("", f"overlap-sched: error: {MISSING}\n")


def plan_and_page(problem: str, folder: Path, cli: Command, *more: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of ``plan --json`` and those on the page, without how long scheduling took."""
    plan = cli.json("plan", problem, *more)
    out = folder / "out.html"
    assert cli.out("report", problem, "--html", str(out), *more) == f"{out}: written; open it in a browser\n"
    page: dict[str, Any] = embedded(out.read_text(encoding="utf-8"))["figures"]
    assert plan.pop("schema") == "overlap-sched/plan/1"
    return {**plan, "schedule_s": 0}, {**page, "schedule_s": 0}


def test_figures_equal_those_of_plan(problem: str, tmp_path: Path, cli: Command) -> None:
    with (
        patch("overlap_sched.report.html.page.check_html"),
        patch("overlap_sched.cli.outputs.check_html"),
        patch("overlap_sched.report.html.page.bokeh_library", return_value=LIBRARY),
    ):
        plan, page = plan_and_page(problem, tmp_path, cli, "--headroom", "5MiB")
    assert page == plan
    assert page["step_us"] == 120.0


@pytest.mark.nightly
@pytest.mark.slow
def test_ten_thousand_nodes_in_five_megabytes(tmp_path: Path, cli: Command) -> None:
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    plan, page = plan_and_page(str(INSTANCES / "dsv3_bw_64.json.gz"), tmp_path, cli, "--effort", "1")
    assert page == plan
    assert page["nodes"] == 9879
    assert (tmp_path / "out.html").stat().st_size < 5_000_000


def test_with_the_library_that_is_installed(reordered: Schedule, tmp_path: Path) -> None:
    bokeh = pytest.importorskip("bokeh", reason="bokeh is not installed")
    write_page(reordered, tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert f"Drawn with Bokeh {bokeh.__version__}" in text
    elements = Parsed(text).elements
    assert not [(tag, of) for tag, of in elements if LOADING & set(of)]
