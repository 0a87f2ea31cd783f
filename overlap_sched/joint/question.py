"""What is asked of a cut: the shortest step within a memory limit, or the lowest peak within a step limit."""

from dataclasses import dataclass

from overlap_sched.errors import OptionsError
from overlap_sched.options import size_bytes, size_given


@dataclass(frozen=True)
class Question:
    """One of both.

    Attributes:
        memory_limit: The peak that must not be passed: bytes, text with a unit (``"40GiB"``), or ``"80%"`` of the peak
            that torch's own cut has. ``None``: ask the other question.
        max_slowdown: How much longer than with torch's own cut a step may be (0.05: five percent). ``None``: ask the
            other question.

    Raises:
        OptionsError: Both questions or none, or a value that cannot be.
    """

    memory_limit: int | str | None = None
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        if (self.memory_limit is None) == (self.max_slowdown is None):
            raise OptionsError("memory_limit and max_slowdown are two questions: give one of them.")
        if self.memory_limit is not None:
            meant = "bytes, a size with a unit (40GiB), or percent of the peak that torch's own choice has (80%)"
            size_given("memory_limit", self.memory_limit, 0, meant)
        slowdown = self.max_slowdown
        if slowdown is not None and not (isinstance(slowdown, int | float) and 0 <= slowdown < float("inf")):
            raise OptionsError(f"max_slowdown is {slowdown!r}; it is 0 or more, 0.05 for five percent.")

    def limit_bytes(self, peak_bytes: int) -> int | None:
        """The memory limit, where torch's own cut has this peak; ``None``: it is the other question."""
        return None if self.memory_limit is None else size_bytes(self.memory_limit, peak_bytes)
