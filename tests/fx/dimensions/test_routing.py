"""Layers with experts in parts of their tokens: run on real tensors, on two ranks, whole and in parts.

Regions, where they end, and which fissions are tried first.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import expert_fissions, expert_regions, fission_candidates, fission_of
from overlap_sched.fx.dimensions.region import follow_cuts, writes
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.problem import Group
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import Cut, Routed
from overlap_sched.transform.prices import Prices
from tests.support.fx_graphs import C10D, trace
from tests.support.rewrite_graphs import refusal
from tests.support.rewrite_graphs import traced as traced_model
from tests.support.routed_graphs import TOKENS, routed, traced

ALL_TO_ALL = C10D.all_to_all_single.default


def test_rows_are_routed_and_numbers_name_rows() -> None:
    gm = traced()
    region = next(expert_regions(gm.graph, 2))
    by_name = {node.name: given for node, given in region.gives.items()}
    assert by_name["getitem_3"] == Routed(0, Cut(0, 1, TOKENS))  # two choices per token
    assert by_name["floor_divide"] == Routed(0, Cut(0, 1, TOKENS // 2))
    assert by_name["index"] == Routed(0)
    assert by_name["_local_scalar_dense"] == Routed(None)
    assert by_name["scatter_add"] == by_name["index_put_2"] == Cut(0, 1, TOKENS // 2)
    assert not region.ends


def test_the_problem_in_parts_has_every_exchange_once_per_part() -> None:
    lifted = lift(traced())
    problem = lifted.problem
    assert len(problem.collectives) == 5
    for one in expert_fissions(lifted, (2, 4)):
        after = apply(problem, [one], Prices(lifted.model))
        assert violation(after, after.original_order) is None
        assert len(after.collectives) == 5 * one.parts
        counts, *rows = (problem.nodes[v].bytes for v in problem.collectives)
        sent = sorted(after.nodes[v].bytes for v in after.collectives)
        assert sent == sorted(one.parts * [counts, *(nbytes // one.parts for nbytes in rows)])
        assert not one.exact


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (lambda x, order, token: x[token], None),
        (lambda x, order, token: x[token].relu().mul(2.0), None),
        (lambda x, order, token: torch.softmax(x[token], -1), "nothing is known of aten._softmax.default"),
        (lambda x, order, token: x[token].cumsum(0), "it goes along routed rows"),
        (lambda x, order, token: x[token] * (order < TOKENS).unsqueeze(1), "numbers of tokens are only added"),
        (lambda x, order, token: x[token] * order.unsqueeze(1), "it computes with the numbers of tokens"),
        (lambda x, order, token: x[token] * order.bfloat16().unsqueeze(1), "it computes with the numbers of tokens"),
        (lambda x, order, token: x[token] + torch.ones(2 * TOKENS, 1, dtype=x.dtype), "has a row for each routed row"),
        (lambda x, order, token: torch.cat([x, x])[token], "numbers that are not those of its rows"),
        (lambda x, order, token: x[torch.arange(TOKENS)[token]], "picked from what is neither cut nor routed"),
        (lambda x, order, token: x[torch.arange(2 * TOKENS)[order + 1 - 1] // 2], "neither cut nor routed"),
        (lambda x, order, token: x[token] @ x[token].t() @ x[token], "it is no product of routed rows with weights"),
    ],
    ids=[
        "rows",
        "map",
        "softmax",
        "prefix",
        "capacity",
        "number",
        "float",
        "constant",
        "other-rows",
        "table",
        "reckoned",
        "product",
    ],
)
def test_what_would_mix_tokens_ends_the_dimension(
    rows: Callable[[Tensor, Tensor, Tensor], Tensor], why: str | None
) -> None:
    gm = traced(routed(rows))
    for region in expert_regions(gm.graph, 2):
        put = next(node for node in gm.graph.nodes if node.target is torch.ops.aten.index_put.default)
        assert (put in region.calls) == (why is None)
    seeds = {next(iter(gm.graph.nodes)): Cut(0, 1, TOKENS // 2)}
    ends = list(follow_cuts(list(gm.graph.nodes), seeds, 2).ends.values())
    assert ends == [] if why is None else any(why in end for end in ends), ends


def test_what_an_expert_has_may_not_be_sorted_in_unequal_parts() -> None:
    assert not list(expert_regions(traced().graph, 3))


def test_a_write_that_is_seen_outside_stays_whole() -> None:
    def seen(x: Tensor) -> list[Tensor]:
        y = torch.relu(x)
        z = torch.tanh(y.add_(1.0))
        return [y, z]

    def own(x: Tensor) -> list[Tensor]:
        return [torch.tanh(torch.relu(x).add_(1.0))]

    def outside(x: Tensor) -> list[Tensor]:
        y = torch.zeros_like(x)
        y[:, 1:].copy_(x.cumsum(0)[:, 1:])
        return [torch.tanh(y) * x]

    def half_seen(x: Tensor) -> list[Tensor]:
        one, other = torch.relu(x).split(3, 1)
        z = torch.tanh(one.add_(1.0))
        return [other, z]

    def halves(x: Tensor) -> list[Tensor]:
        one, other = torch.relu(x).split(3, 1)
        return [torch.tanh(one.add_(1.0)) * torch.tanh(other)]

    for make, whole in ((seen, True), (own, False), (outside, True), (half_seen, True), (halves, False)):
        gm = trace(make, (4, 6))
        region = region_from(gm.graph, {next(iter(gm.graph.nodes)): Cut(0, 1, 2)}, 2)
        write = next(node for node in gm.graph.nodes if writes(node))
        assert (write not in region.calls) == whole
        assert not [node for node in gm.graph.nodes if node.name == "zeros_like" and node in region.calls]


def test_routed_rows_do_not_leave() -> None:
    """The graph returns rows in their sorted order: then they are sorted whole."""

    def returned(x: Tensor, router: Tensor, *_: Tensor) -> list[Tensor]:
        order = (x @ router).topk(2, -1)[1].view(-1).sort(stable=True)[1]
        return [x[order // 2]]

    gm = traced(returned)
    for region in expert_regions(gm.graph, 2):
        assert not region.routed
        one = fission_of(region)
        assert one is None or not any(leave.how == "sum" for leave in one.leaves)


GROUPS = {"0": Group(2, True)}


@pytest.mark.private
def test_the_whole_dimension_first() -> None:
    """All that stands still in the layer is in the region of its batch."""
    gm = traced_model("layer")
    found = fission_candidates(lift(gm, groups=GROUPS))
    assert found[0].slices[0].value == "x_1"
    assert {"reduce_scatter_tensor", "reduce_scatter_tensor_1"} <= set(found[0].nodes)
    assert all(refusal(traced_model("layer"), [one]) is None for one in found)
    assert found == fission_candidates(lift(traced_model("layer"), groups=GROUPS))


def test_a_large_value_at_the_peak_is_made_in_parts() -> None:
    """Logits of a large vocabulary live for a moment: their loss, row by row, needs a part of them."""

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).exp().sum(1, keepdim=True).log() * x

    gm = trace(loss, (64, 8), (8, 4096))
    lifted = lift(gm)
    one = next(one for one in fission_candidates(lifted) if "exp" in one.nodes)
    assert {"mm", "exp", "sum_1"} <= set(one.nodes)
    rewrite_graph(gm, [one])
    x, w = torch.randn(64, 8), torch.randn(8, 4096) * 0.1
    assert torch.allclose(gm(x, w), loss(x, w))
    whole, parts = (peak_memory(one, one.original_order)[0] for one in (lifted.problem, lift(gm).problem))
    assert parts < 0.7 * whole


def test_what_nothing_is_known_of_ends_the_dimension_and_is_said() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cummax(x * 2, 1)[0] + 1

    gm = trace(f, (4, 8))
    x = next(iter(gm.graph.nodes))
    region = region_from(gm.graph, {x: Cut(0, 1, 2)}, 2)
    assert [node.name for node in region.gives] == ["mul"]
    assert list(region.ends.values()) == ["nothing is known of aten.cummax.default"]


def test_what_makes_a_slice_joins() -> None:
    """Backward: the saved activation is cut as the gradient needs it, and what is made of it too."""

    def f(g: Tensor, saved: Tensor) -> Tensor:
        return g * torch.tanh(saved * 2)

    gm = trace(f, (4, 8), (4, 8))
    g, saved = list(gm.graph.nodes)[:2]
    region = region_from(gm.graph, {g: Cut(0, 1, 2)}, 2)
    assert [node.name for node in region.gives] == ["mul", "tanh", "mul_1"]
    assert region.slices == {saved: Cut(0, 1, 2), g: Cut(0, 1, 2)}


def test_a_wait_without_its_launch_stays_whole() -> None:
    """A collective whose result nobody awaits here cannot be cut: its launch would be lost."""
    gm = trace(lambda x: torch.ops._c10d_functional.all_gather_into_tensor(x * 2, 2, "0"), (4, 8))
    x = next(iter(gm.graph.nodes))
    region = region_from(gm.graph, {x: Cut(1, 1, 4)}, 2)
    assert [node.name for node in region.gives] == ["mul"]
