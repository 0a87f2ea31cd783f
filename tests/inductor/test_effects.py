"""Effects that the FX graph orders run in that order, whichever kernels they become."""

import operator
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op, with_effects
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning, UnsupportedError
from overlap_sched.inductor.graph_order import in_order_of_effects


@dataclass
class Kernel:
    """An extern kernel: as much of a scheduler node as is looked at."""

    name: str
    origins: Sequence[fx.Node] = ()
    needs: str = ""
    extern: bool = True
    node: Any = field(init=False)

    def __post_init__(self) -> None:
        self.node = SimpleNamespace(origins=self.origins)

    def get_nodes(self) -> list[Any]:
        return [self]

    def get_name(self) -> str:
        return self.name

    def get_buffer_names(self) -> list[str]:
        return [self.name]

    def is_extern(self) -> bool:
        return self.extern

    @property
    def unmet_dependencies(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.needs]


@pytest.fixture
def effects() -> Iterator[list[fx.Node]]:
    """Two effects in this order, and a node without."""
    graph = fx.Graph()
    token = graph.placeholder("token")
    send = graph.call_function(with_effects, (token, torch.ops.aten._print.default, "sent"))
    after = graph.call_function(operator.getitem, (send, 0))
    receive = graph.call_function(with_effects, (after, torch.ops.aten._print.default, "received"))
    with V.set_graph_handler(SimpleNamespace(graph=graph)):
        yield [send, receive, after]


def names(kernels: Sequence[Any]) -> str:
    return "".join(kernel.name for kernel in kernels)


def test_kernels_in_the_order_of_effects_stay_as_they_are(effects: list[fx.Node]) -> None:
    send, receive, other = effects
    kernels = [Kernel("a", [other]), Kernel("s", [send]), Kernel("r", [receive, send]), Kernel("b")]
    assert in_order_of_effects(kernels) is kernels
    before_it_computes = [Kernel("a", [receive], extern=False), Kernel("s", [send]), Kernel("r", [receive])]
    assert in_order_of_effects(before_it_computes) is before_it_computes


def test_kernels_against_it_are_put_in_order_and_all_others_stay_near(effects: list[fx.Node]) -> None:
    send, receive, _ = effects
    kernels = [Kernel("a"), Kernel("r", [receive], "a"), Kernel("w", (), "r"), Kernel("b"), Kernel("s", [send], "b")]
    assert names(in_order_of_effects(kernels)) == "absrw"


def test_what_cannot_be_put_in_order_is_left_alone_and_why(effects: list[fx.Node]) -> None:
    send, receive, _ = effects
    kernels = [Kernel("r", [receive]), Kernel("w", (), "r"), Kernel("s", [send], "w")]
    with pytest.raises(UnsupportedError) as error:
        in_order_of_effects(kernels)
    assert str(error.value) == (
        "'r' runs before 's', whose effects come before its own, and other kernels in between keep them so."
    )


@torch.library.custom_op("overlap_sched_test_effects::send", mutates_args=())
def send(x: Tensor) -> Tensor:
    """Stands for one that posts a send."""
    return x.clone()


@send.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def sends_then_receives(x: Tensor, w: Tensor) -> Tensor:
    a = torch.relu(x @ x) @ x
    sent = torch.ops.overlap_sched_test_effects.send(a)
    reduced = torch.ops._c10d_functional.all_reduce(w, "sum", dist.group.WORLD.group_name)
    return (a @ torch.ops._c10d_functional.wait_tensor(reduced)).sum() + sent.sum()


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
def test_a_send_stays_before_a_collective_whose_effect_comes_after_it() -> None:
    ops = torch.ops.overlap_sched_test_effects.send.default, torch.ops._c10d_functional.all_reduce.default
    handles = [_register_effectful_op(op, _EffectType.ORDERED) for op in ops]
    try:
        with torch.no_grad(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", OverlapSchedWarning)
            options = overlap_sched.inductor_options(Options(headroom="1GiB", strict=True))
            compiled = torch.compile(sends_then_receives, fullgraph=True, options=options)
            _, (code,) = run_and_get_code(compiled, torch.rand(512, 512), torch.rand(512, 512))
    finally:
        for handle in handles:
            handle.destroy()
    assert re.findall(r"torch\.ops\.\w+\.(send|all_reduce_)\.default\(", code) == ["send", "all_reduce_"]
    repaired = [str(one.message) for one in told if issubclass(one.category, OverlapSchedWarning)]
    assert repaired == (
        ["torch's scheduler runs operators against the order of their effects: overlap_sched has put them in order"]
        if torch.__version__ < "2.14"
        else []
    )
