"""Which layout trains a model fastest on so many GPUs: pipeline x tensor x context x expert x data parallel.

A loop over the planner of pipelined jobs. Each layout makes a job of one stage per layer
(:mod:`~overlap_sched.pipeline.dimensions`); schedules are laid out, judged and replayed as those of any job.

Nothing is lost by pruning: a layout is left out where all that its ranks do, divided evenly, takes longer than the
steps of as many layouts as are asked for, a schedule where its bound does, or where few micro-batches do not fit. Of
many micro-batches some are replayed, as each round then takes as long as the one before; the layouts of the answer are
replayed in full.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Literal

from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.toml_file import Bytes, Positive, Table
from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.compare import PlannedPipeline, named, plan_pipeline
from overlap_sched.pipeline.dimensions import (
    LayerPrices,
    Layout,
    Mesh,
    ModelDimensions,
    Recompute,
    Sharding,
    read_model,
)
from overlap_sched.pipeline.job import PipelineJob, PipelineLink, Route
from overlap_sched.pipeline.judge import pipeline_bound_us
from overlap_sched.pipeline.layout import Cut
from overlap_sched.pipeline.named import NamedSchedule, cut_for, lay_out_named
from overlap_sched.pipeline.replay import excess_bytes, replay_pipeline

BINDING = 0.05
"""Part of a step from which on it binds."""


@dataclass(frozen=True)
class CapacityPlan:
    """A layout with its best schedule.

    Attributes:
        tokens_per_s: Of one GPU.
        mfu: Part of the device's peak that the model's operations are (those of recomputation do not count).
        losses: Parts by which the step would be shorter without: collectives of ``tp``, ``cp``, ``ep`` or ``dp``,
            ``memory`` (recomputation), ``bubble``.
        binds: The largest of them; ``compute`` where all are small.
    """

    layout: Layout
    planned: PlannedPipeline
    tokens_per_s: float
    mfu: float
    losses: dict[str, float]
    binds: str

    @property
    def peak_bytes(self) -> int:
        """Of the rank that holds most."""
        return max(peak.bytes for peak in self.planned.peaks)


class Question(Table, kw_only=True, dict=True):
    """What is asked, of a file. Ranges that are not given: :meth:`layouts`.

    Attributes:
        memory_limit: Of a GPU; 0: all that the cluster's has.
        top: How many layouts are wanted.
    """

    format: Literal["overlap-capacity/1"]
    gpus: Positive
    global_batch: Positive
    sequence: Positive
    model: str | dict[str, int | bool]
    cluster: str = "dgx-h100"
    memory_limit: Bytes = Bytes(0)
    pp: tuple[Positive, ...] = ()
    tp: tuple[Positive, ...] = ()
    dp: tuple[Positive, ...] = ()
    cp: tuple[Positive, ...] = ()
    ep: tuple[Positive, ...] = ()
    micro_batch: tuple[Positive, ...] = (1, 2, 4, 8)
    recompute: tuple[Recompute, ...] = ("none", "selective", "full")
    sharding: tuple[Sharding, ...] = ("zero1", "fsdp")
    schedules: tuple[str, ...] = ("1f1b", "interleaved:2", "interleaved:4", "zb-h1", "zbv")
    attention: Literal["flash", "flash_attn_3", "cudnn"] = "flash"
    top: Positive = 10

    @cached_property
    def dimensions(self) -> ModelDimensions:
        """The model; raises as :func:`~overlap_sched.pipeline.dimensions.read_model`."""
        return read_model(self.model, self.format)

    @cached_property
    def on(self) -> Cluster:
        """The cluster; raises as :func:`~overlap_sched.cost.cluster.read_cluster`."""
        return read_cluster(self.cluster)

    def layouts(self) -> Iterator[Layout]:
        """Yield all that divide GPUs, batch, heads and experts; those not given are powers of two.

        Tensor parallelism stays in a node, unless it is given; context parallelism leaves 4,096 tokens to each rank.
        """
        model, twos = self.dimensions, [2**k for k in range(16) if self.gpus % 2**k == 0]
        pps, tps = self.pp or twos, self.tp or [n for n in twos if n <= self.on.ranks_per_node]
        cps = self.cp or [n for n in twos if n == 1 or self.sequence >= 4096 * n]
        for pp, tp, cp, ep in product(pps, tps, cps, self.ep or [n for n in twos if n == 1 or model.experts]):
            dp, left = divmod(self.gpus, pp * tp * cp)
            whole = not left and (not self.dp or dp in self.dp) and pp <= model.layers
            whole = whole and dp * cp * tp % ep == (model.experts or ep) % ep == self.sequence % (cp * tp) == 0
            if whole and model.heads % tp == model.kv % tp == 0:
                for size, again, sharding in product(self.micro_batch, self.recompute, self.sharding):
                    if self.global_batch % (dp * size) == 0 and (dp * cp > 1 or sharding == self.sharding[0]):
                        yield Layout(Mesh(pp, dp, cp, tp, ep), size, again, sharding)

    def job(self, layout: Layout, free: str = "") -> PipelineJob:
        """The pipelined job of a layout; ``free``: a dimension whose collectives take no time."""
        prices, (pp, dp, *_) = (
            LayerPrices(self.dimensions, self.on, layout, self.sequence, self.attention, free),
            layout.mesh,
        )
        stages = prices.stages()
        sent = stages[0].forward.output_bytes
        latency_us, sending_us = (prices.collective_us("send", size, "pp") for size in (1, sent))
        return PipelineJob(
            f"{self.model if isinstance(self.model, str) else 'the model'} on {self.gpus} GPUs",
            stages,
            tuple(k % pp for k in range(len(stages))),
            pp,
            (Route(tuple(range(len(stages))), range(self.global_batch // (dp * layout.micro_batch))),),
            PipelineLink(latency_us, sent / (sending_us - latency_us) * 1e6 if pp > 1 else inf),
            memory_limit_bytes=(int(self.memory_limit) or self.on.device.memory_bytes,) * pp,
        )

    def plan(self, tell: Callable[[str], None] = lambda text: None) -> list[CapacityPlan]:
        """The layouts with the shortest steps that fit, each with its best schedule, the best first.

        Raises:
            PipelineError: None fits, or there is none at all.
        """
        schedules, jobs = [named(name) for name in self.schedules], {one: self.job(one) for one in self.layouts()}
        found = list[tuple[float, Layout, NamedSchedule]]()
        for at, layout in enumerate(
            sorted(jobs, key=lambda one: (not likely_fits(jobs[one]), least_step_us(jobs[one])))
        ):
            tell(f"planning {at} of {len(jobs)} layouts")
            worst_us = found[-1][0] if len(found) == self.top else inf
            best = best_schedule(jobs[layout], schedules, worst_us)
            found = sorted([*found, *([(best[0], layout, best[1])] if best else [])], key=lambda one: one[0])[
                : self.top
            ]
        if not found:
            raise PipelineError(
                f"none of {len(jobs)} layouts of {self.gpus} GPUs fits. Give more GPUs, or wider ranges of pp, tp, cp, "
                "ep, micro_batch and recompute."
            )
        plans = [self.measure(layout, of) for _, layout, of in found]
        return sorted(plans, key=lambda one: one.planned.replay.step_us)

    def measure(self, layout: Layout, of: NamedSchedule) -> CapacityPlan:
        """What a layout reaches, and where its time goes; raises as :func:`estimate_us`."""
        job = self.job(layout)
        planned, step_us = plan_pipeline(job, of, even_cut(job, of)), estimate_us(job, of)
        others = {what: self.job(layout, what) for what in ("tp", "cp", "ep", "dp") if layout.mesh.along(what)[0] > 1}
        if layout.recompute != "none":
            others["memory"] = self.job(layout._replace(recompute="none"))
        free = ((what, replace(other, memory_limit_bytes=None)) for what, other in others.items())
        losses = {what: 1 - estimate_us(other, of) / step_us for what, other in free} | {
            "bubble": planned.replay.bubble
        }
        speed = self.global_batch * self.sequence / self.gpus / planned.replay.step_us * 1e6
        mfu = speed * self.dimensions.token_flops(self.sequence) / self.on.device.peak_flops_per_s
        binds = max(losses, key=lambda what: losses[what])
        return CapacityPlan(layout, planned, speed, mfu, losses, binds if losses[binds] >= BINDING else "compute")


def best_schedule(job: PipelineJob, of: Sequence[NamedSchedule], worst_us: float) -> tuple[float, NamedSchedule] | None:
    """The shortest that fits, and its step, if that is below ``worst_us``."""
    best = None
    for one in of if job.ranks > 1 else [one for one in of if one.layout.chunks == 1][:1]:
        with suppress(PipelineError):  # too few layers, or an odd number of ranks
            step_us = estimate_us(job, one, worst_us)
            if step_us < worst_us:
                best, worst_us = (step_us, one), step_us
    return best


def even_cut(job: PipelineJob, of: NamedSchedule) -> Cut:
    """As many layers to each stage, the first with the embedding, the last with the head; else the best cut."""
    count = of.layout.count(job.ranks)
    size, left = divmod(len(job.stages) - 2, count)
    if left or not size:
        return cut_for(job, of)
    return tuple(size + (k == 0) + (k == count - 1) for k in range(count))


def estimate_us(job: PipelineJob, of: NamedSchedule, worst_us: float = inf) -> float:
    """The step of a schedule, in microseconds; infinite: it cannot be below ``worst_us``, or does not fit.

    Raises:
        PipelineError: The job cannot have it.
    """
    if least_step_us(job) >= worst_us:
        return inf
    cut, batches, ranks = even_cut(job, of), job.micro_batches, job.ranks
    if pipeline_bound_us(of.layout.put(job, cut)) >= worst_us:
        return inf

    def step_us(count: int) -> float:
        placed, schedule = lay_out_named(replace(job, routes=(Route(job.routes[0].stages, range(count)),)), of, cut)
        replay = replay_pipeline(placed, schedule)
        return inf if any(excess_bytes(placed, replay)) else replay.step_us

    if batches <= 8 * ranks:
        return step_us(batches)
    few = 3 * ranks + batches % ranks
    if (least_us := step_us(few)) == inf:
        return inf
    more_us = step_us(few + ranks)
    return more_us + (more_us - least_us) / ranks * (batches - few - ranks)


def least_step_us(job: PipelineJob) -> float:
    """No schedule with any cut has a shorter step: all that compute streams do, divided evenly."""
    each = sum(one.forward.time_us + one.whole_us for one in job.stages)
    return (job.micro_batches * each + sum(one.step.time_us for one in job.stages if one.step)) / job.ranks


def likely_fits(job: PipelineJob) -> bool:
    """What 1F1B holds on its first rank, were all stages alike, is within the limit."""
    held = sum(one.static_bytes + one.saved_bytes * min(job.micro_batches, job.ranks) for one in job.stages)
    return held <= sum(job.memory_limit_bytes or ())
