"""Both halves of a rewrite agree, at every site of every graph: what is rewritten, lifted, is the rewritten problem."""

from typing import Any

import pytest
import torch
from torch import fx

from overlap_sched.cost import Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.rewrites import alike_of, rewrite_graph
from overlap_sched.fx.rewrites.apply import plan_lifted, refusals_in
from overlap_sched.options import Options
from overlap_sched.problem import OF_HOST, Problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.gathers import gathered_twice
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket, Keep, Recompute, Regather, Rewrite, Stream
from tests.support.fx_graphs import gather, trace, wait
from tests.support.rewrite_graphs import (
    GRAPHS,
    GROUPS,
    MODELS,
    OnHost,
    ancestors,
    by_name,
    check_equal,
    legal,
    problem_of,
    refusal,
)

SEVERAL: dict[str, list[Rewrite]] = {
    "mixed": [
        Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1")),
        Stream("bucket_all_gather_into_tensor_2"),
        Bucket(("all_reduce", "all_reduce_1"), "coalesced"),
        Stream("bucket_all_reduce_2"),
    ],
    "whole": [
        Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1"), "coalesced"),
        Bucket(("reduce_scatter_tensor", "reduce_scatter_tensor_1")),
    ],
    "recomputed": [Stream("all_gather_into_tensor_1"), Regather("all_gather_into_tensor", ("mm_again",))],
    "cast": [
        Keep("all_gather_into_tensor", "all_gather_into_tensor_2"),
        Regather("all_gather_into_tensor_1", ("mm_3",)),
        Recompute(("convert_element_type_1",), ("again_all_gather_into_tensor_1_mm_3",)),
        Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1")),
    ],
}


def rewritten_problem(gm: fx.GraphModule, rewrites: list[Rewrite], model: Roofline) -> Problem | None:
    """The rewritten problem; ``None``: refused, as where a problem knows of a hazard less than a graph."""
    try:
        return apply(problem_of(gm, model), rewrites, Prices(model), alike_of(gm))
    except RewriteError:
        return None


def comparable(problem: Problem, hazards: bool, merged: set[str]) -> dict[str, dict[str, Any]]:
    """Nodes by name. With hazards, what must run before counts, and not by which of the pairs that say so.

    A node that takes two results which have become one reads that once: its bytes are not compared.
    """
    before = ancestors(problem)
    nodes = by_name(problem)
    for name, node in nodes.items():
        if hazards:
            node["deps"] = before[name]
        if name in merged:
            node["bytes"] = node["time_us"] = None
    return nodes


def takes_several(gm: fx.GraphModule) -> set[str]:
    """Nodes that take several results of one gathered shard."""
    found = set()
    for node in gm.graph.nodes:
        waits = [u for u in node.all_input_nodes if "wait_tensor" in u.name and u.op != "placeholder"]
        sources = [u.all_input_nodes[0].all_input_nodes[0] for u in waits]
        if len(sources) > len(set(sources)):
            found.add(node.name)
    return found


def check(name: str, rewrites: list[Rewrite], model: Roofline = MODELS["device"]) -> bool:
    gm = GRAPHS[name]()
    merged = takes_several(gm)
    want = rewritten_problem(gm, rewrites, model)
    rewrite_graph(gm, rewrites)
    gm.graph.lint()
    if want is None:
        return False
    hazards = name == "hazards"
    check_equal(comparable(problem_of(gm, model), hazards, merged), comparable(want, hazards, merged), rewrites)
    return True


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("model", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_every_site(name: str, model: str) -> None:
    sites = legal(GRAPHS[name]())
    agreed = [check(name, [one], MODELS[model]) for one in sites]
    assert len(sites) >= 8
    assert sum(agreed) >= (4 if name == "hazards" else len(sites))


@pytest.mark.private
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("model", MODELS)
def test_several_at_once(name: str, model: str) -> None:
    assert check(name, SEVERAL[name], MODELS[model])


def test_views_of_what_is_gathered_again_are_made_again() -> None:
    """The first user of the view keeps the first gather's."""
    views = Regather("all_gather_into_tensor_1", ("mm_1",), ("t",))
    assert check("cast", [views])
    gm = GRAPHS["cast"]()
    rewrite_graph(gm, [views])
    (mm,) = (node for node in gm.graph.nodes if node.name == "mm_1")
    assert mm.args[1].name == "again_all_gather_into_tensor_1_mm_1_t"


def test_what_was_cast_for_a_gather_alone_goes_with_it() -> None:
    gm = GRAPHS["cast"]()
    rewrite_graph(gm, [Keep("all_gather_into_tensor", "all_gather_into_tensor_2")])
    casts = [node.name.removeprefix("convert_element_type") for node in gm.graph.nodes if "convert" in node.name]
    assert casts == ["", "_1", "_3"]


def test_only_casts_that_a_graph_knows_to_be_alike_are_the_same() -> None:
    names = ["all_gather_into_tensor", *(f"all_gather_into_tensor_{k}" for k in (1, 2, 3))]
    gm = GRAPHS["cast"]()
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :] if refusal(gm, [Keep(a, b)]) is None]
    assert pairs == [("all_gather_into_tensor", "all_gather_into_tensor_2")]


def rounded(a: torch.Tensor) -> list[torch.Tensor]:
    """Casts of the same sizes by way of two types: what they give is of one type and not the same."""
    to = torch.ops.prims.convert_element_type
    half, brain = (to(to(a, dtype), torch.float32) for dtype in (torch.float16, torch.bfloat16))
    return [wait(gather(half)) + 1.0, wait(gather(brain)) + 1.0]


def test_casts_by_way_of_other_types_are_not_the_same() -> None:
    gm = trace(rounded, (4, 8))
    names = ("all_gather_into_tensor", "all_gather_into_tensor_1")
    pair = Keep(*names)
    assert len(gathered_twice(problem_of(gm), alike_of(gm))) == 1  # a problem knows operators and sizes
    assert refusal(gm, [pair]) == f"{names[0]!r} and {names[1]!r} are not two gathers of one tensor in one group."
    lifted = lift(gm, groups=GROUPS)
    assert refusals_in(lifted)(pair) != ""
    assert refusals_in(lift(GRAPHS["cast"](), groups=GROUPS))(Keep(names[0], "all_gather_into_tensor_2")) == ""


def test_all_that_may_be_bucketed_is_told() -> None:
    gm = GRAPHS["mixed"]()
    told = alike_of(gm)
    assert set(told.values()) == {"float32", "float32 sum", "int32 sum"}
    assert told["all_reduce"] == "int32 sum"
    assert told["all_gather_into_tensor"] == "float32"
    hazards = alike_of(GRAPHS["hazards"]())
    assert hazards["all_gather_into_tensor"] == "float32"
    assert "all_gather_into_tensor_2" not in hazards  # something writes to its result


def test_buckets_are_found_where_launches_and_waits_take_of_the_host() -> None:
    gm = GRAPHS["whole"]()
    lifted = lift(gm, groups=GROUPS, model=OnHost())
    made = plan_lifted(lifted, Options(rewrites=("bucket",)), alike_of(gm))
    assert made.rewrites
    assert made.schedule.scheduled.step_us < made.without.scheduled.step_us
    assert any(node.op in OF_HOST for node in made.schedule.problem.nodes)
