"""What ranks that differ must have in common: the sequence of their launches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from overlap_sched.inductor import launches
from overlap_sched.inductor.launches import launch_digest, launches_in

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
