"""Graphs of functional collectives for the tests of rewrites, their sites, and problems by name."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites import prepare
from overlap_sched.problem import Problem
from overlap_sched.transform.rewrites import Bucket, Keep, Regather, Rewrite, Stream
from tests.support.fx_graphs import C10D, RANKS, gather, scatter, trace, wait
from tests.support.whole_step import recomputed, whole_step


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


GRAPHS: dict[str, Callable[[], fx.GraphModule]] = {
    "mixed": lambda: trace(mixed, (4, 8), (2, 8), (8, 8), (4, 4)),
    "hazards": lambda: trace(hazards, (4, 8), (4, 8)),
    "twice": lambda: trace(twice, (4, 8), (4, 8)),
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
    found: list[set[int]] = []
    for before in problem.predecessors:
        found.append(set(before).union(*(found[u] for u in before)))
    return {node.name: sorted(problem.nodes[u].name for u in found[v]) for v, node in enumerate(problem.nodes)}


def described(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """All that can be seen of a graph: nodes in order, what they call, take and are worth."""
    return [(n, n.name, n.op, n.target, n.args, n.kwargs, set(n.users), id(n.meta.get("val"))) for n in graph.nodes]
