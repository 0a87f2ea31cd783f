"""Plans within a limit: values chosen along an order, the problem rewritten, ordered by the scheduler, judged.

::

    orders to start from     the original; the best found without rewrites; the one with the lowest peak
      -> choices             what need not be kept, by several weights          greedy
      -> rewrites            recompute and offload, as values                   emit, transform.apply
      -> runs                a few policies of the list scheduler               scheduler
      -> phases              all that the scheduler does, on the best           scheduler.pipeline
      -> judged              valid, peak, step                                  judge

The original graph in its best order is a plan, too. What is tried is counted, nothing timed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from overlap_sched.errors import ProblemError, RewriteError, VerificationError
from overlap_sched.fit.answer import FitPoint
from overlap_sched.fit.emit import rewrites_of
from overlap_sched.fit.greedy import Greedy
from overlap_sched.fit.link_time import LinkTime
from overlap_sched.fit.state import LiveState
from overlap_sched.judge.validate import measure, violation
from overlap_sched.options import Options
from overlap_sched.peak_memory.best import best_order
from overlap_sched.problem import Order, Problem
from overlap_sched.scheduler.driver import phases, schedule
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.task import Candidate, Reference, Task
from overlap_sched.transform.apply import apply, host_bytes
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.search import POLICIES, undominated

AIMS = (1.0, 0.97, 0.92)
"""Parts of the limit that choices aim at: what is left is room for the scheduler to hide what is in flight."""
WEIGHTS = (0.05, 0.5)
"""What a hidden microsecond of a copy to the host counts as, beside one of compute."""
LARGE = 4_000
"""Graphs of more nodes are not searched for the lowest peak, only ordered by the simple ways, and only where needed;
and fewer plans are made of them."""
HIGH = (0.0, 0.5)
"""What counts little: see :class:`overlap_sched.fit.greedy.Greedy`. Which is better shows afterwards."""
FOUND = "a plan keeps the limit"
"""What is told of each."""
OVERSHOOT = 3
"""How often choices are made anew, lower, where what they make is above the limit after all."""


@dataclass(frozen=True)
class FitContext:
    """What every plan shares.

    Attributes:
        problem: As it was. prices: of new nodes. options: of the scheduler.
        kinds: What may be done: ``"recompute"``, ``"offload"``.
        rerun: Names of nodes that may run again; ``None``: by operator.
        host_limit_bytes: Pinned host memory at most; ``None``: no limit.
        effort: How much is tried.
    """

    problem: Problem
    prices: Prices
    options: Options
    kinds: tuple[str, ...]
    rerun: frozenset[str] | None
    host_limit_bytes: int | None
    effort: int


class _Ran(NamedTuple):
    """A plan: rewrites, the problem that they make, and the best of a few runs of it."""

    rewrites: tuple[Rewrite, ...]
    problem: Problem
    run: Candidate


class Planner:
    """Plans for one problem, and the frontier of all that were found.

    Attributes:
        original, without: See :class:`overlap_sched.fit.answer.Fit`.
        points: The frontier: by ascending peak and descending step.
        tried: How many plans were made.

    Where nothing communicates, what runs in parts stays in the order in which it is emitted.
    """

    def __init__(
        self,
        asked: FitContext,
        begin: FitPoint | None = None,
        tell: Callable[[str], None] = lambda text: None,
        known: "Planner | None" = None,
    ):
        """Measure the graph as it is.

        Args:
            asked: What is asked for.
            begin: What every plan begins with, of :func:`begun_with`; ``None``: the graph as it is.
            tell: Hears what is being done.
            known: Another planner for the same, whose plans count, too.
        """
        begin = begun_with(asked, ()) if begin is None else begin
        self.asked, self.before, self.tell = asked, begin.rewrites, tell
        self.problem = begin.problem
        self.rerun = None if asked.rerun is None else _with_parts(asked.rerun, self.before)
        self.options = replace(asked.options, rewrites=(), memory_limit=None, memory_model=asked.problem.memory_model)
        self.points: list[FitPoint] = [] if known is None else known.points
        self.tried = 0
        self.original = self.keep(begin)
        parts = any(isinstance(one, Fission) for one in self.before)
        self._laid_out = parts and not self.problem.collectives
        if not self._laid_out:
            self.without = self.keep(point(self.before, self.problem, schedule(self.problem, self.options).order))
        else:
            self.without = self.original

    @cached_property
    def lowest(self) -> Order:
        """The order with the lowest peak that is found."""
        self.tell("looking for the order with the lowest peak")
        effort = min(self.asked.effort, 1) if len(self.problem.nodes) <= LARGE else 0
        order = best_order(self.problem, effort=effort).order
        self.keep(point(self.before, self.problem, order))
        return order

    def within(self, limit_bytes: int) -> FitPoint | None:
        """The shortest step known within a limit."""
        fitting = [found for found in self.points if found.peak_bytes <= limit_bytes]
        return min(fitting, key=lambda found: (found.step_us, found.peak_bytes), default=None)

    def at(
        self, limit_bytes: int, enough_us: float = 0.0, otherwise: Callable[[], None] = lambda: None
    ) -> FitPoint | None:
        """Look for plans within a limit; the shortest known then. The graph as it is comes first, within the limit.

        Args:
            limit_bytes: It.
            enough_us: Where a plan is as short as this, no other one is looked for.
            otherwise: Done where the original order gives no plan, before other orders are tried.
        """
        self._unrewritten(limit_bytes)
        best: _Ran | None = None
        for ran in self._plans(limit_bytes, otherwise):
            self.tell(FOUND)
            if best is None or ran.run.step_us < best.run.step_us:
                best = ran
            if best.run.step_us <= enough_us:
                break
        if best is not None:
            self._phased(best.rewrites, best.problem, limit_bytes)
        return self.within(limit_bytes)

    def _phased(self, rewrites: tuple[Rewrite, ...], problem: Problem, limit_bytes: int) -> None:
        """A plan as all that the scheduler does leaves it."""
        task = Task(problem, replace(self.options, headroom=0, base="original"), limit_bytes)
        start = problem.original_order
        self.keep(point(rewrites, problem, phases(task, start, task.measured(start)).order))

    def _plans(self, limit_bytes: int, otherwise: Callable[[], None]) -> Iterator["_Ran"]:
        """Plans within the limit, from each start by each recipe; of large graphs from one start alone."""
        some = False
        for order in self._starts():
            problem = relabelled(self.problem, order)
            for greedy in self._recipes(problem, limit_bytes):
                for aim in self._aims():
                    found = self._chosen(greedy, limit_bytes, int(limit_bytes * aim))
                    if found is None:  # what cannot be brought to the limit cannot be brought below it
                        break
                    rewrites, rewritten = (*self.before, *found[0]), found[1]
                    run, some = self._ran(rewritten, limit_bytes), True
                    self.tried += 1
                    self.keep(point(rewrites, rewritten, run.order))
                    yield _Ran(rewrites, rewritten, run)
            if not some:
                otherwise()
            elif len(self.problem.nodes) > LARGE:
                break

    def _unrewritten(self, limit_bytes: int) -> None:
        """The graph as it is, in an order within the limit, where there is one."""
        if self.within(limit_bytes) is not None or limit_bytes >= self.without.peak_bytes:
            return
        if self._laid_out or (len(self.problem.nodes) > LARGE and self.asked.kinds):
            return
        if point(self.before, self.problem, self.lowest).peak_bytes <= limit_bytes:
            self._phased(self.before, relabelled(self.problem, self.lowest), limit_bytes)

    def _starts(self) -> Iterator[Order]:
        """Orders to choose along: the original, the one with the lowest peak where that is another."""
        yield self.problem.original_order
        if not self._laid_out and self.lowest != self.problem.original_order:
            yield self.lowest

    def _aims(self) -> tuple[float, ...]:
        """Parts of the limit to aim at, one after the other: what has been chosen for one stays for the next."""
        some = self.problem.collectives or "offload" in self.asked.kinds
        return AIMS[: self.asked.effort + 1] if some else AIMS[:1]

    def _recipes(self, problem: Problem, limit_bytes: int) -> Iterator[Greedy]:
        """Ways to choose: by what a copy's time counts as, and by what is high."""
        asked, large = self.asked, len(self.problem.nodes) > LARGE
        both = set(asked.kinds) >= {"recompute", "offload"} and not large
        for weight in WEIGHTS if both else WEIGHTS[:1]:
            for high in HIGH[:1] if large else HIGH:
                link = LinkTime(asked.prices.host, 0.0) if "offload" in asked.kinds else None
                state = LiveState(problem, limit_bytes, self.rerun)
                yield Greedy(state, link, asked.host_limit_bytes, asked.kinds, weight, high)

    def _chosen(self, greedy: Greedy, limit_bytes: int, aim_bytes: int) -> tuple[tuple[Rewrite, ...], Problem] | None:
        """Rewrites that bring an order within the limit, and the problem that they make; ``None``: none do."""
        state = greedy.state
        for _ in range(OVERSHOOT):
            greedy.lowered(min(aim_bytes, state.limit_bytes))
            rewrites = tuple(rewrites_of(state))
            try:
                rewritten = apply(state.problem, rewrites, self.asked.prices)
            except RewriteError:
                return None
            peak = max(measure(rewritten, rewritten.original_order).profile)
            if peak <= limit_bytes:
                return rewrites, rewritten
            self.keep(point((*self.before, *rewrites), rewritten, rewritten.original_order))
            if not rewrites or int(state.profile.max()) > limit_bytes:
                return None
            aim_bytes = state.limit_bytes - (peak - limit_bytes)
        return None

    def _ran(self, problem: Problem, limit_bytes: int) -> Candidate:
        """The best of a few runs within the limit."""
        task = Task(problem, self.options, limit_bytes)
        best = task.measured(problem.original_order)
        if not problem.collectives:
            return best
        reference = Reference(problem, problem.original_order, task.live_ranges)
        for policy in POLICIES:
            run = list_schedule(reference, np.array(limit_bytes, dtype=np.int64), policy, (), best.step_us)
            if run.made is not None and run.made.peak_bytes <= limit_bytes and run.made.beats(best):
                best = run.made
        return best

    def keep(self, new: FitPoint) -> FitPoint:
        """Put a plan on the frontier, where it belongs there."""
        limit = self.asked.host_limit_bytes
        if limit is not None and new.host_bytes > limit:
            return new
        self.points = undominated([*self.points, new])
        return new


def begun_with(asked: FitContext, rewrites: Sequence[Rewrite]) -> FitPoint:
    """Rewrites alone, in the order in which they leave the graph.

    Raises:
        RewriteError: They cannot be done.
    """
    problem = apply(asked.problem, rewrites, asked.prices) if rewrites else asked.problem
    return point(tuple(rewrites), problem, problem.original_order)


def _with_parts(rerun: frozenset[str], before: Sequence[Rewrite]) -> frozenset[str]:
    """Parts of what may run again may, too."""
    for one in before:
        if isinstance(one, Fission):
            rerun |= {one.part(name, p) for name in one.nodes if name in rerun for p in range(one.parts)}
    return rerun


def point(rewrites: tuple[Rewrite, ...], problem: Problem, order: Order) -> FitPoint:
    """A plan as the judges see it.

    Raises:
        VerificationError: Its order is not valid: a bug.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise VerificationError(f"a plan for {problem.name!r} is not valid: {broken}. This is a bug: please report it.")
    measured = measure(problem, order)
    line, host = measured.timeline, host_bytes(problem, order)
    return FitPoint(rewrites, problem, tuple(order), line.step_us, line.exposed_us, max(measured.profile), host)


def relabelled(problem: Problem, order: Sequence[int]) -> Problem:
    """Return the problem with node ``order[k]`` as its k-th: the scheduler takes that order for the original one.

    Raises:
        ProblemError: The order cannot run.
    """
    broken = violation(problem, order)
    if broken is not None:
        raise ProblemError(f"{problem.name!r} cannot be listed in this order: {broken}.")
    place = {v: at for at, v in enumerate(order)}
    nodes = (problem.nodes[v] for v in order)
    return replace(
        problem,
        nodes=tuple(
            node._replace(
                deps=tuple(sorted(place[u] for u in node.deps)),
                collective=None if node.collective is None else place[node.collective],
            )
            for node in nodes
        ),
    )
