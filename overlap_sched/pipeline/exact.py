"""The optimum of a small pipelined job, as a constraint program for OR-tools' CP-SAT; and a bound where time runs out.

An interval per action, on its rank one at a time; F before I before W; a transfer between ranks behind what makes it,
one at a time per ordered pair of ranks; on each rank what is saved, kept, transient, sent and received within its limit
at every instant. Whole backwards are I and W in one. Micro-batches are alike, so each stage takes them in turn
(:mod:`~overlap_sched.pipeline.greedy`).

Actions and transfers may wait on purpose, which saves memory and which no replay does. So what the program proves is a
bound on every schedule, and its order, replayed, may be longer or need more. Where both are equal it is the optimum;
without limits it always is. Times are whole ticks where they have a common unit. Else they are rounded down, and what
is held from an end on may begin a tick later: starts of any schedule, rounded down, then keep to all of it.
Needs ``pip install "overlap_sched[exact]"``.
"""

from collections import defaultdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, product
from math import gcd, inf
from typing import Any

from overlap_sched.pipeline.action import Action, ActionKind, PipelineSchedule
from overlap_sched.pipeline.job import PipelineJob, PipelineStage
from overlap_sched.pipeline.replay import block_of, replay_pipeline, transfer_us

KINDS = (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT)


def solvable(job: PipelineJob, actions: int) -> bool:
    """Tell whether a job is small, no schedule with whole backwards or pairs is better, and OR-tools is installed."""
    count = 3 * sum(len(route.stages) * len(route.micro_batches) for route in job.routes)
    together = bool(job.pairs) or job.pair_factor < 1.0
    small = count <= actions and not together and all(map(_halves_are_enough, job.stages))
    return small and find_spec("ortools") is not None


def _halves_are_enough(stage: PipelineStage) -> bool:
    whole, back, weights = stage.backward, stage.input_gradient, stage.weight_gradient
    if back is None or weights is None:
        return False
    alike = (whole.output_bytes, whole.buffer_bytes) == (back.output_bytes, back.buffer_bytes)
    no_quicker = whole.time_us >= (back.time_us + weights.time_us) * (1 - 1e-9)
    held = stage.saved_bytes + whole.transient_bytes
    no_less = whole.transient_bytes >= back.transient_bytes
    return alike and no_quicker and no_less and held >= stage.kept_bytes + weights.transient_bytes + back.buffer_bytes


def exact_pipeline(
    job: PipelineJob, start: PipelineSchedule | None, most_us: float, work: float, low_us: float = 0.0
) -> tuple[PipelineSchedule | None, float]:
    """Solve a job whose stages have both halves of backward.

    Args:
        job: As a layout has placed it; reductions and steps are left out, which shortens the bound.
        start: A schedule to begin from.
        most_us: A step that is known, or infinite; what is longer is not looked for.
        work: OR-tools' deterministic time, about seconds.
        low_us: No step is below.

    Returns:
        The best order, if one was found, and a bound, 0 where nothing is known: no schedule of this layout within the
        limits is shorter; infinite: none is within them.
    """
    cp_model: Any = import_module("ortools.sat.python.cp_model")
    model, limits, place = cp_model.CpModel(), job.memory_limit_bytes, job.rank_of
    kinds = product(range(len(job.stages)), KINDS)
    actions = [Action(kind, s, m) for s, kind in kinds for m in job.route_of[s].micro_batches]
    users = {action: action._replace(stage=to) for action in actions if (to := job.gives_to(action)) is not None}
    ways = {action: (place[action.stage], place[user.stage]) for action, user in users.items()}
    sent_us = {action: transfer_us(job, action, to) for action, (rank, to) in ways.items() if rank != to}
    times = [block_of(job, action).time_us for action in actions] + list(sent_us.values())
    most_us = sum(times) if most_us == inf else most_us  # a longer one has gaps in which nothing runs
    if not most_us:
        return None, 0.0
    tick_us, whole = _tick(times, most_us)
    horizon = int(most_us / tick_us) + 1
    instant = partial(model.new_int_var, 0, horizon, "")
    busy: dict[int | tuple[int, int], list[Any]] = defaultdict(list)  # by rank, and by link
    live: list[list[tuple[Any, int]]] = [[] for _ in range(job.ranks)]

    def run(where: int | tuple[int, int], us: float) -> tuple[Any, Any]:
        begin, end = instant(), instant()
        busy[where].append(model.new_interval_var(begin, int(us / tick_us + 1e-9), end, ""))
        return begin, end

    def hold(rank: int, begin: Any, end: Any, size: int, behind: bool = True) -> None:
        """``behind``: begins where an action ends, or where that is rounded down perhaps a tick later."""
        if limits is None or not size:
            return
        if behind and not whole:
            later = model.new_int_var(0, horizon + 1, "")
            model.add(later >= begin)
            model.add(later <= begin + 1)
            begin = later
        live[rank].append((model.new_interval_var(begin, instant(), end, ""), size))

    starts, ends = dict[Action, Any](), dict[Action, Any]()
    for action in actions:
        rank = place[action.stage]
        starts[action], ends[action] = run(rank, block_of(job, action).time_us)
        live[rank].append((busy[rank][-1], block_of(job, action).transient_bytes))
    for before, action in pairwise(actions):
        if before[:2] == action[:2]:
            model.add(starts[action] >= ends[before])
    for ahead in (action for action in actions if action.kind is ActionKind.FORWARD):
        back, weights = (ahead._replace(kind=kind) for kind in KINDS[1:])
        stage, rank = job.stages[ahead.stage], place[ahead.stage]
        model.add(starts[back] >= ends[ahead])
        model.add(starts[weights] >= ends[back])
        hold(rank, starts[ahead], ends[back], stage.saved_bytes, behind=False)
        hold(rank, ends[back], ends[weights], stage.kept_bytes)
        for action in filter(users.__contains__, (ahead, back)):
            begin, there = ends[action], ends[action]
            if action in sent_us:
                begin, there = run(ways[action], sent_us[action])
                model.add(begin >= ends[action])
                hold(rank, ends[action], there, block_of(job, action).buffer_bytes)
                hold(ways[action][1], begin, starts[users[action]], block_of(job, action).output_bytes, behind=False)
            else:
                hold(rank, there, starts[users[action]], block_of(job, action).buffer_bytes)
            model.add(starts[users[action]] >= there)
    for intervals in busy.values():
        model.add_no_overlap(intervals)
    for rank, limit in enumerate(limits or ()):
        room = limit - job.static_bytes[rank]
        unit = max(1, room // 10**9)  # sizes are rounded down, as times are
        sizes = [(interval, size // unit) for interval, size in live[rank] if size >= unit]
        model.add_cumulative(*([one[k] for one in sizes] for k in (0, 1)), max(room // unit, 0))
    step = instant()
    model.add(step >= min(int(low_us / tick_us), horizon))
    for end in ends.values():
        model.add(step >= end)
    model.minimize(step)
    for run_item in () if start is None else replay_pipeline(job, start).ran:
        if run_item.item in starts:
            model.add_hint(starts[run_item.item], int(run_item.start_us / tick_us + 1e-9))
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time, solver.parameters.num_workers = work, 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, inf
    bound_us = max(solver.best_objective_bound * tick_us, 0.0)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound_us
    ordered = sorted(actions, key=lambda action: solver.value(starts[action]))  # stable
    orders = (tuple(action for action in ordered if place[action.stage] == rank) for rank in range(job.ranks))
    return PipelineSchedule("exact", tuple(orders)), bound_us


def _tick(times: list[float], most_us: float) -> tuple[float, bool]:
    """Return a tick, in microseconds, and whether all times are multiples of it."""
    unit_us = gcd(*(round(time_us * 1e3) for time_us in times)) / 1e3
    whole = all(abs(time_us * 1e3 - round(time_us * 1e3)) < 1e-6 for time_us in times)
    least_us = most_us / 10_000  # more ticks take longer to prove
    return (unit_us, True) if whole and unit_us >= least_us else (least_us, False)
