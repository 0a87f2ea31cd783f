"""What a step takes: its peak and its time; and what can be read off several of them."""

from collections.abc import Iterable
from dataclasses import dataclass

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Order, Problem


@dataclass(frozen=True)
class Point:
    """One way to run a step; simulated.

    Attributes:
        peak_bytes: The most bytes live at once, ``runtime`` model.
        step_us: Its time.
    """

    peak_bytes: int
    step_us: float


def point(problem: Problem, order: Order | None = None) -> Point:
    """By the judge; ``None``: the original order."""
    order = problem.original_order if order is None else order
    return Point(peak_memory(problem, order)[0], replay(problem, order).step_us)


def slowdown_at(points: Iterable[Point], original: Point, part: float) -> float | None:
    """How much slower than the original the fastest is that needs at most this part of its peak; ``None``: none fits.

    0.05 is five percent; below 0 where it is faster.
    """
    steps = [p.step_us for p in points if p.peak_bytes <= part * original.peak_bytes]
    return min(steps) / original.step_us - 1 if steps else None


def peak_at(points: Iterable[Point], original: Point, slowdown: float) -> float | None:
    """The lowest peak within a slowdown, as a part of the original peak; ``None``: none is fast enough."""
    peaks = [p.peak_bytes for p in points if p.step_us <= (1 + slowdown) * original.step_us]
    return min(peaks) / original.peak_bytes if peaks else None
