"""Is a schedule of a pipelined job allowed? The first rule that is broken, in words.

A step that no schedule of a job with this placement of stages can beat, in any memory or within its limits.

For stage s let F be its forward, D the least time until its gradient goes on (I or B), and T the least of its whole
backward (B or I + W); with all transfers between ranks on the way::

    head(s)   F of the stages in front of s
    tail(s)   D of the stages in front of s, but T of the first one, then its reduction and step; of the first T - D

    step >= (a) one micro-batch: head + F + D + tail of the last stage of its route
            (b) per stage: head(s) + F and D of all its micro-batches + tail(s)
            (c) per rank: least head + F and D of all its stages + least tail
            (d) per rank: least head + F and T of all its stages + the steps of its stages, or the least of a reduction
                and step, or, where no stage has halves, the least way of a gradient to the first stage

A forward and a backward that run together (a pair) may take less than both: per forward, the most that any pair saves
is taken off (b), (c) and (d). In (b) to (d) nothing runs on a rank before its least head, and all that is counted
runs one at a time; F precedes the D of its micro-batch, so that after the last D of a rank its way to the first stage
is still to come.

Within memory limits also, with h the least time from the start of a stage's F to the end of its D, by way of the last
stage, in which what it saves is live, and K how often that fits beside what is static and its F's transient::

    step >= (e) per stage: head(s) + h x micro-batches / K, rounded up + tail(s)
            (f) per rank: least head + bytes x least time that they are live, of all its stages / its room

Of K + 1 micro-batches that follow each other the last begins when one of the others has ended, h behind the first.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import inf
from typing import TypeAlias

from overlap_sched.pipeline.action import BACKWARDS, UPDATES, Action, ActionKind, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route

Event: TypeAlias = tuple[int, int] | Action
"""``(rank, position)`` of an item; the action that made what is sent, of a transfer."""

Events: TypeAlias = dict[Event, tuple[float, list[Event]]]
"""Per event what it takes, in microseconds, and what it waits for."""


def event_graph(job: PipelineJob, schedule: PipelineSchedule) -> Events:
    """The graph of a schedule in which every action is there once, on its rank."""
    graph: Events = {}
    at = {
        action: (rank, k)
        for rank, order in enumerate(schedule.orders)
        for k, item in enumerate(order)
        for action in parts(item)
    }

    def made_by(action: Action) -> list[Event]:
        """Find what brings the input of an action from another stage."""
        if (stage := job.needs_from(action)) is None:
            return []
        kinds = BACKWARDS if action.kind in BACKWARDS else (action.kind,)
        maker = next(one for kind in kinds if (one := Action(kind, stage, action.micro_batch)) in at)
        return [maker if job.rank_of[stage] != job.rank_of[action.stage] else at[maker]]

    for rank, order in enumerate(schedule.orders):
        compute: list[Event] = []
        reductions: list[Event] = []
        sent: dict[int, Event] = {}
        for k, item in enumerate(order):
            event, here = (rank, k), parts(item)
            if here[0].kind is ActionKind.REDUCE:
                graph[event] = time_of(job, item), [*compute, *reductions]
                reductions = [event]
                continue
            needed = [earlier for action in here for earlier in made_by(action)]
            if here[0].kind is ActionKind.STEP:
                needed += [at[reduce] for reduce in (here[0]._replace(kind=ActionKind.REDUCE),) if reduce in at]
            graph[event] = time_of(job, item), [*compute, *needed]
            compute = [event]
            for action in here:
                to = job.gives_to(action)
                if to is None or (other := job.rank_of[to]) == rank:
                    continue
                block = job.stages[action.stage].block(action.kind)
                time_us = 0.0 if block is None else _transfer_us(job, action.stage, to, [block])
                graph[action] = time_us, [event, *([sent[other]] if other in sent else [])]
                sent[other] = action
    return graph


def time_of(job: PipelineJob, item: Action | Pair) -> float:
    """Add up what an item takes on its stream, in microseconds."""
    times = [block.time_us for action in parts(item) if (block := job.stages[action.stage].block(action.kind))]
    if not isinstance(item, Pair):
        return times[0]
    both = item.forward.stage, item.backward.stage
    return max(*times, job.pairs[both].time_us if both in job.pairs else job.pair_factor * sum(times))


_RUNS_BEFORE = {
    ActionKind.BACKWARD: ActionKind.FORWARD,
    ActionKind.INPUT_GRADIENT: ActionKind.FORWARD,
    ActionKind.WEIGHT_GRADIENT: ActionKind.INPUT_GRADIENT,
}


def violation(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    """The first rule that a schedule without sends and receives breaks, or ``None`` if it can run.

    Every action once, on the rank of its stage: F and either B or both I and W per stage and micro-batch, one reduction
    and one step of stages that have them, behind all their gradients. F before B and I, I before W. No ring of ranks
    that wait for each other, where outputs are sent as soon as they are made and nobody waits to send.
    """
    return _placed(job, schedule) or _complete(job, schedule) or _ordered(schedule) or _deadlock(job, schedule)


def _placed(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    if len(schedule.orders) != job.ranks:
        return f"there are orders for {len(schedule.orders)} ranks; the job has {job.ranks}"
    batches = {stage: route.micro_batches for route in job.routes for stage in route.stages}
    for rank, order in enumerate(schedule.orders):
        for item in order:
            if isinstance(item, Pair) and [action.kind for action in item] != [ActionKind.FORWARD, ActionKind.BACKWARD]:
                return f"rank {rank} runs {item} together; a pair is a forward and a whole backward"
            for action in parts(item):
                if action.stage not in batches:
                    return f"rank {rank} runs {action}; stages are 0 to {len(job.stages) - 1}"
                if job.rank_of[action.stage] != rank:
                    return f"rank {rank} runs {action}, but stage {action.stage} is on rank {job.rank_of[action.stage]}"
                if job.stages[action.stage].block(action.kind) is None:
                    return f"rank {rank} runs {action}; stage {action.stage} has no such action"
                if (action.micro_batch is None) != (action.kind in UPDATES):
                    return f"rank {rank} runs {action}: only reductions and steps are without a micro-batch"
                if action.micro_batch is not None and action.micro_batch not in batches[action.stage]:
                    return f"rank {rank} runs {action}; no such micro-batch comes through stage {action.stage}"
    return None


def _complete(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    counts = Counter(action for rank in range(job.ranks) for action in schedule.actions(rank))
    for action, count in counts.items():
        if count > 1:
            return f"rank {job.rank_of[action.stage]} runs {action} {count} times"
    for ways in _wanted(job):
        there = [all(action in counts for action in way) for way in ways]
        if not any(there):
            return f"{' or '.join(' and '.join(map(str, way)) for way in ways)} never runs"
        if sum(any(action in counts for action in way) for way in ways) > 1:
            return f"{' and '.join(str(action) for way in ways for action in way if action in counts)} all run"
    return None


def _wanted(job: PipelineJob) -> Iterator[tuple[tuple[Action, ...], ...]]:
    """Yield what has to run, in the ways in which it may."""
    for route in job.routes:
        for s in route.stages:
            for m in route.micro_batches:
                yield ((Action(ActionKind.FORWARD, s, m),),)
                halves = Action(ActionKind.INPUT_GRADIENT, s, m), Action(ActionKind.WEIGHT_GRADIENT, s, m)
                yield ((Action(ActionKind.BACKWARD, s, m),), halves)
            if job.stages[s].reduce is not None:
                yield ((Action(ActionKind.REDUCE, s),),)
            if job.stages[s].step is not None:
                yield ((Action(ActionKind.STEP, s),),)


def _ordered(schedule: PipelineSchedule) -> str | None:
    """F before B and I, I before W; gradients before their reduction, that before the step."""
    for rank, order in enumerate(schedule.orders):
        done: set[Action] = set()
        for item in order:
            for action in parts(item):
                kind, stage, m = action
                earlier = Action(_RUNS_BEFORE[kind], stage, m) if kind in _RUNS_BEFORE else None
                if earlier is not None and earlier not in done:
                    return f"rank {rank} runs {action} before {earlier}"
                late = UPDATES if m is not None else UPDATES[1:] if kind is ActionKind.REDUCE else ()
                for update in late:
                    if Action(update, stage) in done:
                        return f"rank {rank} runs {Action(update, stage)} before {action}"
            done.update(parts(item))
    return None


def _deadlock(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    try:
        TopologicalSorter({event: before for event, (_, before) in event_graph(job, schedule).items()}).prepare()
    except CycleError as error:
        ring = [event for event in error.args[1] if not isinstance(event, Action)]
    else:
        return None
    names = [f"{schedule.orders[rank][k]} (rank {rank})" for rank, k in ring]
    names += names[:1] if ring[0] != ring[-1] else []
    return f"ranks wait for each other: {' before '.join(names)}"


def pipeline_bound_us(job: PipelineJob) -> float:
    """The bound in any memory, in microseconds; linear in stages, quadratic in the stages of one rank."""
    times = {stage: one for route in job.routes for stage, one in _stage_times(job, route).items()}
    bounds = []
    for route in job.routes:
        last = times[route.stages[-1]]
        bounds.append(last.head_us + last.forward_us + last.down_us + last.tail_us)
    for stage, one in times.items():
        count = len(one.route.micro_batches)
        both_us = one.forward_us + one.down_us
        bounds.append(one.head_us + count * (both_us - _saved_us(job, times, stage, [stage], "down")) + one.tail_us)
    for rank in range(job.ranks):
        bounds += _rank_bounds(job, times, [stage for stage in times if job.rank_of[stage] == rank])
    return max(bounds)


def limited_bound_us(job: PipelineJob) -> float:
    """The bound within the limits; infinite where a rank has no room for one micro-batch of a stage."""
    bounds = [pipeline_bound_us(job)]
    for rank, limit in enumerate(job.memory_limit_bytes or ()):
        stages = [s for s in range(len(job.stages)) if job.rank_of[s] == rank]
        room = limit - sum(job.stages[s].static_bytes for s in stages)
        times = {s: one for route in job.routes for s, one in _stage_times(job, route).items() if s in stages}
        area = 0.0
        for s, one in times.items():
            stage, count = job.stages[s], len(one.route.micro_batches)
            held_us = one.forward_us + _beyond_us(job, s, one.route) + one.down_us
            paired = any(s in both for both in job.pairs)  # then what is transient is another matter
            free = room - (0 if paired else stage.forward.transient_bytes)
            if free < stage.saved_bytes * (held_us > 0):
                return inf
            if stage.saved_bytes and held_us:
                bounds.append(one.head_us + held_us * -(-count // (free // stage.saved_bytes)) + one.tail_us)
            back = _backward_blocks(stage)
            ends = [stage.saved_bytes * (block.time_us - one.down_us) + _area(block, paired) for block in back]
            if stage.splits:
                ends[1] += stage.kept_bytes * _time_us(stage.weight_gradient) + _area(stage.weight_gradient)
            area += count * (stage.saved_bytes * held_us + _area(stage.forward, paired) + min(ends))
        if area:
            bounds.append(min(one.head_us for one in times.values()) + (area / room if room > 0 else inf))
    return max(bounds)


def _area(block: PipelineBlock | None, paired: bool = False) -> float:
    """Transient bytes times microseconds; none where it may be in a pair that has its own."""
    return 0.0 if block is None or paired else block.transient_bytes * block.time_us


def _beyond_us(job: PipelineJob, stage: int, route: Route) -> float:
    """The least from the end of a stage's forward until the gradient has come back to it."""
    times, total = _stage_times(job, route), 0.0
    behind = route.stages[route.stages.index(stage) :]
    for s, after in pairwise(behind):
        total += _transfer_us(job, s, after, [job.stages[s].forward])
        total += _transfer_us(job, after, s, _backward_blocks(job.stages[after]))
        total += times[after].forward_us + times[after].down_us
    return total


@dataclass(frozen=True)
class _StageTimes:
    """What the head of this module says of a stage, in microseconds; ``way_us``: of a gradient to the first stage."""

    route: Route
    forward_us: float
    down_us: float
    whole_us: float
    head_us: float
    tail_us: float
    way_us: float


def _stage_times(job: PipelineJob, route: Route) -> dict[int, _StageTimes]:
    found: dict[int, _StageTimes] = {}
    head_us = way_us = tail_us = 0.0
    for k, number in enumerate(route.stages):
        stage = job.stages[number]
        down_us = whole_us = stage.backward.time_us
        if stage.input_gradient is not None and stage.weight_gradient is not None:
            down_us = min(down_us, stage.input_gradient.time_us)
            whole_us = min(whole_us, stage.input_gradient.time_us + stage.weight_gradient.time_us)
        updates_us = _time_us(stage.reduce) + _time_us(stage.step)
        if k:
            before = route.stages[k - 1]
            head_us += job.stages[before].forward.time_us + _transfer_us(
                job, before, number, [job.stages[before].forward]
            )
            step_us = _transfer_us(job, number, before, _backward_blocks(stage))
            way_us += step_us + found[before].down_us
            tail_us = step_us + (found[before].down_us + tail_us)
        else:
            tail_us = whole_us - down_us + updates_us
        found[number] = _StageTimes(route, stage.forward.time_us, down_us, whole_us, head_us, tail_us, way_us)
    return found


def _rank_bounds(job: PipelineJob, times: dict[int, _StageTimes], stages: list[int]) -> list[float]:
    own = [times[stage] for stage in stages]
    head_us = min(one.head_us for one in own)
    down_us = whole_us = 0.0
    for stage in stages:
        one, count = times[stage], len(times[stage].route.micro_batches)
        down_us += count * (one.forward_us + one.down_us - _saved_us(job, times, stage, stages, "down"))
        whole_us += count * (one.forward_us + one.whole_us - _saved_us(job, times, stage, stages, "whole"))
    updates = [(_time_us(job.stages[stage].reduce), _time_us(job.stages[stage].step)) for stage in stages]
    ends = [sum(step for _, step in updates), min(reduce + step for reduce, step in updates)]
    if not any(job.stages[stage].splits for stage in stages):
        ends.append(min(one.way_us for one in own))
    return [head_us + down_us + min(one.tail_us for one in own), head_us + whole_us + max(ends)]


def _saved_us(job: PipelineJob, times: dict[int, _StageTimes], ahead: int, stages: list[int], counted: str) -> float:
    """The most that a forward of a stage saves of what is counted, beside a backward of one of these stages."""
    most = 0.0
    for back in stages:
        one, other = job.stages[ahead].forward.time_us, job.stages[back].backward.time_us
        alone = one + (times[back].down_us if counted == "down" else times[back].whole_us)
        known = job.pairs.get((ahead, back))
        together = job.pair_factor * (one + other) if known is None else known.time_us
        most = max(most, alone - max(one, other, together))
    return most


def _backward_blocks(stage: PipelineStage) -> list[PipelineBlock]:
    return [stage.backward] if stage.input_gradient is None else [stage.backward, stage.input_gradient]


def _time_us(block: PipelineBlock | None) -> float:
    return 0.0 if block is None else block.time_us


def _transfer_us(job: PipelineJob, stage: int, to: int, blocks: list[PipelineBlock]) -> float:
    """The least time of an output between two stages."""
    sender, receiver = job.rank_of[stage], job.rank_of[to]
    if sender == receiver:
        return 0.0
    link = job.links.get((sender, receiver), job.link)
    return link.latency_us + min(block.output_bytes for block in blocks) / link.bytes_per_s * 1e6
