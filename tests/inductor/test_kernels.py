"""What keeps the order of scheduler nodes besides torch's dependencies, on nodes made by hand."""

import operator
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from overlap_sched.fx.calls import Communication
from overlap_sched.fx.operators import Comm, OperatorTraits, Ordering, Role
from overlap_sched.inductor.kernel_graph import in_order_of_effects
from overlap_sched.inductor.lifting import Kernels


@dataclass
class Kernel:
    """An extern kernel: as much of a scheduler node as is looked at.

    Attributes:
        reads, writes: Storages: letters.
        origin: The FX node that it came from.
        comm: Whether it launches a collective.
        effect: Whether torch knows of an effect.
        name: Its own and its buffer's.
        needs: The names on which it depends.
        extern: It runs an operator as it is.
    """

    reads: str = ""
    writes: str = ""
    origin: int | None = None
    comm: bool = False
    effect: bool = False
    node: Any = field(default_factory=SimpleNamespace)
    name: str = "op0"
    needs: Sequence[str] = ()
    extern: bool = True

    @property
    def unmet_dependencies(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.needs]

    def get_nodes(self) -> list[Any]:
        return [self]

    def get_name(self) -> str:
        return self.name

    def get_buffer_names(self) -> list[str]:
        return [self.name]

    def is_extern(self) -> bool:
        return self.extern

    def has_side_effects(self) -> bool:
        return self.effect


def after(
    *kernels: Kernel,
    orderings: Mapping[int, Ordering] | None = None,
    comms: Sequence[Comm] = (),
    groups: Mapping[int, str] | None = None,
    inside: Mapping[int, Communication] | None = None,
    unseen: Sequence[int] = (),
) -> tuple[set[tuple[int, int]], Counter[str]]:
    """Pairs (later, earlier), and the notes."""
    flow: Any = SimpleNamespace(
        takes=[tuple(k.reads) for k in kernels],
        writes=[tuple(k.writes) for k in kernels],
        launches=[k.comm for k in kernels],
        waits=[False] * len(kernels),
    )
    traits = [OperatorTraits("op", comm=comm) for comm in comms]
    reading: Any = SimpleNamespace(
        ordering=orderings or {}, traits=traits, communicates=dict(inside or {}), unseen=set(unseen)
    )
    costs: Any = SimpleNamespace(
        origins=lambda member: [] if member.origin is None else [member.origin], group_of=groups or {}
    )
    buffers: Any = SimpleNamespace(producer={})
    notes: Counter[str] = Counter()
    table = Kernels(kernels, buffers, flow, reading, costs).dependencies(notes)
    return {(at, before) for at, befores in table.items() for before in befores}, notes


def test_what_no_schema_says_is_written_is_ordered_against_its_readers() -> None:
    kernels = (Kernel("ab"), Kernel("a", origin=0), Kernel("a"), Kernel("b"))
    assert after(*kernels)[0] == set()
    assert after(*kernels, unseen=[0])[0] == {(1, 0), (2, 1)}


@pytest.mark.parametrize("ordering", [Ordering.RANDOM, Ordering.EFFECT])
def test_random_numbers_and_effects(ordering: Ordering) -> None:
    kernels = Kernel(origin=0), Kernel(origin=1), Kernel(origin=2)
    assert after(*kernels, orderings={0: ordering, 2: ordering})[0] == {(2, 0)}


def test_communication_with_effects_is_ordered_among_effects() -> None:
    kernels = Kernel(origin=0), Kernel(origin=1, comm=True), Kernel(origin=2, comm=True)
    assert after(*kernels, orderings={0: Ordering.EFFECT, 1: Ordering.EFFECT})[0] == {(1, 0)}


def test_effects_that_torch_knows_of() -> None:
    assert after(Kernel(effect=True), Kernel(), Kernel(effect=True))[0] == {(2, 0)}


def test_communication_stays_on_its_side_of_a_barrier() -> None:
    kernels = Kernel(comm=True), Kernel(), Kernel(origin=0), Kernel(comm=True), Kernel()
    assert after(*kernels, orderings={0: Ordering.BARRIER})[0] == {(2, 0), (3, 2)}


def test_a_kernel_with_a_subgraph_is_a_barrier() -> None:
    branch = Kernel(node=SimpleNamespace(subgraph=object()))
    assert after(Kernel(comm=True), branch, Kernel(comm=True))[0] == {(1, 0), (2, 1)}


def test_a_fence_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'op0' changes the mode"):
        after(Kernel(origin=0), orderings={0: Ordering.FENCE})


def test_groups_with_sends_or_receives_keep_their_launch_order() -> None:
    gather, send = Comm(Role.LAUNCH, "all_gather_into_tensor"), Comm(Role.LAUNCH, "isend", point_to_point=True)
    kernels = [Kernel(origin=at, comm=True) for at in range(4)]
    pairs, notes = after(
        *kernels, comms=[gather, gather, send, gather], groups={0: "pipe", 1: "data", 2: "pipe", 3: "data"}
    )
    assert pairs == {(2, 0)}
    assert notes["point_to_point"] == 2


def test_what_communicates_inside_stays_among_the_launches_of_its_group() -> None:
    launch = Comm(Role.LAUNCH, "all_gather_into_tensor")
    kernels = [Kernel(origin=0, comm=True), Kernel(origin=1), Kernel(origin=2, comm=True), Kernel(origin=3, comm=True)]
    groups = {0: "0", 2: "1", 3: "0"}
    inside = {1: Communication(("0",), ("0",))}
    assert after(*kernels, comms=[launch] * 4, groups=groups, inside=inside)[0] == {(1, 0), (3, 1)}
    inside = {1: Communication(("*",), ("*",))}
    assert after(*kernels, comms=[launch] * 4, groups=groups, inside=inside)[0] == {(1, 0), (2, 1), (3, 1)}
    inside = {1: Communication((), ("*",))}
    assert after(*kernels, comms=[launch] * 4, groups=groups, inside=inside)[0] == set()


def effect(name: str, origins: Sequence[fx.Node] = (), needs: str = "", extern: bool = True) -> Kernel:
    return Kernel(node=SimpleNamespace(origins=origins), name=name, needs=needs, extern=extern)


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
    kernels = [effect("a", [other]), effect("s", [send]), effect("r", [receive, send]), effect("b")]
    assert in_order_of_effects(kernels) is kernels
    before_it_computes = [effect("a", [receive], extern=False), effect("s", [send]), effect("r", [receive])]
    assert in_order_of_effects(before_it_computes) is before_it_computes


def test_kernels_against_it_are_put_in_order_and_all_others_stay_near(effects: list[fx.Node]) -> None:
    send, receive, _ = effects
    kernels = [effect("a"), effect("r", [receive], "a"), effect("w", (), "r"), effect("b"), effect("s", [send], "b")]
    assert names(in_order_of_effects(kernels)) == "absrw"


def test_what_cannot_be_put_in_order_is_left_alone_and_why(effects: list[fx.Node]) -> None:
    send, receive, _ = effects
    kernels = [effect("r", [receive]), effect("w", (), "r"), effect("s", [send], "w")]
    with pytest.raises(UnsupportedError, match="'r' runs before 's', whose effects come before its own"):
        in_order_of_effects(kernels)


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
