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

import math
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise, product
from typing import Any

from overlap_sched.errors import OptionsError
from overlap_sched.pipeline.action import Action, ActionKind, Item, PipelineSchedule
from overlap_sched.pipeline.job import PipelineJob, PipelineStage
from overlap_sched.pipeline.replay import block_of, replay_pipeline, transfer_us, transfers_us

TICKS = 10_000
"""Of the step that is known, where times have no common unit, or too small a one: more take longer to prove."""
WORKERS = 1
KINDS = (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT)
_BYTES = 10**9
"""Sizes are counted in units such that a limit has at most so many; rounded down, as times are."""


@dataclass(frozen=True)
class ExactPipeline:
    """What the solver has found.

    Attributes:
        schedule: The best order; ``None``: there is none within the limits.
        bound_us: No schedule of this layout within the limits is shorter; infinite: none is within them.
    """

    schedule: PipelineSchedule | None
    bound_us: float


def solvable(job: PipelineJob, actions: int) -> bool:
    """Tell whether a job is small, and no schedule with whole backwards or pairs is better than one with halves."""
    count = 3 * sum(len(route.stages) * len(route.micro_batches) for route in job.routes)
    together = bool(job.pairs) or job.pair_factor < 1.0
    return count <= actions and not together and all(map(_halves_are_enough, job.stages))


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
    job: PipelineJob, start: PipelineSchedule | None, most_us: float, work: float
) -> ExactPipeline | None:
    """Solve a job whose stages have both halves of backward; ``None``: it ran out of work with nothing.

    Args:
        job: As a layout has placed it; reductions and steps are left out, which shortens the bound.
        start: A schedule to begin from.
        most_us: A step that is known, above 0; what is longer is not looked for.
        work: OR-tools' deterministic time, about seconds.

    Raises:
        OptionsError: OR-tools is not installed.
    """
    try:
        cp_model: Any = import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise OptionsError('the exact solver needs OR-tools: pip install "overlap_sched[exact]".') from error
    program = _Program(cp_model.CpModel(), job, most_us)
    program.state(start)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = work
    solver.parameters.num_workers = WORKERS
    status = solver.solve(program.model)
    if status == cp_model.INFEASIBLE:
        return ExactPipeline(None, float("inf"))
    bound_us = solver.best_objective_bound * program.tick_us
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ExactPipeline(None, bound_us) if bound_us > 0 else None
    return ExactPipeline(program.schedule(solver.value), bound_us)


def _ticks(job: PipelineJob, most_us: float) -> tuple[float, bool]:
    """Return a tick, in microseconds, and whether all times are multiples of it."""
    batch = job.routes[0].micro_batches[0]
    times = [block_of(job, Action(kind, s, batch)).time_us for s in range(len(job.stages)) for kind in KINDS]
    times += transfers_us(job)
    unit_us = math.gcd(*(round(time_us * 1e3) for time_us in times)) / 1e3
    whole = all(abs(time_us * 1e3 - round(time_us * 1e3)) < 1e-6 for time_us in times)
    if whole and unit_us * TICKS >= most_us:
        return unit_us, True
    return most_us / TICKS, False


class _Program:
    """The model of a job and its variables: per action its start."""

    def __init__(self, model: Any, job: PipelineJob, most_us: float) -> None:
        self.model, self._job = model, job
        self.tick_us, self.whole = _ticks(job, most_us)
        self._horizon = int(most_us / self.tick_us) + 1
        self._starts: dict[Action, Any] = {}
        self._ends: dict[Action, Any] = {}
        self._on: list[list[Any]] = [[] for _ in range(job.ranks)]
        self._live: list[list[tuple[Any, int]]] = [[] for _ in range(job.ranks)]
        self._streams: dict[tuple[int, int], list[Any]] = {}

    def state(self, start: PipelineSchedule | None) -> None:
        """Add all variables, constraints and the objective; ``start`` as a hint."""
        job, model = self._job, self.model
        for s, kind in product(range(len(job.stages)), KINDS):
            actions = [Action(kind, s, m) for m in job.route_of[s].micro_batches]
            for action in actions:
                self._add(action)
            for before, action in pairwise(actions):
                model.add(self._starts[action] >= self._ends[before])
        for s, route in enumerate(job.route_of):
            for m in route.micro_batches:
                self._connect(s, m)
        for rank, intervals in enumerate(self._on):
            model.add_no_overlap(intervals)
            self._keep_to_memory(rank)
        for transfers in self._streams.values():
            model.add_no_overlap(transfers)
        step = model.new_int_var(0, self._horizon, "step")
        for end in self._ends.values():
            model.add(step >= end)
        model.minimize(step)
        if start is not None:
            self._hint(start)

    def _in_ticks(self, us: float) -> int:
        return int(us / self.tick_us + 1e-9)

    def _add(self, action: Action) -> None:
        job, ticks = self._job, self._in_ticks(block_of(self._job, action).time_us)
        start = self._starts[action] = self.model.new_int_var(0, self._horizon, str(action))
        end = self._ends[action] = self.model.new_int_var(0, self._horizon, f"{action} end")
        interval = self.model.new_interval_var(start, ticks, end, f"{action} runs")
        rank = job.rank_of[action.stage]
        self._on[rank].append(interval)
        self._live[rank].append((interval, block_of(job, action).transient_bytes))

    def _connect(self, s: int, m: int) -> None:
        job, stage = self._job, self._job.stages[s]
        ahead, back, weights = (Action(ActionKind(kind), s, m) for kind in ("F", "I", "W"))
        self.model.add(self._starts[back] >= self._ends[ahead])
        self.model.add(self._starts[weights] >= self._ends[back])
        rank = job.rank_of[s]
        self._hold(rank, self._starts[ahead], self._ends[back], stage.saved_bytes)
        self._hold(rank, self._from(self._ends[back]), self._ends[weights], stage.kept_bytes)
        for action in (ahead, back):
            if (to := job.gives_to(action)) is not None:
                self._send(action, Action(action.kind, to, m))

    def _send(self, action: Action, user: Action) -> None:
        job, block = self._job, block_of(self._job, action)
        sender, receiver = job.rank_of[action.stage], job.rank_of[user.stage]
        if sender == receiver:
            self.model.add(self._starts[user] >= self._ends[action])
            self._hold(sender, self._from(self._ends[action]), self._starts[user], block.buffer_bytes)
            return
        begin = self.model.new_int_var(0, self._horizon, f"{action} sent")
        arrived = self.model.new_int_var(0, self._horizon, f"{action} there")
        ticks = self._in_ticks(transfer_us(job, action, receiver))
        transfer = self.model.new_interval_var(begin, ticks, arrived, f"{action} on its way")
        self._streams.setdefault((sender, receiver), []).append(transfer)
        self.model.add(begin >= self._ends[action])
        self.model.add(self._starts[user] >= arrived)
        self._hold(sender, self._from(self._ends[action]), arrived, block.buffer_bytes)
        self._hold(receiver, begin, self._starts[user], block.output_bytes)

    def _from(self, end: Any) -> Any:
        """From when what an action leaves is live: its end, or where that is rounded down perhaps a tick later."""
        if self.whole or self._job.memory_limit_bytes is None:
            return end
        later = self.model.new_int_var(0, self._horizon + 1, "")
        self.model.add(later >= end)
        self.model.add(later <= end + 1)
        return later

    def _hold(self, rank: int, start: Any, end: Any, size: int) -> None:
        if size and self._job.memory_limit_bytes is not None:
            length = self.model.new_int_var(0, self._horizon, "")
            self._live[rank].append((self.model.new_interval_var(start, length, end, ""), size))

    def _keep_to_memory(self, rank: int) -> None:
        limits = self._job.memory_limit_bytes
        if limits is None:
            return
        room = limits[rank] - self._job.static_bytes[rank]
        unit = max(1, room // _BYTES)
        live = [(interval, size // unit) for interval, size in self._live[rank] if size >= unit]
        self.model.add_cumulative([one for one, _ in live], [size for _, size in live], max(room // unit, 0))

    def _hint(self, start: PipelineSchedule) -> None:
        for _, run in replay_pipeline(self._job, start).ran:
            if isinstance(run.item, Action) and run.item in self._starts:
                self.model.add_hint(self._starts[run.item], self._in_ticks(run.start_us))

    def schedule(self, value: Any) -> PipelineSchedule:
        """The order of a solution."""
        orders: list[list[tuple[int, int, Item]]] = [[] for _ in range(self._job.ranks)]
        for k, (action, start) in enumerate(self._starts.items()):
            orders[self._job.rank_of[action.stage]].append((value(start), k, action))
        return PipelineSchedule("exact", tuple(tuple(item for _, _, item in sorted(order)) for order in orders))
