"""Look for the cut that answers a question. Torch's own is the first, and stays where nothing better is found.

::

    over the limit      run more again: choices along torch's order, cut, judged; aimed lower while it does not fit
    within the limit    gathers that were to run again are kept, those of the last layers first, while it fits

How much is tried is counted, never timed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import fx

from overlap_sched.joint.choose import chosen
from overlap_sched.joint.cut import Cut, Judge, Marks, Partitioner, Whole, cut, whole
from overlap_sched.joint.gathers import gathers_again
from overlap_sched.joint.question import Question

AIMS = 6
"""How often choices are made anew, lower, where what they make is above the limit after all."""
HALVINGS = 5
"""Of the range of limits, for the question of steps."""
HIGH = (0.5, 0.0)
"""See :class:`overlap_sched.fit.greedy.Greedy`. Which is better shows afterwards."""
LEAST = 100
"""What is aimed lower by, at least: this part of the limit."""
LARGE = 4_000
"""Of larger graphs one of them is tried."""
SHORTER = 1e-3
"""What is shorter by less than this part is not shorter: torch's own cut stays."""


@dataclass(frozen=True)
class Found:
    """The answer.

    Attributes:
        best: The cut to use. before: torch's own.
        limit_bytes, limit_us: As asked for; ``None``: the question was the other one.
        lowest_bytes: The lowest peak of all cuts that were tried.
        tried: How many.
    """

    best: Cut
    before: Cut
    limit_bytes: int | None
    limit_us: float | None
    lowest_bytes: int
    tried: int

    @property
    def fits(self) -> bool:
        """Whether the best cut keeps to the limit."""
        return self.limit_bytes is None or self.best.peak_bytes <= self.limit_bytes


def fit_joint(joint: fx.GraphModule, partitioner: Partitioner, judge: Judge, question: Question) -> Found:
    """Cut a joint graph, which stays as it is, within a limit; where nothing fits, torch's own cut.

    Raises:
        Exception: Torch's own cut fails, or cannot be read.
    """
    search = _Search(joint, partitioner, judge)
    before = search.before
    limit = question.limit_bytes(before.peak_bytes)
    limit_us = None
    if limit is not None:
        if before.peak_bytes > limit:
            search.within(limit)
        else:
            search.keep(limit)
        best = search.shortest(limit) or before
    else:
        assert question.max_slowdown is not None
        limit_us = before.step_us * (1 + question.max_slowdown)
        best = search.lowest(limit_us)
    lowest = min(one.peak_bytes for one in search.cuts.values())
    return Found(best, before, limit, limit_us, lowest, len(search.cuts))


@dataclass
class _Search:
    """Cuts that have been made, by their marks."""

    joint: fx.GraphModule
    partitioner: Partitioner
    judge: Judge
    cuts: dict[Marks, Cut] = field(default_factory=dict)
    refused: set[Marks] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before = cut(self.joint, self.partitioner, Marks(), self.judge)
        self.cuts[Marks()] = self.before
        self._whole: Whole | None = None

    @property
    def whole(self) -> Whole:
        """Both halves of torch's own cut."""
        self._whole = self._whole or whole(self.before, self.judge)
        return self._whole

    def cut(self, marks: Marks) -> Cut | None:
        """A cut; ``None``: torch's partitioner finds none."""
        if marks not in self.cuts and marks not in self.refused:
            try:
                self.cuts[marks] = cut(self.joint, self.partitioner, marks, self.judge)
            except Exception:  # as torch's: a graph of infinite capacity, assertions
                self.refused.add(marks)
        return self.cuts.get(marks)

    def within(self, limit: int) -> None:
        """Run more again."""
        ways = HIGH if len(self.whole.problem.nodes) <= LARGE else HIGH[:1]
        names = {node.name for node in self.joint.graph.nodes}
        for high in ways:
            aim = limit
            for _ in range(AIMS):
                again = chosen(self.whole, aim, high) & names
                found = self.cut(Marks(again))
                over = limit if found is None else found.peak_bytes - limit
                if over <= 0 or aim <= 0:
                    break
                aim -= max(over, limit // LEAST)

    def keep(self, limit: int) -> None:
        """Keep gathers: as many as fit, those of the last layers."""
        groups = gathers_again(self.joint)

        def fits(count: int) -> bool:
            found = self.cut(Marks(kept=frozenset().union(*groups[len(groups) - count :])))
            return found is not None and found.peak_bytes <= limit

        if groups and not fits(len(groups)):
            _most(fits, len(groups) - 1)

    def shortest(self, limit: int) -> Cut | None:
        """Of what fits; torch's own where nothing is shorter."""
        fitting = [one for one in self.cuts.values() if one.peak_bytes <= limit]
        best = min(fitting, key=lambda one: (one.step_us, one.peak_bytes), default=None)
        if best is not None and self.before in fitting and best.step_us > self.before.step_us * (1 - SHORTER):
            return self.before
        return best

    def lowest(self, limit_us: float) -> Cut:
        """The lowest peak within a step limit, by halving the range of memory limits."""
        low, enough = 0, self.before.peak_bytes
        for _ in range(HALVINGS):
            middle = (low + enough) // 2
            self.within(middle)
            reached = min(one.peak_bytes for one in self.cuts.values() if one.step_us <= limit_us)
            if reached > middle:
                low = middle
            enough = reached
            if low >= enough:
                break
        fitting = [one for one in self.cuts.values() if one.step_us <= limit_us]
        return min(fitting, key=lambda one: (one.peak_bytes, one.step_us))


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest count of at most ``most`` that fits, where fewer fit if more do; 0 does."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least
