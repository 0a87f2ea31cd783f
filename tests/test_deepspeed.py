"""DeepCompile's graphs of ZeRO-3: what their operators do, and that every order that we admit gives the same."""

import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn

from overlap_sched import Options
from overlap_sched.deepspeed import register
from overlap_sched.deepspeed.graph_pass import measured, order_pass, zero3_values
from overlap_sched.errors import OptionsError
from overlap_sched.fx import lift
from overlap_sched.fx.graphs import reorder
from overlap_sched.inductor import clear_reports, reports
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Group, Kind, Problem
from tests.support.deepspeed_graphs import Backend, start
from tests.support.deepspeed_ranks import Block, shards_of, step
from tests.support.fx_graphs import random_order
from tests.support.ranks import run_ranks

EIGHT = {"dc": Group(8, True)}


def as_it_is(gm: fx.GraphModule, bwd: bool) -> None:
    """Leave DeepCompile's order."""


def ours(gm: fx.GraphModule, bwd: bool, **how: Any) -> fx.GraphModule:
    return order_pass(gm, 7, [(7, True)], {}, None, 0.0, None, bwd, settings=Settings(stage="deepspeed", **how))


@pytest.fixture(scope="module")
def backward() -> fx.GraphModule:
    """The backward graph of two blocks."""
    found: list[fx.GraphModule] = []
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(Block(16), Block(16))
    start(shards_of(model, 0, 1))
    backend = Backend({id(one): k for k, one in enumerate(model.parameters())}, lambda gm, bwd: found.append(gm))
    torch.compile(model, backend=backend, fullgraph=True)(torch.randn(8, 16)).sum().backward()
    return found[1]


def problem_of(gm: fx.GraphModule) -> Problem:
    with zero3_values(gm.graph):
        return lift(gm, groups=EIGHT).problem


def test_what_the_problem_of_a_graph_says(backward: fx.GraphModule) -> None:
    kept = [node.meta.get("val", "none") for node in backward.graph.nodes]
    problem = problem_of(backward)
    assert all(map(operator.is_, kept, (node.meta.get("val", "none") for node in backward.graph.nodes)))  # given back
    nodes, launches = problem.nodes, [node for node in problem.nodes if node.kind is Kind.COLLECTIVE]
    gathers = [node for node in launches if node.op == "all_gather_into_tensor"]
    assert len(gathers) == sum(node.name.startswith("allgather_param") for node in nodes) == 8
    assert len(launches) - len(gathers) == sum(node.op == "reduce_scatter_tensor" for node in launches) == 12
    assert {node.group for node in launches} == {"dc"}
    assert all(node.time_us > 0 and node.bytes in (64, 256, 4096) for node in launches)
    waits = [nodes[node.collective] for node in nodes if node.collective is not None]
    assert sorted(map(id, waits)) == sorted(map(id, launches))
    for gather in gathers:  # a parameter lives from its gather to its last release
        (storage,) = gather.alloc
        assert problem.storages[storage].bytes == gather.bytes
        assert [node for node in nodes if storage in node.use][-1].name.startswith("release_param")
    last_use = {storage: node.name for node in nodes for storage in node.use}
    made = {s: node.name for node in nodes for s in node.alloc}
    gradients = {s for node in nodes if node.name.startswith("reduce_grad") for s in node.use}
    assert {made[s].split("_")[0] for s in gradients} == {"mm", "sum", "native"}
    assert "end" not in {last_use[s].split("_")[0] for s in gradients}  # free once it is in the bucket
    end = next(v for v, node in enumerate(nodes) if node.name == "end_backward_default")
    before = {end}
    for v in reversed(range(end)):  # all that it must come after, at any distance
        if any(v in nodes[u].deps for u in before):
            before.add(v)
    assert all(v in before or nodes[v].kind is Kind.INPUT for v in range(end))


def gathered_and_freed(nodes: list[fx.Node], problem: Problem, order: list[int]) -> list[list[Any]]:
    """What a problem says of parameters in an order: gathered, and freed behind their last use."""
    number = {s: nodes[v].args[2] for v, n in enumerate(problem.nodes) if "allgather_param" in n.name for s in n.alloc}
    last = {s: v for v in order for s in problem.nodes[v].use if s in number}
    told: list[list[Any]] = []
    for v in order:
        node = problem.nodes[v]
        told += [["gather", number[s]] for s in node.alloc if s in number]
        told += [["free", number[s]] for s in node.use if last.get(s) == v]
    return told


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_admitted_order_gives_the_same(seed: int) -> None:
    random, told = Random(seed), []

    def shuffle(gm: fx.GraphModule, bwd: bool) -> None:
        with zero3_values(gm.graph):
            lifted = lift(gm, groups=EIGHT)
        order = list(random_order(lifted.problem, random))
        told.extend(gathered_and_freed(list(lifted.nodes), lifted.problem, order))
        last = {lifted.nodes[v]: None for v in reversed(order)}  # a wait of several: where its last one stands
        reorder(gm, list(last)[::-1])

    first, second = step(as_it_is, 0, 1), step(shuffle, 0, 1)
    assert first["graphs"] != second["graphs"]
    assert (first["losses"], first["gradients"]) == (second["losses"], second["gradients"])
    assert second["left"] == ([], 0, 0)
    ran = [list(one) for one in second["told"] if one[0] in ("gather", "free")]
    assert ran == told * 2  # storages are gathered and freed where the problem says so, in both steps


@pytest.mark.slow
def test_two_ranks_train_alike(tmp_path: Path) -> None:
    run_ranks("tests.support.deepspeed_ranks", tmp_path, "graphs", ranks=2)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for one in found:
        theirs, ours = one["theirs"], one["ours"]
        assert (theirs["losses"], theirs["gradients"], [[], 0, 0]) == (ours["losses"], ours["gradients"], ours["left"])
        assert theirs["graphs"] != ours["graphs"]
        assert all(before >= after for before, after in one["peaks"])
    assert all(found[0]["ours"][what] == found[1]["ours"][what] for what in ("graphs", "told"))


def test_times_are_those_that_deepcompile_has_measured() -> None:
    product, gather = fx.Graph(), fx.Graph()
    product.call_function(torch.ops.aten.mm.default).meta["device_time"] = 0.25  # ms
    gather.call_function(torch.ops.dc.allgather_param.default).meta["device_time"] = 0.25
    assert [measured(node) for graph in (product, gather) for node in graph.nodes] == [250.0, None]


def test_a_failure_leaves_the_graph_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Callable[..., Any]:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("overlap_sched.inductor.fx_stage.schedule_graph", fails)
    clear_reports()
    first, second = step(as_it_is, 0, 1), step(ours, 0, 1)
    assert first == second
    assert [report.reason for report in (one.report for one in reports())] == ["RuntimeError: out of luck"] * 2


# With DeepSpeed itself (``pip install "overlap_sched[frameworks]"``): its contracts, its engine, its own passes.


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a DeepSpeed that is not there would have registered."""
    found: dict[str, Any] = {}
    backend, contracts = ModuleType("deepspeed.compile.backend"), ModuleType("deepspeed.compile.passes.contract")
    backend.register_compile_pass = lambda name, function, contract: found.update(  # type: ignore[attr-defined]
        {name: (function, contract)}
    )
    contracts.PassContract = SimpleNamespace  # type: ignore[attr-defined]
    for name in ("deepspeed", "deepspeed.compile", "deepspeed.compile.passes"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "deepspeed.compile.backend", backend)
    monkeypatch.setitem(sys.modules, "deepspeed.compile.passes.contract", contracts)
    return found


def test_the_pass_is_registered_with_its_contract(registry: dict[str, Any]) -> None:
    register(Options(headroom="1GiB"), cluster="dgx-h100", timeout_s=5.0)
    function, contract = registry["overlap_sched"]
    assert contract.requires == {"z3_gather_release"}
    assert contract.conflicts_with == {"prefetch"}
    settings = function.keywords["settings"]
    assert (settings.options.headroom, settings.where.name, settings.timeout_s) == ("1GiB", "dgx-h100", 5.0)
    register()  # again: with the defaults
    assert registry["overlap_sched"][0].keywords["settings"].timeout_s != 5.0


def test_wrong_arguments_are_told_at_once(registry: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=r"register\(\) takes no stag\."):
        register(stag="titan")
    with pytest.raises(OptionsError, match="timeout_s is 0"):
        register(timeout_s=0)
    assert registry == {}


def test_without_deepspeed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(OptionsError, match=r"^there is no DeepCompile with contracts of passes here \(.*\)\. "):
        register()


def test_deepspeed_checks_the_schedule() -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from deepspeed.compile.backend import opt_passes
    from deepspeed.compile.passes import prefetch, zero3_compile
    from deepspeed.compile.passes.contract import PassContractError, register_pass_contract, validate_schedule

    register()
    register_pass_contract("zero3_compile", zero3_compile.CONTRACT)
    register_pass_contract("prefetch", prefetch.CONTRACT)
    validate_schedule([(0, ["zero3_compile", "overlap_sched"])], opt_passes)
    with pytest.raises(PassContractError, match=r"'overlap_sched' .* requires \['z3_gather_release'\]"):
        validate_schedule([(0, ["overlap_sched"])], opt_passes)
    with pytest.raises(PassContractError, match="conflicts"):
        validate_schedule([(0, ["zero3_compile", "prefetch", "overlap_sched"])], opt_passes)


@pytest.mark.slow
def test_its_engine_trains_alike(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    for which in ("theirs", "ours"):
        run_ranks("tests.support.deepspeed_ranks", tmp_path, which, ranks=2, fresh=True, limit_s=600)
    for rank in range(2):
        theirs, ours = (json.loads((tmp_path / f"{which}{rank}.json").read_text()) for which in ("theirs", "ours"))
        assert (theirs["losses"], theirs["shards"]) == (ours["losses"], ours["shards"])
        assert ours["changed"]
        assert all(ours["changed"])
        assert theirs["told"] != ours["told"]
