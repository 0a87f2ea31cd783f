"""Which layout trains a model fastest on so many GPUs: pipeline x tensor x context x expert x data parallel.

A loop over the planner of pipelined jobs. Each layout makes a job of one stage per layer
(:mod:`~overlap_sched.pipeline.dimensions`); schedules are laid out, judged and replayed as those of any job. Of each
mesh and sharding the fastest micro-batch, recomputation and schedule count.

Nothing is lost by pruning: a schedule of a layout is left out where its bound is longer than the step of its mesh, or
than those of as many meshes as are asked for, or where few micro-batches do not fit. Of many micro-batches some are
replayed, as each round then takes as long as the one before; the layouts of the answer are replayed in full.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, product
from math import inf
from typing import Any, Literal

import msgspec

from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.toml_file import Bytes, Count, Positive, Table
from overlap_sched.errors import PipelineError
from overlap_sched.pipeline import dimensions
from overlap_sched.pipeline.action import BACKWARDS, ActionKind, PipelineSchedule
from overlap_sched.pipeline.compare import PlannedPipeline, named, plan_pipeline
from overlap_sched.pipeline.cuts import least_step_us
from overlap_sched.pipeline.dimensions import LayerPrices, Layout, Mesh, MeshPrices, Sharding
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.job_file import ModelTable
from overlap_sched.pipeline.judge import pipeline_bound_us
from overlap_sched.pipeline.layout import Cut
from overlap_sched.pipeline.named import NamedSchedule, lay_out_named
from overlap_sched.pipeline.replay import PipelineClock, excess_bytes


class Question(Table, kw_only=True, dict=True):
    """How to train a model on so many GPUs. Ranges that are not given: :meth:`layouts`.

    Attributes:
        memory_limit: Of a GPU; 0: all that the cluster's has.
        top: How many layouts are wanted.
    """

    format: Literal["overlap-capacity/1"]
    gpus: Positive
    global_batch: Positive
    sequence: Positive
    model: str | dict[str, Any]
    cluster: str = "dgx-h100"
    memory_limit: Bytes = Bytes(0)
    pp: tuple[Positive, ...] = ()
    tp: tuple[Positive, ...] = ()
    dp: tuple[Positive, ...] = ()
    cp: tuple[Positive, ...] = ()
    ep: tuple[Positive, ...] = ()
    micro_batch: tuple[Positive, ...] = (1, 2, 4, 8)
    recompute: tuple[dimensions.Recompute, ...] = ("none", "selective", "full")
    sharding: tuple[Sharding, ...] = ("zero1", "fsdp")
    schedules: tuple[str, ...] = ("1f1b", "interleaved:2", "interleaved:4", "zb-h1", "zbv")
    attention: Literal["flash", "flash_attn_3", "cudnn"] = "flash"
    top: Positive = 10

    @cached_property
    def decoder(self) -> dimensions.ModelDimensions:
        """The model; raises as :func:`~overlap_sched.pipeline.dimensions.read_model`."""
        return dimensions.read_model(self.model, f"{self.format}: model")

    @cached_property
    def on(self) -> Cluster:
        """The cluster; raises as :func:`~overlap_sched.cost.cluster.read_cluster`."""
        return read_cluster(self.cluster)

    def layouts(self) -> Iterator[Layout]:
        """Yield all that divide GPUs, batch, heads and experts; those not given are powers of two.

        Tensor parallelism stays in a node, unless it is given; context parallelism leaves 4,096 tokens to each rank.
        """
        model, twos = self.decoder, [2**k for k in range(16) if self.gpus % 2**k == 0]
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

    def stages(self, layout: Layout, free: str = "") -> tuple[PipelineStage, ...]:
        """The embedding, the layers, the head; ``free``: a dimension whose collectives take no time."""
        return LayerPrices(self.decoder, self.on, layout, self.sequence, self.attention, free).stages()

    def job(self, layout: Layout, free: str = "") -> PipelineJob:
        """The pipelined job of a layout; ``free`` as of :meth:`stages`."""
        stages, (pp, dp, *_), groups = self.stages(layout, free), layout.mesh, MeshPrices(self.on, layout.mesh)
        sent = stages[1].forward.output_bytes
        latency_us, sending_us = (groups.collective_us("send", size, "pp") for size in (1, sent))
        return PipelineJob(
            f"{self.model if isinstance(self.model, str) else 'the model'} on {self.gpus} GPUs",
            stages,
            tuple(k % pp for k in range(len(stages))),
            pp,
            (Route(tuple(range(len(stages))), range(self.global_batch // (dp * layout.micro_batch))),),
            PipelineLink(latency_us, sent / (sending_us - latency_us) * 1e6 if pp > 1 else inf),
            shared_links=groups.shared_links,
            memory_limit_bytes=(int(self.memory_limit) or self.on.device.memory_bytes,) * pp,
        )

    @property
    def token_flops(self) -> float:
        """Operations of forward and backward for one token."""
        return self.decoder.token_flops(self.sequence)


class DumpTable(ModelTable, kw_only=True):
    """A model that was dumped: the graphs of one of its ranks.

    Attributes:
        gpus: That ran it together. So many have each stage of a pipeline, with the collectives of the dump.
        global_batch: Sequences of its step: those of a micro-batch.
        groups: Sizes of its process groups, where the dump does not say them.
    """

    gpus: Positive
    global_batch: Positive
    groups: dict[str, Count] = msgspec.field(default_factory=dict)


class DumpQuestion(Question, kw_only=True, dict=True):
    """The same of a model that was dumped: pipelines of it, and replicas of those, whose gradients are added up.

    Attributes:
        dump: What was dumped.
        dumped: Its layers.
        flops: Of the graphs.
    """

    dump: DumpTable
    dumped: tuple[PipelineStage, ...]
    flops: float

    def layouts(self) -> Iterator[Layout]:
        """Yield all that divide GPUs and batch, a rank for each GPU of the dump (as ``tp``)."""
        of = self.dump
        for pp, again in product(self.pp or range(1, len(self.dumped) + 1), self.recompute):
            dp, left = divmod(self.gpus, pp * of.gpus)
            whole = not left and dp and (not self.dp or dp in self.dp) and pp <= len(self.dumped)
            if whole and self.global_batch % (dp * of.global_batch) == 0 and again != "selective":
                yield Layout(Mesh(pp, dp, tp=of.gpus), of.global_batch, again, "dump")

    def stages(self, layout: Layout, free: str = "") -> tuple[PipelineStage, ...]:
        """The layers between two stages of nothing, which are there where a decoder has its embedding and head."""
        groups, part = MeshPrices(self.on, layout.mesh), 1 + self.dump.gradients + self.dump.optimizer
        none, found = PipelineBlock(0.0), list[PipelineStage]()
        for stage in self.dumped:
            us = groups.collective_us("all_reduce", stage.static_bytes / part, "dp")
            one = (stage.recomputed or stage) if layout.recompute == "full" else stage
            found.append(replace(one, reduce=PipelineBlock(us) if us and free != "dp" else None))
        nothing = PipelineStage(none, none, none, none)
        return nothing, *found, nothing

    @property
    def token_flops(self) -> float:
        """Operations of the graphs, recomputation among them, for one token."""
        return self.flops * self.dump.gpus / (self.dump.global_batch * self.sequence)


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
    """

    layout: Layout
    planned: PlannedPipeline
    tokens_per_s: float
    mfu: float
    losses: dict[str, float]

    @property
    def binds(self) -> str:
        """The largest loss; ``compute`` where all are small."""
        most = max(self.losses, key=lambda what: self.losses[what])
        return most if self.losses[most] >= BINDING else "compute"

    @property
    def peak_bytes(self) -> int:
        """The most that a rank holds."""
        return max(peak.bytes for peak in self.planned.peaks)


def plan_capacity(question: Question, tell: Callable[[str], None] = lambda text: None) -> list[CapacityPlan]:
    """The meshes with the shortest steps that fit, each with its best schedule, the best first.

    Raises:
        PipelineError: None fits, or there is none at all.
    """
    schedules = [replace(one, make=cache(one.make)) for one in map(named, question.schedules)]
    jobs = {layout: question.job(layout) for layout in question.layouts()}
    found = dict[tuple[Mesh, str], tuple[float, Layout, NamedSchedule]]()
    order = sorted(jobs, key=lambda one: (not likely_fits(jobs[one]), least_step_us(jobs[one])))
    for at, layout in enumerate(order):
        tell(f"planning {at} of {len(jobs)} layouts")
        own, steps_us = (layout.mesh, layout.sharding), sorted(us for us, *_ in found.values())
        worst_us = min(found[own][0] if own in found else inf, *steps_us[question.top - 1 : question.top], inf)
        for of in schedules if layout.mesh.pp > 1 else [of for of in schedules if of.layout.chunks == 1][:1]:
            with suppress(PipelineError):  # too few layers, or an odd number of ranks
                step_us = estimate_us(jobs[layout], of, worst_us)
                if step_us < worst_us:
                    found[own], worst_us = (step_us, layout, of), step_us
    if not found:
        raise PipelineError(f"none of {len(jobs)} layouts of {question.gpus} GPUs fits. Give more, or wider ranges.")
    shortest = sorted(found.values(), key=lambda one: one[0])[: question.top]
    plans = [measure_layout(question, layout, of) for _, layout, of in shortest]
    return sorted(plans, key=lambda one: one.planned.replay.step_us)


def measure_layout(question: Question, layout: Layout, of: NamedSchedule) -> CapacityPlan:
    """Return what a layout reaches, whether it fits or not, and where its time goes; raises as :func:`even_cut`."""
    job = question.job(layout)
    planned = plan_pipeline(job, of, even_cut(job, of))
    names = ("dp",) if layout.sharding == "dump" else ("tp", "cp", "ep", "dp")
    jobs = {what: question.job(layout, what) for what in names if layout.mesh.along(what)[0] > 1}
    if layout.recompute != "none":
        jobs["memory"] = question.job(layout._replace(recompute="none"))
    step_us, *others = (estimate_us(replace(one, memory_limit_bytes=None), of) for one in (job, *jobs.values()))
    losses = {what: 1 - us / step_us for what, us in zip(jobs, others, strict=True)} | {"bubble": planned.replay.bubble}
    speed = question.global_batch * question.sequence / question.gpus / planned.replay.step_us * 1e6
    mfu = speed * question.token_flops / question.on.device.peak_flops_per_s
    return CapacityPlan(layout, planned, speed, mfu, losses)


def even_cut(job: PipelineJob, of: NamedSchedule) -> Cut:
    """As many layers to each stage, one more to some in the middle; the embedding to the first, the head to the last.

    Raises:
        PipelineError: There are too few layers.
    """
    count = of.layout.count(job.ranks)
    size, more = divmod(len(job.stages) - 2, count)
    if not size:
        raise PipelineError(f"{job.name}: {len(job.stages) - 2} layers are too few for {count} stages of {of.name}.")
    first = (count - more) // 2
    return tuple(size + (first <= k < first + more) + (k == 0) + (k == count - 1) for k in range(count))


def estimate_us(job: PipelineJob, of: NamedSchedule, worst_us: float = inf) -> float:
    """The step of a schedule, in microseconds; infinite: it cannot be below ``worst_us``, or does not fit.

    Raises:
        PipelineError: The job cannot have it.
    """
    cut, ranks = even_cut(job, of), job.ranks
    if not of.halves:  # and so a tighter bound
        whole = (replace(one, input_gradient=None, weight_gradient=None) for one in job.stages)
        job = replace(job, stages=tuple(whole))
    placed = of.layout.put(job, cut)
    few = min(job.micro_batches, max(4, 16 // ranks) * ranks + job.micro_batches % ranks)
    if pipeline_bound_us(placed) >= worst_us:
        return inf

    def run(count: int) -> tuple[PipelineClock, PipelineSchedule, float]:
        shorter = replace(job, routes=(Route(job.routes[0].stages, range(count)),))
        placed, schedule = lay_out_named(shorter, of, cut)
        clock = PipelineClock(placed)
        return clock, schedule, inf if saves_too_much(placed, schedule) else clock.step_us(clock.orders_of(schedule))

    clock, schedule, step_us = run(few)
    if few < job.micro_batches and step_us < inf:
        step_us += (run(few + ranks)[2] - step_us) / ranks * (job.micro_batches - few)
    fits = step_us < worst_us and not any(excess_bytes(clock.job, clock.replay(schedule)))
    return step_us if fits else inf


def saves_too_much(job: PipelineJob, schedule: PipelineSchedule) -> bool:
    """Tell whether what is static and saved alone is more than a rank has."""
    for rank, limit in enumerate(job.memory_limit_bytes or ()):
        ways = ((s, (kind is ActionKind.FORWARD) - (kind in BACKWARDS)) for kind, s, _ in schedule.actions(rank))
        sizes = (job.stages[s].saved_bytes * way for s, way in ways)
        if max(accumulate(sizes, initial=job.static_bytes[rank])) > limit:
            return True
    return False


def likely_fits(job: PipelineJob) -> bool:
    """Tell whether what 1F1B holds on its first rank, were all stages alike, is within the limit."""
    held = sum(one.static_bytes + one.saved_bytes * min(job.micro_batches, job.ranks) for one in job.stages)
    return held <= sum(job.memory_limit_bytes or ())
