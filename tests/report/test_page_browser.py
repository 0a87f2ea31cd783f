"""The page in a real browser: no error, nothing asked of the network, the figures of the JSON, and everything works.

Needs playwright (``pip install playwright``; none of its own browsers) and a Chromium (Debian: ``chromium``).
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from overlap_sched.options import Options
from overlap_sched.problem.file import read_problem, write_problem
from overlap_sched.report.page import Extras, write_page
from overlap_sched.report.units import duration, size
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.transform.plan import plan
from overlap_sched.transform.rewrites import Bucket
from tests.fit.test_fit import saved
from tests.support.examples import Command
from tests.support.oracle import INSTANCES
from tests.support.sharded import PRICES, sharded

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium is installed", allow_module_level=True)

SCRIPTS = Path(__file__).parents[2] / "overlap_sched" / "report" / "page_files"
WIDE, DESK, NARROW, ZOOMED = 1500, 1400, 400, 640
"""Pixels of width; a window of 1,280 pixels at 200 % zoom has 640."""


class Opened(NamedTuple):
    """A page that is open, what it complained of, and what it asked for."""

    tab: Any
    complaints: list[str]
    requests: list[str]

    def text(self, selector: str) -> str:
        found: str = self.tab.inner_text(selector)
        return found

    def wait(self, selector: str, text: str) -> None:
        """Until an element has a text in it; without ``eval``, which the page forbids."""
        playwright.expect(self.tab.locator(selector)).to_contain_text(text)

    def wait_for_another(self, selector: str, text: str) -> None:
        playwright.expect(self.tab.locator(selector)).not_to_have_text(text)

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Any, path: Path, width: int = WIDE, scheme: str = "light") -> Opened:
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = Opened(tab, [], [])
    tab.on("pageerror", lambda error: page.complaints.append(str(error)))
    tab.on("console", lambda line: page.complaints.append(line.text) if line.type in ("error", "warning") else None)
    tab.on("request", lambda request: page.requests.append(request.url))
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready=true]", state="attached")
    page.settle()
    return page


@pytest.fixture
def example(browser: Any, reordered: Schedule, tmp_path: Path) -> Iterator[Opened]:
    write_page(reordered, tmp_path / "out.html")
    page = opened(browser, tmp_path / "out.html")
    yield page
    page.tab.close()
    assert page.complaints == []
    assert page.requests == [(tmp_path / "out.html").as_uri()]


TIMES_US = "0.25 0.35 0.75 2.5 1250 5125 15135 0 0.01 0.04999 0.05 12 999.94 1e3 3410 99999.9 1e5 2281800 1e7 1234e4"
SIZES = (0, 12, 1023, 1024, 1536, 2**20, 24 * 2**20, 2**30, 36_136_781_414, 2**45)


def called(browser: Any, file: str, expression: str, *arguments: Any) -> Any:
    """What an expression of ``given`` and of the functions of a script gives."""
    tab = browser.new_page()
    found = tab.evaluate(f"(given) => {{ {(SCRIPTS / file).read_text()}; return {expression}; }}", arguments)
    tab.close()
    return found


def test_quantities_read_as_in_the_terminal(browser: Any) -> None:
    times = [float(us) for us in TIMES_US.split()]
    assert called(browser, "units.js", "given[0].map(duration)", times) == [duration(us) for us in times]
    assert called(browser, "units.js", "given[0].map(size)", SIZES) == [size(number) for number in SIZES]


def test_an_overview_leaves_nothing_out(browser: Any) -> None:
    starts = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 50.0, 70.0, 90.0]
    lengths = [0.5, 0.5, 0.25, 0.5, 0.5, 0.5, 20.0, 0.1, 10.0]
    spans = [{"node": v, "start": at, "end": at + us} for v, (at, us) in enumerate(zip(starts, lengths, strict=True))]
    found = called(browser, "overview.js", "blocks(given[0], 0, 100, 1)", spans)
    assert [(of["node"], of["count"], of["start"], of["end"], of["right"]) for of in found] == [
        (0, 3, 0.0, 2.25, 2.25),
        (3, 3, 3.0, 5.5, 5.5),
        (6, 1, 50.0, 70.0, 70.0),
        (7, 1, 70.0, 70.1, 71.0),
        (8, 1, 90.0, 100.0, 100.0),
    ]
    assert [of["share"] for of in found] == pytest.approx([1.25 / 2.25, 0.6, 1, 1, 1])
    inside = called(browser, "overview.js", "blocks(given[0], 55, 70.05, 0.01)", spans)
    assert [of["node"] for of in inside] == [6, 7]


def test_an_overview_of_memory_has_every_peak(browser: Any) -> None:
    run = {"at_us": [0, 1, 1, 2, 3, 10, 11, 12], "live": [1, 2, 9, 3, 1, 1, 7, 1]}
    assert called(browser, "overview.js", "samples(given[0], 0, 12, 5)", run) == [2, 4, 6, 7]
    assert called(browser, "overview.js", "samples(given[0], 5, 10.5, 1)", run) == [4, 5]
    assert called(browser, "overview.js", "[0.5, 1, 1.5, 30].map((us) => positionAt(given[0], us))", run) == [
        0,
        2,
        2,
        7,
    ]


def test_figures_peaks_and_their_neighbours(example: Opened) -> None:
    assert example.text("#streams-title-0") == "Streams, original order: step 190.0 us, exposed 80.0 us"
    assert example.text("#memory-title-0").startswith("Memory, original order: peak 21.0 MiB (triangle) at 90.0 us, ")
    assert example.text("#live-where").startswith("26.0 MiB live in the scheduled order while dgrad runs (position 7")
    example.tab.click("[data-peak='0']")
    assert example.text("#live-where").startswith("21.0 MiB live in the original order while dgrad runs (position 5 of")
    row = example.text("#live-storages tr:nth-of-type(2)").split("\t")
    assert row == ["gather", "8.0 MiB", "gathered parameters", "2 to 5"]
    example.tab.click("[data-step='1']")
    assert example.text("#live-where").startswith("21.0 MiB live in the original order while wgrad runs")
    lines = example.text("#live-kinds tbody, #live-kinds").splitlines()
    kinds = [line.split("\t")[1] for line in lines if "\t" in line]
    assert kinds == ["1.0 MiB", "0 B", "4.0 MiB", "0 B", "8.0 MiB", "0 B", "8.0 MiB"]
    example.tab.focus("#plots")
    example.tab.keyboard.press("p")
    assert "21.0 MiB live in the original order while dgrad runs" in example.text("#live-where")


def test_clicks_say_what_is_live_and_why(example: Opened) -> None:
    box = example.tab.locator("#memory-0").bounding_box()
    example.tab.locator("#memory-0").click(position={"x": box["width"] - 20, "y": 60})
    example.wait("#live-where", "14.0 MiB live in the original order while grad runs (position 8 of")
    example.tab.locator("#streams-0").click(position={"x": box["width"] - 40, "y": 45})
    example.wait("#selected", "scatter: ran")
    assert example.text("#selected") == (
        "scatter: ran from 150.0 us to 190.0 us (original), 80.0 us to 120.0 us (scheduled); exposed 40.0 us, now "
        "10.0 us. Blocked by nothing; launched there because: its latest start would have passed while the next "
        "compute ran."
    )
    assert example.text("#collectives tr.chosen button") == "scatter"
    example.tab.locator("#streams-0").click(position={"x": 140, "y": 15})  # a stall leads to its collective
    example.wait("#selected", "gather: ran")


def test_zoom_and_pan_by_buttons_keys_wheel_and_drag(example: Opened) -> None:
    assert example.text("#window") == "0.0 us to 190.0 us of 190.0 us"
    example.tab.click("[data-do=in]")
    assert example.text("#window") == "47.5 us to 142.5 us of 190.0 us"
    example.tab.focus("#plots")
    example.tab.keyboard.press("ArrowRight")
    assert example.text("#window") == "71.2 us to 166.2 us of 190.0 us"
    example.tab.keyboard.press("+")
    assert example.text("#window") == "95.0 us to 142.5 us of 190.0 us"
    example.tab.keyboard.press("0")
    assert example.text("#window") == "0.0 us to 190.0 us of 190.0 us"
    example.tab.locator("#streams-0").hover(position={"x": 800, "y": 30})
    example.tab.keyboard.down("Control")
    example.tab.mouse.wheel(0, -300)
    example.tab.keyboard.up("Control")
    example.wait_for_another("#window", "0.0 us to 190.0 us of 190.0 us")
    zoomed = example.text("#window")
    example.tab.mouse.down()
    example.tab.mouse.move(500, example.tab.locator("#streams-0").bounding_box()["y"] + 30, steps=4)
    example.tab.mouse.up()
    example.wait_for_another("#window", zoomed)


def names(page: Opened) -> list[str]:
    found: list[str] = page.tab.locator("#collectives [data-node]").all_inner_texts()
    return found


def test_sort_and_filter(example: Opened) -> None:
    assert names(example) == ["scatter", "gather"]
    example.tab.click("[data-column='0']")
    assert names(example) == ["gather", "scatter"]
    assert example.tab.get_attribute("#collectives th:nth-of-type(1)", "aria-sort") == "ascending"
    example.tab.keyboard.press("Enter")  # the button keeps the focus
    assert names(example) == ["scatter", "gather"]
    example.tab.fill("#filter", "ALL_GATHER")
    assert names(example) == ["gather"]
    assert example.text("#count") == "1 of 2"
    example.tab.fill("#filter", "")
    example.tab.select_option("#cause", "0")
    assert names(example) == ["scatter"]


@pytest.mark.slow
def test_a_real_graph(browser: Any, tmp_path: Path) -> None:
    found = schedule(read_problem(INSTANCES / "dsv3_bw_64.json.gz"), Options(effort=1))
    write_page(found, tmp_path / "out.html")
    for width in (WIDE, ZOOMED, NARROW):
        page = opened(browser, tmp_path / "out.html", width)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert re.findall(r"step (.*?), exposed (.*)", page.text("#streams-title-1")) == [
            (duration(found.scheduled.step_us), duration(found.scheduled.exposed_us))
        ]
        for r, figures in enumerate((found.original, found.scheduled)):
            page.tab.click(f"[data-peak='{r}']")
            assert page.text("#live-where").startswith(f"{size(figures.peak_bytes)} live in")
        assert len(names(page)) == 100
        page.tab.click("#more")
        assert len(names(page)) == len(found.decisions)
        page.tab.click("[data-do=in]")
        page.settle()
        assert page.complaints == []
        assert page.requests == [(tmp_path / "out.html").as_uri()]
        page.tab.close()


def test_rewrites_and_an_order_beside(browser: Any, tmp_path: Path) -> None:
    problem = sharded([[2, 2, 2]] * 4, compute_us=4.0)
    made = plan(problem, PRICES, Options(rewrites=("bucket",), headroom="100%"))
    beside = ("torch", problem.original_order)
    extras = Extras(made, beside)
    write_page(made.schedule, tmp_path / "out.html", extras)
    for width in (WIDE, NARROW):
        page = opened(browser, tmp_path / "out.html", width)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert page.text("#streams-title-2").startswith("Streams, torch: step ")
        page.tab.click("[data-peak='2']")
        assert " live in torch while " in page.text("#live-where")
        page.tab.click("#rewrites li:nth-of-type(1) button")
        bucket = made.rewrites[0]
        assert isinstance(bucket, Bucket)
        assert page.text("#selected").startswith(f"{bucket.name}: ran from ")
        assert all(f"({title})" in page.text("#selected") for title in ("original", "scheduled", "torch"))
        assert page.text("#collectives tr.chosen button") == bucket.name
        page.tab.click("#theme")
        page.settle()
        assert page.complaints == []
        page.tab.close()


def test_a_fit(browser: Any, tmp_path: Path, cli: Command) -> None:
    """The page of ``fit``: its rewrites and its plans are there; ``tests/cli/test_answers.py`` has the figures."""
    problem, out = tmp_path / "saved.json", tmp_path / "out.html"
    write_problem(saved(), problem)
    cli.json("fit", str(problem), "--memory-limit", "130MiB", "--html", str(out))
    for width, scheme in ((WIDE, "light"), (ZOOMED, "dark"), (NARROW, "light")):
        page = opened(browser, out, width, scheme)
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= width
        assert "budget 130.0 MiB (dashed)" in page.text("#memory-title-1")
        assert page.text("#rewrites li:nth-of-type(1)").endswith("64.0 MiB not kept, 10.0 us more compute")
        assert page.tab.locator("#frontier-plot canvas").count() >= 1
        assert (page.complaints, page.requests) == ([], [out.as_uri()])
        page.tab.close()
