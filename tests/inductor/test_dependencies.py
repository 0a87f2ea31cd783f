"""What keeps the order of scheduler nodes besides torch's dependencies, on nodes made by hand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.calls import Communication
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.operators import Comm, OperatorTraits, Ordering, Role
from overlap_sched.inductor.lifting import dependencies


@dataclass
class Kernel:
    """An extern kernel: as much of a scheduler node as is looked at.

    Attributes:
        reads, writes: Storages: letters.
        origin: The FX node that it came from.
        comm: Whether it launches a collective.
        effect: Whether torch knows of an effect.
    """

    reads: str = ""
    writes: str = ""
    origin: int | None = None
    comm: bool = False
    effect: bool = False
    node: Any = field(default_factory=SimpleNamespace)
    unmet_dependencies: Sequence[Any] = ()

    def get_nodes(self) -> list[Any]:
        return [self]

    def get_name(self) -> str:
        return "op0"

    def get_buffer_names(self) -> list[str]:
        return []

    def is_extern(self) -> bool:
        return True

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
    table = dependencies(kernels, buffers, flow, reading, costs, notes)
    return {(at, before) for at, befores in table.items() for before in befores}, notes


def test_what_no_schema_says_is_written_is_ordered_against_its_readers() -> None:
    kernels = (Kernel("ab"), Kernel("a", origin=0), Kernel("a"), Kernel("b"))
    assert after(*kernels)[0] == set()
    assert after(*kernels, unseen=[0])[0] == {(1, 0), (2, 1)}


@pytest.mark.parametrize(
    ("first", "second"),
    [(Kernel(writes="a"), Kernel("a")), (Kernel("a"), Kernel(writes="a")), (Kernel(writes="a"), Kernel(writes="a"))],
    ids=["read after write", "write after read", "write after write"],
)
def test_storages(first: Kernel, second: Kernel) -> None:
    pairs, notes = after(first, Kernel("b"), second)
    assert pairs == {(2, 0)}
    assert notes["hazard"] == 1


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
    with pytest.raises(UnsupportedError) as error:
        after(Kernel(origin=0), orderings={0: Ordering.FENCE})
    assert str(error.value) == "'op0' changes the mode in which later nodes run (streams, autograd mode)."


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


def test_without_launches_whatever_may_communicate_keeps_its_order() -> None:
    inside = {0: Communication((), ("*",)), 1: Communication(("0",), ("0",))}
    assert after(Kernel(origin=0), Kernel(), Kernel(origin=1), inside=inside)[0] == {(2, 0)}
