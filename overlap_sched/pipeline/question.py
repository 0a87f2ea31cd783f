"""What a capacity planner asks, read from a file; the layouts that answer it may have, each as a pipelined job."""

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from math import inf
from typing import Literal

from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.toml_file import Bytes, Positive, Table
from overlap_sched.pipeline import dimensions
from overlap_sched.pipeline.job import PipelineJob, PipelineLink, Route


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
    model: str | dict[str, int | bool]
    cluster: str = "dgx-h100"
    memory_limit: Bytes = Bytes(0)
    pp: tuple[Positive, ...] = ()
    tp: tuple[Positive, ...] = ()
    dp: tuple[Positive, ...] = ()
    cp: tuple[Positive, ...] = ()
    ep: tuple[Positive, ...] = ()
    micro_batch: tuple[Positive, ...] = (1, 2, 4, 8)
    recompute: tuple[dimensions.Recompute, ...] = ("none", "selective", "full")
    sharding: tuple[dimensions.Sharding, ...] = ("zero1", "fsdp")
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

    def layouts(self) -> Iterator[dimensions.Layout]:
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
                        yield dimensions.Layout(dimensions.Mesh(pp, dp, cp, tp, ep), size, again, sharding)

    def job(self, layout: dimensions.Layout, free: str = "") -> PipelineJob:
        """The pipelined job of a layout, a stage per layer; ``free``: a dimension whose collectives take no time."""
        prices = dimensions.LayerPrices(self.decoder, self.on, layout, self.sequence, self.attention, free)
        stages, (pp, dp, *_) = prices.stages(), layout.mesh
        sent = stages[0].forward.output_bytes
        latency_us, sending_us = (prices.collective_us("send", size, "pp") for size in (1, sent))
        return PipelineJob(
            f"{self.model if isinstance(self.model, str) else 'the model'} on {self.gpus} GPUs",
            stages,
            tuple(k % pp for k in range(len(stages))),
            pp,
            (Route(tuple(range(len(stages))), range(self.global_batch // (dp * layout.micro_batch))),),
            PipelineLink(latency_us, sent / (sending_us - latency_us) * 1e6 if pp > 1 else inf),
            shared_links=prices.shared_links,
            memory_limit_bytes=(int(self.memory_limit) or self.on.device.memory_bytes,) * pp,
        )
