"""A layer with experts over two ranks, forward and backward, as torchtitan routes its tokens; regions of it in parts.

Numbers of tokens go to the host, so sizes depend on data, as in real graphs.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched.fx.dimensions.rules import CallCut
from overlap_sched.transform.dimension_graph import Cut, Given, Uncut
from tests.support.fx_graphs import C10D, RANKS, wait
from tests.support.lockstep import run_lockstep

# Real tensors cut into parts and put together again, by definition: row by row.


def rows_of(cut: Cut, parts: int, p: int) -> list[int]:
    """The rows of a part, in their order: block p of every run."""
    return [(run * parts + p) * cut.inner + row for run in range(cut.outer) for row in range(cut.inner)]


def take(tensor: Tensor, cut: Cut, parts: int, p: int) -> Tensor:
    """A part of a tensor."""
    return tensor.index_select(cut.dim, torch.tensor(rows_of(cut, parts, p)))


def put_together(results: Sequence[Any], given: Given, parts: int) -> Any:
    """The whole, from the results of all parts."""
    if given is Uncut.PARTIAL:
        return torch.stack(list(results)).sum(0)
    if not isinstance(given, Cut):
        return results[0]
    whole = torch.cat(list(results), given.dim)
    order = [row for p in range(parts) for row in rows_of(given, parts, p)]
    return torch.empty_like(whole).index_copy_(given.dim, torch.tensor(order), whole)


def call_part(node: fx.Node, cut: CallCut, values: dict[fx.Node, Tensor], parts: int, p: int) -> tuple[Any, Any]:
    """The arguments of a call in one part: inputs cut as the rule needs them, other arguments as it says."""

    def of(u: fx.Node) -> Tensor:
        return take(values[u], cut.needs[u], parts, p) if u in cut.needs else values[u]

    args, kwargs = list(fx.node.map_arg(node.args, of)), dict(fx.node.map_arg(node.kwargs, of))
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    for name, value in cut.changes.items():
        at = names.index(name)
        if at < len(args):
            args[at] = value
        else:
            kwargs[name] = value
    return args, kwargs


TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 16, 8, 16, 4, 2
Shapes = Sequence[tuple[int, ...]]
Splits = list[Any]


def shapes(tokens: int, width: int, hidden: int, experts: int) -> Shapes:
    """Of one rank's tokens, of the router, and of the weights of its experts."""
    here = experts // RANKS
    return ((tokens, width), (width, experts), (here, width, hidden), (here, hidden, width))


SHAPES = shapes(TOKENS, WIDTH, HIDDEN, EXPERTS)


class Sent(torch.autograd.Function):
    """Rows go to other ranks; their gradients come back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Splits, here: Splits) -> Tensor:
        ctx.there, ctx.here = there, here
        return wait(C10D.all_to_all_single(rows, there, here, "0"))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return wait(C10D.all_to_all_single(grads[0], ctx.here, ctx.there, "0")), None, None


def by_expert(counts: Tensor) -> Tensor:
    """Where the rows of each local expert are, of rows that lie by sender, then by expert (torchtitan's arithmetic)."""
    begins = (counts.cumsum(0) - counts).view(RANKS, -1).t().reshape(-1)
    lengths = counts.view(RANKS, -1).t().reshape(-1)
    segment = torch.arange(lengths.shape[0]).repeat_interleave(lengths, output_size=None)
    return begins[segment] + torch.arange(segment.shape[0]) - (lengths.cumsum(0) - lengths)[segment]


def experts(x: Tensor, router: Tensor, up: Tensor, down: Tensor, each: int = CHOSEN) -> Tensor:
    """Each token goes to some experts, here or on the other rank, and what they give is added up."""
    scores = torch.softmax(x @ router, -1)
    chosen, ids = scores.topk(each, -1)
    counts = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, ids, True).sum(0)
    order = ids.view(-1).sort(stable=True)[1]
    token = order // each
    local = wait(C10D.all_to_all_single(counts.view(RANKS, -1), [1] * RANKS, [1] * RANKS, "0")).reshape(-1)
    here = counts.view(RANKS, -1).sum(1).tolist()
    there = local.view(RANKS, -1).sum(1).tolist()
    rows = Sent.apply(x[token], there, here)
    place = by_expert(local)
    offsets = local.view(RANKS, -1).sum(0).cumsum(0, dtype=torch.int32)
    hidden = torch.relu(torch._grouped_mm(rows[place], up, offs=offsets))
    out = torch._grouped_mm(hidden, down, offs=offsets)
    back = Sent.apply(torch.empty_like(rows).index_put_((place,), out), here, there)
    weighted = back * chosen.view(-1)[order].unsqueeze(1)
    return x + torch.zeros_like(x).scatter_add(0, token.unsqueeze(1).expand(-1, x.shape[1]), weighted)


def step(x: Tensor, *weights: Tensor, each: int = CHOSEN) -> list[Tensor]:
    """Forward, loss and gradients of all that comes in."""
    inputs = [one.detach().requires_grad_() for one in (x, *weights)]
    loss = experts(*inputs, each).pow(2).sum(-1)
    return [loss.detach(), *torch.autograd.grad(loss.sum(), inputs)]


def routed(rows: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., list[Tensor]]:
    """A graph on one rank in which tokens are sorted by expert, and something happens to the rows.

    Args:
        rows: Takes the tokens, the order and the tokens' numbers; gives a value per routed row.
    """

    def one(x: Tensor, router: Tensor, *_: Tensor) -> list[Tensor]:
        order = (x @ router).topk(CHOSEN, -1)[1].view(-1).sort(stable=True)[1]
        token = order // CHOSEN
        made = rows(x, order, token)
        return [torch.zeros_like(x).index_put((token,), made, accumulate=True)]

    return one


@cache
def traced(make: Callable[..., Any] = step) -> fx.GraphModule:
    """Traced on fake tensors, once; sizes that depend on data are symbols."""
    return trace(make, SHAPES)


def trace(make: Callable[..., Any], of: Shapes = SHAPES) -> fx.GraphModule:
    """The same, a graph of its own."""
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(allow_scalar_outputs=True)):
        inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in of]
        return make_fx(make, tracing_mode="fake")(*inputs)


def inputs_of_ranks(gm: fx.GraphModule, seed: int) -> list[list[Tensor]]:
    """Each rank has tokens and experts of its own, and they share the router."""
    x, router, *weights = (tuple(node.meta["val"].shape) for node in gm.graph.find_nodes(op="placeholder"))
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(router, generator=generator)
    found = []
    for _ in range(RANKS):
        tokens, *own = (torch.randint(-2, 3, shape, generator=generator) for shape in (x, *weights))
        found.append([one.bfloat16() for one in (tokens, shared, *own)])
    return found


def run(gm: fx.GraphModule, seed: int) -> list[Sequence[Tensor]]:
    """Results of both ranks."""
    return run_lockstep(gm, inputs_of_ranks(gm, seed), {"0": [list(range(RANKS))]})


def check_alike(whole: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Losses and gradients of tokens to the last bit; gradients of weights are sums over the parts, in bfloat16."""
    loss, of_tokens, *of_weights = zip(whole, parts, strict=True)
    assert torch.equal(*loss)
    assert torch.equal(*of_tokens)
    for want, have in of_weights:
        torch.testing.assert_close(have, want, rtol=0.02, atol=0.02 * float(want.abs().max()))
