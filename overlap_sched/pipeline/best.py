"""The shortest schedule of a job that is found within its memory limits, its stages laid out and cut in several ways.

Per layout: cuts as equal as may be and as written, with what has to be recomputed for so many micro-batches in flight
(:mod:`~overlap_sched.pipeline.cuts`). Per cut: the named schedules that it may have, and repeated
blocks (:mod:`~overlap_sched.pipeline.blocks`). Of the cuts whose schedules are shortest, some schedules are improved;
small jobs are solved exactly, where OR-tools is installed.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from typing import NamedTuple

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import PipelineSchedule
from overlap_sched.pipeline.blocks import BLOCKS, WAYS, block_orders, time_in_slots
from overlap_sched.pipeline.compare import FEW, PlannedPipeline, measure_schedule, stages_per_rank
from overlap_sched.pipeline.cuts import UnitCut, best_cut, unit_cuts
from overlap_sched.pipeline.exact import exact_pipeline, solvable
from overlap_sched.pipeline.greedy import greedy_schedule
from overlap_sched.pipeline.improve import SAME, improve_schedule
from overlap_sched.pipeline.job import PipelineJob, recompute_stages
from overlap_sched.pipeline.judge import limited_bound_us, violation
from overlap_sched.pipeline.layout import FOLDED, MIRRORED, TWO_WAVES, StageLayout
from overlap_sched.pipeline.named import NAMED, interleaved_in, lay_out_named
from overlap_sched.pipeline.replay import PipelineClock, excess_bytes, least_part

FOUND = "found"
"""How the schedule is called."""
IMPROVED, IMPROVED_CUTS = 3, 3
"""So many of a cut's schedules are improved, and of so many cuts, the shortest first."""
TIMED_ACTIONS, MOST_TRIALS = 4_000_000, 3_000
"""Schedules that are timed while some are improved: so many actions in all of them, per unit of effort, and so many."""
WORTH = 1.05
"""What is longer than the best that is known by more is not looked at for memory."""
TIGHTENED = 3
"""So many times a block has another go with less room, where what it made did not fit."""
EXACT_ACTIONS, MOST_EXACT_ACTIONS = 192, 800
"""Jobs of so many forwards, input and weight gradients per unit of effort are solved exactly, and so many at most."""
EXACT_WORK = 3.0
"""OR-tools' deterministic time for a cut, per unit of effort (about seconds)."""
OF_A_BOUND = 1e-3
"""Times are rounded to ticks where a job is solved exactly: a step within this part of a bound is the optimum."""


@dataclass(frozen=True)
class FoundPipeline:
    """The best that was found.

    Attributes:
        plan: It, named :data:`FOUND`; its ``bound_us`` is of its layout, cut and limits.
        bound_us: No schedule of any of the layouts and cuts that were tried is shorter, within the limits.
        any_cut_us: No schedule of any cut at all is shorter, in these layouts.
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


class ScheduleSearch:
    """Schedules of one job.

    Attributes:
        clock: Of the job.
        made: Those that fit, the shortest first.
        best_us: The shortest that is known, of other cuts, too.
    """

    def __init__(self, job: PipelineJob, post_validation: bool = False) -> None:
        self.clock, self.made, self.best_us = PipelineClock(job, post_validation), list[MadeSchedule](), inf
        self._seen = set[object]()

    def add(self, schedule: PipelineSchedule, made_from: str, below_us: float = inf) -> None:
        """Keep a schedule if it is valid, fits, and is shorter than ``below_us``."""
        job = self.clock.job
        if violation(job, schedule) is None:
            replay = self.clock.replay(schedule)
            if replay.step_us < below_us and not any(excess_bytes(job, replay)):
                self.best_us = min(self.best_us, replay.step_us)
                made = MadeSchedule(replay.step_us, schedule, made_from)
                insort(self.made, made, key=lambda one: one.step_us)

    def try_blocks(self) -> None:
        """Add schedules of several blocks, placed by the times of the stages and as if all passes were equally long."""
        placed, seen = self.clock.job, set[object]()
        pairs = (False, True) if least_part(placed) < 1.0 else (False,)
        for job, shape in product((time_in_slots(placed), placed), BLOCKS):
            orders = tuple(map(tuple, block_orders(job, shape)))
            if (job is placed, orders) not in seen:
                seen.add((job is placed, orders))
                for (reserve, steady), paired in product(WAYS, pairs):
                    self._try(partial(greedy_schedule, job, orders, reserve=reserve, steady=steady, pairs=paired))

    def _try(self, make: Callable[[Sequence[int]], PipelineSchedule | None]) -> None:
        """Add what is made with so much left free that it fits."""
        job, clock = self.clock.job, self.clock
        spare = [0] * job.ranks
        for _ in range(TIGHTENED + 1):
            found = make(spare)
            if found is None or found.orders in self._seen:
                return
            self._seen.add(found.orders)
            schedule = job.with_updates(found)
            if clock.step_us(clock.orders_of(schedule)) > self.best_us * WORTH:
                return
            excess = excess_bytes(job, clock.replay(schedule))
            if not any(excess):
                self.add(schedule, "repeated blocks")
                return
            spare = [one + more for one, more in zip(spare, excess, strict=True)]


@dataclass
class _Trial:
    """A job laid out and cut in one way, with its schedules; ``units``: before it is."""

    layout: StageLayout
    how: UnitCut
    units: PipelineJob
    search: ScheduleSearch
    bound_us: float

    @property
    def step_us(self) -> float:
        return self.search.made[0].step_us if self.search.made else inf


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
    trials, any_cut_us = _trials(job, post_validation)
    best_us = inf
    for at, trial in enumerate(trials, 1):
        if trial.bound_us < best_us * (1 - SAME):  # else it can be no better
            tell(f"searching {trial.layout}: {at} of {len(trials)}")
            trial.search.best_us = best_us
            _add_named(trial)
            trial.search.try_blocks()
            best_us = min(best_us, trial.step_us)
    for trial in sorted(trials, key=lambda one: one.step_us)[:IMPROVED_CUTS]:
        if trial.search.made and trial.bound_us < best_us * (1 - SAME):
            tell(f"improving {trial.layout}")
            _improve(trial, effort)
            best_us = min(best_us, trial.step_us)
    most = min(EXACT_ACTIONS * effort, MOST_EXACT_ACTIONS)
    for trial in trials:
        if trial.bound_us < best_us * (1 - SAME) and not post_validation and solvable(trial.search.clock.job, most):
            tell(f"solving {trial.layout} exactly")
            _solve(trial, best_us, EXACT_WORK * effort)
            best_us = min(best_us, trial.step_us)
    if best_us == inf:
        return None
    best = min(trials, key=lambda one: one.step_us)
    made, bound_us = best.search.made[0], min(trial.bound_us for trial in trials)
    schedule = replace(made.schedule, name=FOUND)
    placed = best.search.clock.job
    low_us = limited_bound_us(placed) if post_validation else best.bound_us
    plan = measure_schedule(placed, schedule, low_us, best.how.cut, best.how.recomputed)
    return FoundPipeline(plan, bound_us, min(any_cut_us, bound_us), str(best.layout), made.made_from, made.step_us)


def _trials(job: PipelineJob, post_validation: bool) -> tuple[list[_Trial], float]:
    """List what is tried, that with the lowest bound first, without that whose parameters alone do not fit.

    And a step that no cut is below.
    """
    found: list[_Trial] = []
    low_us = inf
    few = sorted({1, *stages_per_rank(job), *range(2, min(FEW, len(job.stages) // job.ranks) + 1)})
    for layout in (*(StageLayout("looped", v) for v in few), FOLDED, TWO_WAVES, MIRRORED):
        if layout.count(job.ranks) > len(job.stages):
            continue
        cuts, least_us = unit_cuts(job, layout)
        low_us = min(low_us, least_us)
        size, left = divmod(len(job.stages), layout.count(job.ranks))
        ways = [*cuts, *([] if left else [UnitCut((size,) * layout.count(job.ranks), ())])]
        if job.memory_limit_bytes is not None and any(stage.recomputed for stage in job.stages):
            again = tuple(unit for unit in range(len(job.stages)) if job.stages[unit].recomputed is not None)
            ways += [UnitCut(cut, again) for cut in [best_cut(recompute_stages(job, again), layout)] if cut is not None]
        for how in dict.fromkeys(ways):
            units = recompute_stages(job, how.recomputed)
            try:
                placed = layout.put(units, how.cut)
            except PipelineError:  # one micro-batch in two directions
                continue
            limits = placed.memory_limit_bytes or (inf,) * job.ranks
            if all(static <= limit for static, limit in zip(placed.static_bytes, limits, strict=True)):
                bound_us = limited_bound_us(placed, post_validation)
                found.append(_Trial(layout, how, units, ScheduleSearch(placed, post_validation), bound_us))
    if post_validation:  # no rank waits for others, so the longest takes as long as ranks do on average, or longer
        whole_us = job.micro_batches * sum(stage.forward.time_us + stage.whole_us for stage in job.stages)
        low_us = least_part(job) * whole_us / job.ranks
    return sorted(found, key=lambda trial: trial.bound_us), low_us


def _add_named(trial: _Trial) -> None:
    chunks = trial.layout.chunks
    for of in (*(interleaved_in(chunks, zero) for zero in (False, True) if chunks > 1), *NAMED):
        if of.layout == trial.layout:
            with suppress(PipelineError):  # no halves, or an odd number of ranks
                trial.search.add(lay_out_named(trial.units, of, trial.how.cut)[1], of.name)


def _improve(trial: _Trial, effort: int) -> None:
    search = trial.search
    actions = sum(map(len, search.made[0].schedule.orders))
    count = effort * min(TIMED_ACTIONS // actions, MOST_TRIALS) // IMPROVED
    unlike = {round(one.step_us, 3): one for one in reversed(search.made)}  # one of each step
    for _, one in sorted(unlike.items())[:IMPROVED]:
        schedule = improve_schedule(search.clock, one.schedule, trial.bound_us, count)
        search.add(schedule, f"{one.made_from}, improved", one.step_us * (1 - SAME))


def _solve(trial: _Trial, best_us: float, work: float) -> None:
    """Add the optimum of a small job, or what is found on the way, and sharpen its bound; ``best_us``: of all."""
    search = trial.search
    start = search.made[0].schedule if search.made and trial.step_us <= best_us else None
    schedule, bound_us = exact_pipeline(search.clock.job, start, best_us, work, trial.bound_us)
    if start is None or bound_us <= best_us:  # else its rounding is at fault: there is a schedule
        trial.bound_us = max(trial.bound_us, min(bound_us, best_us))
    if schedule is not None:
        search.add(search.clock.job.with_updates(schedule), "solved", trial.step_us * (1 - SAME))
