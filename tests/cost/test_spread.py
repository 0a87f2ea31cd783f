"""Gains at drawn prices: one factor per class and draw, the same for both orders, by definition."""

import numpy as np
import pytest

from overlap_sched.cost.spread import DRAWS, SPREADS, class_of, gain_range
from overlap_sched.problem import Group, Kind, Node, Problem

GROUPS = {"dp": Group(64, intra_node=False, nodes=8), "tp": Group(8, intra_node=True)}


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        (Node("a", Kind.COMPUTE, op="aten.mm.default"), "gemm"),
        (Node("a", Kind.COMPUTE, op="aten._scaled_dot_product_flash_attention.default"), "attention"),
        (Node("a", Kind.COMPUTE, op="aten._softmax.default"), "row by row"),
        (Node("a", Kind.COMPUTE, op="aten.mul.Tensor"), "element by element"),
        (Node("a", Kind.COLLECTIVE, group="dp", bytes=2**20), "collective across nodes"),
        (Node("a", Kind.COLLECTIVE, group="tp", bytes=2**20), "collective in a node"),
        (Node("a", Kind.COLLECTIVE, group="dp", bytes=2**20 - 1), "collective below 1 MiB"),
    ],
)
def test_classes(node: Node, kind: str) -> None:
    assert class_of(node, GROUPS) == kind
    assert kind in SPREADS


def test_a_range_is_the_quantiles_of_draws_by_definition() -> None:
    gather = Node("g", Kind.COLLECTIVE, (), time_us=40.0, op="all_gather", group="dp", bytes=2**30)
    matmul = Node("mm", Kind.COMPUTE, (), time_us=30.0, op="aten.mm.default")
    wait = Node("w", Kind.WAIT, (0,), collective=0)
    behind = Problem("behind", (gather, wait, matmul, Node("out", Kind.OUTPUT, (1, 2))), (), GROUPS)
    random, ratios = np.random.default_rng(0), []
    for _ in range(DRAWS):
        factors = {name: np.exp(spread * random.standard_normal()) for name, spread in SPREADS.items()}
        sent, computed = 40.0 * factors["collective across nodes"], 30.0 * factors["gemm"]
        ratios.append((sent + computed) / max(sent, computed))
    found = gain_range((behind, (0, 1, 2, 3)), (behind, (0, 2, 1, 3)))
    assert found == pytest.approx(tuple(np.quantile(ratios, (0.05, 0.95))))
    assert found[0] < 70 / 40 < found[1]
