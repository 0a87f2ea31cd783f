"""Recorded traces of two gloo ranks, matched against the graphs that ran."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from overlap_sched.cost import A100, Price, Roofline
from overlap_sched.cost.profile import read_traces
from overlap_sched.dump import load_dump
from overlap_sched.errors import CostError, OverlapSchedWarning
from overlap_sched.fx import lift
from overlap_sched.fx.profile import ProfileCost, lifted_with_profile, shapes_of
from overlap_sched.inductor.caches import settings_key
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Kind
from tests.fx.test_fx_hazards import Builder
from tests.support.fx_graphs import ATEN
from tests.support.profile_traces import GRAPHS, TRACES
from tests.support.traces import event, write


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["none", "inductor"])
@pytest.mark.parametrize(("graph", "collectives", "products"), [(GRAPHS[0], 21, 15), (GRAPHS[1], 41, 30)])
def test_all_of_a_real_graph_is_found(graph: Path, collectives: int, products: int, fusion: Any) -> None:
    before = lift(load_dump(graph).gm, fusion=fusion)
    after, profile = lifted_with_profile(before, read_traces(TRACES))
    assert (profile.runs, profile.ranks) == (2, 2)
    assert profile.share() == pytest.approx(1.0)
    found = Counter((node.name, m.how) for node, m in zip(profile.sought, profile.measured, strict=True) if m)
    by_order = Counter(name.split("::")[0] for (name, how), n in found.items() for _ in range(n) if how == "order")
    assert by_order["_c10d_functional"] == collectives
    assert found["aten::mm", "order"] == products
    assert {how for _, how in found} == {"order", "names"}
    assert profile.skew_us is not None
    assert profile.skew_us > 0
    fused = sum(m.us for m in profile.measured if m is not None and m.how == "names")
    assert fused == pytest.approx(profile.fused_us)
    sources = {price.source for node, price in zip(after.problem.nodes, after.prices, strict=True) if node.time_us}
    assert sources == {"profile"}
    assert [n._replace(time_us=0) for n in after.problem.nodes] == [n._replace(time_us=0) for n in before.problem.nodes]
    assert [price.time_us for price in after.prices] == [node.time_us for node in after.problem.nodes]


@pytest.mark.slow
@pytest.mark.private
def test_without_skew_no_collective_is_longer_than_on_any_rank() -> None:
    lifted = lift(load_dump(GRAPHS[1]).gm)
    both, _ = lifted_with_profile(lifted, read_traces(TRACES))
    alone = [lifted_with_profile(lifted, read_traces([path]))[0] for path in TRACES]
    shorter = 0
    for v in both.problem.collectives:
        least = min(one.problem.nodes[v].time_us for one in alone)
        assert both.problem.nodes[v].time_us <= least + 1e-6
        shorter += both.problem.nodes[v].time_us < max(one.problem.nodes[v].time_us for one in alone)
    assert shorter == 41


@pytest.mark.slow
@pytest.mark.private
def test_a_cost_of_traces_for_whoever_takes_one() -> None:
    graph = load_dump(GRAPHS[0]).gm
    cost = ProfileCost(*TRACES)
    with_cost, (with_profile, _) = lift(graph, cost=cost), lifted_with_profile(lift(graph), read_traces(TRACES))
    assert with_cost.problem == with_profile.problem
    assert with_cost.prices == with_profile.prices
    assert len(cost.profiles) == 1  # asked node by node, matched once


def test_nodes_predicted_to_be_in_the_kernel_of_another_are_found_where_they_run_apart(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x")
    relu = b.call("relu", ATEN.relu.default, b.call("exp", ATEN.exp.default, x))
    lifted = lift(b.done(relu))
    exp, last = 1, 2
    nodes = list(lifted.problem.nodes)
    nodes[exp] = nodes[exp]._replace(time_us=0.0)
    prices = list(lifted.prices)
    prices[exp], prices[last] = Price(0.0, "fusion", part_of="relu"), Price(2.0, "fusion", "kernel", "relu")
    lifted = replace(lifted, problem=replace(lifted.problem, nodes=tuple(nodes)), prices=tuple(prices))
    apart = [event("aten::exp", 0, 5, (4, 4)), event("aten::relu", 10, 7, (4, 4))]
    after, _ = lifted_with_profile(lifted, read_traces([write(tmp_path, apart)]))
    assert after.prices[exp : last + 1] == (Price(5.0, "profile"), Price(7.0, "profile"))
    together = [event("aten::relu", 0, 0.5, (9, 9)), event("triton_poi_fused_exp_relu_0", 10, 7)]
    mm = event("aten::exp", 20, 1, (9, 9))
    with pytest.raises(CostError):  # kernels alone do not tell which graph they are of
        lifted_with_profile(lifted, read_traces([write(tmp_path, [*together, mm])]))


@pytest.mark.slow
def test_other_traces_are_another_entry_in_the_caches_of_torch() -> None:
    keys = [settings_key(Settings(cost=ProfileCost(*paths))) for paths in (TRACES, TRACES[:1], TRACES)]
    assert None not in keys
    assert keys[0] == keys[2] != keys[1]

    assert settings_key(Settings(cost=ProfileCost(TRACES[0], model=Roofline(A100)))) not in (None, keys[1])
    plain: Any = SimpleNamespace(compute_us=lambda work: 1.0, collective_us=lambda work: 1.0)
    assert settings_key(Settings(cost=ProfileCost(TRACES[0], model=plain))) is None


def test_a_graph_of_which_the_traces_have_nothing(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x")
    b.call("mm", ATEN.mm.default, x, x)
    gm = b.done(x)
    cost = ProfileCost(write(tmp_path, [event("aten::add", 0, 1, (4, 4), (4, 4))]))
    with pytest.warns(OverlapSchedWarning, match=r"^a graph keeps its predicted times: .*has none of the graph's oper"):
        lifted = lift(gm, cost=cost)
    assert lifted.problem == lift(gm).problem
    assert {price.source for price in lifted.prices} == {"roofline", "free"}
    assert cost.profiles == []


def test_shapes_of_lists_numbers_and_keywords() -> None:
    b = Builder()
    x = b.input("x")
    number = b.input("number")
    number.meta["val"] = b.tensor()
    cat = b.call("cat", ATEN.cat.default, [x, x], 1)
    add = b.call("add", ATEN.add.Tensor, x, number)
    rand = b.call("sum", ATEN.sum.dim_IntList, add, [0], dtype=torch.float32)
    assert shapes_of(cat) == ((4, 4), (4, 4))
    assert shapes_of(add) == ((4, 4),)  # the profiler writes a tensor without dimensions like a number
    assert shapes_of(rand) == ((4, 4),)
    assert shapes_of(x) == ()
    kinds = {node.kind for node in lift(b.done(cat)).problem.nodes}
    assert kinds == {Kind.INPUT, Kind.COMPUTE, Kind.OUTPUT}
