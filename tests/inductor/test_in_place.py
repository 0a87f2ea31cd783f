"""Results written in place in graphs that Inductor lowers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

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


def over_zeros(rows: Tensor, at: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_put((at,), rows, accumulate=True)


def over_what_is_computed(rows: Tensor, at: Tensor, like: Tensor) -> Tensor:
    return (-like).index_put((at,), rows, accumulate=True)


def scattered(rows: Tensor, at: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(like).scatter_add(0, at[:, None].expand_as(rows), rows)


@pytest.mark.slow
@pytest.mark.parametrize("f", [over_zeros, over_what_is_computed, scattered])
def test_inductor_writes_in_place_by_itself(f: Callable[..., Tensor]) -> None:
    """Behind our pass, which sees the copying operator: so that to rewrite there would be no gain over Inductor."""
    seen: list[bool] = []

    def look(graph: fx.Graph) -> None:
        seen.append(any(node.target in IN_PLACE for node in graph.nodes))

    arguments = torch.rand(8, COLUMNS), torch.arange(8), torch.rand(1000, COLUMNS)
    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=look, fx_graph_cache=False):
        found, (code,) = run_and_get_code(torch.compile(f), *arguments)
    assert seen == [True]
    assert code.count("= empty_strided_cpu((1000, ") == 1
    assert torch.equal(found, f(*arguments))
