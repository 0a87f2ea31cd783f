"""What keeps its place, node by node: effects, fences, unknown calls, subgraphs, host synchronisation, sends."""

import itertools
import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.variables import streams  # noqa: F401  registers torch.ops.streams
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._higher_order_ops.effects import with_effects
from torch._inductor.fx_passes.control_dependencies import control_deps
from torch._subclasses import FakeTensorMode

import overlap_sched.fx.operators
from overlap_sched.fx import lift, reading
from overlap_sched.fx.hazards import graph_hazards
from overlap_sched.fx.operators import NO_CALL, Arg, Comm, OperatorTraits, Ordering, Role, traits_of
from overlap_sched.fx.reading import read_graph
from tests.support.deepspeed.operators import define
from tests.support.fx_graphs import ATEN, C10D, trace


class Builder:
    """Builds a graph by hand: names to nodes, values on any device."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()

    def tensor(self, *shape: int, device: str = "cpu") -> Tensor:
        with self.mode:
            return torch.empty(shape, device=device)

    def input(self, name: str, device: str = "cpu") -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = self.tensor(4, 4, device=device)
        return node

    def call(self, name: str, target: Any, *args: Any, val: Any = None, **kwargs: Any) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta["val"] = self.tensor(4, 4) if val is None else val
        return node

    def done(self, *outputs: fx.Node, root: Any = None) -> fx.GraphModule:
        self.graph.output(outputs)
        return fx.GraphModule(root or torch.nn.Module(), self.graph)


def hazards_of(gm: fx.GraphModule, **arguments: Any) -> set[tuple[str, str]]:
    """Pairs (before, after) that are not data flow."""
    problem = lift(gm, **arguments).problem
    data = {(a.name, b.name) for b in gm.graph.nodes for a in b.all_input_nodes}
    pairs = {(problem.nodes[u].name, node.name) for node in problem.nodes for u in node.deps}
    return {pair for pair in pairs - data if pair[1] != "output"}


def test_attention_without_dropout_draws_nothing() -> None:
    b = Builder()
    q = b.input("q")
    flash = ATEN._scaled_dot_product_flash_attention.default
    b.call("rand", ATEN.rand_like.default, q)
    b.call("none", flash, q, q, q)
    b.call("zero", flash, q, q, q, 0.0)
    b.call("named", flash, q, q, q, dropout_p=0.0)
    b.call("some", flash, q, q, q, 0.1)
    b.call("rand2", ATEN.rand_like.default, q)
    assert hazards_of(b.done(q)) == {("rand", "some"), ("some", "rand2")}


def test_asserts_and_items_keep_their_order_and_no_one_elses() -> None:
    b = Builder()
    x = b.input("x")
    b.call("check", ATEN._assert_async.msg, x, "no", val=0)
    item = b.call("item", ATEN._local_scalar_dense.default, x, val=3)
    b.call("compute", ATEN.mul.Tensor, x, x)
    b.call("positive", operator.gt, item, 0, val=True)
    b.call("check2", ATEN._assert_scalar.default, True, "no", val=0)
    assert hazards_of(b.done(x)) == {("check", "item"), ("item", "check2")}


def unknown(x: Tensor) -> Tensor:
    return x


def test_unknown_calls_keep_their_place_among_all_that_is_impure() -> None:
    b = Builder()
    x, y = b.input("x"), b.input("y")
    z = b.call("pure", ATEN.mul.Tensor, x, y)
    b.call("rand", ATEN.rand_like.default, y)
    b.call("write", ATEN.add_.Tensor, y, 1, val=y.meta["val"])
    b.call("who_knows", unknown, z)
    b.call("read", ATEN.mul.Tensor, z, z)
    b.call("rand2", ATEN.rand_like.default, y)
    b.call("elsewhere", ATEN.mul.Tensor, x, x)
    gm = b.done(x)
    assert hazards_of(gm) == {
        ("pure", "write"),  # reads y
        ("rand", "write"),
        ("rand", "who_knows"),
        ("write", "who_knows"),
        ("who_knows", "read"),  # it may have written z
        ("who_knows", "rand2"),
        ("write", "rand2"),
    }
    assert lift(gm).notes["unknown_op"] == 1


def test_a_host_stop_stays_on_its_side_of_an_unknown_call() -> None:
    b = Builder()
    x, y = b.input("x", "meta"), b.input("y")
    b.call("stop", ATEN._to_copy.default, x, device="cpu")
    b.call("who_knows", unknown, y)
    b.call("stop2", ATEN._to_copy.default, x, device="cpu")
    assert hazards_of(b.done(x)) == {("stop", "who_knows"), ("who_knows", "stop2")}


def test_modules_and_methods_are_unknown() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = Builder().tensor(4, 4)
    graph.call_module("inner", (x,))
    graph.call_method("add_", (x, 1))
    graph.output(x)
    root = torch.nn.Module()
    root.inner = torch.nn.Identity()
    gm = fx.GraphModule(root, graph)
    assert hazards_of(gm) == {("inner", "add_")}
    assert lift(gm).notes["unknown_op"] == 2
    assert lift(gm).notes["no_val"] == 2


@pytest.mark.parametrize(
    ("fence", "args"),
    [(torch._C._set_grad_enabled, (False,)), (torch.ops.streams.wait_stream.default, (0, 1))],
    ids=["grad_mode", "stream"],
)
def test_everything_keeps_its_side_of_a_fence(fence: Any, args: tuple[Any, ...]) -> None:
    b = Builder()
    x = b.input("x")
    early = b.call("early", ATEN.mul.Tensor, x, x)
    b.call("early2", ATEN.mul.Tensor, early, x)
    b.call("fence", fence, *args, val=0)
    late = b.call("late", ATEN.mul.Tensor, x, x)
    b.call("late2", ATEN.mul.Tensor, late, early)
    b.call("fence2", fence, *args, val=0)
    gm = b.done(x)
    assert hazards_of(gm) == {("early2", "fence"), ("fence", "late"), ("late2", "fence2"), ("fence", "fence2")}
    assert lift(gm).notes["fence"] == 2


def test_autocast_and_grad_mode_are_fences() -> None:
    for target in (torch.amp._enter_autocast, torch.amp._exit_autocast, torch._C._set_grad_enabled):
        assert traits_of(target).ordering is Ordering.FENCE


def test_readers_of_a_non_blocking_copy_stay_behind_the_stop() -> None:
    b = Builder()
    x = b.input("x", "meta")  # stands for a GPU
    host = b.call("to_host", ATEN._to_copy.default, x, device="cpu", non_blocking=True)
    b.call("early", ATEN.mul.Tensor, host, 2)  # a race in the original; stays one
    b.call("stop", ATEN._local_scalar_dense.default, x, val=1)
    b.call("late", ATEN.mul.Tensor, host, 3)
    b.call("stop2", ATEN._local_scalar_dense.default, x, val=1)
    b.call("later", ATEN.mul.Tensor, host, 3)
    gm = b.done(x)
    assert {pair for pair in hazards_of(gm) if pair[1] in ("early", "late", "later", "stop")} == {
        ("to_host", "stop"),
        ("early", "stop"),
        ("stop", "late"),
        ("stop", "later"),
    }


@pytest.mark.parametrize("to", ["cpu", "meta"])
def test_a_blocking_copy_between_devices_is_a_stop(to: str) -> None:
    b = Builder()
    x, y = b.input("x", "meta"), b.input("y")
    host = b.call("to_host", ATEN._to_copy.default, x, device="cpu", non_blocking=True)
    b.call("cast", ATEN._to_copy.default, y, dtype=torch.float64)  # on one device: no stop
    b.call("stop", ATEN._to_copy.default, x if to == "cpu" else y, device=to, val=b.tensor(4, 4, device=to))
    b.call("late", ATEN.mul.Tensor, host, 3)
    assert hazards_of(b.done(x)) == {("to_host", "stop"), ("stop", "late")}


def test_an_effect_is_a_stop_for_what_is_being_copied() -> None:
    """It may read what was copied, or stop the device unseen: later readers stay behind it."""
    b = Builder()
    x = b.input("x", "meta")
    host = b.call("to_host", ATEN._to_copy.default, x, device="cpu", non_blocking=True)
    b.call("check", ATEN._assert_async.msg, b.input("y"), "no", val=0)
    b.call("late", ATEN.mul.Tensor, host, 3)
    assert hazards_of(b.done(x)) == {("to_host", "check"), ("check", "late")}


@pytest.mark.parametrize("copies", [False, True])
def test_what_a_collective_copies_is_free_when_it_returns(copies: bool) -> None:
    """DeepSpeed's reductions copy what they are given: what writes to that may pass the wait, but not the launch."""
    define()
    b = Builder()
    x = b.input("x")
    gathers = C10D.all_gather_into_tensor.default, 2, "0"
    target, *arguments = (torch.ops.dc.reduce_grad.default, 7, 1) if copies else gathers
    launched = b.call("launch", target, x, *arguments, val=b.tensor(8, 4))
    b.call("wait", C10D.wait_tensor.default, launched, val=b.tensor(8, 4))
    b.call("write", ATEN.add_.Tensor, x, 1)
    assert hazards_of(b.done(x)) == {("launch", "write")} | (set() if copies else {("wait", "write")})


def test_a_wait_for_an_earlier_graph_reads_what_that_may_have_been_given() -> None:
    """Nothing says which of the inputs the collective reads until then: none is written before."""
    b = Builder()
    x, y, z = b.input("x"), b.input("y"), b.input("z")
    b.call("before", ATEN.add_.Tensor, z, 1)
    b.call("wait", C10D.wait_tensor.default, x)
    b.call("write", ATEN.add_.Tensor, y, 1)
    b.call("made", ATEN.add_.Tensor, b.call("own", ATEN.mul.Tensor, x, x), 1)
    found = {pair for pair in hazards_of(b.done(x)) if "wait" in pair}
    assert found == {("before", "wait"), ("wait", "write"), ("wait", "own")}  # own reads x by its older name


def test_with_effects_keeps_its_order_and_its_operators_writes() -> None:
    b = Builder()
    token, x = b.input("token"), b.input("x")
    b.call("read", ATEN.mul.Tensor, x, x)
    b.call("one", with_effects, token, ATEN.add_.Tensor, x, 1, val=(b.tensor(0), b.tensor(4, 4)))
    b.call("two", with_effects, token, ATEN._print.default, "hello", val=(b.tensor(0),))
    b.call("read2", ATEN.mul.Tensor, x, x)
    assert hazards_of(b.done(x)) == {("read", "one"), ("one", "two"), ("one", "read2")}


def test_auto_functionalized_may_write_in_place_after_all() -> None:
    b = Builder()
    x, y = b.input("x"), b.input("y")
    b.call("read", ATEN.mul.Tensor, x, y)
    both = (b.tensor(4, 4), b.tensor(4, 4))
    v1 = b.call("v1", auto_functionalized, ATEN.add_.Tensor, val=both)
    v1.kwargs = {"self": x, "other": y}
    b.call("read2", ATEN.mul.Tensor, x, y)
    b.call("v2", auto_functionalized_v2, ATEN.add_.Tensor, _self_base_index=0, other=x, _all_bases=[y])
    assert hazards_of(b.done(x)) == {
        ("read", "v1"),
        ("v1", "read2"),
        ("v1", "v2"),
        ("read", "v2"),
        ("read2", "v2"),
    }


def subgraph(*targets: Any) -> fx.GraphModule:
    b = Builder()
    x = b.input("x")
    for i, target in enumerate(targets):
        x = b.call(f"call{i}", target, x)
    return b.done(x)


@pytest.mark.parametrize(
    ("inner", "ordering"),
    [
        (ATEN.sin.default, None),
        (ATEN.rand_like.default, "random"),
        (ATEN.sin_.default, "barrier"),
        (C10D.wait_tensor.default, "barrier"),
    ],
    ids=lambda p: str(p),
)
def test_a_node_with_a_subgraph_does_what_the_subgraph_does(inner: Any, ordering: str | None) -> None:
    root = torch.nn.Module()
    root.body = subgraph(inner)
    b = Builder()
    x = b.input("x")
    b.call("rand", ATEN.rand_like.default, x)
    b.call("write", ATEN.add_.Tensor, b.input("y"), 1)
    body = b.graph.get_attr("body")
    b.call("run", torch.ops.higher_order.invoke_subgraph, body, "body", x)
    expected: dict[str | None, set[tuple[str, str]]] = {
        None: set(),
        "random": {("rand", "run")},
        "barrier": {("rand", "run"), ("write", "run")},
    }
    found = {pair for pair in hazards_of(b.done(x, root=root)) if pair[1] == "run"}
    assert found.difference({("run.wait", "run")}) == expected[ordering]


@pytest.mark.parametrize(("operator_name", "barrier"), [("invoke_subgraph", True), ("flex_attention", False)])
def test_a_subgraph_that_is_not_at_hand_is_unknown_but_for_what_must_be_pure(operator_name: str, barrier: bool) -> None:
    root = torch.nn.Module()
    root.body = torch.nn.Module()  # what a dump that lacks the body has in its place
    b = Builder()
    x = b.input("x")
    b.call("write", ATEN.add_.Tensor, b.input("y"), 1)
    b.call("run", getattr(torch.ops.higher_order, operator_name), b.graph.get_attr("body"), "body", x)
    gm = b.done(x, root=root)
    assert (("write", "run") in hazards_of(gm)) == barrier
    assert lift(gm).notes.get("unknown_op", 0) == int(barrier)


def test_an_alias_that_the_schema_does_not_tell_is_a_write() -> None:
    b = Builder()
    x, buffer = b.input("x"), b.input("buffer")
    b.call("before", ATEN.mul.Tensor, buffer, buffer)
    copy_in = torch.ops.fsdp.all_gather_copy_in.default
    b.call("copy_in", copy_in, [x], buffer, [16], 16, 0, val=(buffer.meta["val"][:2], buffer.meta["val"]))
    b.call("view", ATEN._unsafe_view.default, buffer, [16], val=buffer.meta["val"].view(16))
    gm = b.done(x)
    assert hazards_of(gm) == {("before", "copy_in"), ("copy_in", "view")}
    assert "undeclared_alias" not in lift(gm).notes  # this one the catalogue knows


ROLES = (None, *Role)
FLAGS = ("writes", "writes_all", "writes_aliased", "aliases", "syncs", "dropout", "non_blocking", "nested", "fresh")


def test_every_combination_of_traits_is_read_as_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator takes x and y: which of them it writes, and how readers are ordered against it."""
    x, y = Arg((0, "self")), Arg((1, "other"))
    readings, current = {}, [NO_CALL]
    monkeypatch.setattr(reading, "traits_of", lambda op: current[0] if op is ATEN.maximum.default else traits_of(op))
    for fresh in (False, True):
        b = Builder()
        inputs = b.input("x"), b.input("y")
        for one in inputs:
            b.call(f"before_{one}", ATEN.neg.default, one)
        b.call("op", ATEN.maximum.default, *inputs, val=b.tensor(4, 4) if fresh else inputs[0].meta["val"])
        for one in inputs:
            b.call(f"after_{one}", ATEN.neg.default, one)
        readings[fresh] = b.done().graph
    combinations = itertools.product(Ordering, ROLES, itertools.product((False, True), repeat=len(FLAGS)))
    for i, (ordering, role, flags) in enumerate(combinations):
        on = dict(zip(FLAGS, flags, strict=True))
        current[0] = traits = OperatorTraits(
            "op", ordering, Comm(role, "all_reduce") if role else None, known=i % 3 > 0,
            writes=(y,) if on["writes"] else (), returns=(x,) if i % 5 == 0 else (), overwrites=i % 7 == 0,
            aliases=(x,) if on["aliases"] else (), writes_all=on["writes_all"], writes_aliased=on["writes_aliased"],
            dropout=Arg((-1, "dropout_p")) if on["dropout"] else None, syncs=on["syncs"], nested=on["nested"],
            non_blocking=Arg((-1, "non_blocking")) if on["non_blocking"] else None,
        )  # fmt: skip
        found = read_graph(readings[on["fresh"]])
        hazards = graph_hazards(found, {})
        at = {node.name: v for v, node in enumerate(found.nodes)}
        op = at["op"]
        expected = Ordering.NONE if ordering is Ordering.RANDOM and on["dropout"] else ordering
        hidden = on["writes_aliased"] and not on["fresh"] and not on["aliases"]
        written = {"x", "y"} if on["writes_all"] or expected >= Ordering.BARRIER else {"y"} if on["writes"] else set()
        assert found.ordering.get(op, Ordering.NONE) is expected, traits
        assert found.notes["undeclared_alias"] == (op in found.unseen) == (hidden and "x" not in written), traits
        written |= {"x"} if hidden else set()
        assert {name for name in "xy" if found.outs[at[name]][0] in found.writes.get(op, ())} == written, traits
        assert (op in found.syncs, found.notes["unknown_op"] > 0) == (on["syncs"], not (traits.known or traits.plain))
        for name in written:
            assert at[f"before_{name}"] in hazards[op], traits
            assert op in hazards[at[f"after_{name}"]], traits
        if not written and role is None and expected is Ordering.NONE and not on["syncs"]:
            assert not hazards.get(op), traits


@pytest.mark.parametrize("declared", [None, False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("schema", ["Tensor x, Tensor y", "Tensor x, Tensor(a!) y"])
def test_an_argument_returned_unsaid_is_written_whatever_is_declared(
    declared: bool | None, wrapped: bool, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.library._scoped_library("unsaid", "DEF") as library:
        library.define(f"scale({schema}) -> Tensor")
        op = torch.ops.unsaid.scale.default
        if declared is not None:
            monkeypatch.setitem(overlap_sched.fx.operators._declared, "unsaid::scale", declared)
        traits_of.cache_clear()
        b = Builder()
        x, y, token = b.input("x"), b.input("y"), b.input("token")
        b.call("before", ATEN.neg.default, x)
        if wrapped:
            b.call("scale", with_effects, token, op, x, y, val=(b.tensor(0), x.meta["val"]))
        else:
            b.call("scale", op, x, y, val=x.meta["val"])
        b.call("after", ATEN.neg.default, x)
        gm = b.done(x)
        assert {("before", "scale"), ("scale", "after")} <= hazards_of(gm)
        assert lift(gm).notes["undeclared_alias"] == 1
    traits_of.cache_clear()


def test_what_a_body_hands_through_is_not_returned_by_what_it_runs() -> None:
    body = Builder()
    x, y = body.input("x"), body.input("y")
    root = torch.nn.Module()
    root.body = body.done(body.call("inner", ATEN.maximum.default, x, y), y)
    b = Builder()
    outer = [b.input("x"), b.input("y")]
    b.call("before", ATEN.neg.default, outer[1])
    val = (b.tensor(4, 4), outer[1].meta["val"])
    wrapped = b.call("run", control_deps, (), b.graph.get_attr("body"), *outer, val=val)
    gm = b.done(wrapped, root=root)
    assert hazards_of(gm) == set()
    assert "undeclared_alias" not in lift(gm).notes


@pytest.mark.skipif(not hasattr(C10D, "isend"), reason="this torch has no functional sends")
def test_sends_and_receives_keep_their_order_in_their_group() -> None:
    b = Builder()
    x, y = b.input("x"), b.input("y")
    b.call("gather", C10D.all_gather_into_tensor.default, x, 2, "pair", val=b.tensor(8, 4))
    b.call("send", C10D.isend.default, x, 1, 0, "pair")
    b.call("other", C10D.all_gather_into_tensor.default, x, 2, "other", val=b.tensor(8, 4))
    b.call("receive", C10D.irecv.default, y, 1, 0, "pair", val=y.meta["val"])
    b.call("gather2", C10D.all_gather_into_tensor.default, x, 2, "pair", val=b.tensor(8, 4))
    gm = b.done(x)
    kept = {pair for pair in hazards_of(gm) if "other" not in pair}
    assert kept >= {("gather", "send"), ("send", "receive"), ("receive", "gather2")}
    assert not [pair for pair in hazards_of(gm) if pair[1] == "gather2" and pair[0] == "other"]
    assert lift(gm).notes["point_to_point"] == 4


def test_the_same_attribute_fetched_twice_is_one_storage() -> None:
    root = torch.nn.Module()
    root.register_buffer("state", torch.zeros(4))
    b = Builder()
    x = b.input("x")
    first, second = b.graph.get_attr("state"), b.graph.get_attr("state")
    second.meta["val"] = b.tensor(4)
    b.call("write", ATEN.add_.Tensor, first, 1, val=first)
    b.call("read", ATEN.mul.Tensor, second, x)
    gm = b.done(x, root=root)
    assert ("write", "read") in hazards_of(gm)
    assert [s.bytes for s in lift(gm).problem.storages].count(16) == 1


def test_dynamo_style_item_assignment_writes() -> None:
    traits = traits_of(operator.setitem)
    assert traits.writes_all
    assert traits_of(operator.iadd).writes_all
    assert traits_of(operator.add).plain
    assert traits_of(torch.sym_max).plain


def test_mutable_ops_of_every_kind_are_seen() -> None:
    """Each operator that torch marks as mutable writes something, as far as our traits go."""
    seen = 0
    for name in (
        "add_",
        "copy_",
        "_foreach_add_",
        "_fused_adam_",
        "index_put_",
        "native_batch_norm",
        "resize_",
        "set_",
    ):
        packet = getattr(ATEN, name)
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if op._schema.is_mutable:
                seen += 1
                assert traits_of(op).writes or traits_of(op).writes_all, op
    assert seen > 10


def test_mutation_in_traced_graphs_is_pinned_by_schema() -> None:
    gm = trace(lambda x, y: (x.add_(y), torch._foreach_add_([y], 1.0))[0], (4,), (4,))
    assert hazards_of(gm) == {("add_", "_foreach_add_")}
