"""What is asked: the shortest step within a memory limit, or the lowest peak within a step limit; and what answers it.

For :func:`overlap_sched.fit.fit` and :func:`overlap_sched.joint.fit_joint` alike.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from overlap_sched.errors import OptionsError
from overlap_sched.problem.sizes import limit_given, size_bytes
from overlap_sched.scheduler.task import SAME_STEP

_SAME = 1e-12


class StepAndPeak(Protocol):
    """What has a step and a peak: an order, a plan, a cut."""

    @property
    def step_us(self) -> float:
        """How long it takes."""

    @property
    def peak_bytes(self) -> int:
        """The most that is live."""


Found = TypeVar("Found", bound=StepAndPeak)


def undominated(found: Iterable[Found]) -> list[Found]:
    """Return those than which no other one is better in both: by ascending peak and descending step."""
    kept: list[Found] = []
    for one in sorted(found, key=lambda one: (one.peak_bytes, one.step_us)):
        if not kept or one.step_us < kept[-1].step_us * (1 - SAME_STEP):
            kept.append(one)
    return kept


@dataclass(frozen=True)
class Question:
    """One of the two questions.

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
            limit_given("memory_limit", self.memory_limit, 0, meant)
        slowdown = self.max_slowdown
        if slowdown is not None and (type(slowdown) not in (int, float) or not 0 <= slowdown <= 1):
            percent = type(slowdown) in (int, float) and 1 < slowdown <= 100
            near = f" Did you mean {slowdown / 100:g}?" if percent else ""
            raise OptionsError(f"max_slowdown is {slowdown!r}; it is 0 to 1, 0.05 for five percent.{near}")

    def limit(self, peak_bytes: int, step_us: float) -> "Limit":
        """The limit where the original has such a peak and such a step."""
        return Limit(
            None if self.memory_limit is None else size_bytes(self.memory_limit, peak_bytes),
            None if self.max_slowdown is None else step_us * (1 + self.max_slowdown),
        )


@dataclass(frozen=True)
class Limit:
    """What an answer must keep to.

    Attributes:
        bytes: Of the peak: the shortest step is looked for; ``None``: the other question.
        us: Of the step: the lowest peak is looked for; ``None``: the other question.
    """

    bytes: int | None
    us: float | None

    def key(self, found: StepAndPeak) -> tuple[bool, float, float]:
        """The lower, the better: within the limit first; where nothing is, what is nearest to it."""
        if self.bytes is not None:
            over = found.peak_bytes > self.bytes
            return (over, found.peak_bytes, found.step_us) if over else (over, found.step_us, found.peak_bytes)
        over = self.us is not None and found.step_us > self.us * (1 + _SAME)
        return (over, found.step_us, found.peak_bytes) if over else (over, found.peak_bytes, found.step_us)

    def best(self, points: Iterable[Found]) -> Found:
        """Return the point that answers the question best."""
        return min(points, key=self.key)


def halve(
    low: int, enough: int, reach: Callable[[int], int], most: int, close: float = 1.0, most_misses: int | None = None
) -> None:
    """Look for ever lower peaks by halving a range of memory limits.

    Args:
        low: Nothing is looked for below.
        enough: The lowest peak so far.
        reach: Looks within a memory limit; returns the lowest peak then.
        most: So many halvings.
        close: Where the range's lower end is such a part of the upper one, it is not halved any further.
        most_misses: So often in a row nothing is found below the middle, until that is all; ``None``: any number.
    """
    missed = 0
    for _ in range(most):
        middle = (low + enough) // 2
        enough = reach(middle)
        if enough > middle:
            low, missed = middle, missed + 1
        else:
            missed = 0
        if low >= enough * close or missed == most_misses:
            break
