"""Results written in place in graphs that Inductor lowers."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config

from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.fx.rewrites.in_place import IN_PLACE
from overlap_sched.transform.rewrites import InPlace
from tests.support.fx_graphs import same
from tests.support.written import COLUMNS, WRITES, put, zeros


@pytest.mark.slow
def test_inductor_compiles_what_is_written_in_place() -> None:
    """In the graph that it lowers, where the plug-in rewrites: results are bitwise those without."""

    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        x = zeros() + a.sum()
        return WRITES["aten.scatter_add.default"](put(x, a), a) * 2.0, x.sum()

    done: list[fx.Node] = []

    def rewrite(graph: fx.Graph) -> None:
        for one in reversed([node for node in graph.nodes if node.target in IN_PLACE]):
            rewrite_graph(graph, [InPlace(one.name, one.args[0].name)])  # type: ignore[union-attr]
            done.append(one)

    a, compiled = torch.rand(4, COLUMNS), list[Any]()
    for a_pass in (None, rewrite):
        torch._dynamo.reset()
        with config.patch(post_grad_custom_post_pass=a_pass, fx_graph_cache=False):
            compiled.append(torch.compile(f)(a))
    assert len(done) == 2
    assert same(*map(list, compiled))
