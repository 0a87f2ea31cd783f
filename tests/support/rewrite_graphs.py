"""Graphs of functional collectives for the tests of rewrites, their sites, and problems by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from overlap_sched.cost import Collective, Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.rewrites import prepare
from overlap_sched.problem import Group, Problem
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.transform.dimension_graph import Cut, cuts_of
from overlap_sched.transform.rewrites import Bucket, Fission, Keep, Regather, Rewrite, Stream
from tests.support.fx_graphs import C10D, RANKS, gather, recomputed, scatter, trace, wait, whole_step
from tests.support.lockstep import run_lockstep

# Small layers sharded over ranks, for the tests of fission: as tensor, sequence and expert parallelism make them.


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


def reduce(x: Tensor, group: str = "0", op: str = "max") -> Tensor:
    """An all_reduce."""
    return C10D.all_reduce(x, op, group)


def mixed(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    """Gathers of several shapes and groups, scatters and reductions of what they give; some on one path."""
    ga, gb, gd = gather(a), gather(b), gather(d, "1")
    wa = wait(ga)
    y = wa @ c
    wb = wait(gb)
    z = (wb * 2.0).reshape(RANKS * 2, -1)
    sy, sz = scatter(y), scatter(z)
    again = wait(gather(a))
    total = reduce(torch.bitwise_and(y.to(torch.int32), 7), op="sum")
    other = reduce(z.to(torch.int32), op="sum")
    late = scatter(again @ c + wait(sy).sum())
    return [wait(sy), wait(sz), wait(total), wait(other), wait(late), wait(gd) + 1.0, again * wa]


def hazards(a: Tensor, b: Tensor) -> list[Tensor]:
    """Shards that are written to behind their gathers, and a gathered tensor that is written to."""
    ga, gb = gather(a), gather(b)
    wa, wb = wait(ga), wait(gb)
    y = wa.sum() + wb.sum()
    a.add_(y)
    mine = wait(gather(a))
    mine.mul_(2.0)
    b.copy_(b * 0.5)
    return [wait(gather(b)) + y, mine, wa * 3.0]


def twice(a: Tensor, b: Tensor) -> list[Tensor]:
    """One collective with two waits, and a scatter whose input is a view."""
    ga, gb = gather(a), gather(b)
    first, second = wait(ga), wait(ga)
    s, t = scatter((first * 2.0).view(RANKS * 2, -1)), scatter(second + wait(gb))
    return [wait(s), wait(t).view(-1), first + second]


def cast(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """A shard that is cast and gathered for forward and for backward; one that is held, and used through views."""

    def gathered(shard: Tensor) -> Tensor:
        return wait(gather(torch.ops.prims.convert_element_type(shard, torch.bfloat16)))

    wide, held = gathered(a), gathered(b)
    y = c.to(torch.bfloat16) @ wide
    z = y @ held.t()
    again, half = gathered(a), wait(gather(torch.ops.prims.convert_element_type(a, torch.float16)))
    return [wait(scatter(z.t() @ y)), z @ held, (again * 2.0).view(-1), wide + 1.0, half * 3.0]


def by_keyword(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph, its collectives called with names for all arguments; of every second one but for the first."""
    for at, node in enumerate(n for n in gm.graph.nodes if str(n.target).startswith("_c10d_functional")):
        first = at // 2 % 2
        names = [argument.name for argument in node.target._schema.arguments]
        node.kwargs = dict(zip(names[first:], node.args[first:], strict=True))
        node.args = node.args[:first]
    return gm


GRAPHS: dict[str, Callable[[], fx.GraphModule]] = {
    "mixed": lambda: trace(mixed, (4, 8), (2, 8), (8, 8), (4, 4)),
    "hazards": lambda: trace(hazards, (4, 8), (4, 8)),
    "twice": lambda: by_keyword(trace(twice, (4, 8), (4, 8))),
    "cast": lambda: trace(cast, (4, 8), (4, 8), (4, 8)),
    "whole": whole_step,
    "recomputed": recomputed,
}
"""By name; each call traces afresh."""


def tried(gm: fx.GraphModule) -> Iterator[Rewrite]:
    """Rewrites of every kind at every place of a graph, legal or not."""
    names = [node.name for node in gm.graph.nodes if node.op == "call_function" and node.target in _LAUNCHES]
    for one in names:
        yield Stream(one)
        users = [u.name for n in gm.graph.nodes if n.name == one for w in n.users for u in w.users if u.op != "output"]
        if len(users) > 1:
            yield Regather(one, (users[-1],))
    for first, second in combinations(names, 2):
        yield from (Bucket((first, second)), Bucket((first, second), "coalesced"), Keep(first, second))
    for three in combinations(names, 3):
        yield Bucket(three)


_LAUNCHES = {getattr(C10D, op).default for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")}


def legal(gm: fx.GraphModule) -> list[Rewrite]:
    """Those of :func:`tried` that are legal alone."""
    return [one for one in tried(gm) if refusal(gm, [one]) is None]


GROUPS = {name: Group(RANKS, True) for name in ("0", "1", "0/2", "1/2")}


class OnHost(Roofline):
    """The thread that computes launches collectives and ends waits, too, as over gloo; not those of all kinds."""

    def launch_us(self, work: Collective) -> float:
        return 0.0 if "reduce_scatter" in work.op else 7.0 + work.bytes / 64

    def finish_us(self, work: Collective) -> float:
        return 0.0 if "all_gather" in work.op and work.bytes > 600 else 3.0 + work.bytes / 128


MODELS = {"device": Roofline(), "host": OnHost()}


def problem_of(gm: fx.GraphModule, model: Roofline = MODELS["device"]) -> Problem:
    return lift(gm, groups=GROUPS, model=model).problem


def refusal(gm: fx.GraphModule, rewrites: list[Rewrite]) -> str | None:
    """Why rewrites are not legal; ``None``: they are. The graph stays as it is."""
    try:
        prepare(gm, rewrites).undo()
    except RewriteError as error:
        return str(error)
    return None


def by_name(problem: Problem) -> dict[str, dict[str, Any]]:
    """All that a problem says of its nodes, with names in the place of ids; storages by who allocates them."""
    names = [node.name for node in problem.nodes]
    label = {s: (node.name, k) for node in problem.nodes for k, s in enumerate(node.alloc)}
    return {
        node.name: {
            **node._asdict(),
            "deps": sorted(names[u] for u in node.deps),
            "alloc": [problem.storages[s] for s in node.alloc],
            "use": sorted(label[s] for s in node.use),
            "collective": None if node.collective is None else names[node.collective],
        }
        for node in problem.nodes
    }


def with_times_of(got: dict[str, dict[str, Any]], want: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``got`` with the times of ``want`` where parts take about as long: a problem prices them without their shapes."""
    return {
        name: node | {"time_us": want[name]["time_us"]}
        if name.startswith("fission_")
        and name in want
        and 0.4 * node["time_us"] <= want[name]["time_us"] <= 2.5 * node["time_us"]
        else node
        for name, node in got.items()
    }


def check_equal(
    lifted: dict[str, dict[str, Any]], wanted: dict[str, dict[str, Any]], rewrites: Sequence[Rewrite]
) -> None:
    """The same nodes, and of each the same; says which are not, and in what."""
    assert lifted.keys() == wanted.keys(), rewrites
    differ = {
        (name, what): (value, wanted[name][what])
        for name, node in lifted.items()
        for what, value in node.items()
        if value != wanted[name][what]
    }
    assert not differ, rewrites


def ancestors(problem: Problem) -> dict[str, list[str]]:
    """Per node all that must run before it."""
    before = problem.predecessors.__getitem__
    return {
        node.name: sorted(problem.nodes[u].name for u in find_reachable([v], before))
        for v, node in enumerate(problem.nodes)
    }


def described(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """All that can be seen of a graph: nodes in order, what they call, take and are worth."""
    return [(n, n.name, n.op, n.target, n.args, n.kwargs, set(n.users), id(n.meta.get("val"))) for n in graph.nodes]
