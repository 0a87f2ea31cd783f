"""Schedulers that are wrong on purpose: the fuzzer must find each of them.

They stand in the place of ``overlap_sched.schedule_graph``, and know only what a graph's arguments say.
"""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch.distributed as dist
from torch import fx

from overlap_sched import Options
from overlap_sched.fx import Report


def _any_order(graph: fx.Graph, rng: random.Random) -> list[fx.Node]:
    """An order that keeps what flows from node to node, and nothing else."""
    placed: dict[fx.Node, None] = {node: None for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    left = [node for node in graph.nodes if node not in placed]
    while left:
        ready = [node for node in left if all(u in placed for u in node.all_input_nodes)]
        ready = [node for node in ready if node.op != "output" or len(left) == 1]
        node = rng.choice(ready)
        placed[node] = None
        left.remove(node)
    return list(placed)


def _put(graph: fx.Graph, order: list[fx.Node]) -> None:
    output = order[-1]
    for node in order[:-1]:
        output.prepend(node)


def without_hazards(gm: fx.GraphModule, options: Options, **arguments: Any) -> Report:
    """Keeps nothing but data dependencies; the same on both ranks."""
    _put(gm.graph, _any_order(gm.graph, random.Random(len(gm.graph.nodes))))
    return Report("broken", changed=True)


def without_agreement(gm: fx.GraphModule, options: Options, **arguments: Any) -> Report:
    """Another order on the second rank: two launches that stand one behind the other change places there."""
    nodes = list(gm.graph.nodes)
    for first, second in pairwise(nodes):
        both = [str(node.target) for node in (first, second)]
        launches = all("_c10d_functional." in text and "wait" not in text for text in both)
        if dist.get_rank() == 1 and launches and first not in second.all_input_nodes and both[0] != both[1]:
            second.append(first)
            return Report("broken", changed=True)
    return Report("broken", reason="nothing to break")


BROKEN: dict[str, Callable[..., Report]] = {
    function.__name__: function for function in (without_hazards, without_agreement)
}
