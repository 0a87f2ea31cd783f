"""What is asked: a limit of memory, or one of the step; and which of two plans answers it better."""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.fit.answer import FitPoint

_SAME = 1e-12


@dataclass(frozen=True)
class Limit:
    """One of the two.

    Attributes:
        bytes: Of the peak: the shortest step is looked for; ``None``: the other question.
        us: Of the step: the lowest peak is looked for; ``None``: the other question.
    """

    bytes: int | None
    us: float | None

    def key(self, found: FitPoint) -> tuple[bool, float, float]:
        """The lower, the better: within the limit first; where nothing is, what is nearest to it."""
        if self.bytes is not None:
            over = found.peak_bytes > self.bytes
            return (over, found.peak_bytes, found.step_us) if over else (over, found.step_us, found.peak_bytes)
        over = self.us is not None and found.step_us > self.us * (1 + _SAME)
        return (over, found.step_us, found.peak_bytes) if over else (over, found.peak_bytes, found.step_us)

    def best(self, points: Sequence[FitPoint]) -> FitPoint:
        """Return the point that answers the question best."""
        return min(points, key=self.key)
