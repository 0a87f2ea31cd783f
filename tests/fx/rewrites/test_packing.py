"""Buckets are packed in the order of parameters, whatever is launched first."""

from dataclasses import replace

import torch
from torch import Tensor, fx

from overlap_sched import Kind
from overlap_sched.cost import Roofline
from overlap_sched.fx.lifting import lift
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.transform.buckets import BucketSearch, packed, places_of
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket
from overlap_sched.transform.search import RewriteSearch
from tests.support.fx_graphs import RANKS, gather, scatter, trace, wait


def backward(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """Parameters are used last to first: so are they gathered, so come their gradients; listed as the parameters."""
    gc, gb = gather(c), gather(torch.nn.functional.pad(b, [0, 0, 0, 1]))
    ga = gather(a.to(torch.float64).to(torch.float32))
    wc, wb, wa = wait(gc), wait(gb), wait(ga)
    sc, sb, sa = scatter(wc * 2.0), scatter(wb * 2.0), scatter(wa * 2.0)
    return [wait(sa).to(torch.float64), wait(sb)[:2], wait(sc)]


def of(fn: object = backward) -> tuple[fx.GraphModule, BucketSearch]:
    gm = trace(fn, (2, 4), (2, 4), (2, 4))  # type: ignore[arg-type]
    problem = lift(gm).problem
    return gm, BucketSearch(RewriteSearch(problem, Prices(Roofline()), None, 2**40))


def names(graph: BucketSearch, op: str) -> list[str]:
    nodes = graph.problem.nodes
    ids = [v for v in graph.problem.collectives if op in nodes[v].op]
    (bucket,) = graph.rewrites([ids], ("copied",))
    assert isinstance(bucket, Bucket)
    return list(bucket.members)


def test_as_parameters_are_listed_and_not_as_they_are_launched() -> None:
    _, graph = of()
    assert names(graph, "gather") == ["all_gather_into_tensor_2", "all_gather_into_tensor_1", "all_gather_into_tensor"]
    assert names(graph, "scatter") == ["reduce_scatter_tensor_2", "reduce_scatter_tensor_1", "reduce_scatter_tensor"]


def test_also_in_what_rewrites_make_of_a_problem() -> None:
    _, graph = of()
    gathers = graph.rewrites([graph.problem.collectives[:3]], ("copied",))
    asked = replace(graph.asked, budget_bytes=2**40).after(gathers, graph.problem.original_order)
    assert names(BucketSearch(asked), "scatter")[0] == "reduce_scatter_tensor_2"


def test_what_has_no_parameter_of_its_own_comes_last_as_it_is_launched() -> None:
    def activations(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        first, second, third = gather(b + c), gather(a * b), gather(c)
        wide = wait(second)
        used_twice = wait(scatter(wide * 2.0))
        return [used_twice + 1.0, used_twice * 2.0, wait(scatter(wide)), wait(first), wide + wait(third)]

    _, graph = of(activations)
    places = places_of(graph.problem)
    nodes = graph.problem.nodes
    assert {nodes[v].name: place for v, place in places.items()} == {
        "all_gather_into_tensor_2": 2,
        "reduce_scatter_tensor_1": 2,
    }
    gathers = [v for v in graph.problem.collectives if "gather" in nodes[v].op]
    assert [nodes[v].name for v in packed(gathers, places)] == [
        "all_gather_into_tensor_2",
        "all_gather_into_tensor",
        "all_gather_into_tensor_1",
    ]


def test_the_graph_packs_in_that_order_too() -> None:
    gm, graph = of()
    ids = [v for v in graph.problem.collectives if "scatter" in graph.problem.nodes[v].op]
    rewrites = graph.rewrites([ids], ("copied",))
    rewrite_graph(gm, rewrites)
    (packing,) = [node for node in gm.graph.nodes if node.name.endswith("_in")]
    sources = [view.args[0].args[0].name for view in packing.args[0]]
    assert sources == ["wait_tensor_2", "wait_tensor_1", "wait_tensor"]
    assert graph.problem.groups["0"].size == RANKS
    assert graph.problem.nodes[-1].kind is Kind.OUTPUT
