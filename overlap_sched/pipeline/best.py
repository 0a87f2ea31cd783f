"""The shortest schedule of a job that is found within its memory limits, its stages laid out and cut in several ways.

Per layout: cuts as equal as may be and as written, with what has to be recomputed for so many micro-batches in flight
(:mod:`~overlap_sched.pipeline.cuts`). Per cut: the named schedules that it may have, and those of a list scheduler by
several policies. Of the cuts whose schedules are shortest, some schedules are improved; small jobs are solved exactly,
where OR-tools is installed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from math import inf

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import COMPUTE
from overlap_sched.pipeline.compare import FEW, PlannedPipeline, plan_pipeline, stages_per_rank
from overlap_sched.pipeline.cuts import UnitCut, best_cut, unit_cuts
from overlap_sched.pipeline.exact import exact_pipeline, solvable
from overlap_sched.pipeline.greedy import MadeSchedule, PolicySearch
from overlap_sched.pipeline.improve import SAME, improve_schedule
from overlap_sched.pipeline.job import PipelineJob, recompute_stages
from overlap_sched.pipeline.judge import limited_bound_us, violation
from overlap_sched.pipeline.layout import StageLayout
from overlap_sched.pipeline.named import NAMED, interleaved_in
from overlap_sched.pipeline.replay import pipeline_peaks, replay_pipeline, transfers_us, with_updates, within_limits

FOUND = "found"
"""How the schedule is called."""
IMPROVED, IMPROVED_CUTS = 3, 3
"""So many of a cut's schedules are improved, and of so many cuts, the shortest first."""
TIMED_ACTIONS, MOST_TRIALS = 4_000_000, 3_000
"""Schedules that are timed while some are improved: so many actions in all of them, per unit of effort, and so many."""
POLICY_TAKES = 5
"""A schedule by policies takes as long as so many that are only timed."""
EXACT_ACTIONS = 192
"""Jobs of so many forwards, input and weight gradients at most are solved exactly."""
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
        layout: How its stages are laid out, for people.
        made_from: What it was made from: ``"zbv, improved"``.
    """

    plan: PlannedPipeline
    bound_us: float
    any_cut_us: float
    layout: str
    made_from: str

    @property
    def proved(self) -> bool:
        """Is none that was tried shorter, by more than a thousandth?"""
        return self.plan.replay.step_us <= self.bound_us * (1 + OF_A_BOUND)


@dataclass
class _Trial:
    """A job laid out and cut in one way, and its schedules that fit, the shortest first; ``units``: before it is."""

    layout: StageLayout
    how: UnitCut
    units: PipelineJob
    placed: PipelineJob
    bound_us: float
    made: list[MadeSchedule] = field(default_factory=list)

    @cached_property
    def policies(self) -> PolicySearch:
        return PolicySearch(self.placed, inf)

    @property
    def step_us(self) -> float:
        return self.made[0].step_us if self.made else inf

    def add(self, *more: MadeSchedule) -> None:
        self.made = sorted([*self.made, *more], key=lambda made: made.step_us)


def find_pipeline(
    job: PipelineJob, effort: int, tell: Callable[[str], None] = lambda text: None
) -> FoundPipeline | None:
    """Find the shortest schedule of a job that fits each rank's limit; ``None``: none was found that fits.

    Args:
        job: As it was read: stages in order, one route.
        effort: More is tried with more; 1 is the least.
        tell: Hears what is being done.

    Raises:
        PipelineError: It has several routes already.
    """
    if len(job.routes) != 1:
        raise PipelineError(f"{job.name}: no schedule can be searched for: it has {len(job.routes)} routes. Give one.")
    trials, any_cut_us = _trials(job)
    best_us = inf
    for at, trial in enumerate(trials, 1):
        if trial.bound_us < best_us * (1 - SAME):  # else it can be no better
            tell(f"searching {trial.layout}: {at} of {len(trials)}")
            trial.add(*_named(trial))
            trial.policies.best_us = min(best_us, trial.step_us)
            trial.policies.same_on_all()
            trial.add(*(made for made, _ in trial.policies.made))
            best_us = min(best_us, trial.step_us)
    for trial in sorted(trials, key=lambda one: one.step_us)[:IMPROVED_CUTS]:
        if trial.made and trial.bound_us < best_us * (1 - SAME):
            tell(f"improving {trial.layout}")
            _improve(trial, effort)
            best_us = min(best_us, trial.step_us)
    for trial in trials:
        if trial.bound_us < best_us * (1 - SAME):
            _solve(trial, best_us, effort, tell)
            best_us = min(best_us, trial.step_us)
    if best_us == inf:
        return None
    best = min(trials, key=lambda one: one.step_us)
    schedule = replace(best.made[0].schedule, name=FOUND)
    replay = replay_pipeline(best.placed, schedule)
    peaks, how = pipeline_peaks(best.placed, replay), best.how
    plan = PlannedPipeline(FOUND, best.placed, schedule, replay, peaks, best.bound_us, how.cut, how.recomputed)
    bound_us = min(trial.bound_us for trial in trials)
    return FoundPipeline(plan, bound_us, min(any_cut_us, bound_us), str(best.layout), best.made[0].made_from)


def _trials(job: PipelineJob) -> tuple[list[_Trial], float]:
    """List what is tried, that with the lowest bound first, without that whose parameters alone do not fit.

    And a step that no cut is below.
    """
    found: list[_Trial] = []
    low_us = inf
    few = sorted({1, *stages_per_rank(job), *range(2, min(FEW, len(job.stages) // job.ranks) + 1)})
    for layout in (*(StageLayout("looped", v) for v in few), StageLayout("folded", 2), StageLayout("mirrored")):
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
                found.append(_Trial(layout, how, units, placed, limited_bound_us(placed)))
    return sorted(found, key=lambda trial: trial.bound_us), low_us


def _improve(trial: _Trial, effort: int) -> None:
    actions = max(sum(map(len, trial.made[0].schedule.orders)), 1)
    count = effort * min(TIMED_ACTIONS // actions, MOST_TRIALS) // IMPROVED
    known = len(trial.policies.made)
    trial.policies.one_for_each(count // POLICY_TAKES)
    trial.add(*(made for made, _ in trial.policies.made[known:]))
    unlike = list({round(one.step_us, 3): one for one in reversed(trial.made)}.values())[::-1]  # one of each step
    for one in unlike[:IMPROVED]:
        schedule = improve_schedule(trial.placed, one.schedule, trial.bound_us, count)
        step_us = replay_pipeline(trial.placed, schedule).step_us
        if step_us < one.step_us * (1 - SAME):
            trial.add(MadeSchedule(step_us, schedule, f"{one.made_from}, improved"))


def _named(trial: _Trial) -> Iterator[MadeSchedule]:
    """The named schedules of a layout that fit."""
    chunks = trial.layout.chunks
    for of in (*((interleaved_in(chunks),) if chunks > 1 else ()), *NAMED):
        if of.layout != trial.layout:
            continue
        try:
            one = plan_pipeline(trial.units, of, trial.how.cut)
        except PipelineError:
            continue
        if one.shortage is None:
            yield MadeSchedule(one.replay.step_us, one.schedule, of.name)


def _solve(trial: _Trial, best_us: float, effort: int, tell: Callable[[str], None]) -> None:
    """Add the optimum of a small job, or what is found on the way, and sharpen its bound.

    Args:
        trial: With the schedules that are known; of these, none is needed.
        best_us: What is no shorter than the shortest that is known of any trial is not looked for.
        effort: OR-tools has so many times :data:`EXACT_WORK`.
        tell: Hears of it.
    """
    placed, made = trial.placed, trial.made[0] if trial.made else None
    if not solvable(placed, EXACT_ACTIONS) or find_spec("ortools") is None:
        return
    most_us = min(best_us, trial.step_us, _one_by_one_us(placed))
    if not most_us:
        return
    tell(f"solving {trial.layout} exactly")
    start = made.schedule if made is not None and made.step_us <= most_us else None
    solved = exact_pipeline(placed, start, most_us, EXACT_WORK * effort)
    if solved is None:
        return
    if start is None or solved.bound_us <= most_us:  # else its rounding is at fault: there is a schedule
        trial.bound_us = max(trial.bound_us, min(solved.bound_us, most_us))
    if solved.schedule is None:
        return
    schedule = with_updates(placed, solved.schedule)
    if violation(placed, schedule) is not None:
        return
    replay = replay_pipeline(placed, schedule)
    if within_limits(placed, replay) and replay.step_us < trial.step_us * (1 - SAME):
        trial.add(MadeSchedule(replay.step_us, schedule, "solved"))


def _one_by_one_us(placed: PipelineJob) -> float:
    """Longer than any schedule in which something always runs or is on its way."""
    blocks = [one.block(kind) for one in placed.stages for kind in COMPUTE]
    computed = sum(block.time_us for block in blocks if block is not None)
    return placed.micro_batches * (computed + sum(transfers_us(placed)))
