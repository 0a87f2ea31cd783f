"""What a fit is: rewrites and an order, beside the best order without rewrites."""

from dataclasses import dataclass

from overlap_sched.problem import Order, Problem
from overlap_sched.transform.rewrites import Rewrite


@dataclass(frozen=True)
class FitPoint:
    """One plan: rewrites, and an order of what they make.

    Attributes:
        rewrites: Done in this order; none: the graph stays.
        problem: The rewritten problem. order: node ids of it.
        step_us, exposed_us, peak_bytes: By the judges.
        host_bytes: The most pinned host memory in use at once.
    """

    rewrites: tuple[Rewrite, ...]
    problem: Problem
    order: Order
    step_us: float
    exposed_us: float
    peak_bytes: int
    host_bytes: int = 0


@dataclass(frozen=True)
class Fit:
    """The answer to one question, and what else was found on the way.

    Attributes:
        best: What answers it best.
        original: The graph as it was, in its own order.
        without: The graph as it was, in the best order found at its own peak: slowdown counts from its step.
        limit_bytes: Of memory; ``None``: the question was one of steps.
        limit_us: Of the step; ``None``: the question was one of memory.
        points: The frontier: all plans found of which none is dominated, by ascending peak.
        tried: How many plans were scheduled.
        fell_back: Why no better plan is used; ``None``: the limit is kept.
    """

    best: FitPoint
    original: FitPoint
    without: FitPoint
    limit_bytes: int | None
    limit_us: float | None
    points: tuple[FitPoint, ...]
    tried: int
    fell_back: str | None = None

    @property
    def slowdown(self) -> float:
        """The best plan's step / the best order's step - 1 (0.05: five percent longer)."""
        return self.best.step_us / self.without.step_us - 1 if self.without.step_us else 0.0

    @property
    def fits(self) -> bool:
        """Whether the best plan keeps to the limit."""
        if self.limit_bytes is not None:
            return self.best.peak_bytes <= self.limit_bytes
        return self.limit_us is None or self.best.step_us <= self.limit_us
