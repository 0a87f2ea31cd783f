"""A frontier in words: every point has its row, the original order too, on the frontier or not."""

import io

import pytest
from rich.console import Console

from overlap_sched.analysis.frontier_points import Frontier, Point
from overlap_sched.problem import EXAMPLE
from overlap_sched.report.words.frontier import frontier_table

MIB = 2**20
LOW = Point(18 * MIB, 190.0, 80.0, tuple(range(10)))
ORIGINAL = Point(21 * MIB, 150.0, 40.0, EXAMPLE.original_order)
LARGE = Point(26 * MIB, 120.0, 10.0, (0, 1, 2, 4, 3, 6, 7, 5, 8, 9))


def rows(original: Point, points: tuple[Point, ...], picked: Point | None = None) -> list[list[str]]:
    """Peak, step, and what the row is named, line by line."""
    file = io.StringIO()
    found = Frontier(EXAMPLE, original, points, 120.0, 18 * MIB, 3)
    Console(file=file, width=120, color_system=None).print(frontier_table(found, picked))
    lines = [line.split() for line in file.getvalue().splitlines() if line.count("%") == 3]
    return [[line[0], line[4], *line[11:]] for line in lines]


def test_the_original_order_on_the_frontier_has_its_row_among_the_others() -> None:
    points = (LOW, ORIGINAL, LARGE)
    assert rows(ORIGINAL, points) == [
        ["18.0", "190.0", "%"],
        ["21.0", "150.0", "%", "original"],
        ["26.0", "120.0", "%"],
    ]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_no_row_is_lost_wherever_the_original_order_stands(at: int) -> None:
    points = (LOW, ORIGINAL, LARGE)
    assert [row[:2] for row in rows(points[at], points)] == [["18.0", "190.0"], ["21.0", "150.0"], ["26.0", "120.0"]]
    assert rows(points[at], points, points[at])[at][3:] == ["original,", "picked"]


def test_the_original_order_off_the_frontier_stands_above_it() -> None:
    slow = Point(21 * MIB, 190.0, 80.0, EXAMPLE.original_order)
    assert rows(slow, (LOW, LARGE), LARGE) == [
        ["21.0", "190.0", "%", "original"],
        ["18.0", "190.0", "%"],
        ["26.0", "120.0", "%", "picked"],
    ]
