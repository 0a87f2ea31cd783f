"""Graphs for the tests of fx/, orders of them, and an adversary that runs them.

The adversary is the network: a collective may move its data at any time between its launch and its wait. ``eager``
moves all at the launch; ``lazy`` leaves the output full of NaN until the wait and only then reads the input. An order
that is right gives the same result under both as the original does.
"""

import random
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.dump.graph import stand_in
from overlap_sched.fx import lift
from overlap_sched.fx.graphs import reorder
from overlap_sched.problem import Order, Problem

# A whole training step in one graph, as torchtitan traces it: forward, loss, backward; gradients are outputs.


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


# A training step of several sharded blocks, whose activations are more than its weights.


DEPTH, BLOCK_ROWS, BLOCK_WIDTH = 4, 256, 32


def blocks_step(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Blocks with a residual, a loss, gradients."""
    leaves = [weight.detach().requires_grad_() for weight in weights]
    for leaf in leaves:
        x = x + torch.nn.functional.gelu(torch.tanh(x) @ Gathered.apply(leaf))
    loss = x.square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def sharded_step() -> fx.GraphModule:
    """The step traced."""
    gm = trace(blocks_step, (BLOCK_ROWS, BLOCK_WIDTH), *[(BLOCK_WIDTH // RANKS, BLOCK_WIDTH)] * DEPTH)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


C10D = torch.ops._c10d_functional
WAIT_TENSORS = getattr(C10D, "wait_tensors", None) or stand_in("_c10d_functional", "wait_tensors")
"""torch has it from 2.15 on; what stands for it in dumps that an older torch reads serves as well to trace."""
ATEN = torch.ops.aten
RANKS = 2
Timing = Literal["eager", "lazy"]
TIMINGS: tuple[Timing, ...] = ("eager", "lazy")


def wait(x: torch.Tensor) -> torch.Tensor:
    return C10D.wait_tensor(x)


def wait_for_all(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return WAIT_TENSORS(list(tensors))


def gather(x: torch.Tensor, group: str = "0") -> torch.Tensor:
    return C10D.all_gather_into_tensor(x, RANKS, group)


def scatter(x: torch.Tensor, group: str = "0") -> torch.Tensor:
    return C10D.reduce_scatter_tensor(x, "sum", RANKS, group)


def trace(f: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cpu") -> fx.GraphModule:
    """Trace on fake tensors of these shapes."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, device=device) for shape in shapes]
    return make_fx(f, tracing_mode="fake")(*inputs)


def tensors(gm: fx.GraphModule, seed: int = 0) -> list[torch.Tensor]:
    """Real inputs for a traced graph."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n.meta["val"].shape, generator=generator) for n in gm.graph.nodes if n.op == "placeholder"]


def random_order(problem: Problem, rng: random.Random) -> Order:
    """Any order that keeps the problem's dependencies; biased, now and then, to far from the original."""
    left = [len(before) for before in problem.predecessors]
    ready = [v for v, n in enumerate(left) if n == 0]
    order = []
    picks: list[Callable[[list[int]], int]] = [rng.choice, max, lambda vs: vs[-1]]
    pick = rng.choice(picks)
    while ready:
        v = pick(ready)
        ready.remove(v)
        order.append(v)
        for w in problem.successors[v]:
            left[w] -= 1
            if left[w] == 0:
                ready.append(w)
    return tuple(order)


def reordered(gm: fx.GraphModule, rng: random.Random) -> fx.GraphModule:
    """A copy of the graph in a random valid order."""
    lifted = lift(gm)
    order = random_order(lifted.problem, rng)
    copied: dict[fx.Node, fx.Node] = {}
    graph = fx.Graph()
    output = graph.output(graph.graph_copy(gm.graph, copied))
    result = fx.GraphModule(gm, graph)
    reorder(result, [copied.get(node, output) for node in lifted.reordered(order)])
    result.graph.lint()
    return result


class Adversary(fx.Interpreter):
    """Runs a graph with a network of its own: see the module."""

    def __init__(self, gm: fx.GraphModule, timing: Timing) -> None:
        super().__init__(gm)
        self.timing = timing
        self.late: dict[int, list[Callable[[], object]]] = {}

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(target, "namespace", "") == "_c10d_functional":
            names = [argument.name for argument in target._schema.arguments if not argument.kwarg_only]
            args = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs))
            kwargs = {name: given for name, given in kwargs.items() if name not in names}
        if target in (C10D.wait_tensor.default, WAIT_TENSORS.default):
            for tensor in args[0] if isinstance(args[0], list) else args:
                for move in self.late.pop(tensor.untyped_storage()._cdata, []):
                    move()
            return args[0]
        if target not in MOVES:
            return super().call_function(target, args, kwargs)
        out, move = MOVES[target](*args, **kwargs)
        if self.timing == "eager":
            move()
        else:
            for tensor in out if isinstance(out, list) else [out]:
                self.late.setdefault(tensor.untyped_storage()._cdata, []).append(move)
        return out


def _gathered(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x * (rank + 1) for rank in range(RANKS)])


def _scattered(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // RANKS] * RANKS


def _unset(x: torch.Tensor, rows: int) -> torch.Tensor:
    return x.new_full((rows, *x.shape[1:]), float("nan") if x.is_floating_point() else 123456789)


def _out_of_place(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def launch(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, Callable[[], object]]:
        out = _unset(x, f(x).shape[0])
        return out, lambda: out.copy_(f(x))

    return launch


def _gather_out(x: torch.Tensor, *_: Any, out: torch.Tensor) -> tuple[torch.Tensor, Callable[[], object]]:
    return out, lambda: out.copy_(_gathered(x))


def _reduce_in_place(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, Callable[[], object]]:
    return x, lambda: x.mul_(RANKS)


def _coalesced(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def launch(xs: list[torch.Tensor], *_: Any) -> tuple[list[torch.Tensor], Callable[[], object]]:
        outs = [_unset(x, f(x).shape[0]) for x in xs]
        done: list[bool] = []

        def move() -> None:
            if not done:  # one piece of work with several outputs
                done.append(True)
                for out, x in zip(outs, xs, strict=True):
                    out.copy_(f(x))

        return outs, move

    return launch


MOVES: dict[Any, Callable[..., Any]] = {
    C10D.all_gather_into_tensor.default: _out_of_place(_gathered),
    C10D.reduce_scatter_tensor.default: _out_of_place(_scattered),
    C10D.all_reduce.default: _out_of_place(lambda x: x * RANKS),
    C10D.all_reduce_.default: _reduce_in_place,
    C10D.all_gather_into_tensor_out.default: _gather_out,
    C10D.all_gather_into_tensor_coalesced.default: _coalesced(_gathered),
    C10D.reduce_scatter_tensor_coalesced.default: _coalesced(_scattered),
    C10D.all_reduce_coalesced.default: _coalesced(lambda x: x * RANKS),
}


def outcome(gm: fx.GraphModule, timing: Timing) -> list[torch.Tensor]:
    """All that a run can be seen to do: its results, and what it left in its inputs."""
    inputs = tensors(gm)
    torch.manual_seed(7)
    results = Adversary(gm, timing).run(*inputs)
    return [*torch.utils._pytree.tree_leaves(results), *inputs]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Bitwise equal; NaN equals itself."""
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x.contiguous().view(torch.int32), y.contiguous().view(torch.int32))
        for x, y in zip(a, b, strict=True)
    )


def on_gpu(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with its values on a GPU that need not be there: tracing on one needs one."""
    for node in gm.graph.nodes:
        node.meta["val"] = torch.utils._pytree.tree_map_only(torch.Tensor, _fake_on_gpu, node.meta.get("val"))
    return gm


def _fake_on_gpu(value: Any) -> Any:
    meta = torch.empty(0, dtype=value.dtype, device="meta")
    meta.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())
    return torch._subclasses.FakeTensor(value.fake_mode, meta, torch.device("cuda"))
