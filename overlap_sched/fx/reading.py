"""What is read of a graph: what every node takes, gives, writes, launches and waits for. Later steps look only here."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import fx

from overlap_sched.fx.collectives import Role
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.operator_traits import OperatorTraits
from overlap_sched.fx.storages import Storages

if TYPE_CHECKING:
    from overlap_sched.fx.communication import Communication


@dataclass(slots=True, eq=False)
class Reading:
    """A graph as parallel lists over its nodes (ids are positions), and tables of what is rare.

    Attributes:
        nodes, traits: The FX nodes, and the traits of their operators (of one that another operator runs: of the
            former).
        inputs: Per node, the ids of the nodes that it takes.
        order_only: Those of them that a node takes only in order to come after them.
        outs: Per node, the roots of its value's storages; where it has no ``val``, those of all that it takes.
        takes: Per node, the roots of all that it takes and looks at.
        raw_outs, raw_fresh: Per node, its value's raw storages; those of them that no earlier value showed.
        value_bytes: Per node, bytes of the tensors in its value.
        writes: Roots that a node writes.
        unseen: Nodes that write what their schemas do not say.
        overwritten_bytes: Of nodes that write without reading first: bytes of what they write.
        ordering: Nodes with an ordering constraint, see :class:`~overlap_sched.fx.hazards.Ordering`.
        launch_of: Per wait, its collective, of several the last. (A wait for one launched outside is not in it.)
        ends: Per wait in ``launch_of``, all collectives that it waits for: several where they share a storage, or where
            it waits for several storages. Per node whose sub-graphs wait: all that it takes while they are in flight.
        outside: Waits for what this graph does not launch, or not alone.
        inner: Per node that runs sub-graphs: the readings of those that are at hand.
        communicates: Nodes that communicate, or may, besides launching collectives on streams of their own.
        transfers: Copies to or from the host that need not be finished when they return: the roots concerned.
        syncs: Nodes at which the host waits for the device.
        peeked: Roots of collectives' outputs that something besides their waits looks at early, or may.
    """

    nodes: list[fx.Node]
    storages: Storages
    notes: Counter[str]
    traits: list[OperatorTraits] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    outs: list[tuple[int, ...]] = field(default_factory=list)
    takes: list[tuple[int, ...]] = field(default_factory=list)
    order_only: dict[int, tuple[int, ...]] = field(default_factory=dict)
    raw_outs: list[tuple[int, ...]] = field(default_factory=list)
    raw_fresh: list[tuple[int, ...]] = field(default_factory=list)
    value_bytes: list[int] = field(default_factory=list)
    writes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    overwritten_bytes: dict[int, int] = field(default_factory=dict)
    ordering: dict[int, Ordering] = field(default_factory=dict)
    launch_of: dict[int, int] = field(default_factory=dict)
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    outside: set[int] = field(default_factory=set)
    inner: "dict[int, tuple[Reading, ...]]" = field(default_factory=dict)
    communicates: "dict[int, Communication]" = field(default_factory=dict)
    transfers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    syncs: set[int] = field(default_factory=set)
    peeked: set[int] = field(default_factory=set)

    @property
    def undeclared(self) -> dict[str, bool]:
        """Operators of other libraries of which nothing was said, and whether they are taken for communication."""
        found: dict[str, bool] = {}
        for v in sorted(self.communicates):
            for name, certain in self.communicates[v].undeclared:
                found[name] = certain or found.get(name, False)
        return found

    @property
    def launches(self) -> list[int]:
        """Ids of all collectives that run on their own streams."""
        return [v for v, t in enumerate(self.traits) if t.role is Role.LAUNCH]

    def held_in_flight(self, v: int) -> tuple[int, ...]:
        """Roots that a collective reads until its wait."""
        comm = self.traits[v].comm
        return () if comm is not None and comm.copies else self.takes[v]

    def looked_at(self, v: int) -> tuple[int, ...]:
        """Ids of the nodes that a node takes, but for those that it only comes after."""
        only = self.order_only.get(v, ())
        return tuple([u for u in self.inputs[v] if u not in only]) if only else self.inputs[v]


def attribute_of(node: fx.Node) -> Any:
    """Fetch what a ``get_attr`` node names; ``None`` where it cannot be found or the node is of another kind."""
    if node.op != "get_attr" or not isinstance(node.target, str):
        return None
    value: Any = node.graph.owning_module
    for part in node.target.split("."):
        value = getattr(value, part, None)
    return value
