"""Regions, where they end, and which fissions are tried first."""

import pytest
import torch
from torch import Tensor

from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import fission_candidates
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.problem import Group
from overlap_sched.transform.dimension_graph import Cut
from overlap_sched.transform.rewrites import Rewrite
from tests.support.fission_graphs import traced
from tests.support.fx_graphs import trace
from tests.support.rewrite_graphs import refusal

GROUPS = {"0": Group(2, True)}


@pytest.mark.slow
@pytest.mark.private
def test_the_whole_dimension_first() -> None:
    """All that stands still in the layer is in the region of its batch."""
    gm = traced("layer")
    found = fission_candidates(lift(gm, groups=GROUPS), parts=(2,))
    assert len(found) > 4
    assert found[0].slices[0].value == "x_1"
    assert {"reduce_scatter_tensor", "reduce_scatter_tensor_1"} <= set(found[0].nodes)
    rewrites: list[Rewrite] = list(found)
    assert all(refusal(traced("layer"), [one]) is None for one in rewrites)
    assert len({one.nodes for one in found}) > 4  # stretches, too
    assert found == fission_candidates(lift(traced("layer"), groups=GROUPS), parts=(2,))
    assert len(fission_candidates(lift(gm, groups=GROUPS), parts=(2,), effort=1)) == 1


def test_a_large_value_at_the_peak_is_made_in_parts() -> None:
    """Logits of a large vocabulary live for a moment: their loss, row by row, needs a part of them."""

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).exp().sum(1, keepdim=True).log() * x

    gm = trace(loss, (64, 8), (8, 4096))
    lifted = lift(gm)
    one = next(one for one in fission_candidates(lifted, parts=(4,)) if "exp" in one.nodes)
    assert {"mm", "exp", "sum_1"} <= set(one.nodes)
    rewrite_graph(gm, [one])
    x, w = torch.randn(64, 8), torch.randn(8, 4096) * 0.1
    assert torch.allclose(gm(x, w), loss(x, w))
    peaks = [max(_profile(problem)) for problem in (lifted.problem, lift(gm).problem)]
    assert peaks[1] < 0.4 * peaks[0]


def _profile(problem):  # type: ignore[no-untyped-def]
    from overlap_sched.judge.validate import measure

    return measure(problem, problem.original_order).profile


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
