"""What is read of a graph before it is rewritten: hazards, and who writes to what or looks at it in a special way.

**Backends** of process groups: in which order they reduce, and what they are known to get wrong.

A reduction adds the values of n ranks in some order, and sums of floats depend on it. gloo reduces in a ring: the
buffer is cut into n chunks, and each chunk starts at another rank. So:

- what is only copied (gathers), and integers, keep their bits wherever they lie;
- two ranks have only one order for a sum, an average or a product (``a + b == b + a``); their maximum has two, and
  ``max(nan, 1.0)`` and ``max(-0.0, 0.0)`` differ from those the other way round;
- an all_reduce of floats on more ranks changes when it is packed: other elements share its chunks;
- a reduce_scatter is packed row by row, and a row is a chunk: it starts at the same rank as before.

Seen on gloo (``tests/fx/rewrites/test_ranks.py``, two and four ranks). NCCL picks its algorithm by the size of the
buffer, and promises nothing of bits between sizes.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from overlap_sched.fx.calls import live_ranks, name_and_group
from overlap_sched.fx.hazards import graph_hazards
from overlap_sched.fx.lifting import carried_facts
from overlap_sched.fx.operators import Ordering, Role, traits_of
from overlap_sched.fx.reading import Reading, read_graph
from overlap_sched.transform.plan import FORMS
from overlap_sched.transform.recipes import refuse_if
from overlap_sched.transform.rewrites import Form

_ATEN = torch.ops.aten
_BY_ADDRESS: frozenset[Any] = frozenset(
    overload
    for packet in (_ATEN.as_strided, _ATEN.as_strided_, _ATEN.as_strided_scatter, _ATEN.set_)
    for overload in (getattr(packet, name) for name in packet.overloads())
) | {_ATEN.view.dtype}
"""Operators that count from the start of a storage, or of its elements in another type."""
_COMMUNICATES = "communicates"
_COMMUTATIVE = ("avg", "product", "sum")
_EXACT_OF_INTEGERS = ("band", "bor", "bxor", "max", "min", "product", "sum")


class GraphFacts:
    """Facts about the nodes that a graph has before any rewrite.

    Attributes:
        after: Per node, the earlier ones that it must come after although it does not take their values.
        at: Per node, its position.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Read a graph; about ten microseconds a node."""
        reading = read_graph(graph)
        nodes = reading.nodes
        comms = {v: t.comm for v, t in enumerate(reading.traits) if t.comm and t.role is not Role.WAIT}
        groups = {v: name_and_group(nodes[v]) for v in comms}
        hazards = graph_hazards(reading, {v: name for v, (name, _) in groups.items()})
        self.at: Mapping[fx.Node, int] = {node: v for v, node in enumerate(nodes)}
        self.after: Mapping[fx.Node, list[fx.Node]] = {
            nodes[v]: [nodes[u] for u in sorted(before)] for v, before in hazards.items() if before
        }
        self._nodes, self._takes = nodes, reading.takes
        self._roots = {node: frozenset(roots) for node, roots in zip(nodes, reading.outs, strict=True)}
        self._by_address = {r for v, takes in enumerate(reading.takes) if nodes[v].target in _BY_ADDRESS for r in takes}
        self._returned = {root for v, takes in enumerate(reading.takes) if nodes[v].op == "output" for root in takes}
        self._frozen = {groups[v][0] for v, comm in comms.items() if comm.point_to_point}
        self._carried = carried_facts(graph)
        self._live = {name: name if live is None else live for name, live in groups.values()}
        self._not_pure = {v: why for v in range(len(nodes)) if (why := _why_impure(reading, v))}
        self._writers, self._sharers = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for v in sorted(reading.writes):
            for root in reading.writes[v]:
                self._writers[root].append(v)
        for v, (takes, outs) in enumerate(zip(reading.takes, reading.outs, strict=True)):
            for root in self._writers.keys() & {*takes, *outs}:
                self._sharers[root].append(v)

    def impure(self, node: fx.Node) -> str:
        """Why a node of the graph must not run a second time; ``""``: it may."""
        v = self.at.get(node)
        if v is None:  # of a bucket, or a copy of a value
            return "" if traits_of(node.target).comm is None else _COMMUNICATES
        return "gives what something writes to" if self.written(node) else self._not_pure.get(v, "")

    def next_writers(self, node: fx.Node) -> list[fx.Node]:
        """Per storage that a node reads, the first later one that writes to it."""
        v = self.at.get(node)
        if v is None:
            return []
        later = ([w for w in self._writers.get(root, ()) if w > v][:1] for root in self._takes[v])
        return list(dict.fromkeys(self._nodes[w] for first in later for w in first))

    def written(self, node: fx.Node) -> bool:
        """Tell whether anything in the graph writes to what a node gives."""
        return not self._roots.get(node, frozenset()).isdisjoint(self._writers)

    def read_after_a_write(self, node: fx.Node, readers: Collection[fx.Node]) -> fx.Node | None:
        """The first of some nodes that reads what a node gave, or a view of it, after something has written to that."""
        found = []
        for root in self._roots[node]:
            first = next((w for w in self._writers.get(root, ()) if w > self.at[node]), len(self._nodes))
            found += [u for u in self._sharers.get(root, ()) if u > first and self._nodes[u] in readers]
        return self._nodes[min(found)] if found else None

    def sharers(self, node: fx.Node) -> list[fx.Node]:
        """Who takes or gives what a node gives, or a view of it, where anything writes to that."""
        found = sorted({v for root in self._roots.get(node, ()) for v in self._sharers.get(root, ())})
        return [self._nodes[v] for v in found]

    def by_address(self, node: fx.Node) -> bool:
        """Tell whether anything looks at what a node gives by its place in the storage."""
        return not self._roots.get(node, frozenset()).isdisjoint(self._by_address)

    def returned(self, node: fx.Node) -> bool:
        """Tell whether the graph returns what a node gives, or a view of it."""
        return not self._roots.get(node, frozenset()).isdisjoint(self._returned)

    def sends(self, group: str) -> bool:
        """Tell whether a process group also sends or receives in this graph."""
        return group in self._frozen

    def ranks(self, group: str) -> int | None:
        """How many ranks a group has; ``None``: not known."""
        if group in self._carried:
            return int(self._carried[group].size)
        live = live_ranks(self._live.get(group, group))
        return None if live is None else len(live)


def _why_impure(reading: Reading, v: int) -> str:
    node, traits = reading.nodes[v], reading.traits[v]
    if node.op != "call_function":
        return f"is {'an output' if node.op == 'output' else 'an input'}"
    if traits.comm is not None:
        return _COMMUNICATES
    if reading.ordering.get(v) is Ordering.RANDOM:
        return "draws random numbers"
    if v in reading.ordering or v in reading.writes or v in reading.syncs or traits.nested or not traits.known:
        return "is no pure function that we know"
    return "" if "val" in node.meta else "has no value in its metadata"


def check_exact(name: str, op: str, reduction: str, dtype: torch.dtype, ranks: int | None) -> None:
    """Refuse what may change bits.

    Args:
        name: Of the collective.
        op: Of :data:`overlap_sched.transform.rewrites.BUCKETED`.
        reduction: ``"sum"``; ``""`` of a gather.
        dtype: Of its elements.
        ranks: Of its group; ``None``: not known.

    Raises:
        RewriteError: The result of an element depends on where in the buffer it is.
    """
    many = "ranks of an unknown number" if ranks is None else f"{ranks} ranks"
    refuse_if(
        not keeps_bits(op, reduction, dtype, ranks),
        f"{name!r} is a {reduction} of {str(dtype).removeprefix('torch.')} on {many} ({op}): where an element lies "
        "in the buffer decides the order in which it is reduced, so a rewrite would change bits.",
    )


def keeps_bits(op: str, reduction: str, dtype: torch.dtype, ranks: int | None) -> bool:
    """Tell whether elements keep their bits in another place, of a reduce_scatter within their row."""
    if not reduction or ranks == 1:
        return True
    if not (dtype.is_floating_point or dtype.is_complex):
        return reduction in _EXACT_OF_INTEGERS
    if reduction not in _COMMUTATIVE:
        return op == "reduce_scatter_tensor" and reduction in ("max", "min")
    return op == "reduce_scatter_tensor" or ranks == 2


def forms_for(launches: Iterable[fx.Node]) -> tuple[Form, ...]:
    """Forms of buckets that the backends of these collectives can do, the one preferred first."""
    return ("copied",) if any(over_gloo(name_and_group(node)[0]) for node in launches) else FORMS


def over_gloo(group: Any) -> bool:
    """Tell whether a process group, by name or itself, is of this process and talks over gloo on CPUs."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed import distributed_c10d as c10d

    try:
        found = c10d._resolve_process_group(group) if isinstance(group, str) else group
        return "cpu:gloo" in str(dist.get_backend_config(found)) or dist.get_backend(found) == "gloo"
    except Exception:  # a node, or no such group: torch raises several types
        return False
