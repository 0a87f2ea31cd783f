"""Recompute and Offload on problems: nodes and bytes by hand, hazards, and what is refused, word by word."""

import re

import pytest

from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, RewriteError
from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.transform.apply import apply, host_bytes
from overlap_sched.transform.prices import HostLink, Prices
from overlap_sched.transform.rewrites import Offload, Recompute, Rewrite

LINK = HostLink("link", 1e9, 5.0)
PRICES = Prices(Roofline(), host=LINK)
MB = 10**6


def step(*more: Node) -> Problem:
    """w and x in; a of x and w; v a view of a; b of v; c of v and b; then others; an output of c."""
    node, kind = Node, Kind
    nodes = (
        node("w", kind.INPUT, alloc=(0,)),
        node("x", kind.INPUT, alloc=(1,)),
        node("a", kind.COMPUTE, (0, 1), (2,), (0, 1), 10.0, "aten.mm.default"),
        node("v", kind.COMPUTE, (2,), (), (2,), 0.0, "aten.t.default"),
        node("b", kind.COMPUTE, (3,), (3,), (2,), 20.0, "aten.exp.default"),
        node("r", kind.COMPUTE, (4,), (4,), (3,), 20.0, "aten.rand_like.default"),
        node("c", kind.COMPUTE, (3, 5), (5,), (2, 4), 30.0, "aten.mm.default"),
        *more,
        node("output", kind.OUTPUT, (6,), (), (5,)),
    )
    sizes = (1, 1, 8, 4, 4, 2)
    return Problem("step", nodes, tuple(Storage(size * MB, s == 0) for s, size in enumerate(sizes)))


def by_name(problem: Problem) -> dict[str, Node]:
    return {node.name: node for node in problem.nodes}


def names(problem: Problem, ids: tuple[int, ...]) -> set[str]:
    return {problem.nodes[v].name for v in ids}


def test_a_value_and_its_view_run_again() -> None:
    before = step()
    after = apply(before, [Recompute(("a", "v"), ("c",))], PRICES)
    order = [node.name for node in after.nodes]
    assert order == ["w", "x", "a", "v", "b", "r", "again_a", "again_v", "c", "output"]
    made = by_name(after)
    assert names(after, made["again_a"].deps) == {"w", "x"}
    assert names(after, made["again_v"].deps) == {"again_a"}
    assert names(after, made["c"].deps) == {"again_v", "r"}
    assert made["again_a"].time_us == 10.0
    assert made["again_a"].alloc != made["a"].alloc
    assert set(made["again_a"].alloc) < set(made["c"].use)
    assert memory_profile(before, before.original_order)[5] == (1 + 8 + 4 + 4) * MB
    assert memory_profile(after, after.original_order)[5] == (1 + 1 + 4 + 4) * MB


def test_a_value_goes_to_the_host() -> None:
    after = apply(step(), [Offload("a", ("c",), ("v",))], PRICES)
    made = by_name(after)
    order = [node.name for node in after.nodes]
    assert order.index("b") < order.index("offload_a") < order.index("offload_a_wait") < order.index("r")
    assert order[order.index("c") - 3 : order.index("c")] == ["reload_a", "reload_a_wait", "reload_v"]
    assert names(after, made["offload_a_wait"].deps) == {"a", "v", "b", "offload_a"}
    assert names(after, made["c"].deps) == {"reload_v", "r"}
    assert made["offload_a"].time_us == made["reload_a"].time_us == 5.0 + 8_000.0
    assert (made["offload_a"].alloc, made["offload_a"].group, made["reload_a"].group) == ((), "host", "host")
    assert made["offload_a"].use == made["a"].alloc
    assert host_bytes(after, after.original_order) == 8 * MB
    assert memory_profile(after, after.original_order)[order.index("r")] == (1 + 4 + 4) * MB


def test_a_second_copy_has_a_name_of_its_own() -> None:
    after = apply(step(), [Recompute(("a", "v"), ("c",), 2), Recompute(("a", "v"), ("b",))], PRICES)
    assert {"again2_a", "again2_v", "again_a", "again_v"} <= set(by_name(after))


def test_a_later_writer_comes_behind_the_copy() -> None:
    writer = Node("w_new", Kind.COMPUTE, (2,), (), (0,), 1.0, "aten.add_.Tensor")
    after = apply(step(writer), [Recompute(("a", "v"), ("c",))], PRICES)
    assert "again_a" in names(after, by_name(after)["w_new"].deps)


@pytest.mark.parametrize(
    ("rewrite", "text"),
    [
        (Recompute(("r",), ("c",)), "'r' cannot run again: it draws random numbers (aten.rand_like.default)."),
        (Recompute(("x",), ("a",)), "'x' cannot run again: it is an input."),
        (Recompute(("a",), ("c",)), "'c' does not take 'a', or is an output."),
        (Recompute((), ("c",)), "each once:  for c."),
        (Recompute(("nothing",), ("c",)), "there is no node 'nothing' to rewrite: it is not in the graph, or gone by"),
        (Offload("v", ("c",)), "'v' makes 0 storages: what makes one can be offloaded."),
        (Offload("w", ("a",)), "'w' is never freed: to offload it saves nothing."),
        (Offload("a", ("c",), ("b",)), "'b' is no view of what 'a' gives."),
        (Offload("a", ("r",), ("v",)), "'r' does not take 'a' or 'v', or is an output."),
    ],
)
def test_refusals(rewrite: Rewrite, text: str) -> None:
    with pytest.raises(RewriteError, match=re.escape(text)):
        apply(step(), [rewrite], PRICES)


def test_a_writer_in_between_forbids_it() -> None:
    nodes = list(step().nodes)
    nodes[4] = Node("b", Kind.COMPUTE, (3,), (3,), (0, 2), 20.0, "aten.add_.Tensor")
    problem = Problem("step", tuple(nodes), step().storages)
    with pytest.raises(RewriteError, match="'a' cannot run again: 'b' writes to what it reads before that"):
        apply(problem, [Recompute(("a", "v"), ("c",))], PRICES)


def test_an_alias_that_is_not_named() -> None:
    nodes = list(step().nodes)
    nodes[6] = nodes[6]._replace(deps=(2, 3, 5))
    problem = Problem("step", tuple(nodes), step().storages)
    with pytest.raises(RewriteError, match="'c' also looks at it through 'v': name that, too"):
        apply(problem, [Recompute(("a",), ("c",))], PRICES)


def test_a_link_that_is_none() -> None:
    with pytest.raises(OptionsError, match=r"host link 'x' has 0\.0 bytes per second and 10\.0 us"):
        HostLink("x", 0.0)
