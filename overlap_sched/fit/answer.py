"""What is asked of a fit, and what it answers: rewrites and an order, beside the best order without rewrites."""

from dataclasses import dataclass

from overlap_sched.errors import OptionsError
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.sizes import parse_limit, size_bytes
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.search import Limit


@dataclass(frozen=True)
class Question:
    """One of the two questions: the shortest step within a memory limit, or the lowest peak within a step limit.

    For :func:`overlap_sched.fit.fit` and :func:`overlap_sched.joint.fit_joint` alike.

    Attributes:
        memory_limit: The peak that must not be passed: bytes, text with a unit (``"40GiB"``), or ``"80%"`` of the
            original peak (of a joint graph: that of torch's own cut). ``None``: ask the other question.
        max_slowdown: How much longer than the original a step may be (0.05: five percent). ``None``: ask the other
            question.
        percent_of: What percent are of, for errors.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
    """

    memory_limit: int | str | None = None
    max_slowdown: float | None = None
    percent_of: str = "the peak that torch's own choice has"

    def __post_init__(self) -> None:
        if (self.memory_limit is None) == (self.max_slowdown is None):
            raise OptionsError("memory_limit and max_slowdown are two questions: give one of them.")
        if self.memory_limit is not None:
            meant = f"bytes, a size with a unit (40GiB), or percent of {self.percent_of} (80%)"
            parse_limit("memory_limit", self.memory_limit, 0, meant)
        slowdown = self.max_slowdown
        if slowdown is not None and (type(slowdown) not in (int, float) or not 0 <= slowdown <= 1):
            percent = type(slowdown) in (int, float) and 1 < slowdown <= 100
            near = f" Did you mean {slowdown / 100:g}?" if percent else ""
            raise OptionsError(f"max_slowdown is {slowdown!r}; it is 0 to 1, 0.05 for five percent.{near}")

    def limit(self, peak_bytes: int, step_us: float) -> Limit:
        """The limit where the original has such a peak and such a step."""
        return Limit(
            None if self.memory_limit is None else size_bytes(self.memory_limit, peak_bytes),
            None if self.max_slowdown is None else step_us * (1 + self.max_slowdown),
        )


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
class Faster:
    """A plan that is not taken, as the device does not hold it.

    Attributes:
        step_us: Its step in the replay.
        lacks_bytes: What the device lacks for it.
    """

    step_us: float
    lacks_bytes: int


@dataclass(frozen=True)
class Held:
    """What torch's caching allocator makes of a plan, replayed.

    Attributes:
        reserved_bytes: On a device without a limit.
        over_bytes: What a device of the memory limit lacks for it, with the allocator as it is set up; 0: nothing, or
            no memory limit was asked for.
        faster: The shortest plan within the limit by its live bytes, and what such a device lacks for it; ``None``: it
            is this one.
    """

    reserved_bytes: int
    over_bytes: int = 0
    faster: Faster | None = None


@dataclass(frozen=True)
class Effect:
    """What a rewrite that a plan begins with does alone, before others.

    Attributes:
        rewrite: It.
        bytes: By how much the peak of the original order falls; below 0: it rises.
        compute_us: What it adds to the compute stream.
    """

    rewrite: Rewrite
    bytes: int
    compute_us: float


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
        held: What torch's allocator makes of the best plan; ``None``: it was not replayed.
        effects: Of the fissions that the best plan begins with.
    """

    best: FitPoint
    original: FitPoint
    without: FitPoint
    limit_bytes: int | None
    limit_us: float | None
    points: tuple[FitPoint, ...]
    tried: int
    fell_back: str | None = None
    held: Held | None = None
    effects: tuple[Effect, ...] = ()

    @property
    def slowdown(self) -> float:
        """The best plan's step / the best order's step - 1 (0.05: five percent longer)."""
        return self.best.step_us / self.without.step_us - 1 if self.without.step_us else 0.0

    @property
    def fits(self) -> bool:
        """Tell whether the best plan keeps to the limit, with what torch's allocator makes of it."""
        return self.live_bytes_fit and (self.held is None or not self.held.over_bytes)

    @property
    def live_bytes_fit(self) -> bool:
        """Tell whether the best plan keeps to the limit by its live bytes alone."""
        if self.limit_bytes is not None:
            return self.best.peak_bytes <= self.limit_bytes
        return self.limit_us is None or self.best.step_us <= self.limit_us
