"""What keeps its place, node by node: effects, fences, unknown calls, subgraphs, host synchronisation, sends.

The rules of hazards on lists made by hand, and against brute force: all orders they allow, no more and no fewer.

The catalogue against torch's own list of registered operators: no namespace, group or tag of torch is missing.

Operators that only run another one, or a sub-graph: what is inside is what counts.
"""

import itertools
import json
import operator
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.variables import streams  # noqa: F401  registers torch.ops.streams
from torch._higher_order_ops import hints_wrap, strict_mode, wrap  # noqa: F401  registers them
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._higher_order_ops.effects import with_effects
from torch._inductor.fx_passes.control_dependencies import control_deps
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils._ordered_set import OrderedSet

import overlap_sched.fx.operators
from overlap_sched.fx import catalogue, lift, reading, schedule_graph
from overlap_sched.fx.hazards import (
    Launch,
    Pair,
    blocking_hazards,
    chain_hazards,
    fence_hazards,
    graph_hazards,
    impurity_hazards,
    storage_hazards,
)
from overlap_sched.fx.operators import NO_CALL, Arg, Comm, OperatorTraits, Ordering, Role, names_a_group, traits_of
from overlap_sched.fx.reading import read_graph
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Node, Problem
from tests.support import operator_runs
from tests.support.deepspeed_graphs import define
from tests.support.fx_graphs import ATEN, C10D, gather, trace, wait


class Builder:
    """Builds a graph by hand: names to nodes, values on any device."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()

    def tensor(self, *shape: int, device: str = "cpu") -> Tensor:
        with self.mode:
            return torch.empty(shape, device=device)

    def input(self, name: str, *shape: int, device: str = "cpu") -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = self.tensor(*(shape or (4, 4)), device=device)
        return node

    def inputs(self, *names: str) -> list[fx.Node]:
        return [self.input(name) for name in names]

    @staticmethod
    def of(*names: str) -> list[Any]:
        """A builder, and its inputs."""
        b = Builder()
        return [b, *b.inputs(*names)]

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


def unknown(x: Tensor) -> Tensor:
    return x


define()  # DeepSpeed's operators
HOP = torch.ops.higher_order
FLASH, RAND, MUL, ADD_ = (
    *(ATEN._scaled_dot_product_flash_attention.default, ATEN.rand_like.default),
    *(ATEN.mul.Tensor, ATEN.add_.Tensor),
)
CAST, ITEM, CHECK, GATHER = (
    *(ATEN._to_copy.default, ATEN._local_scalar_dense.default),
    *(ATEN._assert_async.msg, C10D.all_gather_into_tensor.default),
)
DENSE, REDUCE = ATEN.to_dense.default, torch.ops.dc.reduce_grad.default
GRAD_MODE, STREAM = (torch._C._set_grad_enabled, False), (torch.ops.streams.wait_stream.default, 0, 1)
ON_HOST = {"device": "cpu"}
LATER = {**ON_HOST, "non_blocking": True}
Call = tuple[Any, ...]


def sparse(b: Builder) -> Tensor:
    with b.mode:
        pair = torch.zeros(1, 4, dtype=torch.long), torch.zeros(4)
        return torch.sparse_coo_tensor(*pair, (8,), check_invariants=False)


def fenced(*fence: Any) -> tuple[str, list[Call], str]:
    calls = [("early", MUL, "x", "x"), ("early2", MUL, "early", "x"), ("fence", *fence)]
    calls += [("late", MUL, "x", "x"), ("late2", MUL, "late", "early"), ("fence2", *fence)]
    return "x", calls, "early2<fence fence<late late2<fence2 fence<fence2"


# inputs (those in capitals are on another device, as on a GPU), calls: name, operator, arguments by name; what has to
# come before what although no data flows
HAZARDS: dict[str, tuple[str, list[Call], str]] = {
    "attention without dropout draws nothing": (
        "q",
        [
            *(("rand", RAND, "q"), ("none", FLASH, *"qqq"), ("zero", FLASH, *"qqq", 0.0)),
            *(("named", FLASH, *"qqq", {"dropout_p": 0.0}), ("some", FLASH, *"qqq", 0.1), ("rand2", RAND, "q")),
        ],
        "rand<some some<rand2",
    ),
    "asserts and items keep their order and no one else's": (
        "x",
        [
            *(("check", CHECK, "x", "no"), ("item", ITEM, "x"), ("compute", MUL, "x", "x")),
            *(("positive", operator.gt, "item", 0), ("check2", ATEN._assert_scalar.default, True, "no")),
        ],
        "check<item item<check2",
    ),
    "an unknown call is a barrier for what is impure, and may have written all that it takes": (
        "x y",
        [
            *(("z", MUL, "x", "y"), ("rand", RAND, "y"), ("write", ADD_, "y", 1), ("who_knows", unknown, "z")),
            *(("read", MUL, "z", "z"), ("rand2", RAND, "y"), ("elsewhere", MUL, "x", "x")),
        ],
        "z<write rand<write rand<who_knows write<who_knows who_knows<read who_knows<rand2 write<rand2",
    ),
    "a host stop stays on its side of an unknown call": (
        "X y",
        [("stop", CAST, "X", ON_HOST), ("who_knows", unknown, "y"), ("stop2", CAST, "X", ON_HOST)],
        "stop<who_knows who_knows<stop2",
    ),
    "everything keeps its side of a grad mode": fenced(*GRAD_MODE),
    "everything keeps its side of a stream": fenced(*STREAM),
    # early is a race in the original, and stays one
    "readers of a copy that need not be finished stay behind the stop": (
        "X",
        [
            *(("to_host", CAST, "X", LATER), ("early", MUL, "to_host", 2), ("stop", ITEM, "X")),
            *(("late", MUL, "to_host", 3), ("stop2", ITEM, "X"), ("later", MUL, "to_host", 3)),
        ],
        "to_host<stop early<stop stop<late stop<later stop<stop2",
    ),
    # on one device cast is no stop
    "a blocking copy to the host is a stop": (
        "X y",
        [
            *(("to_host", CAST, "X", LATER), ("cast", CAST, "y", {"dtype": torch.float64})),
            *(("stop", CAST, "X", ON_HOST), ("late", MUL, "to_host", 3)),
        ],
        "to_host<stop stop<late",
    ),
    "an effect is a stop for what is being copied, which it may read": (
        "X y",
        [("to_host", CAST, "X", LATER), ("check", CHECK, "y", "no"), ("late", MUL, "to_host", 3)],
        "to_host<check check<late",
    ),
    "what a collective reads is written behind its wait": (
        "x",
        [("launch", GATHER, "x", 2, "0"), ("wait", C10D.wait_tensor.default, "launch"), ("write", ADD_, "x", 1)],
        "launch<write wait<write",
    ),
    # DeepSpeed's reductions copy what they are given: what writes to that may pass the wait, but not the launch
    "what a collective copies is free when it returns": (
        "x",
        [("launch", REDUCE, "x", 7, 1), ("wait", C10D.wait_tensor.default, "launch"), ("write", ADD_, "x", 1)],
        "launch<write",
    ),
    # nothing says which of the inputs the collective reads until then; own reads x by its older name
    "a wait for an earlier graph reads what that may have been given": (
        "x y z",
        [
            *(("before", ADD_, "z", 1), ("wait", C10D.wait_tensor.default, "x"), ("write", ADD_, "y", 1)),
            *(("own", MUL, "x", "x"), ("made", ADD_, "own", 1)),
        ],
        "before<wait wait<write wait<own",
    ),
    "effects keep their order, and their operators' writes": (
        "token x",
        [
            *(("read", MUL, "x", "x"), ("one", with_effects, "token", ADD_, "x", 1)),
            *(("two", with_effects, "token", ATEN._print.default, "hello"), ("read2", MUL, "x", "x")),
        ],
        "read<one one<two one<read2",
    ),
    "what was made functional may be written in place after all": (
        "x y",
        [
            ("read", MUL, "x", "y"),
            ("v1", auto_functionalized, ADD_, {"self": "x", "other": "y"}),
            ("read2", MUL, "x", "y"),
            ("v2", auto_functionalized_v2, ADD_, {"_self_base_index": 0, "other": "x", "_all_bases": ["y"]}),
        ],
        "read<v1 v1<read2 v1<v2 read<v2 read2<v2",
    ),
    "a sparse tensor shares the values that it is made of": (
        "indices values",
        [
            *(("sparse", ATEN.sparse_coo_tensor.indices_size, "indices", "values", [8]), ("early", DENSE, "sparse")),
            *(("write", ADD_, "values", 2), ("late", DENSE, "sparse"), ("got", ATEN._values.default, "sparse")),
            *(("write2", ADD_, "got", 2), ("read", MUL, "values", 2)),
        ],
        "sparse<write early<write write<late write<got early<write2 sparse<write2 late<write2 write<write2 write2<read",
    ),
}
VALUES: dict[str, Callable[[Builder], Any]] = {
    "one": lambda b: (b.tensor(0), b.tensor(4, 4)),
    "two": lambda b: (b.tensor(0),),
    "v1": lambda b: (b.tensor(4, 4), b.tensor(4, 4)),
    "sparse": sparse,
    **dict.fromkeys(("check", "check2", "fence", "fence2"), lambda b: 0),
    **dict.fromkeys(("item", "positive"), lambda b: 3),
    **dict.fromkeys(("launch", "wait"), lambda b: b.tensor(8, 4)),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_what_has_to_keep_its_order(name: str) -> None:
    inputs, calls, expected = HAZARDS[name]
    b = Builder()
    nodes = {x: b.input(x, device="meta" if x.isupper() else "cpu") for x in inputs.split()}
    for call, target, *given in calls:
        args = fx.node.map_aggregate(tuple(given), lambda one: nodes.get(one, one) if isinstance(one, str) else one)
        kwargs = args[-1] if isinstance(args[-1], dict) else {}
        value = VALUES[call](b) if call in VALUES else None
        nodes[call] = b.call(call, target, *(args[:-1] if kwargs else args), val=value)
        nodes[call].kwargs = kwargs
    found = {pair for pair in hazards_of(b.done(next(iter(nodes.values())))) if "made" not in pair}
    assert found == {tuple(pair.split("<")) for pair in expected.split()}


def test_modules_and_methods_are_unknown() -> None:
    b, root = Builder(), torch.nn.Module()
    x, root.inner = b.input("x"), torch.nn.Identity()
    b.graph.call_module("inner", (x,))
    b.graph.call_method("add_", (x, 1))
    gm = b.done(x, root=root)
    assert hazards_of(gm) == {("inner", "add_")}
    assert {lift(gm).notes[note] for note in ("unknown_op", "no_val")} == {2}


def test_python_that_is_known() -> None:
    pools = [torch.ops.mempool.begin.default] if hasattr(torch.ops.mempool, "begin") else []
    for target in (torch.amp._enter_autocast, torch.amp._exit_autocast, torch._C._set_grad_enabled, *pools):
        assert traits_of(target).ordering is Ordering.FENCE
    assert all(traits_of(target).writes_all for target in (operator.setitem, operator.iadd))
    assert all(traits_of(target).plain for target in (operator.add, torch.sym_max))


@pytest.mark.parametrize(
    ("op", "inner", "behind", "unknown"),
    [
        ("invoke_subgraph", ATEN.sin.default, "", 0),
        ("invoke_subgraph", ATEN.rand_like.default, "rand", 0),
        ("invoke_subgraph", ATEN.sin_.default, "rand write", 0),
        ("invoke_subgraph", C10D.wait_tensor.default, "rand write", 0),
        ("invoke_subgraph", None, "rand write", 1),
        ("flex_attention", None, "", 0),  # must be pure
    ],
    ids=str,
)
def test_a_node_with_a_subgraph_does_what_the_subgraph_does(op: str, inner: Any, behind: str, unknown: int) -> None:
    root, (body, inside) = torch.nn.Module(), Builder.of("x")
    # what a dump that lacks the body has in its place
    root.body = body.done(body.call("call", inner, inside)) if inner else torch.nn.Module()
    b, x, y = Builder.of("x", "y")
    b.call("rand", ATEN.rand_like.default, x)
    b.call("write", ATEN.add_.Tensor, y, 1)
    b.call("run", getattr(HOP, op), b.graph.get_attr("body"), "body", x)
    gm = b.done(x, root=root)
    assert hazards_of(gm) - {("run.wait", "run")} == {(before, "run") for before in behind.split()}
    assert lift(gm).notes.get("unknown_op", 0) == unknown


ROLES = (None, *Role)
FLAGS = ("writes", "writes_all", "writes_aliased", "aliases", "syncs", "dropout", "non_blocking", "nested", "fresh")


def test_every_combination_of_traits_is_read_as_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator takes x and y: which of them it writes, and how readers are ordered against it."""
    x, y = Arg((0, "self")), Arg((1, "other"))
    readings, current = {}, [NO_CALL]
    monkeypatch.setattr(reading, "traits_of", lambda op: current[0] if op is ATEN.maximum.default else traits_of(op))
    for fresh in (False, True):
        b = Builder()
        inputs = b.inputs("x", "y")
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
        b, x, y, token = Builder.of("x", "y", "token")
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
    root, (body, x, y) = torch.nn.Module(), Builder.of("x", "y")
    root.body = body.done(body.call("inner", ATEN.maximum.default, x, y), y)
    b, *outer = Builder.of("x", "y")
    b.call("before", ATEN.neg.default, outer[1])
    val = (b.tensor(4, 4), outer[1].meta["val"])
    wrapped = b.call("run", control_deps, (), b.graph.get_attr("body"), *outer, val=val)
    gm = b.done(wrapped, root=root)
    assert hazards_of(gm) == set()
    assert "undeclared_alias" not in lift(gm).notes


@pytest.mark.skipif(not hasattr(C10D, "isend"), reason="this torch has no functional sends")
def test_sends_and_receives_keep_their_order_in_their_group() -> None:
    b, x, y = Builder.of("x", "y")
    b.call("gather", GATHER, x, 2, "pair", val=b.tensor(8, 4))
    b.call("send", C10D.isend.default, x, 1, 0, "pair")
    b.call("other", GATHER, x, 2, "other", val=b.tensor(8, 4))
    b.call("receive", C10D.irecv.default, y, 1, 0, "pair", val=y.meta["val"])
    b.call("gather2", GATHER, x, 2, "pair", val=b.tensor(8, 4))
    gm = b.done(x)
    kept = {pair for pair in hazards_of(gm) if "other" not in pair}
    assert kept >= {("gather", "send"), ("send", "receive"), ("receive", "gather2")}
    assert not [pair for pair in hazards_of(gm) if pair[1] == "gather2" and pair[0] == "other"]
    assert lift(gm).notes["point_to_point"] == 4


def test_the_same_attribute_fetched_twice_is_one_storage() -> None:
    root = torch.nn.Module()
    root.register_buffer("state", torch.zeros(4))
    b, x = Builder.of("x")
    first, second = b.graph.get_attr("state"), b.graph.get_attr("state")
    second.meta["val"] = b.tensor(4)
    b.call("write", ATEN.add_.Tensor, first, 1, val=first)
    b.call("read", ATEN.mul.Tensor, second, x)
    gm = b.done(x, root=root)
    assert ("write", "read") in hazards_of(gm)
    assert [s.bytes for s in lift(gm).problem.storages].count(16) == 1


NONE, RANDOM, EFFECT, BARRIER, FENCE = Ordering


def closure(n: int, pairs: Iterable[Pair]) -> set[Pair]:
    """All that follows: (later, earlier)."""
    behind: list[set[int]] = [set() for _ in range(n)]
    for at, before in sorted(pairs):
        assert before < at
        behind[at] |= {before, *behind[before]}
    return {(at, before) for at in range(n) for before in behind[at]}


def test_only_groups_with_sends_or_receives_keep_their_launch_order() -> None:
    launches = [Launch(0, "pipe", False), Launch(1, "data", False), Launch(3, "pipe", True), Launch(7, "data", False)]
    notes = Counter[str]()
    assert chain_hazards([*launches, Launch(8, "pipe", False)], notes) == [(3, 0), (8, 3)]
    assert notes["point_to_point"] == 3
    assert chain_hazards(launches[:2], notes) == []


@pytest.mark.parametrize("seed", range(50))
def test_storages_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    steps = [tuple("".join(s for s in "abc" if rng.random() < 0.25) for _ in range(2)) for _ in range(12)]
    conflicts = [
        (at, before)
        for at, (reads, writes) in enumerate(steps)
        for before, (reads_before, writes_before) in enumerate(steps[:at])
        if {*writes} & {*reads_before, *writes_before} or {*reads} & {*writes_before}
    ]
    assert closure(12, storage_hazards((at, *step) for at, step in enumerate(steps))) == closure(12, conflicts)


@pytest.mark.parametrize("seed", range(50))
def test_blocking_against_brute_force(seed: int) -> None:
    """Two that share a group, or one on any, keep their order where one of them blocks."""
    rng = random.Random(seed)
    blocking = [("*",), ("a", "b"), *"abc"]
    drawn = [(rng.choice(blocking), True) if rng.random() < 0.4 else (rng.choice("abc"), False) for _ in range(12)]
    steps = [(at, groups, blocks) for at, (groups, blocks) in enumerate(drawn)]
    conflicts = [
        (at, before)
        for at, groups, blocks in steps
        for before, others, blocked in steps[:at]
        if (blocks or blocked) and ("*" in (*groups, *others) or not {*groups}.isdisjoint(others))
    ]
    assert closure(12, blocking_hazards(steps)) == closure(12, conflicts)


@pytest.mark.parametrize("seed", range(50))
def test_impurity_and_fences_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    n = 12
    orderings = [rng.choice([NONE, NONE, RANDOM, RANDOM, EFFECT, EFFECT, BARRIER, FENCE]) for _ in range(n)]
    pairs = [(at, before) for at in range(n) for before in range(at)]
    conflicts = [
        (at, before)
        for at, before in pairs
        if max(orderings[at], orderings[before]) >= BARRIER or NONE != orderings[at] == orderings[before]
    ]
    assert closure(n, impurity_hazards(enumerate(orderings))) == closure(n, conflicts)
    data = [pair for pair in pairs if rng.random() < 0.15]
    fences = [pair for pair in pairs if FENCE in (orderings[pair[0]], orderings[pair[1]])]
    nodes = [(at, orderings[at] is FENCE, {u for v, u in data if v == at}) for at in range(n)]
    assert closure(n, [*data, *fence_hazards(nodes)]) == closure(n, [*data, *fences])


NAMESPACES = """
import torch, torch.distributed, torch._inductor.lowering, torch.distributed._symmetric_memory
import torch.distributed.tensor, torch.distributed._functional_collectives, torch._dynamo.variables.streams
import torch.distributed.fsdp._fully_shard._fsdp_collectives
print(*sorted({name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}))
"""
"""In a process of its own: here tests have registered operators."""


@pytest.fixture(scope="module")
def registered() -> list[OpOverload]:
    """All overloads of torch's own namespaces that are registered here."""
    return operator_runs.registered()


@pytest.mark.slow
def test_every_namespace_of_torch_is_known() -> None:
    told = subprocess.check_output([sys.executable, "-W", "ignore", "-c", NAMESPACES], text=True)
    assert set(told.split()) - catalogue.TORCH == set()


def test_what_takes_a_process_group_communicates(registered: list[OpOverload]) -> None:
    silent = [op for op in registered if any(map(names_a_group, op._schema.arguments)) and traits_of(op).comm is None]
    assert {str(op) for op in silent} <= {"_dtensor.mesh_get_process_group.default"}  # looks it up
    assert len(registered) > 3000


def test_what_schemas_and_tags_say_is_known(registered: list[OpOverload]) -> None:
    """Random numbers, numbers for the host, running statistics: most that write these run on a GPU alone."""
    for op in registered:
        traits, given = traits_of(op), {a.name for a in op._schema.arguments}
        if "generator" in given or torch.Tag.nondeterministic_seeded in op.tags:
            assert traits.ordering >= Ordering.RANDOM, op
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.intersection(op.tags):
            assert traits.syncs or traits.comm is not None, op
        if not re.search(READ_ONLY, op._schema.name):
            assert {name for _, name in traits.writes} >= given & {"running_mean", "running_var"}, op
    assert traits_of(ATEN._local_scalar_dense.default).syncs
    assert traits_of(ATEN.is_nonzero.default).syncs


def test_tables_name_operators_and_arguments_that_exist(registered: list[OpOverload]) -> None:
    """In the one or the other version of torch."""
    names = {op._schema.name: {a.name for a in op._schema.arguments} for op in registered}
    for name, arguments in catalogue.WRITES.items():
        assert name not in names or names[name].issuperset(arguments), name
    listed = {*catalogue.WRITES, *catalogue.SYNCS, *catalogue.VIEWS, *catalogue.RANDOM}
    elsewhere = {"ao::wait_tensor", "inductor_prims::inductor_reserve_rng_state", "fsdp::all_gather_copy_in"}
    assert {name for name in listed - names.keys() if "vllm" not in name} <= elsewhere


READ_ONLY = "backward|functional|no_training|no_update|elemt|quantized"
"""Operators that look at running statistics and leave them as they are."""


@pytest.mark.parametrize(
    "name",
    ["batch_norm_update_stats", "batch_norm", "_batch_norm_impl_index", "native_batch_norm", "instance_norm", "add_"],
)
def test_what_an_operator_writes_is_seen_and_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = ATEN.add_.Tensor if name == "add_" else getattr(ATEN, name).default
    seen = next(operator_runs.observe(op))
    expected = ["self"] if name == "add_" else ["running_mean", "running_var"]
    assert (seen.writes, operator_runs.unsaid(op, seen)) == (expected, [])
    if name != "add_":
        monkeypatch.delitem(catalogue.WRITES, op._schema.name)
        traits_of.cache_clear()
        assert operator_runs.unsaid(op, seen) == expected
    traits_of.cache_clear()


@pytest.mark.slow
def test_whatever_operators_write_or_draw_is_known() -> None:
    """All that run on a CPU, in a process of their own; those that want what cannot be made up crash, or do not run."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.operator_runs"]
    found = json.loads(subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL))
    assert found["unsaid"] == {}
    assert found["ran"] > 2300
    assert len(found["crashed"]) < 40


with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering


def exposed(x: Tensor, a: Tensor, b: Tensor) -> Any:
    return [wait(gather(shard)).sum() + (x @ x).sum() for shard in (a, b)]


def traced(f: Callable[..., Any]) -> fx.GraphModule:
    return trace(f, (4096, 4096), (4096, 4096), (4096, 4096))


def ordered(f: Callable[..., Any]) -> fx.GraphModule:
    """As torch's own overlap pass leaves it: each matmul after its launch."""
    gm = traced(f)
    launches, matmuls = (gm.graph.find_nodes(op="call_function", target=op) for op in (GATHER, ATEN.mm.default))
    after = {matmul: OrderedSet([launch]) for launch, matmul in zip(launches, matmuls, strict=True)}
    preserve_node_ordering(gm.graph, after)
    gm.graph.lint()
    return gm


def by_name(problem: Problem) -> dict[str, Node]:
    return {node.name: node for node in problem.nodes}


def test_what_control_deps_orders_hides_communication() -> None:
    options = Options(rewrites=(), headroom="1GiB", strict=True)
    for gm in (traced(exposed), ordered(exposed)):
        plan = schedule_graph(gm, options).schedule
        assert plan is not None
        assert plan.original.exposed_us > 100.0
        assert plan.scheduled.exposed_us == 0.0
        gm.graph.lint()


def body(*more: fx.GraphModule) -> fx.GraphModule:
    """A matmul, a sine, and what else is run inside."""
    root, (b, x) = torch.nn.Module(), Builder.of("x")
    x = b.call("inner_sin", ATEN.sin.default, b.call("inner_mm", ATEN.mm.default, x, x))
    for at, inner in enumerate(more):
        setattr(root, f"body{at}", inner)
        x = b.call(f"run{at}", HOP.invoke_subgraph, b.graph.get_attr(f"body{at}"), f"body{at}", x)
    return b.done(x, root=root)


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        ("invoke_subgraph", (), ("body",)),
        ("wrap", (), ()),
        ("tag_activation_checkpoint", (), ()),
        ("wrap_activation_checkpoint", (), ()),
        ("strict_mode", (), ()),
        ("hints_wrapper", (), ()),
        ("wrap_with_set_grad_enabled", (False,), ()),
    ],
)
def test_a_sub_graph_costs_what_is_in_it_at_every_depth(op: str, before: Any, after: Any) -> None:
    root, (b, x, y) = torch.nn.Module(), Builder.of("x", "y")
    root.body = body(body())
    b.call("write", ATEN.add_.Tensor, y, 1)
    b.call("run", getattr(HOP, op), *before, b.graph.get_attr("body"), *after, x)
    lifted = lift(b.done(x, root=root))
    run = by_name(lifted.problem)["run"]
    assert run.flops == 2 * 2 * 4 * 4 * 4
    assert run.bytes == 2 * (2 + 2) * 64
    assert run.time_us == pytest.approx(2 * 2.0 + 2 * 5.0, abs=0.1)  # two additions, two matmuls
    assert [lifted.problem.nodes[u].name for u in run.deps] == ["body", "x"]
    assert "unknown_op" not in lifted.notes


def test_a_wait_with_effects_gives_its_collectives_storage() -> None:
    b, token, x = Builder.of("token", "x")
    launch = b.call("launch", GATHER, x, 2, "0", val=b.tensor(8, 4))
    b.call("waited", with_effects, token, C10D.wait_tensor.default, launch, val=(b.tensor(0), b.tensor(8, 4)))
    problem = lift(b.done(x)).problem
    node = by_name(problem)["waited"]
    assert (node.kind, node.collective) == (Kind.WAIT, problem.collectives[0])
    assert [problem.storages[s].bytes for s in node.alloc] == [0]  # the token
