"""What ranks that differ must have in common: the sequence of their launches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from overlap_sched.inductor import launches
from overlap_sched.inductor.agree import Traffic, launch_digest, launches_in, traffic_in
from tests.fx.test_communication import HIGHER, INNER, WAIT, Builder, body, run

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


def test_waits_and_compute_are_none_of_it() -> None:
    found = launches_in(graph(("gather", "0"), ("reduce", "1"), extra=True).nodes)
    assert [node.target for node in found] == [GATHER, REDUCE]
    assert digest(("gather", "0"), extra=True) == digest(("gather", "0"))


def test_what_communicates_on_the_compute_stream_is() -> None:
    assert digest(("gather", "0"), ("blocking", "0")) != digest(("blocking", "0"), ("gather", "0"))


@pytest.mark.parametrize(
    "other",
    [
        [("reduce", "0"), ("gather", "0")],
        [("gather", "0")],
        [("gather", "0"), ("reduce", "1")],
        [("gather", "0"), ("reduce", "0"), ("reduce", "0")],
    ],
    ids=["order", "one less", "another group", "one more"],
)
def test_what_tells_two_sequences_apart(other: Sequence[tuple[str, str]]) -> None:
    assert digest(("gather", "0"), ("reduce", "0")) != digest(*other)


def test_ranks_of_a_mesh_name_their_groups_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"1": [0, 1], "2": [0, 2], "5": [2, 3], "6": [1, 3]}
    monkeypatch.setattr(launches, "live_ranks", ranks.get)
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
