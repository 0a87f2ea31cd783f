"""A step that no schedule of a job with this placement of stages can beat, in any memory or within its limits.

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

from dataclasses import dataclass
from itertools import pairwise
from math import inf

from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, Route


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
            back = [stage.backward, *(half for half in (stage.input_gradient,) if half is not None)]
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
        back = [one for one in (job.stages[after].backward, job.stages[after].input_gradient) if one is not None]
        total += _transfer_us(job, s, after, [job.stages[s].forward]) + _transfer_us(job, after, s, back)
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
            back = [one for one in (stage.backward, stage.input_gradient) if one is not None]
            step_us = _transfer_us(job, number, before, back)
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


def _time_us(block: PipelineBlock | None) -> float:
    return 0.0 if block is None else block.time_us


def _transfer_us(job: PipelineJob, stage: int, to: int, blocks: list[PipelineBlock]) -> float:
    """The least time of an output between two stages."""
    sender, receiver = job.rank_of[stage], job.rank_of[to]
    if sender == receiver:
        return 0.0
    link = job.links.get((sender, receiver), job.link)
    return link.latency_us + min(block.output_bytes for block in blocks) / link.bytes_per_s * 1e6
