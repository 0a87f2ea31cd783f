"""Graphs of several chains: what is in them, and how they are listed."""

from collections import Counter
from collections.abc import Callable

import pytest

from llama_repro.generate.chains import Chains, halves, side_by_side
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.parts import SHARED
from tests.support.layers import LISTINGS, SIZE, forward, layers


def names(problem: Problem) -> list[str]:
    return [node.name for node in problem.nodes if node.kind not in (Kind.INPUT, Kind.OUTPUT)]


def times_us(problem: Problem, kind: Kind) -> float:
    return sum(node.time_us for node in problem.nodes if node.kind is kind)


def test_halves_share_the_gathers_and_halve_all_else() -> None:
    whole = forward(3)
    made = halves(whole).problem
    of_kind = Counter(node.kind for node in made.nodes)
    assert of_kind == {Kind.INPUT: 4, Kind.COLLECTIVE: 9, Kind.WAIT: 9, Kind.COMPUTE: 12, Kind.OUTPUT: 1}
    assert times_us(made, Kind.COMPUTE) == pytest.approx(times_us(whole, Kind.COMPUTE))
    assert times_us(made, Kind.COLLECTIVE) == pytest.approx(times_us(whole, Kind.COLLECTIVE))
    by_name = {node.name: node for node in made.nodes}
    sizes = [made.storages[s].bytes for name in ("gather0", "mm0.1") for s in by_name[name].alloc]
    assert sizes == [8, SIZE // 2]
    assert by_name["mm1.1"].time_us == 25.0
    assert made.nodes[by_name["mm0.0"].deps[-1]].name == made.nodes[by_name["mm0.1"].deps[-1]].name == "full0"


def test_parts_may_gather_for_themselves() -> None:
    gathers = [node for node in halves(forward(2), 3, gathers_shared=False).problem.nodes if node.op == "gather"]
    assert [node.name for node in gathers] == [f"gather{layer}.{part}" for part in range(3) for layer in range(2)]
    assert {node.time_us for node in gathers} == {10.0}


def test_graphs_side_by_side_share_their_streams_alone() -> None:
    one, two = forward(2), layers(3)
    made = side_by_side(one, two)
    assert len(made.problem.nodes) == len(one.nodes) + len(two.nodes) - 1  # one output
    assert dict(made.problem.groups) == {**one.groups, **two.groups}
    nodes = made.problem.nodes
    for v, before in enumerate(made.problem.predecessors[:-1]):
        assert {made.chain[u] for u in before} <= {made.chain[v]}, nodes[v].name
    assert SHARED not in made.chain[:-1]


def test_listings_of_two_halves() -> None:
    made = halves(forward(2))
    two_layers = [f"{step}{k}.%d" for k in range(2) for step in ("mm", "sum", "done", "norm")]
    assert [name for name in names(made.one_by_one()) if "." in name] == [
        name % half for half in range(2) for name in two_layers
    ]
    assert [name for name in names(made.lock_step()) if "." in name] == [
        name % half for name in two_layers for half in range(2)
    ]
    stages = [two_layers[:2], two_layers[2:6], two_layers[6:]]
    assert [name for name in names(made.stage_by_stage()) if "." in name] == [
        name % half for stage in stages for half in range(2) for name in stage
    ]
    merged = [name for name in names(made.merged(1)) if "." in name]
    for half in range(2):
        assert [name for name in merged if name.endswith(f".{half}")] == [name % half for name in two_layers]
    assert merged != [name for name in names(made.merged(2)) if "." in name]
    assert names(made.shuffled(1)) != names(made.shuffled(2))


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=list(LISTINGS))
def test_every_listing_is_the_same_graph(listing: Callable[[Chains], Problem]) -> None:
    made = side_by_side(forward(4), layers(4))
    listed = listing(made)
    kinds = [node.kind for node in listed.nodes]
    assert kinds == sorted(kinds, key=lambda kind: {Kind.INPUT: 0, Kind.OUTPUT: 2}.get(kind, 1))

    def facts(problem: Problem) -> set[object]:
        nodes = problem.nodes
        return {(n.name, n.time_us, n.alloc, n.use, frozenset(nodes[u].name for u in n.deps)) for n in nodes}

    assert facts(listed) == facts(made.problem)
    assert replay(listed, listed.original_order).step_us > 0
    assert listing(side_by_side(forward(4), layers(4))) == listed
