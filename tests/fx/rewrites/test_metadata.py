"""New nodes have metadata of their own: what is noted of one is not noted of the other."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch import Tensor, fx

from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.inductor.partitioning import _apart
from overlap_sched.joint.graphs import copy_of, joined
from overlap_sched.transform.rewrites import Bucket, Recompute, Regather, Rewrite
from tests.fx.rewrites.test_results import GATHERS
from tests.joint.test_joint import joint_graph, torchs
from tests.support.fx_graphs import gather, trace, wait


def annotated(gm: fx.GraphModule) -> fx.GraphModule:
    for node in gm.graph.nodes:
        node.meta["custom"] = {"name": node.name, "more": {"parts": [{"of": node.name}]}}
    return gm


def containers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        yield id(value)
        for inside in value.values() if isinstance(value, dict) else value:
            yield from containers(inside)


def check_apart(nodes: Iterable[fx.Node]) -> None:
    owner: dict[int, fx.Node] = {}
    for node in nodes:
        for key, value in node.meta.items():
            for one in containers(value) if isinstance(value, dict) else ():
                assert owner.setdefault(one, node) is node, f"{node} shares {key!r} with {owner[one]}"


def used_twice(a: Tensor, b: Tensor) -> list[Tensor]:
    first, other = wait(gather(a)), wait(gather(b))
    big = first * 3
    return [first + 1, (big + 1).t() @ big, other + 1]


@pytest.mark.parametrize(
    "rewrite",
    [
        Bucket(GATHERS[:2]),
        Bucket(GATHERS[:2], "coalesced"),
        Regather(GATHERS[0], ("mul",)),
        Recompute(("mul",), ("mm",)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_nodes_that_a_rewrite_makes(rewrite: Rewrite) -> None:
    gm = annotated(trace(used_twice, (4, 8), (4, 8)))
    old = set(gm.graph.nodes)
    rewrite_graph(gm, [rewrite])
    check_apart(gm.graph.nodes)
    made = [node for node in gm.graph.nodes if node not in old]
    assert {node.meta["custom"]["name"] for node in made} & {node.name for node in old}


def test_copies_of_joint_graphs_and_halves_put_together() -> None:
    gm = annotated(joint_graph())
    made = copy_of(gm)
    check_apart([*gm.graph.nodes, *made.graph.nodes])
    assert [node.meta["custom"] for node in made.graph.nodes] == [node.meta["custom"] for node in gm.graph.nodes]
    forward, backward = (_apart(half) for half in torchs(made))
    check_apart([*forward.graph.nodes, *backward.graph.nodes])
    whole, _ = joined(forward, backward, 1)
    check_apart([*forward.graph.nodes, *backward.graph.nodes, *whole.graph.nodes])
