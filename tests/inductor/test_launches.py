"""What ranks that differ must have in common: the sequence of their launches."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.inductor import agree, kernel_graph
from overlap_sched.inductor.agree import Traffic, graph_key, launch_digest, launch_texts, launches_in, traffic_in
from overlap_sched.inductor.kernel_graph import in_graph_order, kernel_traffic
from tests.fx.test_communication import HIGHER, INNER, WAIT, Builder, body, run
from tests.inductor.test_kernels import Kernel
from tests.support.fx_graphs import C10D, trace, wait

FUNCTIONAL = torch.ops._c10d_functional
GATHER, REDUCE = FUNCTIONAL.all_gather_into_tensor.default, FUNCTIONAL.all_reduce.default


def graph(*collectives: tuple[str, str], extra: bool = False) -> fx.Graph:
    """Collectives with their groups, each waited for; and something that does not communicate."""
    made = fx.Graph()
    x = made.placeholder("x")
    for op, group in collectives:
        if extra:
            x = made.call_function(torch.ops.aten.sin.default, (x,))
        if op == "gather":
            x = made.call_function(GATHER, (x, 2, group))
        elif op == "blocking":
            x = made.call_function(torch.ops._dtensor.shard_dim_alltoall.default, (x, 0, 1, group))
        else:
            x = made.call_function(REDUCE, (x, "sum", group))
        x = made.call_function(FUNCTIONAL.wait_tensor.default, (x,))
    made.output(x)
    return made


def digest(*collectives: tuple[str, str], **how: Any) -> str:
    return launch_digest(launches_in(graph(*collectives, **how).nodes))


def test_what_tells_two_sequences_apart() -> None:
    """Not waits, nor compute; but what communicates on the compute stream."""
    found = launches_in(graph(("gather", "0"), ("reduce", "1"), extra=True).nodes)
    assert [node.target for node in found] == [GATHER, REDUCE]
    assert digest(("gather", "0"), extra=True) == digest(("gather", "0"))
    gather, reduce, blocking, elsewhere = ("gather", "0"), ("reduce", "0"), ("blocking", "0"), ("reduce", "1")
    all_other = [[gather, reduce], [reduce, gather], [gather], [gather, elsewhere], [gather, reduce, reduce]]
    all_other += [[gather, blocking], [blocking, gather]]
    assert len({digest(*collectives) for collectives in all_other}) == len(all_other)


def gathers(x: torch.Tensor) -> torch.Tensor:
    return wait(C10D.all_gather_into_tensor(x, 2, "0")).sum() + wait(C10D.all_gather_into_tensor(x[:2], 2, "0"))


def test_launches_are_known_by_their_bytes() -> None:
    nodes = [node for node in trace(gathers, (8, 4)).graph.nodes if "all_gather" in node.name]
    first, second = launch_texts(tuple(nodes))
    assert (first.split()[-1], second.split()[-1]) == ("128", "32")
    assert first.rsplit(" ", 1)[0] == second.rsplit(" ", 1)[0]
    symbolic = make_fx(gathers, tracing_mode="symbolic")(torch.ones(8, 4))
    nodes = [node for node in symbolic.graph.nodes if "all_gather" in node.name]
    assert [text.split()[-1] for text in launch_texts(tuple(nodes))] == ["*", "*"]


def test_ranks_of_a_mesh_name_their_groups_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"1": [0, 1], "2": [0, 2], "5": [2, 3], "6": [1, 3]}
    monkeypatch.setattr(agree, "live_ranks", ranks.get)
    assert digest(("gather", "1"), ("reduce", "2")) == digest(("gather", "5"), ("reduce", "6"))
    assert digest(("gather", "1"), ("reduce", "2")) != digest(("gather", "6"), ("reduce", "5"))


def test_waits_and_what_stands_before_them() -> None:
    """Those in sub-graphs and in wrappers, too."""
    b, root = Builder(), torch.nn.Module()
    x = b.input("x")
    first, second = (b.call(name, GATHER, x, 2, "0", val=b.tensor(8, 4)) for name in ("g0", "g1"))
    b.call("w0", WAIT, first)
    run(b, root, "deep", body((WAIT,)), second)
    b.call("blocks", torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "0")
    b.call("wrapped", HIGHER.with_effects, x, WAIT, second)
    root.inner = INNER
    b.call("both", HIGHER.invoke_subgraph, b.graph.get_attr("inner"), "inner", x)
    b.call("last", WAIT, second)
    found = traffic_in(b.done(root=root).graph.nodes)
    assert [node.name for node in found.launching] == ["g0", "g1", "blocks", "both"]
    assert {node.name: count for node, count in found.before.items()} == {
        "w0": 2, "D": 2, "wrapped": 3, "both": 3, "last": 4,
    }  # fmt: skip


A, B = graph(("gather", "0"), ("gather", "0")).find_nodes(op="call_function", target=GATHER)


@pytest.mark.parametrize(
    ("launching", "before", "keeps"),
    [
        ((A, B), {"v": 1, "w": 2}, True),
        ((A, B), {"v": 2, "w": 2}, True),
        ((A, B), {"v": 0, "w": 2}, False),
        ((A, B), {"v": 2, "w": 1}, False),
        ((A, B), {"w": 2}, False),
        ((A, B), {"v": 1, "w": 2, "u": 2}, False),
        ((B, A), {"v": 1, "w": 2}, False),
        ((A, B, A), {"v": 1, "w": 2}, False),
    ],
)
def test_what_keeps_launches_and_waits(launching: Any, before: dict[str, int], keeps: bool) -> None:
    assert Traffic(launching, before).keeps(Traffic((A, B), {"v": 1, "w": 2})) is keeps


SCRIPT = """
import math, operator
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv
from torch.fx.experimental.sym_node import method_to_operator
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation
from overlap_sched.inductor.agree import graph_key

class Callable:
    def __call__(self, x):
        return x

graph = fx.Graph()
x = graph.placeholder("x")
targets = [
    torch.ops.aten.mm.default, torch.ops.aten.mm, operator.add, math.floor, torch.sym_sum, torch.sym_max, len,
    lambda x: x, Callable, FloorDiv, method_to_operator("add"),
    torch.ops.higher_order.cond, torch.ops.higher_order.auto_functionalized,
    triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation,
]
for target in targets:
    graph.call_function(target, (x,))
graph.output(x)
print(graph_key(graph, "inductor"))
"""


@pytest.mark.slow
def test_two_processes_have_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    """This one, and one under another hash seed and with other addresses."""
    exec(SCRIPT, {"__name__": "__main__"})
    there = subprocess.run(
        [sys.executable, "-c", f"keep = [object() for _ in range(99_999)]\n{SCRIPT}"],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert there == capsys.readouterr().out
    assert len(there.strip()) == 64


def test_other_operators_have_another_key() -> None:
    stages = ("inductor", "backend")
    assert len({graph_key(graph((op, "0")), stage) for op in ("gather", "reduce") for stage in stages}) == 4


BLOCKING = torch.ops._dtensor.shard_dim_alltoall.default
TARGETS = {"g": (GATHER, 2, "0"), "D": (BLOCKING, 0, 1, "0"), "r": (torch.ops.aten.rand_like.default,)}


@pytest.fixture
def lowered() -> Iterator[fx.Graph]:
    """``g0 D1 r2 g3 D4 r5``, each of the input."""
    made = fx.Graph()
    x = made.placeholder("x")
    for i, letter in enumerate("gDrgDr"):
        target, *args = TARGETS[letter]
        made.create_node("call_function", target, (x, *args), name=f"{letter}{i}")
    made.output(x)
    with mock.patch.object(kernel_graph, "V", SimpleNamespace(graph=SimpleNamespace(graph=made))):
        yield made


def kernels(lowered: fx.Graph, names: str, needs: Sequence[tuple[str, str]] = ()) -> list[Any]:
    """Scheduler nodes by the names of their FX nodes; any other one computes."""
    by_name = {node.name: node for node in lowered.nodes}
    made = []
    for name in names.split():
        node = SimpleNamespace(origins=[by_name[name]] if name in by_name else [])
        made.append(Kernel(node=node, name=name, needs=[other for one, other in needs if one == name]))
    return made


def put(lowered: fx.Graph, names: str, needs: Sequence[tuple[str, str]] = ()) -> str:
    return " ".join(kernel.name for kernel in in_graph_order(kernels(lowered, names, needs)))


def test_launches_go_back_and_the_rest_stays_near(lowered: fx.Graph) -> None:
    assert put(lowered, "a g0 D1 b g3 D4") == "a g0 D1 b g3 D4"
    assert put(lowered, "g0 g3 a D1 b D4") == "g0 a D1 g3 b D4"
    assert put(lowered, "D4 g3 a D1 b g0") == "a b g0 D1 g3 D4"


def test_dependencies_and_random_numbers_keep_their_order(lowered: fx.Graph) -> None:
    assert put(lowered, "g3 a D1 b g0", [("a", "g3"), ("b", "a")]) == "g0 D1 g3 a b"
    assert put(lowered, "g3 r5 D1 r2", [("r5", "g3")]) == "D1 g3 r5 r2"


def test_what_cannot_be_stays_as_it_was(lowered: fx.Graph) -> None:
    assert put(lowered, "g3 a D1", [("D1", "a"), ("a", "g3")]) == "g3 a D1"
    unclear = kernels(lowered, "g3 D1")
    unclear[0].node.origins = [node for node in lowered.nodes if node.name[0] in "gD"]
    assert [kernel.name for kernel in in_graph_order(unclear)] == ["g3", "D1"]


def test_waits_behind_the_launches_of_kernels(lowered: fx.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch by two kernels counts as two; a kernel of a sub-graph that waits is a wait."""
    monkeypatch.setattr(kernel_graph, "is_wait", lambda node: id(node) in waiting)
    monkeypatch.setattr(kernel_graph, "waits", lambda node: node.name == "r2")
    made = kernels(lowered, "a w1 g0 g0 r2 w2 D1 b w3")
    waiting = [id(kernel.node) for kernel in made if kernel.name[0] == "w"]
    found = kernel_traffic(made)
    assert found is not None
    assert [node.name for node in found.launching] == ["g0", "g0", "D1"]
    assert [node.name for node in found.launches] == ["g0", "D1"]
    assert found.before == {"w1": 0, "r2": 2, "w2": 2, "w3": 3}
    made[2].node.origins = [node for node in lowered.nodes if node.name[0] in "gD"]
    assert kernel_traffic(made) is None
