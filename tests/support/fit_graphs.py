"""Whole training steps on one device for the tests of recomputation and offload, and random problems of such steps."""

import random

import torch
from torch import Tensor, fx

from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from tests.support.fx_graphs import trace

DEPTH, ROWS, WIDTH = 4, 64, 32
SHAPES = ((ROWS, WIDTH), *((WIDTH, WIDTH),) * (2 * DEPTH))


def blocks(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Blocks of two matmuls with a residual, a loss, gradients, and weights updated in place."""
    leaves = [weight.detach().requires_grad_() for weight in weights]
    hidden = x
    for first, second in zip(leaves[::2], leaves[1::2], strict=True):
        normal = torch.nn.functional.layer_norm(hidden, (WIDTH,))
        hidden = hidden + torch.nn.functional.gelu(normal @ first) @ second
    loss = hidden.softmax(-1).pow(2).sum()
    grads = torch.autograd.grad(loss, leaves)
    for weight, grad in zip(weights, grads, strict=True):
        weight.sub_(0.1 * grad)
    return [loss.detach()]


def training_step() -> fx.GraphModule:
    """The step traced."""
    gm = trace(blocks, *SHAPES)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def random_step(rng: random.Random, layers: int = 12) -> Problem:
    """A forward whose values come back in a backward, in reverse: chains, skips, views, collectives."""
    mib = 2**20
    nodes: list[Node] = []
    storages: list[Storage] = []

    def new(nbytes: int, pinned: bool = False) -> int:
        storages.append(Storage(nbytes, pinned))
        return len(storages) - 1

    def add(name: str, deps: list[int], alloc: tuple[int, ...], use: set[int], us: float, op: str = "aten.mm") -> int:
        nodes.append(Node(name, Kind.COMPUTE, tuple(sorted(set(deps))), alloc, tuple(sorted(use)), us, op))
        return len(nodes) - 1

    w, x = new(4 * mib, True), new(mib)
    nodes += [Node("w", Kind.INPUT, alloc=(w,)), Node("x", Kind.INPUT, alloc=(x,))]
    made: list[tuple[int, int]] = [(1, x)]  # a node, and the storage that it gives
    for k in range(layers):
        back = [made[-1], made[rng.randrange(len(made))]]
        op = rng.choice(["aten.mm", "aten.gelu", "aten.bernoulli", "aten.add"])
        alloc = tuple(new(rng.randint(1, 8) * mib) for _ in range(rng.choice([1, 1, 1, 2])))
        v = add(f"f{k}", [0, *(u for u, _ in back)], alloc, {w, *(s for _, s in back)}, rng.uniform(1, 50), op)
        if rng.random() < 0.4:
            v = add(f"view{k}", [v], (), {alloc[0]}, 0.0, "aten.view")
        made.append((v, alloc[0]))
        if rng.random() < 0.2:
            out = new(mib)
            group = Node(f"c{k}", Kind.COLLECTIVE, (v,), (out,), (alloc[0],), 30.0, "all_reduce", "g", bytes=mib)
            nodes.append(group)
            launch = len(nodes) - 1
            use = tuple(sorted({alloc[0], out}))
            nodes.append(Node(f"c{k}w", Kind.WAIT, (launch,), (), use, op="wait", collective=launch))
            made.append((len(nodes) - 1, out))
    grad = new(4 * mib)
    last = add("loss", [made[-1][0]], (grad,), {made[-1][1]}, 5.0)
    for k, (u, s) in reversed(list(enumerate(made))):
        following = new(4 * mib)
        last = add(f"b{k}", [last, u, 0], (following,), {grad, s, w}, rng.uniform(1, 50))
        grad = following
    nodes.append(Node("output", Kind.OUTPUT, (last,), (), (grad,)))
    return Problem("random", tuple(nodes), tuple(storages), {"g": Group(8, True)})


def computed(name: str, *rows: tuple[str, str, int, float]) -> Problem:
    """Compute by rows (a node, what it takes, MiB that it makes, microseconds); the first is an input that stays."""
    nodes, storages, held = list[Node](), list[Storage](), dict[str, int]()
    ids = {row[0]: v for v, row in enumerate(rows)}
    for made, taken, mib, us in rows:
        alloc = (len(storages),) if mib else ()
        storages += [Storage(mib * 2**20, not nodes) for _ in alloc]
        held.update((made, s) for s in alloc)
        use = tuple(held[one] for one in taken.split() if one in held)
        kind = Kind.COMPUTE if taken else Kind.INPUT
        nodes.append(
            Node(made, kind, tuple(ids[one] for one in taken.split()), alloc, use, us, "aten.mm" if us else "")
        )
    last = rows[-1][0]
    nodes.append(Node("output", Kind.OUTPUT, (ids[last],), (), (held[last],)))
    return Problem(name, tuple(nodes), tuple(storages))
