"""The shortest schedule of a job that is found within its memory limits, its stages laid out in several ways.

Per layout: the named schedules that it may have, and those of a list scheduler by several policies; what fits and is
shortest is improved. Small jobs are solved exactly, where OR-tools is installed. In two directions, with all parameters
twice, there is DualPipe alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.compare import PlannedPipeline, named_schedules, plan_pipeline
from overlap_sched.pipeline.durations import transfers_us
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.bound import pipeline_bound_us
from overlap_sched.pipeline.judge.validate import violation
from overlap_sched.pipeline.layout import folded, looped, mirrored
from overlap_sched.pipeline.memory import pipeline_peaks, within_limits
from overlap_sched.pipeline.replay import replay_pipeline
from overlap_sched.pipeline.schedule import PipelineSchedule
from overlap_sched.pipeline.search.exact import exact_pipeline, solvable
from overlap_sched.pipeline.search.greedy import PipelinePolicy, greedy_schedule
from overlap_sched.pipeline.search.improve import SAME, improved
from overlap_sched.pipeline.updates import with_updates

FOUND = "found"
"""How the schedule is called."""
POLICIES = tuple(
    PipelinePolicy(ahead, waiting, deepest, patient)
    for ahead, waiting, deepest, patient in product((0, 1, 2, 4, 8), (0, 1, 2, 4, 8, 64), (True, False), (False, True))
)
WITH_PAIRS = tuple(
    PipelinePolicy(ahead, waiting, deepest, False, pairs=True)
    for ahead, waiting, deepest in product((0, 1, 2, 4, 8, 16), (0, 2, 64), (True, False))
)
"""Where some pair takes less than its forward and its backward."""
IMPROVED = 3
"""So many of a layout's schedules are improved, the shortest first."""
TIMED_ACTIONS, MOST_TRIALS = 4_000_000, 3_000
"""Schedules that are timed while some are improved: so many actions in all of them, per unit of effort, and so many."""
EXACT_ACTIONS = 192
"""Jobs of so many forwards, input and weight gradients at most are solved exactly."""
EXACT_WORK = 3.0
"""OR-tools' deterministic time for a layout, per unit of effort (about seconds)."""
OF_A_BOUND = 1e-3
"""Times are rounded to ticks where a job is solved exactly: a step within this part of a bound is the optimum."""


@dataclass(frozen=True)
class FoundPipeline:
    """The best that was found.

    Attributes:
        plan: It, named :data:`FOUND`; its ``bound_us`` is of its layout and limits.
        bound_us: No schedule of any of the layouts that were tried is shorter, within the limits.
        layout: How its stages are laid out, for people.
        made_from: What it was made from: ``"zbv, improved"``.
    """

    plan: PlannedPipeline
    bound_us: float
    layout: str
    made_from: str

    @property
    def proved(self) -> bool:
        """Is none of the layouts that were tried shorter, by more than a thousandth?"""
        return self.plan.replay.step_us <= self.bound_us * (1 + OF_A_BOUND)


@dataclass(frozen=True)
class _MadeSchedule:
    """A schedule of a layout that fits."""

    step_us: float
    schedule: PipelineSchedule
    made_from: str


def find_pipeline(
    job: PipelineJob, effort: int, tell: Callable[[str], None] = lambda text: None
) -> FoundPipeline | None:
    """Find the shortest schedule of a job that fits each rank's limit; ``None``: none was found that fits.

    Args:
        job: As it was read: stages in order, one route.
        effort: More is tried with more; 1 is the least.
        tell: Hears what is being done.

    Raises:
        PipelineError: Its stages cannot be laid out.
    """
    if len(job.routes) != 1 or len(job.stages) % job.ranks:
        raise PipelineError(
            f"{job.name}: no schedule can be searched for: {len(job.stages)} stages on {job.ranks} ranks. "
            "Give one route and a multiple of the ranks."
        )
    found: list[tuple[_MadeSchedule, PipelineJob, float, str]] = []
    bounds: list[float] = []
    ways = [(pipeline_bound_us(placed), name, placed) for name, placed in layouts(job)]
    for bound_us, name, placed in sorted(ways, key=lambda way: way[0]):
        tell(f"searching {name}")
        made = _best_of_layout(job, placed, bound_us, effort)
        if not found or bound_us < min(one.step_us for one, *_ in found):  # else it can be no better
            made, bound_us = _solved(placed, made, bound_us, effort, tell)
        bounds.append(bound_us)
        if made is not None:
            found.append((made, placed, bound_us, name))
    if not found:
        return None
    made, placed, bound_us, name = min(found, key=lambda one: one[0].step_us)
    replay = replay_pipeline(placed, made.schedule)
    schedule = replace(made.schedule, name=FOUND)
    plan = PlannedPipeline(FOUND, placed, schedule, replay, pipeline_peaks(placed, replay), bound_us)
    return FoundPipeline(plan, min(bounds), name, made.made_from)


def layouts(job: PipelineJob) -> Iterator[tuple[str, PipelineJob]]:
    """Yield the ways to put the stages of a job of one route on its ranks, with a name for people.

    Without those whose parameters alone do not fit.
    """
    ways: list[tuple[str, Callable[[PipelineJob], PipelineJob]]] = [
        ("one stage per rank" if v == 1 else f"{v} stages per rank", partial(looped, chunks=v))
        for v in range(1, len(job.stages) // job.ranks + 1)
    ]
    ways += [("two stages per rank, down and up again", folded), ("one stage per rank in two directions", mirrored)]
    for name, way in ways:
        try:
            placed = way(job)
        except PipelineError:  # its stages cannot be joined so
            continue
        if _has_room(placed):
            yield name, placed


def _has_room(placed: PipelineJob) -> bool:
    """Tell whether what is static alone fits."""
    limits = placed.memory_limit_bytes
    return limits is None or all(static <= limit for static, limit in zip(placed.static_bytes, limits, strict=True))


def _best_of_layout(job: PipelineJob, placed: PipelineJob, bound_us: float, effort: int) -> _MadeSchedule | None:
    made = sorted([*_named(job, placed), *_by_policies(placed)], key=lambda one: one.step_us)
    if not made:
        return None
    actions = max(sum(map(len, made[0].schedule.orders)), 1)
    trials = effort * min(TIMED_ACTIONS // actions, MOST_TRIALS)
    for one in _unlike(made)[:IMPROVED]:
        schedule = improved(placed, one.schedule, bound_us, trials // IMPROVED)
        step_us = replay_pipeline(placed, schedule).step_us
        if step_us < one.step_us * (1 - SAME):
            made.append(_MadeSchedule(step_us, schedule, f"{one.made_from}, improved"))
    return min(made, key=lambda one: one.step_us)


def _unlike(made: Sequence[_MadeSchedule]) -> list[_MadeSchedule]:
    """One of each step."""
    return list({round(one.step_us, 3): one for one in reversed(made)}.values())[::-1]


def _named(job: PipelineJob, placed: PipelineJob) -> Iterator[_MadeSchedule]:
    """The named schedules of a layout that fit."""
    for of in named_schedules(job):
        try:
            one = plan_pipeline(job, of)
        except PipelineError:
            continue
        if one.job == placed and one.shortage is None:
            yield _MadeSchedule(one.replay.step_us, one.schedule, of.name)


def _by_policies(placed: PipelineJob) -> Iterator[_MadeSchedule]:
    """Those of the list scheduler that fit, each once."""
    seen: set[tuple[tuple[object, ...], ...]] = set()
    policies = (*POLICIES, *(WITH_PAIRS if _pairs_save(placed) else ()))
    for policy in policies if len(placed.routes) == 1 else ():
        found = greedy_schedule(placed, policy)
        if found is None or found.orders in seen:
            continue
        seen.add(found.orders)
        schedule = with_updates(placed, found)
        replay = replay_pipeline(placed, schedule)
        if within_limits(placed, replay) and violation(placed, schedule) is None:
            pairs = ", pairs" if policy.pairs else ""
            yield _MadeSchedule(replay.step_us, schedule, f"{policy.ahead} ahead, {policy.waiting} waiting{pairs}")


def _pairs_save(placed: PipelineJob) -> bool:
    """Tell whether some forward and backward take less together."""
    alone = {
        both: placed.stages[both[0]].forward.time_us + placed.stages[both[1]].backward.time_us for both in placed.pairs
    }
    return placed.pair_factor < 1.0 or any(placed.pairs[both].time_us < us for both, us in alone.items())


def _solved(
    placed: PipelineJob, made: _MadeSchedule | None, bound_us: float, effort: int, tell: Callable[[str], None]
) -> tuple[_MadeSchedule | None, float]:
    """The optimum of a small job, or what is found on the way, and a sharper bound; else as it was."""
    if not solvable(placed, EXACT_ACTIONS) or find_spec("ortools") is None:
        return made, bound_us
    if made is not None and made.step_us <= bound_us * (1 + SAME):
        return made, bound_us
    tell("solving it exactly")
    most_us = made.step_us if made is not None else _one_by_one_us(placed)
    if not most_us:
        return made, bound_us
    solved = exact_pipeline(placed, None if made is None else made.schedule, most_us, EXACT_WORK * effort)
    if solved is None:
        return made, bound_us
    if made is None or solved.bound_us <= made.step_us:  # else its rounding is at fault: there is a schedule
        bound_us = max(bound_us, solved.bound_us)
    if solved.schedule is None:
        return made, bound_us
    schedule = with_updates(placed, solved.schedule)
    if violation(placed, schedule) is not None:
        return made, bound_us
    replay = replay_pipeline(placed, schedule)
    if within_limits(placed, replay) and (made is None or replay.step_us < made.step_us * (1 - SAME)):
        return _MadeSchedule(replay.step_us, schedule, "solved"), bound_us
    return made, bound_us


def _one_by_one_us(placed: PipelineJob) -> float:
    """Longer than any schedule in which something always runs or is on its way."""
    blocks = [(one.forward, one.backward, one.input_gradient, one.weight_gradient) for one in placed.stages]
    computed = sum(block.time_us for each in blocks for block in each if block is not None)
    return placed.micro_batches * (computed + sum(transfers_us(placed)))
