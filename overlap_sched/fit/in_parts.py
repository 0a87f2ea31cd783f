"""Plans that begin with a fission: those that may answer are measured as they are, few are searched any further.

Where nothing communicates, what runs in parts is the shortest that a plan which begins so can be: recomputation and
copies only add to it. And it takes what its nodes take, one after the other, so that is known before any is made. So a
fission is left out that is slower than what is found, or too slow already::

    step asked for, or found      |
    without a fission    ---------+            +0.2 %
    2 parts              -----------           +0.3 %    not made: it cannot be the answer
    4 parts              ---------------       +0.9 %
"""

from collections.abc import Mapping, Sequence

from overlap_sched.errors import RewriteError
from overlap_sched.fit.answer import Effect, FitPoint
from overlap_sched.fit.planner import FOUND, FitContext, Planner, begun_with
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.part_times import fissioned_us
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.search import Limit

SEARCHED = (0, 1, 2)
"""By effort: behind how many fissions other rewrites are searched for."""
ROUNDING = 1e-9
"""Of sums of the same times in another order."""


class Ways:
    """Fissions that a plan may begin with, and what those that have been made make of the step.

    Attributes:
        found: Per fission that has been made, its plan.
        left: Fissions that have not: slower than what is found, as far as that is known.
        bound: Whether no plan that begins with one is shorter than it.
    """

    def __init__(self, asked: FitContext, fissions: Sequence[Fission], limit: Limit) -> None:
        """None is made yet."""
        self.limit, self._most = limit, SEARCHED[asked.effort]
        self.bound = not asked.problem.collectives
        self.found: list[FitPoint] = []
        self._left = _fastest_first(asked, fissions) if self.bound else [(0.0, one) for one in fissions]

    @property
    def left(self) -> tuple[Fission, ...]:
        """See the class."""
        return tuple(one for _, one in self._left)

    def make(self, planner: Planner, all_: bool = False) -> None:
        """Make those that may answer, or all, the fastest first; the planner keeps what is on its frontier."""
        left, self._left = self._left, []
        for step_us, one in left:
            if not all_ and step_us * (1 - ROUNDING) > _longest_us(planner.points, self.limit):
                self._left.append((step_us, one))
                continue
            try:
                plan = begun_with(planner.asked, (one,))
            except RewriteError:
                continue
            planner.tried += 1
            self.found.append(planner.keep(plan))
            if self.limit.bytes is not None and plan.peak_bytes <= self.limit.bytes:
                planner.tell(FOUND)

    def promising(self, points: Sequence[FitPoint]) -> list[FitPoint]:
        """Behind which of them to search, the most promising first.

        Within a memory limit: the fastest of those that do not yet keep it, or all where there is communication to
        hide. Within a step limit: those with the lowest peaks.
        """
        best = self.limit.best(points)
        kept = [plan for plan in self.found if not self.bound or self._may_win(plan, best)]
        if self.limit.bytes is not None:
            kept.sort(key=lambda plan: (plan.step_us, plan.peak_bytes))
        else:
            kept.sort(key=lambda plan: (plan.peak_bytes, plan.step_us))
        return kept[: self._most]

    def _may_win(self, plan: FitPoint, best: FitPoint) -> bool:
        limit = self.limit
        if limit.us is not None:
            return plan.step_us <= limit.us
        assert limit.bytes is not None
        if plan.peak_bytes <= limit.bytes:  # it is a plan as it is
            return False
        return best.peak_bytes > limit.bytes or plan.step_us < best.step_us * (1 - SAME_STEP)


def _fastest_first(asked: FitContext, fissions: Sequence[Fission]) -> list[tuple[float, Fission]]:
    timed = []
    for one in fissions:
        try:
            timed.append((fissioned_us(asked.problem, one, asked.prices), one))
        except RewriteError:
            continue
    return sorted(timed, key=lambda pair: pair[0])


def _longest_us(points: Sequence[FitPoint], limit: Limit) -> float:
    """Return the longest step that can still be an answer."""
    if limit.us is not None:
        return limit.us
    best = limit.best(points)
    assert limit.bytes is not None
    return best.step_us if best.peak_bytes <= limit.bytes else float("inf")


def effects(
    asked: FitContext, original: FitPoint, best: FitPoint, known: Mapping[tuple[Rewrite, ...], FitPoint]
) -> tuple[Effect, ...]:
    """Return what the fissions do that a plan begins with, one after the other.

    Args:
        asked: What was asked for.
        original: The graph as it was.
        best: The plan.
        known: Plans that are one fission alone, by their rewrites.
    """
    found: list[Effect] = []
    before = original
    for k, one in enumerate(best.rewrites):
        if not isinstance(one, Fission):
            break
        rewrites = best.rewrites[: k + 1]
        after = known[rewrites] if rewrites in known else begun_with(asked, rewrites)
        more_us = sum(after.problem.compute_us) - sum(before.problem.compute_us)
        found.append(Effect(one, before.peak_bytes - after.peak_bytes, more_us))
        before = after
    return tuple(found)
