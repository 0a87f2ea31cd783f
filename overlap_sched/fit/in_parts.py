"""Plans that begin with a fission: all are measured as they are, few are searched any further.

Where nothing communicates, what runs in parts is the shortest that a plan which begins so can be: recomputation and
copies only add to it. So a fission is left out that is too slow already, or slower than what is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.errors import RewriteError
from overlap_sched.fit.answer import Effect, FitPoint
from overlap_sched.fit.limit import Limit
from overlap_sched.fit.planner import Asked, Planner, point
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.scheduler.candidate import SAME_STEP
from overlap_sched.transform.apply import apply
from overlap_sched.transform.fission import Fission

SEARCHED = (0, 1, 2)
"""By effort: behind how many fissions other rewrites are searched for."""


@dataclass(frozen=True)
class Begun:
    """Fissions and what they make of the step alone.

    Attributes:
        found: Per fission that can be done, its plan, in the order given.
        bound: Whether no plan that begins with one is shorter than it.
        most: So many are searched any further.
    """

    found: tuple[tuple[Fission, FitPoint], ...]
    bound: bool
    most: int

    def promising(self, points: Sequence[FitPoint], limit: Limit) -> list[Fission]:
        """Behind which of them to search, the most promising first.

        Within a memory limit: the fastest of those that do not yet keep it, or all where there is communication to
        hide. Within a step limit: those with the lowest peaks.
        """
        best = limit.best(points)
        kept = [(one, plan) for one, plan in self.found if not self.bound or self._may_win(plan, best, limit)]
        if limit.bytes is not None:
            kept.sort(key=lambda pair: (pair[1].step_us, pair[1].peak_bytes))
        else:
            kept.sort(key=lambda pair: (pair[1].peak_bytes, pair[1].step_us))
        return [one for one, _ in kept[: self.most]]

    def _may_win(self, plan: FitPoint, best: FitPoint, limit: Limit) -> bool:
        if limit.us is not None:
            return plan.step_us <= limit.us
        assert limit.bytes is not None
        if plan.peak_bytes <= limit.bytes:  # it is a plan as it is
            return False
        return best.peak_bytes > limit.bytes or plan.step_us < best.step_us * (1 - SAME_STEP)


def begun(planner: Planner, fissions: Sequence[Fission]) -> Begun:
    """Measure all; those that cannot be done are left out. The planner keeps what is on its frontier."""
    asked, found = planner.asked, []
    for one in fissions:
        try:
            problem = apply(asked.problem, [one], asked.prices)
        except RewriteError:
            continue
        planner.tried += 1
        found.append((one, planner.keep(point((one,), problem, problem.original_order))))
    return Begun(tuple(found), not asked.problem.collectives, SEARCHED[asked.effort])


def effects(asked: Asked, best: FitPoint) -> tuple[Effect, ...]:
    """What the fissions do that a plan begins with, one after the other."""
    found: list[Effect] = []
    before = asked.problem
    for k, one in enumerate(best.rewrites):
        if not isinstance(one, Fission):
            break
        after = apply(asked.problem, best.rewrites[: k + 1], asked.prices)
        peaks = [peak_memory(problem, problem.original_order)[0] for problem in (before, after)]
        found.append(Effect(one, peaks[0] - peaks[1], sum(after.compute_us) - sum(before.compute_us)))
        before = after
    return tuple(found)
