"""Pictures: what they say, and bins in which no time is lost."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import MissingExtraError
from overlap_sched.options import Options
from overlap_sched.peak_memory import best_order
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.report.pictures import busy_share, draw_memory, new_figure, plot_memory, plot_schedule
from overlap_sched.report.timeline import Span
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
        "step 190.0 -> 120.0 us (-36.8 %)   |   exposed 80.0 -> 10.0 us (-87.5 %)   |   "
        "peak memory 21.0 -> 26.0 MiB (+23.8 %)",
        "memory (MiB), runtime model",
        "time (us), simulated: one compute stream, one stream per process group",
        "original order", "scheduled order", "budget: original peak + 5.0 MiB", "lower bound 120.0 us",
        "original: 190.0 us", "scheduled: 120.0 us", "compute", "group fsdp (8)", "FSDP",
        "exposed: compute stalls",
        "57.9 %", "91.7 %",
    )  # fmt: skip
    assert [text for text in expected if text not in texts] == []


def test_no_matplotlib_says_what_to_install(reordered: Schedule, tmp_path: Path) -> None:
    with patch.dict(sys.modules, {"matplotlib": None}), pytest.raises(MissingExtraError) as caught:
        plot_schedule(reordered, tmp_path / "out.png")
    assert str(caught.value) == ("pictures need matplotlib, which is not installed: pip install 'overlap_sched[plot]'")


@pytest.mark.slow
def test_odd_names_no_time_and_other_budgets_draw_without_a_warning(
    by_hand: ByHand, odd: Problem, tmp_path: Path
) -> None:
    """Warnings are errors in tests."""
    named = replace(EXAMPLE, name="图层")
    plot_schedule(by_hand(odd, odd.original_order), tmp_path / "odd.png")
    plot_schedule(schedule(named, Options(budget="profile")), tmp_path / "schedule.png")
    plot_memory(best_order(named), tmp_path / "memory.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.png", "odd.png", "schedule.png"]


def test_shares_of_bins_that_cut_through_spans() -> None:
    spans = (Span(0, 5.0, 15.0), Span(1, 15.0, 20.0), Span(2, 38.0, 40.0))
    assert busy_share(spans, np.linspace(0.0, 40.0, 5)).tolist() == [0.5, 1.0, 0.0, 0.2]
    assert busy_share((), np.linspace(0.0, 1.0, 4)).tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(1, 50))
def test_area_is_kept_whatever_the_bins(ends: list[int], bins: int) -> None:
    ascending = sorted(ends[: len(ends) // 2 * 2])
    spans = [Span(0, float(a), float(b)) for a, b in zip(ascending[::2], ascending[1::2], strict=True) if a < b]
    edges = np.linspace(0.0, 1000.0, bins + 1)
    assert np.isclose((busy_share(spans, edges) * np.diff(edges)).sum(), sum(s.end_us - s.start_us for s in spans))


def test_memory_is_drawn_sample_by_sample_with_the_peak_of_a_moment() -> None:
    axes = new_figure(4, 3).subplots()
    draw_memory(axes, [(0.0, 6), (12.0, 9), (12.0, 3)], 40.0, (2.0, 3.0), color="red", fill=True)
    (drawn,) = axes.patches
    assert [list(part) for part in drawn.get_data()[:2]] == [[2.0, 3.0, 1.0], [0.0, 6.0, 6.0, 20.0]]
    assert drawn.get_edgecolor() == (1.0, 0.0, 0.0, 1.0)  # what has no width is an edge
    assert drawn.get_linewidth() > 0
