"""Small layers sharded over ranks, for the tests of fission: as tensor, sequence and expert parallelism make them."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.transform.dimension_graph import Cut, cuts_of
from overlap_sched.transform.rewrites import Fission
from tests.support.fx_graphs import C10D, RANKS, gather, scatter, trace, wait
from tests.support.lockstep import run_lockstep

BATCH, TOKENS, WIDTH, HEADS = 4, 8, 16, 2
A = torch.ops.aten


def norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, True) + 1e-5) * w


def gathered(x: Tensor) -> Tensor:
    """All ranks' tokens: a gather along dimension 0, and what makes it one along dimension 1."""
    return torch.cat(list(wait(gather(x)).split(x.shape[0])), 1)


def scattered(x: Tensor) -> Tensor:
    """The sum over ranks, each rank its tokens."""
    return wait(scatter(torch.cat(list(x.split(x.shape[1] // RANKS, 1)))))


def layer(x: Tensor, w: Tensor, qkv: Tensor, o: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, ...]:
    """A transformer layer, tensor and sequence parallel: tokens of this rank in, tokens of this rank out."""
    h = gathered(norm(x, w)).view(-1, WIDTH) @ qkv
    q, k, v = (one.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2) for one in h.split(h.shape[1] // 3, 1))
    att = A._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0]
    y = x + scattered((att.transpose(1, 2).reshape(-1, o.shape[0]) @ o).view(BATCH, TOKENS, WIDTH))
    h = gathered(norm(y, w)).view(-1, WIDTH) @ up
    z = y + scattered((torch.relu(h) @ down).view(BATCH, TOKENS, WIDTH))
    return z, h, att.transpose(1, 2)


def experts(x: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
    """Tokens go to as many experts as there are ranks, evenly, and come back."""
    rows = [x.shape[0] // RANKS] * RANKS
    there = wait(C10D.all_to_all_single(x, rows, rows, "0"))
    h = torch.relu(there @ w1) @ w2
    return (wait(C10D.all_to_all_single(h, rows, rows, "0")) + x,)


def backward(g: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a sharded product: one is a sum over rows."""
    whole = gathered(g).view(-1, WIDTH)
    dx = scattered((whole @ w.t()).view(BATCH, TOKENS, WIDTH))
    dw = gathered(torch.tanh(x)).view(-1, WIDTH).t() @ whole
    return dx, dw, wait(C10D.all_reduce(g.sum([0, 1]), "sum", "0"))


class Example(NamedTuple):
    """What to trace."""

    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


SHARD = (BATCH, TOKENS // RANKS, WIDTH)
EXAMPLES: Mapping[str, Example] = {
    "layer": Example(layer, (SHARD, (WIDTH,), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 24), (24, WIDTH))),
    "experts": Example(experts, ((16, WIDTH), (WIDTH, 24), (24, WIDTH))),
    "backward": Example(backward, (SHARD, SHARD, (WIDTH, WIDTH))),
}


@cache
def _traced(name: str) -> fx.GraphModule:
    one = EXAMPLES[name]
    return trace(one.make, *one.shapes)


def traced(name: str) -> fx.GraphModule:
    """The graph of an example: a copy, with the same values on fake tensors."""
    gm, graph = _traced(name), fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def run(gm: fx.GraphModule, seed: int = 0) -> list[list[Tensor]]:
    """Results of all ranks; each rank has inputs of its own."""
    shapes = [tuple(n.meta["val"].shape) for n in gm.graph.nodes if n.op == "placeholder"]
    generator = torch.Generator().manual_seed(seed)
    inputs = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(RANKS)]
    return [list(results) for results in run_lockstep(gm, inputs, {"0": [list(range(RANKS))]})]


def fissions(gm: fx.GraphModule, parts: int, *, sums: bool = False) -> dict[tuple[str, Cut], Fission]:
    """Fissions from every dimension of every input: cut into ranges, and row by row."""
    found = {}
    for node in gm.graph.nodes:
        cuts = cuts_of(tuple(node.meta["val"].shape), parts) if node.op == "placeholder" else []
        for cut in (cut for cut in cuts if 1 in (cut.outer, cut.inner) or cut.outer == RANKS):
            one = fission_of(region_from(gm.graph, {node: cut}, parts, sums=sums))
            if one is not None:
                found[node.name, cut] = one
    return found
