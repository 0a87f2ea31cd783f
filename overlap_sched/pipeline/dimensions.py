"""What a layer of a model takes on one rank, from the model's dimensions: kernels, collectives, and bytes, priced.

Per micro-batch, with T tokens in a tensor-parallel group (micro-batch x sequence / cp), of which each rank holds T / tp
between its blocks (sequence parallelism)::

    norm   all_gather(tp)   query, key, value   attention   projection   reduce_scatter(tp)   add
    norm   all_gather(tp)   up (and gate)       activation  down         reduce_scatter(tp)   add
    norm   router   sort   all_to_all(ep)   sort   experts: up, activation, down   sort   all_to_all(ep)   sort   add

Each matmul has two in backward: the gradient of its input (I), with all that is not a matmul, and of its weights (W).
Collectives of tensor and expert parallelism stand between matmuls, so that compute waits for them. Keys and values of
context parallelism are gathered while attention runs. Pointwise work is fused; rows are sorted by rank, and where a
rank has several experts by expert, on both ways. What is saved, as Megatron-LM does (Korthikanti et al. 2022, arXiv
2205.05198): ``none``: inputs of all matmuls and of norms; ``selective``: not what norms and activation functions make
again; ``full``: the input of a layer. Times are of 16 bits. Not modelled: the host, which launches kernels and waits
for counts of rows; experts that get more rows than others; transfers beside tensor, context and expert parallelism.

What data parallelism adds, by ``sharding``:

``zero1``
    Parameters are on every replica, states of the optimizer are divided. Once in a step gradients are reduced (32
    bits) and parameters gathered (16 bits), a layer at a time beside the last backward and the first forward, as
    Megatron-LM's distributed optimizer does: what is longer than a layer counts.
``fsdp`` in a pipeline
    Parameters and states are divided, gradients are not. As torch's schedules do: a stage is gathered (UNSHARD) before
    its rank comes to it and freed (RESHARD) where three others come first, so once in a step where a rank has up to
    three; its gradients are reduced once (REDUCE_GRAD). What it computes waits for all of its parameters.
``fsdp`` without
    All is divided. Each micro-batch gathers each layer for forward and again for backward, one layer ahead, and reduces
    its gradients behind: compute waits for what is longer than a layer, and is slower beside it, as the cluster says.

With FSDP shards are cast to 16 bits before they are gathered, parameters copied out of what was gathered, gradients
copied in 32 bits into what is reduced (torch, ``_fsdp_collectives.py``).
"""

from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal, NamedTuple

from overlap_sched.cost import Collective, Compute
from overlap_sched.cost.cluster import Cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.compute import NO_SHAPE, Kind, Shape
from overlap_sched.cost.toml_file import Count, Positive, Table, parse_toml
from overlap_sched.errors import PipelineError
from overlap_sched.options import close_to
from overlap_sched.pipeline.job import PipelineBlock, PipelineStage
from overlap_sched.problem import Group
from overlap_sched.problem.file import decode

Recompute = Literal["none", "selective", "full"]
Sharding = Literal["zero1", "fsdp"]
STATES = {"step": (6, 12), "stage": (4, 16), "layer": (0, 16)}
"""By what is gathered at once, bytes of a parameter on each replica, and divided over them: in 16 bits and its gradient
in 32; the parameter in 32 bits and two moments, and with FSDP the gradient."""
GATHERED, REDUCED, UPDATED = 2, 4, 30
"""Bytes of a parameter that are gathered, reduced, and read and written by AdamW."""
Times = list[float]
FUSED = "add+mul"
"""A pointwise kernel of a compiler."""


class Matmul(NamedTuple):
    """(rows, k) x (k, n).

    Attributes:
        split: Which of the weights' sides tensor parallelism divides; of experts, expert parallelism divides them.
        remade: Its input comes of a norm or an activation function, which can make it again.
    """

    split: Literal["columns", "rows", "none", "experts"]
    k: int
    n: int
    remade: bool = False


class ModelDimensions(Table):
    """A decoder.

    Attributes:
        head: Size of one; 0: hidden / heads. kv_heads: 0: as many as heads.
        ffn: Inner size of a layer, or of one expert. gated: With three matrices (SwiGLU) instead of two.
        experts, top_k, shared_experts: Of each layer but the first ``dense_layers``, whose inner size is ``dense_ffn``.
        query_rank, kv_rank, rope: Of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); 0: there is none.
        window: Of sliding attention in every other layer; 0: there is none.
        tied: The last matrix is the embedding.
    """

    hidden: Positive
    layers: Positive
    heads: Positive
    ffn: Positive
    vocabulary: Positive
    kv_heads: Count = 0
    head: Count = 0
    gated: bool = True
    experts: Count = 0
    top_k: Count = 0
    shared_experts: Count = 0
    dense_layers: Count = 0
    dense_ffn: Count = 0
    query_rank: Count = 0
    kv_rank: Count = 0
    rope: Count = 0
    window: Count = 0
    tied: bool = False

    @property
    def size(self) -> int:
        """The size of a head's queries, keys and values, without the rotary part of latent attention."""
        return self.head or self.hidden // self.heads

    @property
    def kv(self) -> int:
        """Heads of keys and values; latent attention has one for each head of queries."""
        return self.kv_heads or self.heads

    @property
    def kinds(self) -> list[tuple[bool, bool]]:
        """Per layer: it has experts; its attention slides."""
        dense, slides = self.dense_layers if self.experts else self.layers, self.window > 0
        return [(k >= dense, slides and k % 2 == 0) for k in range(self.layers)]

    def matmuls(self, routed: bool) -> list[Matmul]:
        """All of a layer; of experts those of one."""
        h, wide = self.hidden, self.heads * self.size
        found = [Matmul("columns", h, wide + 2 * self.kv * self.size, True)]
        if self.kv_rank:
            found = [Matmul("none", h, self.query_rank + self.kv_rank + self.rope, True)]
            found += [Matmul("columns", self.query_rank or h, wide + self.heads * self.rope)]
            found += [Matmul("columns", self.kv_rank, 2 * wide)]
        found.append(Matmul("rows", wide, h))
        if (ffn := self.shared_experts * self.ffn if routed else self.dense_ffn or self.ffn) > 0:
            found += [Matmul("columns", h, (1 + self.gated) * ffn, True), Matmul("rows", ffn, h, True)]
        if routed:
            found += [Matmul("none", h, self.experts), Matmul("experts", h, (1 + self.gated) * self.ffn)]
            found += [Matmul("experts", self.ffn, h, True)]
        return found

    def layer_parameters(self, routed: bool) -> tuple[int, int]:
        """Those of a layer, and those of all its experts."""
        sizes = [(split == "experts", k * n) for split, k, n, _ in self.matmuls(routed)]
        own, experts = (sum(size for of_expert, size in sizes if of_expert is of) for of in (False, True))
        return own + 2 * self.hidden, experts * self.experts

    @property
    def parameters(self) -> int:
        """All."""
        layers = sum(sum(self.layer_parameters(routed)) for routed, _ in self.kinds)
        return layers + (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    def token_flops(self, sequence: int) -> float:
        """Operations of forward and backward for one token: 6 for each weight that it meets, and causal attention."""
        found = 6.0 * self.vocabulary * self.hidden
        for routed, windowed in self.kinds:
            met = min(sequence / 2, self.window) if windowed else sequence / 2
            found += sum(6 * n * k * self.top_k ** (of == "experts") for of, k, n, _ in self.matmuls(routed))
            found += 6 * met * self.heads * (2 * self.size + self.rope)
        return found


def read_model(given: str | dict[str, Any], where: str) -> ModelDimensions:
    """A model by the name of one that is shipped, or by a table.

    Raises:
        PipelineError: There is none of that name, or the table has an unknown key, lacks one, or is no model.
    """
    shipped = parse_toml((resources.files(__package__) / "shipped" / "models.toml").read_text(encoding="utf-8"))
    if isinstance(given, str) and given not in shipped:
        raise PipelineError(
            f"{where}: no model is named {given!r:.40}: give one of {', '.join(shipped)}, or a table [model] with "
            f"hidden, layers, heads, ffn and vocabulary.{close_to(given, list(shipped))}"
        )
    model = decode(shipped[given] if isinstance(given, str) else given, ModelDimensions, where, PipelineError)
    whole = model.heads % model.kv == 0 and (model.head or model.hidden % model.heads == 0)
    if not whole or bool(model.experts) != bool(model.top_k) or model.top_k > model.experts:
        raise PipelineError(
            f"{where}: heads divide hidden (or give head), kv_heads divide heads, and top_k is at most experts."
        )
    return model


class Mesh(NamedTuple):
    """Ranks, numbered with ``tp`` fastest, then ``cp``, ``dp``, ``pp``; ``ep`` divides dp x cp x tp."""

    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    def along(self, what: str) -> tuple[int, int]:
        """How many ranks a group has, and their distance.

        ``dp``: replicas of what is not an expert; ``experts``: of experts; ``pp``: neighbours in a pipeline.
        """
        pp, dp, cp, tp, ep = self
        inner = dp * cp * tp
        groups = {"tp": (tp, 1), "cp": (cp, tp), "dp": (dp * cp, tp), "ep": (ep, 1), "experts": (inner // ep, ep)}
        return groups.get(what, (min(pp, 2), inner))


class Layout(NamedTuple):
    """One way to train; ``dump``: sharded as the graphs of a dump are."""

    mesh: Mesh
    micro_batch: int
    recompute: Recompute
    sharding: Literal[Sharding, "dump"]


@dataclass(frozen=True)
class MeshPrices:
    """Prices collectives of a mesh."""

    cluster: Cluster
    mesh: Mesh

    @property
    def shared_links(self) -> bool:
        """Tell whether replicas are as far from each other, in a node or not, as neighbours in a pipeline."""
        return (self.nodes("dp") > 1) is (self.nodes("pp") > 1)

    def nodes(self, among: str) -> int:
        """How many nodes a group is on."""
        size, stride = self.mesh.along(among)
        return len({k * stride // self.cluster.ranks_per_node for k in range(size)})

    def collective_us(self, op: str, nbytes: float, among: str) -> float:
        """Microseconds of a collective; 0 in a group of one, or of no bytes."""
        size, nodes = self.mesh.along(among)[0], self.nodes(among)
        work = Collective(op, round(nbytes), Group(size, nodes == 1, nodes if nodes > 1 else 0))
        return model_of(self.cluster).collective_us(work) if size > 1 and nbytes else 0.0


@dataclass(frozen=True)
class LayerPrices:
    """Prices layers on a mesh.

    Attributes:
        sequence: Tokens of a sequence.
        attention: As the operator's name has it: ``flash`` (2), ``flash_attn_3`` or ``cudnn``.
        free: A dimension whose collectives take no time: what would be gained?
    """

    model: ModelDimensions
    cluster: Cluster
    layout: Layout
    sequence: int
    attention: str = "flash"
    free: str = ""

    @property
    def gathers(self) -> Literal["step", "stage", "layer"]:
        """The parameters that are gathered at once: those of a whole step, of a stage, or of a layer."""
        return "step" if self.layout.sharding == "zero1" else "stage" if self.layout.mesh.pp > 1 else "layer"

    @property
    def tokens(self) -> int:
        """The tokens of a tensor-parallel group."""
        return self.layout.micro_batch * self.sequence // self.layout.mesh.cp

    def collective_us(self, op: str, nbytes: float, among: str) -> float:
        """Microseconds of a collective; 0 in a group of one, of no bytes, or of the dimension that is free."""
        if among == self.free:
            return 0.0
        return MeshPrices(self.cluster, self.layout.mesh).collective_us(op, nbytes, among)

    def kernel_us(self, op: str, flops: float, size: float, shape: Shape = NO_SHAPE, kind: Kind | None = None) -> float:
        """Microseconds of a kernel that reads and writes so many elements of 2 bytes."""
        work = Compute(f"aten.{op}.default", round(flops), round(2 * size), kind, shape)
        return model_of(self.cluster).compute_us(work)

    def fused_us(self, elements: float) -> float:
        """Microseconds of pointwise work."""
        return self.kernel_us(FUSED, 0, elements)

    def matmul_us(self, m: int, n: int, k: int, batch: int = 1) -> list[float]:
        """Microseconds of one or of many matmuls of a shape, and of both in backward, which adds to weights' gradients.

        These are in 32 bits, and read and written, but where those of each micro-batch and layer are reduced.
        """
        elements, op = batch * (m * k + k * n + m * n), "bmm" if batch > 1 else "mm"
        added = batch * k * n * (REDUCED - 1) * (self.gathers != "layer")
        shapes = ((batch, m, n, k), 0), ((batch, m, k, n), 0), ((batch, k, n, m), added)
        return [self.kernel_us(op, 2 * batch * m * n * k, elements + more, shape) for shape, more in shapes]

    def attention_us(self, windowed: bool) -> tuple[float, float]:
        """Microseconds of a layer's attention, forward and backward (5 matmuls for 2)."""
        model, (mesh, micro_batch, *_) = self.model, self.layout
        heads, op = model.heads // mesh.tp, f"_scaled_dot_product_{self.attention}_attention"
        rows, keys = self.sequence // mesh.cp, min(model.window, self.sequence) if windowed else self.sequence
        kind: Kind | None = None if windowed else "causal"
        shape = (micro_batch * heads, rows, keys, model.size)
        flops = 2 * micro_batch * heads * rows * keys * (2 * model.size + model.rope)
        elements = self.tokens * model.size * 2 * (heads + model.kv // mesh.tp)
        back_us = self.kernel_us(f"{op}_backward", 2.5 * flops, 2 * elements, shape, kind)
        return self.kernel_us(op, flops, elements, shape, kind), back_us

    def placed(self, one: Matmul) -> tuple[int, tuple[int, int, int, int]]:
        """Rows of its input that a rank has, divided evenly, and the rows, n, k and batch that the rank multiplies."""
        (_, _, _, tp, ep), own = self.layout.mesh, self.tokens // self.layout.mesh.tp
        if one.split == "experts":
            local, sent = max(self.model.experts // ep, 1), own * self.model.top_k
            return sent, (sent // local, one.n, one.k, local)
        columns, rows = (tp if one.split == way else 1 for way in ("columns", "rows"))
        return own, (own if one.split == "none" else self.tokens, one.n // columns, one.k // rows, 1)

    def layer(self, routed: bool, windowed: bool) -> PipelineStage:
        """A layer, with experts or without, as a stage of its own."""
        model, (_, _, _, tp, ep), hidden = self.model, self.layout.mesh, self.model.hidden
        matmuls, own = [(one, *self.placed(one)) for one in model.matmuls(routed)], self.tokens // tp
        work = [sum(us) for us in zip(*(self.matmul_us(*shape) for _, _, shape in matmuls), strict=True)]
        inputs, gradients = (sum(rows * getattr(one, of) for one, rows, _ in matmuls) for of in ("k", "n"))
        remade = sum(rows * one.k for one, rows, _ in matmuls if one.remade)
        activated = ((rows, one) for one, rows, _ in matmuls if one.remade and one.split in ("rows", "experts"))
        inner = sum(rows * one.k for rows, one in activated)
        qkv = own * (2 * model.kv * model.size + model.heads * (model.size + model.rope))
        again = 4 * own * hidden + (2 + model.gated) * inner
        sorts = 6 if model.experts > ep else 2  # of rows that are sent, read or written
        pointwise = again + 4 * own * hidden + 2 * qkv + own * hidden * routed * (2 + sorts * model.top_k)
        work[0] += self.fused_us(pointwise)
        work[1] += self.fused_us(pointwise + 2 * own * hidden + (1 + model.gated) * inner)
        waits, temporary = self._waits(routed), gradients
        saved = inputs + 2 * own * hidden + qkv + inner * (1 + model.gated)
        for k, us in enumerate(self.attention_us(windowed)):
            work[k] += us
            waits[k] += self._keys_us(k + 1, us)
        if self.layout.recompute == "full":
            work[1], waits[1], saved, temporary = sum(work[:2]), sum(waits[:2]), own * hidden, temporary + saved
        elif self.layout.recompute == "selective":
            work[1] += self.fused_us(again)
            saved, temporary = saved - remade, temporary + remade
        held, of_experts = model.layer_parameters(routed)
        return self.stage(work, waits, [saved, inputs + gradients, temporary], held // tp, of_experts // ep)

    def _waits(self, routed: bool) -> list[float]:
        """Microseconds of F, I and W for collectives of tensor and expert parallelism."""
        nbytes, mesh = 2 * self.tokens * self.model.hidden, self.layout.mesh
        blocks = 2 if not routed or self.model.shared_experts else 1
        us = blocks * sum(self.collective_us(op, nbytes, "tp") for op in ("all_gather", "reduce_scatter"))
        us += 2 * routed * self.collective_us("all_to_all", nbytes / mesh.tp * self.model.top_k, "ep")
        return [us, us, 0.0]

    def _keys_us(self, times: int, attention_us: float) -> float:
        """Microseconds for keys and values that are gathered so often while attention runs on those of other ranks."""
        cp, model = self.layout.mesh.cp, self.model
        nbytes = 4 * self.tokens * cp * model.kv // self.layout.mesh.tp * model.size
        return max(times * self.collective_us("all_gather", nbytes, "cp") - attention_us * (cp - 1) / cp, 0.0)

    def ends(self) -> tuple[PipelineStage, PipelineStage]:
        """The embedding, whose backward adds up rows; and the head: norm, logits and loss (in 32 bits)."""
        (pp, _, _, tp, _), hidden = self.layout.mesh, self.model.hidden
        own, columns = self.tokens // tp * hidden, self.model.vocabulary // tp
        us, passes_us = self.fused_us(2 * own), self.collective_us("all_gather", 2 * own * tp, "tp")
        embedding = self.stage([us, 0.0, us], [passes_us, 0.0, passes_us], [0, 0, own], columns * hidden)
        logits, work = self.tokens * columns, self.matmul_us(self.tokens, columns, hidden)
        loss_us, kept = self.fused_us(5 * logits + 3 * own), 2 * (logits + own)
        held = 0 if self.model.tied and pp == 1 else columns * hidden
        work = [work[0] + loss_us, work[1] + loss_us, work[2]]
        return embedding, self.stage(work, [passes_us, passes_us, 0.0], [kept, kept, 3 * logits], held)

    def stage(self, work: Times, waits: Times, sizes: list[int], own: int, experts: int = 0) -> PipelineStage:
        """Make a stage, with what data parallelism adds.

        Args:
            work: Microseconds of F, I and W in which it computes.
            waits: In which it waits for collectives.
            sizes: Elements that are saved, kept for W, and live while an action runs.
            own: Parameters of the rank before states are divided.
            experts: Those of experts.
        """
        mesh, gathers, whole, counts = self.layout.mesh, self.gathers, own + experts, {"dp": own, "experts": experts}
        gather_us, reduce_us = (
            sum(self.collective_us(op, size * count, among) for among, count in counts.items())
            for op, size in (("all_gather", GATHERED), ("reduce_scatter", REDUCED))
        )
        divided, by_layer = sum(count / mesh.along(among)[0] for among, count in counts.items()), gathers == "layer"
        out_us, in_us = (self.fused_us(more) * (self.free != "dp") for more in (2 * whole + 3 * divided, 3 * whole))
        if by_layer:
            work = [us + more for us, more in zip(work, (out_us, out_us, in_us), strict=True)]
        ahead_us, back_us = work[0] + waits[0], sum(work[1:]) + sum(waits[1:])
        slowed = 1 - 1 / self.cluster.contention.slowdown.get("any", 1.0)
        moves_us = (gather_us, ahead_us), (gather_us + reduce_us, back_us), (0.0, 0.0)
        more_us = [max(moved_us - us, moved_us * slowed) * by_layer for moved_us, us in moves_us]
        live = [2 * GATHERED, *[3 * GATHERED + REDUCED] * 2]
        sent = 2 * self.tokens // mesh.tp * self.model.hidden
        waits = [us + more for us, more in zip(waits, more_us, strict=True)]
        ahead, back, weights = (
            PipelineBlock(us + wait, 2 * sizes[2] + held * by_layer * whole, sent, exposed_us=wait)
            for us, wait, held in zip(work, waits, live, strict=True)
        )
        both = replace(back, time_us=back.time_us + weights.time_us, exposed_us=back.exposed_us + weights.exposed_us)
        static = STATES[gathers][0] * whole + STATES[gathers][1] * divided
        once_us, last_us = max(gather_us - ahead_us, 0.0) * (gathers == "step"), max(reduce_us - back_us, 0.0)
        return PipelineStage(
            *(ahead, both, back, weights, 2 * sizes[0], 2 * sizes[1], round(static)),
            reduce=None if by_layer else PipelineBlock(last_us if gathers == "step" else reduce_us + in_us),
            step=PipelineBlock(self.kernel_us("_fused_adamw_", 0, UPDATED / 2 * divided) + once_us),
            unshard=PipelineBlock(gather_us + out_us, 0, GATHERED * whole) if gathers == "stage" else None,
        )

    def stages(self) -> tuple[PipelineStage, ...]:
        """The embedding, the layers, the head."""
        layers, (embedding, head) = {kind: self.layer(*kind) for kind in set(self.model.kinds)}, self.ends()
        return embedding, *(layers[kind] for kind in self.model.kinds), head
