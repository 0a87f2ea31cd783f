"""Launches of scheduler nodes in the order of the FX graph, where torch has put them into another one."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx

from overlap_sched.inductor.graph_order import in_graph_order, kernel_traffic
from overlap_sched.inductor.lifting import graph_order
from tests.inductor.test_dependencies import Kernel

GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
BLOCKING = torch.ops._dtensor.shard_dim_alltoall.default
TARGETS = {"g": (GATHER, 2, "0"), "D": (BLOCKING, 0, 1, "0"), "r": (torch.ops.aten.rand_like.default,)}


@pytest.fixture
def graph() -> Iterator[fx.Graph]:
    """``g0 D1 r2 g3 D4 r5``, each of the input."""
    made = fx.Graph()
    x = made.placeholder("x")
    for i, letter in enumerate("gDrgDr"):
        target, *args = TARGETS[letter]
        made.create_node("call_function", target, (x, *args), name=f"{letter}{i}")
    made.output(x)
    with mock.patch.object(graph_order, "V", SimpleNamespace(graph=SimpleNamespace(graph=made))):
        yield made


class Named(Kernel):
    """A kernel with a name, which is that of its buffer, too."""

    name = ""

    def get_name(self) -> str:
        return self.name

    def get_buffer_names(self) -> list[str]:
        return [self.name]


def kernels(graph: fx.Graph, names: str, needs: Sequence[tuple[str, str]] = ()) -> list[Any]:
    """Scheduler nodes by the names of their FX nodes; any other one computes."""
    by_name = {node.name: node for node in graph.nodes}
    made = []
    for name in names.split():
        node = SimpleNamespace(origins=[by_name[name]] if name in by_name else [])
        deps = [SimpleNamespace(name=other) for one, other in needs if one == name]
        kernel = Named(node=node, unmet_dependencies=deps)
        kernel.name = name
        made.append(kernel)
    return made


def put(graph: fx.Graph, names: str, needs: Sequence[tuple[str, str]] = ()) -> str:
    return " ".join(kernel.name for kernel in in_graph_order(kernels(graph, names, needs)))


def test_launches_go_back_and_the_rest_stays_near(graph: fx.Graph) -> None:
    assert put(graph, "a g0 D1 b g3 D4") == "a g0 D1 b g3 D4"
    assert put(graph, "g0 g3 a D1 b D4") == "g0 a D1 g3 b D4"
    assert put(graph, "D4 g3 a D1 b g0") == "a b g0 D1 g3 D4"


def test_dependencies_and_random_numbers_keep_their_order(graph: fx.Graph) -> None:
    assert put(graph, "g3 a D1 b g0", [("a", "g3"), ("b", "a")]) == "g0 D1 g3 a b"
    assert put(graph, "g3 r5 D1 r2", [("r5", "g3")]) == "D1 g3 r5 r2"


def test_what_cannot_be_stays_as_it_was(graph: fx.Graph) -> None:
    assert put(graph, "g3 a D1", [("D1", "a"), ("a", "g3")]) == "g3 a D1"
    unclear = kernels(graph, "g3 D1")
    unclear[0].node.origins = [node for node in graph.nodes if node.name[0] in "gD"]
    assert [kernel.name for kernel in in_graph_order(unclear)] == ["g3", "D1"]


def test_waits_behind_the_launches_of_kernels(graph: fx.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch by two kernels counts as two; a kernel of a sub-graph that waits is a wait."""
    monkeypatch.setattr(graph_order, "is_wait", lambda node: id(node) in waiting)
    monkeypatch.setattr(graph_order, "waits", lambda node: node.name == "r2")
    made = kernels(graph, "a w1 g0 g0 r2 w2 D1 b w3")
    waiting = [id(kernel.node) for kernel in made if kernel.name[0] == "w"]
    found = kernel_traffic(made)
    assert found is not None
    assert [node.name for node in found.launching] == ["g0", "g0", "D1"]
    assert [node.name for node in found.launches] == ["g0", "D1"]
    assert found.before == {"w1": 0, "r2": 2, "w2": 2, "w3": 3}
    made[2].node.origins = [node for node in graph.nodes if node.name[0] in "gD"]
    assert kernel_traffic(made) is None
