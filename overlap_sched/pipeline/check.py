"""What a pipelined job must be; the first rule that is broken is the error."""

import math
from itertools import combinations
from typing import TYPE_CHECKING

from overlap_sched.errors import PipelineError
from overlap_sched.problem import MAX_TOTAL_BYTES
from overlap_sched.problem.sizes import show_number

if TYPE_CHECKING:
    from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink

MAX_ACTIONS = 1_000_000
"""Of a job: three per stage and micro-batch."""


def check_job(job: "PipelineJob") -> None:
    """Raise :class:`PipelineError` for the first rule that is broken; linear in stages."""
    _check_ranks(job)
    _check_routes(job)
    runs = sum(len(route.stages) * len(route.micro_batches) for route in job.routes)
    check_actions(job.name, len(job.stages), job.micro_batches, runs)
    for number, stage in enumerate(job.stages):
        where = f"{job.name}: stage {number}"
        blocks = ("forward", "backward", "input_gradient", "weight_gradient", "reduce", "step")
        for name in blocks:
            block = getattr(stage, name)
            if block is not None:
                _check_block(f"{where}, {name},", block)
        if (stage.input_gradient is None) != (stage.weight_gradient is None):
            raise PipelineError(
                f"{where} has one half of its backward alone: give both input_gradient and weight_gradient, or neither."
            )
        for name in ("saved_bytes", "kept_bytes", "static_bytes"):
            _check_bytes(where, name, getattr(stage, name))
    for link in (job.link, *job.links.values()):
        _check_link(job.name, link)
    if not (math.isfinite(job.pair_factor) and job.pair_factor >= 0):
        raise PipelineError(f"{job.name}: a pair takes {show_number(job.pair_factor)}: factors are finite, 0 or more.")
    for (ahead, back), block in job.pairs.items():
        _check_block(f"{job.name}: the forward of stage {ahead} beside the backward of stage {back}", block)


def check_actions(name: str, stages: int, micro_batches: int, runs: int) -> None:
    """Raise :class:`PipelineError` for too many; ``runs``: of stages with micro-batches."""
    if 3 * runs > MAX_ACTIONS:
        raise PipelineError(
            f"{name}: {stages} stages and {micro_batches} micro-batches make {3 * runs:,} actions, more than "
            f"{MAX_ACTIONS:,}. Plan fewer micro-batches: the steady state repeats."
        )


def _check_ranks(job: "PipelineJob") -> None:
    if job.ranks < 1 or not job.stages:
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages on {job.ranks} ranks; there is at least one of each."
        )
    if len(job.rank_of) != len(job.stages):
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages, but ranks for {len(job.rank_of)}: give each stage a rank."
        )
    for stage, rank in enumerate(job.rank_of):
        if not 0 <= rank < job.ranks:
            raise PipelineError(f"{job.name}: stage {stage} is on rank {rank}; ranks are 0 to {job.ranks - 1}.")
    idle = set(range(job.ranks)) - set(job.rank_of)
    if idle:
        raise PipelineError(f"{job.name}: rank {min(idle)} has no stage. Take fewer ranks, or more stages.")
    limits = job.memory_limit_bytes
    if limits is not None and len(limits) != job.ranks:
        raise PipelineError(
            f"{job.name}: {job.ranks} ranks, but {len(limits)} memory limits: give one, or one per rank."
        )
    for limit in limits or ():
        _check_bytes(job.name, "memory_limit_bytes", limit)


def _check_routes(job: "PipelineJob") -> None:
    seen: set[int] = set()
    for route in job.routes:
        for stage in route.stages:
            if not 0 <= stage < len(job.stages):
                raise PipelineError(f"{job.name}: a route names stage {stage}; stages are 0 to {len(job.stages) - 1}.")
            if stage in seen:
                raise PipelineError(f"{job.name}: stage {stage} comes twice on its way: stages form no cycle.")
            seen.add(stage)
        batches = route.micro_batches
        if not batches or batches.step != 1 or batches.start < 0:
            raise PipelineError(f"{job.name}: a route has no micro-batch; there is at least one.")
    if len(seen) < len(job.stages):
        missing = min(set(range(len(job.stages))) - seen)
        raise PipelineError(f"{job.name}: no micro-batch comes through stage {missing}. Put it on a route.")
    for one, other in combinations(sorted(job.routes, key=lambda route: route.micro_batches.start), 2):
        if one.micro_batches.stop > other.micro_batches.start:
            raise PipelineError(f"{job.name}: micro-batch {other.micro_batches.start} is on two routes.")


def _check_block(where: str, block: "PipelineBlock") -> None:
    if not (math.isfinite(block.time_us) and block.time_us >= 0):
        raise PipelineError(f"{where} takes {show_number(block.time_us)} us: times are finite and 0 or more.")
    for name in ("transient_bytes", "output_bytes", "buffer_bytes"):
        _check_bytes(where, name, getattr(block, name))


def _check_bytes(where: str, name: str, count: int) -> None:
    if not 0 <= count <= MAX_TOTAL_BYTES:
        raise PipelineError(
            f"{where} has {name} {show_number(count)}: sizes are 0 or more, in bytes, and 2**60 at most."
        )


def _check_link(where: str, link: "PipelineLink") -> None:
    if not (math.isfinite(link.latency_us) and link.latency_us >= 0 and link.bytes_per_s > 0):
        raise PipelineError(
            f"{where}: a link has latency {show_number(link.latency_us)} us and {show_number(link.bytes_per_s)} "
            "bytes/s: latencies are finite and 0 or more, bandwidths above 0."
        )
