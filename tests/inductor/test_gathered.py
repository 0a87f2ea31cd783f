"""The names of what a graph gathers: through views, casts, pads, copies and buckets, and nothing else."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import (
    ParamAOTInput,
    PlainAOTInput,
    PlainAOTOutput,
    SubclassGetAttrAOTInput,
    TangentAOTInput,
    ViewBaseAOTInput,
)

from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.inductor import agree, gathered
from overlap_sched.inductor import names as found
from overlap_sched.inductor.gathered import by_position, gathered_text, named_now
from overlap_sched.inductor.launches import Launches, launches_in
from overlap_sched.inductor.names import name_of, readable
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options

ATEN, FUNCTIONAL = torch.ops.aten, torch.ops._c10d_functional
MINE = Digest("p", "s", "o", "c", "r", "key")


@dataclass
class AOTConfig:
    """What AOTAutograd keeps of Dynamo's sources."""

    aot_autograd_arg_pos_to_source: list[Any]


def compiling(aot_config: Any, do: Callable[[], Any]) -> Any:
    """Call something as torch's AOTAutograd does, which has its settings among its variables."""
    torchs = {"__name__": "torch._functorch._aot_autograd.graph_compile"}
    exec("def compile_it(aot_config, do):\n    return do()", torchs)
    return torchs["compile_it"](aot_config, do)  # type: ignore[operator]


def sourced(*names: str) -> AOTConfig:
    return AOTConfig([SimpleNamespace(name=name) for name in names])


def graph_of(make: Callable[[fx.Graph, fx.Node, fx.Node], Any], op: str = "all_gather_into_tensor") -> Launches:
    """One gather of what is made of two inputs."""
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in ("a", "b")]
    for k, node in enumerate(inputs):
        node.meta["desc"] = PlainAOTInput(idx=k)
    given = make(graph, *inputs)
    graph.output(graph.call_function(getattr(FUNCTIONAL, op).default, (given, 2, "0")))
    return launches_in(graph.nodes)


def names(launches: Launches) -> list[str]:
    text = compiling(sourced("L['self']._parameters['a']", "L['self'].b"), lambda: gathered_text(launches))
    return [name for _, _, named in (json.loads(text) if text else []) for _, _, name in named]


def call(op: Any, *arguments: Any) -> Callable[[fx.Graph, fx.Node, fx.Node], Any]:
    return lambda graph, a, b: graph.call_function(op, (a, *arguments))


@pytest.mark.parametrize(
    "make",
    [
        lambda graph, a, b: a,
        call(ATEN.view.default, [-1]),
        call(ATEN.permute.default, [1, 0]),
        call(ATEN.constant_pad_nd.default, [0, 0, 0, 1]),
        call(ATEN.clone.default),
        call(ATEN._to_copy.default),
        call(torch.ops.prims.convert_element_type.default, torch.bfloat16),
    ],
    ids=["itself", "view", "permute", "pad", "copy", "cast", "cast by Inductor"],
)
def test_what_carries_an_input(ranks: None, make: Any) -> None:
    assert names(graph_of(make)) == ["a"]


def test_what_computes_has_no_name(ranks: None) -> None:
    assert names(graph_of(call(ATEN.mul.Tensor, 2))) == []
    assert names(graph_of(call(ATEN.relu.default))) == []
    assert names(graph_of(lambda graph, a, b: graph.call_function(ATEN.cat.default, ([a, made(graph)],)))) == []


def made(graph: fx.Graph) -> fx.Node:
    return graph.call_function(ATEN.zeros.default, ([4],))


def test_a_bucket_has_all_names_in_their_order(ranks: None) -> None:
    def packed(graph: fx.Graph, a: fx.Node, b: fx.Node) -> fx.Node:
        flat = [graph.call_function(ATEN.view.default, (x, [-1])) for x in (b, a)]
        return graph.call_function(ATEN.cat.default, (flat,))

    assert names(graph_of(packed)) == ["b + a"]
    assert names(graph_of(lambda graph, a, b: [a, b], "all_gather_into_tensor_coalesced")) == ["a + b"]


def test_groups_are_shown_by_their_ranks_and_other_collectives_by_their_place(ranks: None) -> None:
    graph = fx.Graph()
    a = graph.placeholder("a")
    a.meta["desc"] = ParamAOTInput("layers.0.w")
    reduced = graph.call_function(FUNCTIONAL.all_reduce.default, (a, "sum", "0"))
    found = graph.call_function(FUNCTIONAL.all_gather_into_tensor.default, (a, 2, "0"))
    elsewhere = graph.call_function(FUNCTIONAL.all_gather_into_tensor.default, (a, 2, "no such group"))
    graph.output((reduced, found, elsewhere))
    ((members, _, named),) = json.loads(gathered_text(launches_in(graph.nodes)))
    assert members == [0, 1]
    assert named == [[2, "all_gather_into_tensor", "layers.0.w"]]


def test_descriptors_of_inputs() -> None:
    node = fx.Graph().placeholder("primals_1")

    def called(described: Any) -> str:
        node.meta["desc"] = described
        return name_of(node, lambda position: f"input {position}")

    assert called(None) == called(object()) == ""
    assert called(ParamAOTInput("layers.0.w")) == "layers.0.w"
    assert called(PlainAOTInput(3)) == "input 3"
    assert called(SubclassGetAttrAOTInput(PlainAOTInput(4), "_local_tensor")) == "input 4"
    assert called(ViewBaseAOTInput(ParamAOTInput("w"))) == "w"
    assert called(TangentAOTInput(PlainAOTOutput(0))) == ""


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['layers']._modules['0']._parameters['w']", "layers.0.w"),
        ("L['self']._buffers['scale']", "scale"),
        ("L['model']._modules['head']._parameters['w']", "model.head.w"),
        ("G['WEIGHT']", "WEIGHT"),
        ("L['x']", "x"),
        ("L['self'].shards[0]", "shards[0]"),
        ("G['__compiled_fn_0x7f3140f86cb0']", ""),
        ("___from(139938009031248).w", ""),
    ],
)
def test_sources_as_people_write_them(source: str, name: str) -> None:
    assert readable(source) == name


def test_sources_are_found_where_a_backward_is_compiled_and_as_methods() -> None:
    """``self`` has the settings there; before torch 2.12 the name of a source is a method."""
    config = AOTConfig([SimpleNamespace(name=lambda: "L['self']._parameters['a']"), None])
    torchs: dict[str, Any] = {"__name__": "torch._functorch._aot_autograd.runtime_wrappers"}
    exec("def get_or_compile(self, do):\n    return do()", torchs)
    named = torchs["get_or_compile"](SimpleNamespace(aot_config=config), found.dynamo_names)
    assert [named(k) for k in range(3)] == ["a", "", ""]
    assert found.dynamo_names()(0) == ""


def test_code_in_a_cache_has_the_names_of_the_model_that_finds_it(ranks: None) -> None:
    launches = graph_of(lambda graph, a, b: [a, b], "all_gather_into_tensor_coalesced")
    carried = by_position(MINE, launches)
    assert "$0 + $1" in carried.gathers
    now = compiling(sourced("L['self'].c", "L['self'].d"), lambda: named_now(carried))
    assert now == replace(MINE, gathers=carried.gathers.replace("$0 + $1", "c + d"))
    assert named_now(carried) == named_now(MINE) == MINE
    stale = replace(MINE, gathers=carried.gathers.replace("$0", "layers.0.w"))
    assert compiling(sourced("c", "d"), lambda: named_now(stale)) == MINE


def test_a_fault_leaves_the_names_out(ranks: None) -> None:
    launches = graph_of(lambda graph, a, b: a)
    assert gathered_text(None) == gathered_text(()) == ""
    with mock.patch.object(gathered, "dynamo_names", side_effect=RuntimeError):
        assert gathered_text(launches) == ""
        assert named_now(by_position(MINE, launches)) == MINE
    with mock.patch.object(gathered, "live_ranks", side_effect=RuntimeError):
        assert by_position(MINE, launches) == MINE
    assert named_now(replace(MINE, gathers="[1")) == MINE


@pytest.mark.parametrize(("rank", "members", "told"), [(0, None, 1), (1, None, 0), (2, (2, 3), 1), (3, (2, 3), 0)])
def test_the_lowest_rank_tells(rank: int, members: tuple[int, ...] | None, told: int) -> None:
    settings = Settings(Options(), ranks=members)
    agreement = Agreement(True, Verdict(True, mixed="rank 0 gathers a where rank 1 gathers b"))
    with (
        mock.patch.object(agree, "asks", return_value=True),
        mock.patch.object(agree, "agree", return_value=agreement),
        mock.patch.object(agree, "rank", return_value=rank),
        mock.patch.object(agree, "warn") as warned,
    ):
        assert agree.ask(MINE, settings) == agreement
    assert warned.call_args_list == [mock.call("overlap_sched: rank 0 gathers a where rank 1 gathers b")] * told
