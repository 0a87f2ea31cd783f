"""What is asked: the shortest step within a memory limit, or the lowest peak within a step limit; and what answers it.

For :func:`overlap_sched.fit.fit` and :func:`overlap_sched.joint.fit_joint` alike.
"""

from dataclasses import dataclass

from overlap_sched.errors import OptionsError
from overlap_sched.problem.sizes import limit_given, size_bytes
from overlap_sched.transform.search import Limit


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

    def limit(self, peak_bytes: int, step_us: float) -> Limit:
        """The limit where the original has such a peak and such a step."""
        return Limit(
            None if self.memory_limit is None else size_bytes(self.memory_limit, peak_bytes),
            None if self.max_slowdown is None else step_us * (1 + self.max_slowdown),
        )
