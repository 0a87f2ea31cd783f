"""A whole training step in one graph, as torchtitan traces it: forward, loss, backward; gradients are outputs."""

from typing import Any

import torch
from torch import Tensor, fx

from tests.support.fx_graphs import gather, scatter, trace, wait

ROWS, WIDTH = 16, 8
SHAPES = ((ROWS, WIDTH), (WIDTH // 2, WIDTH), (WIDTH // 2, WIDTH))
"""A batch and two weights, sharded by rows on two ranks."""


class Gathered(torch.autograd.Function):
    """A sharded weight, gathered for the forward; its gradient is scattered."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor) -> Tensor:
        return wait(gather(shard))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return wait(scatter(grads[0]))


def step(x: Tensor, first: Tensor, second: Tensor) -> list[Tensor]:
    """Two layers; the backward uses the second gathered weight again."""
    shards = [first.detach().requires_grad_(), second.detach().requires_grad_()]
    hidden = torch.relu(x @ Gathered.apply(shards[0]))
    loss = (hidden @ Gathered.apply(shards[1])).pow(2).sum()
    return [loss.detach(), *torch.autograd.grad(loss, shards)]


def whole_step() -> fx.GraphModule:
    """The step traced: the gathered weight is kept from the forward to the backward."""
    gm = trace(step, *SHAPES)
    gm.graph.eliminate_dead_code()
    for node in gm.graph.nodes:
        node.name = node.name.replace("alias", "detach")  # what torch 2.15 traces a detach as
    gm.recompile()
    return gm


def recomputed() -> fx.GraphModule:
    """The same step, but its second weight is gathered again in the backward, and the first layer computed again."""
    gm = whole_step()
    _again(gm, ["all_gather_into_tensor_1", "wait_tensor_1"], before="t_1")
    _again(gm, ["mm", "relu", "detach_2"], before="detach_4")
    return gm


def _again(gm: fx.GraphModule, names: list[str], before: str) -> None:
    """Recompute as torchtitan's pass does: ``node_copy``, which copies ``meta`` and shares its ``val``."""
    graph = gm.graph
    nodes = list(graph.nodes)
    place = next(node for node in nodes if node.name == before)
    copied: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(place):
        for node in nodes:
            if node.name in names:
                copied[node] = graph.node_copy(node, lambda n: copied.get(n, n))
                copied[node].name = f"{node.name}_again"
    for node in nodes[nodes.index(place) :]:
        for old, new in copied.items():
            node.replace_input_with(old, new)
    graph.lint()
    gm.recompile()
