"""The shortest schedule of a job that is found within its memory limits, its stages laid out and cut in several ways.

Per layout: cuts as equal as may be and as written, with what has to be recomputed for so many micro-batches in flight
(:mod:`~overlap_sched.pipeline.cuts`). Per cut: the named schedules that it may have, repeated blocks
(:mod:`~overlap_sched.pipeline.blocks`), and ranks that run ahead by more and less
(:mod:`~overlap_sched.pipeline.greedy`). Of the cuts whose schedules are shortest, some schedules are improved; small
jobs are solved exactly, where OR-tools is installed.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from typing import NamedTuple

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import PipelineSchedule
from overlap_sched.pipeline.blocks import BLOCKS, block_orders, time_in_slots
from overlap_sched.pipeline.compare import FEW, PlannedPipeline, measure_schedule, stages_per_rank
from overlap_sched.pipeline.cuts import UnitCut, best_cut, least_step_us, unit_cuts
from overlap_sched.pipeline.exact import exact_pipeline, solvable
from overlap_sched.pipeline.greedy import Lead, Wanted, greedy_schedule
from overlap_sched.pipeline.improve import SAME, improve_schedule
from overlap_sched.pipeline.job import PipelineJob, recompute_stages
from overlap_sched.pipeline.judge import limited_bound_us, violation
from overlap_sched.pipeline.layout import FOLDED, MIRRORED, TWO_WAVES, StageLayout
from overlap_sched.pipeline.named import NAMED, interleaved_in, lay_out_named
from overlap_sched.pipeline.replay import PipelineClock, excess_bytes, least_part

FOUND = "found"
"""How the schedule is called."""
OF_A_BOUND = 1e-3
"""Times are rounded to ticks where a job is solved exactly: a step within this part of a bound is the optimum."""


@dataclass(frozen=True)
class Tuning:
    """Counts, per unit of effort where it says so."""

    improved: int = 3
    """So many cuts, and schedules of each, are improved, the shortest first: the price of each is a walk."""
    timed_actions: int = 1_300_000
    """Actions in all schedules that are timed while one is improved, per unit of effort: the price of a walk."""
    most_trials: int = 2_000
    """Schedules that are timed then at most, per unit of effort: the price of a walk of a small job."""
    solved_actions: int = 192
    """Forwards, input and weight gradients of jobs that are solved exactly, per unit of effort: the price of proofs."""
    solver_work: float = 3.0
    """OR-tools' deterministic time for a cut, per unit of effort (about seconds): the price of proofs."""


TUNING = Tuning()


@dataclass(frozen=True)
class FoundPipeline:
    """The best that was found.

    Attributes:
        plan: It, named :data:`FOUND`; its ``bound_us`` is of its layout, cut and limits.
        bound_us: No schedule of any of the layouts and cuts that were tried is shorter, within the limits.
        any_cut_us: None at all is shorter, with any cut.
        aim_us: Its step, or with post-validation the time of its longest rank.
        layout: How its stages are laid out, for people.
        made_from: What it was made from: ``"zbv, improved"``.
    """

    plan: PlannedPipeline
    bound_us: float
    any_cut_us: float
    layout: str
    made_from: str
    aim_us: float

    @property
    def proved(self) -> bool:
        """Tell whether none that was tried can be shorter, by more than a thousandth."""
        return self.aim_us <= self.bound_us * (1 + OF_A_BOUND)


class MadeSchedule(NamedTuple):
    """A schedule of a layout that fits; ``made_from``: for people."""

    step_us: float
    schedule: PipelineSchedule
    made_from: str


@dataclass
class LayoutSearch:
    """Schedules of a job that is laid out and cut in one way.

    Attributes:
        units: The job before it is.
        clock: Of the job.
        bound_us: None is shorter, within the limits.
        made: Those that fit, the shortest first; none is as long as another one.
    """

    layout: StageLayout
    how: UnitCut
    units: PipelineJob
    clock: PipelineClock
    bound_us: float = 0.0
    made: list[MadeSchedule] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._seen = set[object]()
        self._pairs = (False, True) if least_part(self.clock.job) < 1.0 else (False,)

    @property
    def step_us(self) -> float:
        """The step of the shortest; infinite: none was made."""
        return self.made[0].step_us if self.made else inf

    def _add(self, schedule: PipelineSchedule, made_from: str) -> Sequence[int]:
        """Keep a schedule that is valid, fits, and is useful; return by how many bytes each rank exceeds its limit."""
        job = self.clock.job
        if violation(job, schedule) is not None:
            return ()
        replay = self.clock.replay(schedule)
        excess = excess_bytes(job, replay)
        if not any(excess) and self._useful(replay.step_us):
            insort(self.made, MadeSchedule(replay.step_us, schedule, made_from), key=lambda one: one.step_us)
        return excess

    def _useful(self, step_us: float) -> bool:
        """Tell whether a schedule is among the few shortest, which may be improved, and none is as long."""
        steps = [one.step_us for one in self.made[: TUNING.improved]]
        as_long = any(abs(step_us - one_us) <= SAME * step_us for one_us in steps)
        return not as_long and (len(steps) < TUNING.improved or step_us < steps[-1])

    def add_named(self) -> None:
        """Add those that are laid out so."""
        chunks = self.layout.chunks
        for of in (*(interleaved_in(chunks, zero) for zero in (False, True) if chunks > 1), *NAMED):
            if of.layout == self.layout:
                with suppress(PipelineError):  # no halves, or an odd number of ranks
                    self._add(lay_out_named(self.units, of, self.how.cut)[1], of.name)

    def add_blocks(self, best_us: float = inf) -> None:
        """Add schedules of several blocks, placed by the times of the stages and as if all passes were equally long.

        ``best_us``: of all layouts; what is much longer is not looked at for memory.
        """
        placed = self.clock.job
        for job, shape in product((time_in_slots(placed), placed), BLOCKS):
            orders = block_orders(job, shape)
            for steady, pairs in product((True, False), self._pairs):
                self._run(job, orders, "repeated blocks", best_us, steady, pairs)

    def add_leads(self, best_us: float = inf) -> None:
        """Add schedules of ranks that run ahead by more and less; ``best_us``: as for blocks."""
        for forwards, weights, pairs in product((-1, 0, 1, 4), (0, 1, 2, 4, 64), self._pairs):
            made_from = f"{forwards} ahead, {weights} waiting"
            self._run(self.clock.job, Lead(forwards, weights), made_from, best_us, False, pairs)

    def _run(self, job: PipelineJob, wanted: Wanted, made_from: str, best_us: float, steady: bool, pairs: bool) -> None:
        """Add what the list scheduler makes of a job like this one, with less room where it does not fit."""
        clock = self.clock
        for _ in range(4):
            found = greedy_schedule(job, wanted, steady, pairs)
            if found is None or found.orders in self._seen:
                break
            self._seen.add(found.orders)
            schedule = clock.job.with_updates(found)
            step_us = clock.step_us(clock.orders_of(schedule))
            if step_us > 1.05 * min(best_us, self.step_us) or not self._useful(step_us):
                break
            excess = self._add(schedule, made_from)
            if not any(excess):
                break
            left = zip(job.memory_limit_bytes or (), excess, strict=True)
            job = replace(job, memory_limit_bytes=tuple(max(limit - more, 0) for limit, more in left))

    def improve(self, effort: int) -> None:
        """Add what the shortest become."""
        actions = sum(map(len, self.made[0].schedule.orders))
        count = effort * min(TUNING.timed_actions // actions, TUNING.most_trials)
        for one in self.made[: TUNING.improved]:
            schedule = improve_schedule(self.clock, one.schedule, self.bound_us, count)
            self._add(schedule, f"{one.made_from}, improved")

    def solve(self, best_us: float, work: float) -> None:
        """Add the optimum of a small job, or what is found on the way, and sharpen the bound; ``best_us``: of all."""
        start = self.made[0].schedule if self.step_us <= best_us < inf else None
        schedule, bound_us = exact_pipeline(self.clock.job, start, best_us, work, self.bound_us)
        if start is None or bound_us <= best_us:  # else its rounding is at fault: there is a schedule
            self.bound_us = max(self.bound_us, min(bound_us, best_us))
        if schedule is not None:
            self._add(self.clock.job.with_updates(schedule), "solved")


def find_pipeline(
    job: PipelineJob, effort: int, tell: Callable[[str], None] = lambda text: None, post_validation: bool = False
) -> FoundPipeline | None:
    """Find the shortest schedule of a job that fits each rank's limit; ``None``: none was found that fits.

    Args:
        job: As it was read: stages in order, one route.
        effort: More is tried with more; 1 is the least.
        tell: Hears what is being done.
        post_validation: The optimizer's steps are validated behind them, so that no rank waits for the others (Qi et
            al. 2023, arXiv 2401.10241, section 4): the time of the longest rank is made short, not the step.

    Raises:
        PipelineError: It has several routes already.
    """
    if len(job.routes) != 1:
        raise PipelineError(f"{job.name}: no schedule can be searched for: it has {len(job.routes)} routes. Give one.")
    trials, best_us = _trials(job, post_validation), inf

    def go_on(doing: str, some: Sequence[LayoutSearch], work: Callable[[LayoutSearch], None]) -> None:
        nonlocal best_us
        for trial in some:
            if trial.bound_us < best_us * (1 - SAME):  # else it can be no better
                tell(f"{doing}: {trial.layout}")
                work(trial)
                best_us = min(best_us, trial.step_us)

    go_on("named schedules", trials, LayoutSearch.add_named)
    go_on("repeated blocks", trials, lambda trial: trial.add_blocks(best_us))
    go_on("running ahead", trials, lambda trial: trial.add_leads(best_us))
    shortest = sorted((trial for trial in trials if trial.made), key=lambda trial: trial.step_us)
    go_on("improving", shortest[: TUNING.improved], lambda trial: trial.improve(effort))
    most = min(TUNING.solved_actions * effort, 800)
    small = [trial for trial in trials if not post_validation and solvable(trial.clock.job, most)]
    go_on("solving exactly", small, lambda trial: trial.solve(best_us, TUNING.solver_work * effort))
    if best_us == inf:
        return None
    best = min(trials, key=lambda one: one.step_us)
    made, placed, bound_us = best.made[0], best.clock.job, min(trial.bound_us for trial in trials)
    low_us = limited_bound_us(placed) if post_validation else best.bound_us
    plan = measure_schedule(placed, replace(made.schedule, name=FOUND), low_us, best.how.cut, best.how.recomputed)
    any_cut_us = min(least_step_us(job), bound_us)
    return FoundPipeline(plan, bound_us, any_cut_us, str(best.layout), made.made_from, made.step_us)


def _trials(job: PipelineJob, post_validation: bool) -> list[LayoutSearch]:
    """List what is tried, that with the lowest bound first."""
    found: list[LayoutSearch] = []
    few = sorted({1, *stages_per_rank(job), *range(2, min(FEW, len(job.stages) // job.ranks) + 1)})
    for layout in (*(StageLayout("looped", v) for v in few), FOLDED, TWO_WAVES, MIRRORED):
        if layout.count(job.ranks) > len(job.stages) or (layout is MIRRORED and job.micro_batches == 1):
            continue
        size, left = divmod(len(job.stages), layout.count(job.ranks))
        ways = [*unit_cuts(job, layout), *([] if left else [UnitCut((size,) * layout.count(job.ranks), ())])]
        if job.memory_limit_bytes is not None and any(stage.recomputed for stage in job.stages):
            again = tuple(unit for unit in range(len(job.stages)) if job.stages[unit].recomputed is not None)
            ways += [UnitCut(cut, again) for cut in [best_cut(recompute_stages(job, again), layout)] if cut is not None]
        for how in dict.fromkeys(ways):
            units = recompute_stages(job, how.recomputed)
            placed = layout.put(units, how.cut)
            bound_us = limited_bound_us(placed, post_validation)
            found.append(LayoutSearch(layout, how, units, PipelineClock(placed, post_validation), bound_us))
    return sorted(found, key=lambda trial: trial.bound_us)
