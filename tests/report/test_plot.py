import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched.errors import MissingExtraError, OutputError
from overlap_sched.options import Options
from overlap_sched.peak_memory import best_order
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem
from overlap_sched.report.pictures import schedule as plot
from overlap_sched.report.pictures.curves import plot_memory
from overlap_sched.report.pictures.schedule import plot_schedule
from overlap_sched.scheduler.driver import Schedule, schedule

ByHand = Callable[..., Schedule]

pytest.importorskip("matplotlib")


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[list[str]]:
    """Every text that is drawn: the artists of the figure when it is saved."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    found: list[str] = []
    save = Figure.savefig

    def spy(figure: Figure, *args: Any, **kwargs: Any) -> None:
        save(figure, *args, **kwargs)
        found.extend(artist.get_text() for artist in figure.findobj(Text))

    with patch.object(Figure, "savefig", spy):
        yield found


@pytest.mark.slow
def test_says_what_it_shows(reordered: Schedule, tmp_path: Path, texts: list[str]) -> None:
    plot_schedule(reordered, tmp_path / "out.png")
    expected = (
        "example",
        "step 190.0 → 120.0 us (-36.8 %; 0.0 % above the lower bound)   |   exposed 80.0 → 10.0 us   |   "
        "peak 21.0 → 26.0 MiB (+23.8 %)",
        "memory (MiB), runtime model",
        "time (us), simulated: one compute stream, one stream per process group",
        "original order", "scheduled order", "budget: original peak + 5.0 MiB", "lower bound 120.0 us",
        "original: 190.0 us", "scheduled: 120.0 us", "compute", "group fsdp (8)", "FSDP",
        "exposed: compute stalls",
        "mm", "wgrad", "dgrad", "gather", "scatter", "57.9 %", "91.7 %",
    )  # fmt: skip
    assert [text for text in expected if text not in texts] == []


@pytest.mark.slow
def test_draws_a_png_of_a_readable_size(reordered: Schedule, tmp_path: Path) -> None:
    plot_schedule(reordered, tmp_path / "out.png")
    data = (tmp_path / "out.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20], "big") == 1800


@pytest.mark.slow
def test_exposed_waits_have_a_colour_of_their_own(reordered: Schedule, by_hand: ByHand, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    rgb = [int(plot.EXPOSED[i : i + 2], 16) / 255 for i in (1, 3, 5)]

    def exposed_pixels(schedule: Schedule) -> int:
        plot_schedule(schedule, tmp_path / "out.png")
        pixels = image.imread(tmp_path / "out.png")[:, :, :3]
        return int((abs(pixels - rgb).max(axis=2) < 0.01).sum())

    assert exposed_pixels(by_hand(EXAMPLE, EXAMPLE.original_order)) > 1.5 * exposed_pixels(reordered)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_other_formats(reordered: Schedule, tmp_path: Path, ending: str) -> None:
    plot_schedule(reordered, tmp_path / f"out.{ending}")
    assert (tmp_path / f"out.{ending}").read_bytes()[:5] in (b"<?xml", b"%PDF-")


@pytest.mark.slow
def test_profile_budget_and_odd_names_and_no_time(by_hand: ByHand, odd: Problem, tmp_path: Path) -> None:
    plot_schedule(by_hand(odd, odd.original_order), tmp_path / "odd.png")
    plot_schedule(by_hand(EXAMPLE, EXAMPLE.original_order, Options(budget="profile")), tmp_path / "profile.png")
    assert (tmp_path / "odd.png").exists()
    assert (tmp_path / "profile.png").exists()


@pytest.mark.slow
def test_many_groups_and_nodes_stay_few_rows(by_hand: ByHand, tmp_path: Path, texts: list[str]) -> None:
    nodes = [Node(f"c{v}", Kind.COLLECTIVE, (), (), (), 1.0 + v, "", f"g{v % 10}") for v in range(1000)]
    many = Problem("many", tuple(nodes), (), {f"g{i}": Group(2, True) for i in range(10)})
    plot_schedule(by_hand(many, many.original_order), tmp_path / "many.png")
    rows = [text for text in texts if text.startswith("group g")]
    assert len(rows) == 2 * plot.MAX_STREAMS
    assert rows[-1] == "group g9 (2)\n+ 4 not shown"
    assert "c0" not in texts


def test_no_matplotlib_says_what_to_install(reordered: Schedule, tmp_path: Path) -> None:
    with patch.dict(sys.modules, {"matplotlib": None}), pytest.raises(MissingExtraError) as caught:
        plot_schedule(reordered, tmp_path / "out.png")
    assert str(caught.value) == ("pictures need matplotlib, which is not installed: pip install 'overlap_sched[plot]'")


def test_an_ending_that_is_no_picture(reordered: Schedule) -> None:
    with pytest.raises(OutputError) as caught:
        plot_schedule(reordered, "out.docx")
    assert str(caught.value) == "out.docx: its ending does not name a picture format. End it in .png, .svg or .pdf."


@pytest.mark.slow
def test_names_in_scripts_that_the_font_lacks_draw_without_a_warning(tmp_path: Path) -> None:
    """Warnings are errors in tests."""
    named = replace(EXAMPLE, name="图层")
    plot_schedule(schedule(named), tmp_path / "schedule.png")
    plot_memory(best_order(named), tmp_path / "memory.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.png", "schedule.png"]
