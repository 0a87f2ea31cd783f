"""Random training steps and random plans for them, legal ones; and what a run of a graph holds."""

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.fitting import batch_fissions
from overlap_sched.fx.rewrites import alike_of, prepare, rerunnable, rewrite_graph
from overlap_sched.problem import Group, Kind, Problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import range_cut
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Fission, Offload, Recompute, Rewrite
from tests.support.fx_graphs import RANKS, Gathered, trace
from tests.support.rewrite_graphs import tried

ROWS, TOKENS, WIDTH = 4, 6, 8
GROUPS = {"0": Group(RANKS, True)}
Layer = Callable[[Tensor, Tensor], Tensor]
LAYERS: Sequence[Layer] = (
    lambda x, w: torch.relu(x @ w),
    lambda x, w: x + torch.tanh(x @ w),
    lambda x, w: torch.nn.functional.layer_norm(x @ w, (WIDTH,)),
    lambda x, w: (x @ w).softmax(-1) * x,
    lambda x, w: torch.stack((x @ w).unflatten(-1, (-1, 2)).unbind(-1), -1).flatten(-2),
    lambda x, w: torch.cat([part @ w for part in x.split(2, 1)], 1),
    lambda x, w: (x.transpose(1, 2).contiguous().transpose(1, 2) @ w).sigmoid(),
)


def random_step(rng: random.Random, sharded: bool) -> fx.GraphModule:
    """Random layers, a loss, gradients, weights updated in place; with collectives where weights are sharded."""
    layers = [rng.choice(LAYERS) for _ in range(rng.randint(2, 4))]

    def step(x: Tensor, *weights: Tensor) -> list[Tensor]:
        leaves = [weight.detach().requires_grad_() for weight in weights]
        for layer, leaf in zip(layers, leaves, strict=True):
            x = layer(x, Gathered.apply(leaf) if sharded else leaf)
        loss = x.square().sum()
        for weight, grad in zip(weights, torch.autograd.grad(loss, leaves), strict=True):
            weight.sub_(0.1 * grad)
        return [loss.detach()]

    weight = (WIDTH // RANKS if sharded else WIDTH, WIDTH)
    gm = trace(step, (ROWS, TOKENS, WIDTH), *[weight for _ in layers])
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph of its own, with the same values on fake tensors."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def problem_of(gm: fx.GraphModule) -> Problem:
    return lift(gm, groups=GROUPS).problem


class Planned(NamedTuple):
    """A plan that is legal: rewrites, and what they make of the graph's problem."""

    rewrites: list[Rewrite]
    problem: Problem


def random_plan(rng: random.Random, gm: fx.GraphModule, tries: int = 7) -> Planned:
    """Fissions first, then anything, each legal behind those before it: for the graph, and for the problem."""
    lifted, alike, done = lift(gm, groups=GROUPS), alike_of(gm), list[Rewrite]()
    after, prices = lifted.problem, Prices(lifted.model)
    for k in range(tries):
        one = _fission(rng, gm) if k < 2 else _other(rng, gm, after)
        if one is None:
            continue
        try:
            prepare(gm, [one]).undo()
            after = apply(lifted.problem, [*done, one], prices, alike)
        except RewriteError:
            continue
        gm = copied(gm)
        rewrite_graph(gm, [one])
        done.append(one)
    return Planned(done, after)


def _fission(rng: random.Random, gm: fx.GraphModule) -> Fission | None:
    sums = rng.random() < 0.5
    if sums and rng.random() < 0.5:
        return next(iter(batch_fissions(lift(gm, groups=GROUPS), (2,))), None)
    values = [n for n in gm.graph.nodes if isinstance(n.meta.get("val"), Tensor) and n.meta["val"].ndim > 1]
    node = rng.choice(values)
    dim = rng.randrange(node.meta["val"].ndim)
    if node.meta["val"].shape[dim] % 2:
        return None
    seeds = {node: range_cut(tuple(node.meta["val"].shape), dim, 2)}
    return fission_of(region_from(gm.graph, seeds, 2, sums=sums))


def _other(rng: random.Random, gm: fx.GraphModule, problem: Problem) -> Rewrite | None:
    collectives = [one for one in tried(gm) if getattr(one, "form", "copied") == "copied"]
    may = rerunnable(gm)
    if collectives and rng.random() < 0.4:
        return rng.choice(collectives)
    made = [v for v, node in enumerate(problem.nodes) if node.alloc and node.kind is Kind.COMPUTE and node.name in may]
    if not made:
        return None
    v = rng.choice(made)
    users = [problem.nodes[w].name for w in problem.successors[v] if v in problem.nodes[w].deps]
    if not users:
        return None
    some = tuple(sorted(rng.sample(users, rng.randint(1, len(users))), key=users.index))
    name = problem.nodes[v].name
    return Offload(name, some) if rng.random() < 0.3 else Recompute((name,), some, rng.randint(1, 2))


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors hold at the end of any operator: what was given, and what was made since."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0
        self._note(given)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(tree_leaves(result))
        return result

    def _note(self, values: Sequence[Any]) -> None:
        self.held = {k: one for k, one in self.held.items() if not one[0].expired()}
        for value in values:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, sum(nbytes for _, nbytes in self.held.values()))
