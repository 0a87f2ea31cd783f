"""Rewritten graphs give the same results, whenever data moves and in any valid order; new nodes have metadata of
their own: what is noted of one is not noted of the other."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from overlap_sched.errors import RewriteError
from overlap_sched.fx import schedule_graph
from overlap_sched.fx.rewrites import prepare, rewrite_graph
from overlap_sched.fx.rewrites.maker import layout
from overlap_sched.inductor.partitioning import _apart
from overlap_sched.joint.graphs import copy_of, joined
from overlap_sched.options import Options
from overlap_sched.transform.rewrites import Bucket, Recompute, Regather, Rewrite
from tests.support.examples import examples
from tests.support.fx_graphs import RANKS, TIMINGS, gather, outcome, reordered, same, scatter, trace, wait
from tests.support.rewrite_graphs import GRAPHS, described, legal, reduce, tried
from tests.test_joint import joint_graph, torchs


def check_results(before: fx.GraphModule, after: fx.GraphModule, seed: int, orders: int = 2) -> None:
    """In its own order, and in others that the lifted graph allows."""
    rng = random.Random(seed)
    want = [outcome(before, timing) for timing in TIMINGS]
    for gm in (after, *(reordered(after, rng) for _ in range(orders))):
        for timing, expected in zip(TIMINGS, want, strict=True):
            assert same(outcome(gm, timing), expected), timing


NAMES = [pytest.param(name, marks=pytest.mark.slow if name in ("twice", "recomputed") else ()) for name in GRAPHS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_rewrite_alone(name: str) -> None:
    """Results, and that new nodes have the values that running them gives."""
    original = GRAPHS[name]()
    for seed, one in enumerate(legal(original)):
        gm = GRAPHS[name]()
        rewrite_graph(gm, [one])
        gm.graph.lint()
        check_results(original, gm, seed, orders=1)
        told = {n: _layouts(n.meta["val"]) for n in gm.graph.nodes if n.op == "call_function"}
        inputs = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
        FakeTensorProp(gm, inputs[0].fake_mode).propagate_dont_convert_inputs(*inputs)
        assert told == {n: _layouts(n.meta["val"]) for n in told}


def _layouts(value: object) -> list[object]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [layout(leaf) for leaf in leaves if isinstance(leaf, Tensor)]


@pytest.mark.private
@pytest.mark.parametrize("name", NAMES)
def test_undone_the_graph_is_as_it_was(name: str) -> None:
    gm = GRAPHS[name]()
    before = described(gm.graph)
    refused = 0
    for one in tried(gm):
        try:
            prepare(gm, [one]).undo()
        except RewriteError:
            refused += 1
        assert described(gm.graph) == before, one
    assert refused
    one = legal(gm)[0]
    rewrite_graph(gm, [one])  # names that were undone are free again
    check_results(GRAPHS[name](), gm, 0, orders=0)


def test_waits_of_waits_are_in_nobodys_way() -> None:
    def waited_for_twice(a: Tensor, b: Tensor) -> list[Tensor]:
        first, other = wait(wait(gather(a))), wait(wait(gather(b)).view(-1))
        return [first @ b.t(), other + 1]

    original, gm = (trace(waited_for_twice, (4, 8), (4, 8)) for _ in range(2))
    report = schedule_graph(gm, Options(rewrites=("bucket",), strict=True, headroom="1GiB"))
    assert [one.members for one in report.rewrites] == [GATHERS[:2]]
    check_results(original, gm, 0)
    copied = trace(waited_for_twice, (4, 8), (4, 8))
    rewrite_graph(copied, [Bucket(GATHERS[:2])])
    check_results(original, copied, 0)


GATHERS = ("all_gather_into_tensor", "all_gather_into_tensor_1", "all_gather_into_tensor_2")


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Steps on a growing list of tensors: what, and on which of them."""
    ops = st.sampled_from(["gather", "gather", "scatter", "scatter", "reduce", "mix", "write"])
    number = st.integers(0, 30)
    return draw(st.lists(st.tuples(ops, number, number), min_size=4, max_size=12))


def program(steps: list[tuple[str, int, int]], *inputs: Tensor) -> list[Tensor]:
    """Collectives are launched where they stand and waited for when their results are used, or at the end.

    Tensors are of 4 rows and 8 columns, or of 2 rows and 8 columns.
    """
    values: list[Tensor] = [x * 1.0 for x in inputs]
    waiting: dict[int, Tensor] = {}

    def value(k: int) -> Tensor:
        k %= len(values)
        if k in waiting:
            values[k] = wait(waiting.pop(k))
        return values[k]

    def launched(x: Tensor) -> None:
        waiting[len(values)] = x
        values.append(x)

    for what, k, j in steps:
        x = value(k)
        if what == "gather":
            launched(gather(x if j % 2 else x.reshape(-1, 4).contiguous()))
        elif what == "scatter" and x.shape[0] % RANKS == 0:
            launched(scatter(x))
        elif what == "reduce":
            launched(reduce(x.to(torch.int32), op="sum"))
        elif what == "mix":
            values.append(x * 0.5 + value(j).to(torch.float32).sum())
        elif what == "write" and k % len(values) < len(inputs):
            x.add_(1.0)
    return [value(k) * 1 for k in range(len(values))]


@pytest.mark.slow
@given(programs(), st.integers(0, 10**6))
@examples(25)
def test_random_graphs_with_random_rewrites(steps: list[tuple[str, int, int]], seed: int) -> None:
    shapes = ((4, 8), (4, 8), (8, 4))
    original, gm = (trace(lambda *xs: program(steps, *xs), *shapes) for _ in range(2))
    rng = random.Random(seed)
    for _ in range(3):
        choice = legal(gm)
        if choice:
            rewrite_graph(gm, [rng.choice(choice)])
    gm.graph.lint()
    check_results(original, gm, seed)


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
