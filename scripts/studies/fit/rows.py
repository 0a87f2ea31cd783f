"""Rows of the table: one way to run one step, and what it costs at the memory limits and reaches at the slowdowns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scripts.studies.fit.points import Point, peak_at, slowdown_at
from scripts.studies.fit.published import DTR, MAGIS, Published
from scripts.studies.memory_zoo.rows import timed

LIMITS = (0.8, 0.6, 0.4)
"""Memory limits, as parts of the original peak."""
SLOWDOWNS = (0.05, 0.10)
"""Limits of the step: so much slower than the original."""


@dataclass(frozen=True)
class FitRow:
    """One way to run one step; simulated, but for published ones.

    Attributes:
        graph: Which. nodes: of it; 0 where it is not ours.
        by: Whose way.
        original_peak_bytes, original_step_us: The graph as it is: what the others are parts of; 0 where it is not ours.
        slowdown_at: Per limit of :data:`LIMITS`, how much slower the fastest is that fits; ``None``: none fits.
        peak_at: Per limit of :data:`SLOWDOWNS`, the lowest peak that is fast enough, as a part; ``None``: none is.
        seconds: Processor time of all of it.
        points: All that were found, none worse in both.
    """

    graph: str
    nodes: int
    by: str
    original_peak_bytes: int
    original_step_us: float
    slowdown_at: tuple[float | None, ...]
    peak_at: tuple[float | None, ...]
    seconds: float
    points: tuple[Point, ...] = ()


def row(step: str, nodes: int, way: str, original: Point, found: Callable[[], Iterable[Point]]) -> FitRow:
    """Find points, and read the figures off them; the original is among them."""
    points, seconds = timed(lambda: [original, *found()])
    return FitRow(
        graph=step,
        nodes=nodes,
        by=way,
        original_peak_bytes=original.peak_bytes,
        original_step_us=original.step_us,
        slowdown_at=tuple(slowdown_at(points, original, part) for part in LIMITS),
        peak_at=tuple(peak_at(points, original, slowdown) for slowdown in SLOWDOWNS),
        seconds=seconds,
        points=tuple(frontier(points)),
    )


def frontier(points: Iterable[Point]) -> Iterator[Point]:
    """Those that no other one beats in both, by ascending peak."""
    step_us = float("inf")
    for point in sorted(points, key=lambda p: (p.peak_bytes, p.step_us)):
        if point.step_us < step_us:
            step_us = point.step_us
            yield point


def published_rows(step: str) -> Iterator[FitRow]:
    """What MAGIS's paper has for a step; none where it has it not."""
    for way, figures in (("DTR, measured by MAGIS", DTR), ("MAGIS, measured", MAGIS)):
        if step in figures:
            yield _published(step, way, figures[step])


def _published(step: str, way: str, figures: Published) -> FitRow:
    slowdowns, peaks = (figures.slowdown_at_80, None, figures.slowdown_at_40), (figures.peak_at_5, figures.peak_at_10)
    return FitRow(step, 0, way, 0, 0.0, slowdowns, peaks, 0.0)


def recorded_rows(record: Mapping[str, Any]) -> Iterator[FitRow]:
    """The rows of a record (:func:`llama_repro.harness.record.read_record`)."""
    for made in record["rows"]:
        points = tuple(Point(**point) for point in made["points"])
        yield FitRow(**{**made, "points": points})
