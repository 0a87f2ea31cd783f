"""Read a graph once: what every node takes, gives, writes, launches and waits for. All later steps look only here."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fx.collectives import Role
from overlap_sched.fx.operator_traits import NO_CALL, UNKNOWN_CALL, Arg, Keeps, OpFacts, facts_of, is_higher_order
from overlap_sched.fx.storages import Storages

_MISSING = object()
_NONE: tuple[int, ...] = ()


@dataclass(slots=True)
class Reading:
    """A graph as parallel lists over its nodes (ids are positions), and tables of what is rare.

    Attributes:
        nodes, facts: The FX nodes, and what is known of their operators.
        inputs: Per node, the ids of the nodes that it takes.
        outs: Per node, the roots of its value's storages; where it has no ``val``, those of all that it takes.
        takes: Per node, the roots of all that it takes.
        raw_outs, raw_fresh: Per node, its value's raw storages; those of them that no earlier value showed.
        value_bytes: Per node, bytes of the tensors in its value.
        writes: Roots that a node writes.
        keeps: Nodes that must keep their place, see :class:`~overlap_sched.fx.operator_traits.Keeps`.
        launch_of: Per wait, its collective. (A wait for one launched outside is not in it.)
        ends: Per wait in ``launch_of``, all collectives that it waits for: several where they share a storage.
        transfers: Copies to or from the host that need not be finished when they return: the roots concerned.
        syncs: Nodes at which the host waits for the device.
        peeked: Roots of collectives' outputs that something besides their waits looks at early.
    """

    nodes: list[fx.Node]
    storages: Storages
    notes: Counter[str]
    facts: list[OpFacts] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    outs: list[tuple[int, ...]] = field(default_factory=list)
    takes: list[tuple[int, ...]] = field(default_factory=list)
    raw_outs: list[tuple[int, ...]] = field(default_factory=list)
    raw_fresh: list[tuple[int, ...]] = field(default_factory=list)
    value_bytes: list[int] = field(default_factory=list)
    writes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    overwritten_bytes: dict[int, int] = field(default_factory=dict)
    keeps: dict[int, Keeps] = field(default_factory=dict)
    launch_of: dict[int, int] = field(default_factory=dict)
    ends: dict[int, tuple[int, ...]] = field(default_factory=dict)
    transfers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    syncs: set[int] = field(default_factory=set)
    peeked: set[int] = field(default_factory=set)

    @property
    def launches(self) -> list[int]:
        """Ids of all collectives that run on their own streams."""
        return [v for v, f in enumerate(self.facts) if f.comm is not None and f.comm.role is Role.LAUNCH]


def read_graph(graph: fx.Graph) -> Reading:
    """Read an FX graph; about ten microseconds a node."""
    notes: Counter[str] = Counter()
    reading = Reading(list(graph.nodes), Storages(notes), notes)
    reader = _Reader(reading)
    for v, node in enumerate(reading.nodes):
        reader.read(v, node)
    return reading


class _Reader:
    """What is carried from node to node while a graph is read."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.index: dict[fx.Node, int] = {}
        self.attributes: dict[Any, tuple[int, ...]] = {}
        self.in_flight: dict[int, list[int]] = {}
        self.launched: dict[int, int] = {}

    def read(self, v: int, node: fx.Node) -> None:
        """Append one node to the reading."""
        r, index = self.reading, self.index
        index[node] = v
        ids = tuple([index[u] for u in node.all_input_nodes])
        kind = node.op
        facts = facts_of(node.target) if kind == "call_function" else _FACTS_OF_KIND.get(kind, UNKNOWN_CALL)
        takes = r.outs[ids[0]] if len(ids) == 1 else tuple(dict.fromkeys([s for u in ids for s in r.outs[u]]))
        r.facts.append(facts)
        r.inputs.append(ids)
        r.takes.append(takes)
        self._value(v, node, facts, takes)
        if not facts.plain:
            self._special(v, node, facts)
        elif facts.writes_aliased and len(r.raw_fresh[v]) != len(r.raw_outs[v]):
            fresh = r.raw_fresh[v]
            r.writes[v] = tuple(r.storages.root[s] for s in r.raw_outs[v] if s not in fresh)
            r.notes["undeclared_alias"] += 1
        if self.in_flight and not (facts.selects or kind == "output" or self.in_flight.keys().isdisjoint(takes)):
            r.peeked.update(s for s in takes if s in self.in_flight)

    def _value(self, v: int, node: fx.Node, facts: OpFacts, takes: tuple[int, ...]) -> None:
        r, storages = self.reading, self.reading.storages
        val = node.meta.get("val", _MISSING)
        seen = len(storages.root)
        if val is _MISSING:
            val = self._value_without_meta(node, facts)
        if val is _MISSING:
            raw, nbytes, outs = _NONE, 0, takes
        else:
            raw, nbytes = storages.of_value(val)
            outs = raw
        fresh = tuple([s for s in raw if s >= seen]) if len(storages.root) > seen else _NONE
        if node.op == "get_attr":
            first = self.attributes.setdefault(node.target, outs)
            storages.root[seen:] = first if len(first) == len(fresh) else fresh  # the same attribute again
            outs = first
        elif fresh and (facts.returns or facts.comm is not None):
            self._join_with_arguments(node, facts, val, fresh)
        if facts.returns or facts.comm is not None or (raw and storages.root[raw[0]] != raw[0]) or len(raw) > 1:
            outs = tuple(dict.fromkeys([storages.root[s] for s in outs]))
        r.raw_outs.append(raw)
        r.raw_fresh.append(fresh)
        r.outs.append(outs)
        r.value_bytes.append(nbytes)

    def _value_without_meta(self, node: fx.Node, facts: OpFacts) -> Any:
        """The value of a node without ``meta["val"]`` where it can be told otherwise."""
        if node.op == "get_attr":
            value = attribute_of(node)
            return value if isinstance(value, torch.Tensor) else None
        if node.op == "output" or (isinstance(node.target, OpOverload) and not node.target._schema.returns):
            return None
        self.reading.notes["no_val"] += 1
        return _MISSING

    def _join_with_arguments(self, node: fx.Node, facts: OpFacts, val: Any, fresh: tuple[int, ...]) -> None:
        """What returns its argument has its argument's storage, whatever its fake kernel says."""
        storages, pairs = self.reading.storages, []
        if facts.comm is not None and facts.comm.role is Role.WAIT:
            pairs.append((val, node.args[0] if node.args else node.kwargs.get("tensor", node.kwargs.get("self"))))
        elif len(facts.returns) == 1 and facts.returns[0] is not None:
            pairs.append((val, facts.returns[0].of(node.args, node.kwargs)))
        else:
            pairs += [(val[i], a.of(node.args, node.kwargs)) for i, a in enumerate(facts.returns) if a is not None]
        for value, argument in pairs:
            values = value if isinstance(value, list | tuple) else [value]
            arguments = argument if isinstance(argument, list | tuple) else [argument]
            for one, source in zip(values, arguments, strict=False):
                raw, _ = storages.of_value(one)
                of = self.reading.outs[self.index[source]] if isinstance(source, fx.Node) else ()
                if len(raw) == 1 and len(of) == 1 and raw[0] in fresh:
                    storages.root[raw[0]] = of[0]

    def _special(self, v: int, node: fx.Node, facts: OpFacts) -> None:
        r = self.reading
        facts, args, kwargs = _unnested(node, facts)
        keeps = facts.keeps
        if keeps is Keeps.RANDOM and facts.dropout is not None and facts.dropout.of(args, kwargs, 0.0) == 0.0:
            keeps = Keeps.NOTHING
        if facts.nested:
            keeps = max(keeps, self._keeps_of_subgraphs(node))
        if keeps is not Keeps.NOTHING:
            r.keeps[v] = keeps
        if not facts.known:
            r.notes["unknown_op"] += 1
        if facts.writes_all or keeps >= Keeps.BARRIER:
            written = list(node.all_input_nodes)
        else:
            written = [n for place in facts.writes for n in _nodes_in(place.of(args, kwargs))]
        roots = tuple(dict.fromkeys(s for n in written for s in r.outs[self.index[n]]))
        if roots:
            r.writes[v] = roots
            if facts.overwrites:
                r.overwritten_bytes[v] = sum(r.value_bytes[self.index[n]] for n in written)
        if facts.non_blocking is not None:
            self._transfer(v, bool(facts.non_blocking.of(args, kwargs, False)))
        if facts.syncs:
            r.syncs.add(v)
        if facts.comm is not None:
            self._communication(v, facts.comm.role)

    def _transfer(self, v: int, non_blocking: bool) -> None:
        r = self.reading
        ends = tuple(dict.fromkeys((*r.takes[v], *r.outs[v])))
        hosts = [r.storages.device[s] == "cpu" for s in ends]
        if all(hosts) or not any(hosts):
            return
        if non_blocking:
            r.transfers[v] = ends
        else:
            r.syncs.add(v)

    def _communication(self, v: int, role: Role) -> None:
        r = self.reading
        if role is Role.LAUNCH:
            for s in r.outs[v]:
                self.in_flight.setdefault(s, []).append(v)
                self.launched[s] = v
        elif role is Role.WAIT:
            launched = [self.launched[s] for s in r.takes[v] if s in self.launched]
            pending = [u for s in r.takes[v] for u in self.in_flight.pop(s, ())]  # so a wait does not look early
            if launched:
                r.launch_of[v] = launched[-1]
                r.ends[v] = tuple(dict.fromkeys([*pending, launched[-1]]))
            else:
                r.notes["wait_outside"] += 1

    def _keeps_of_subgraphs(self, node: fx.Node) -> Keeps:
        """A subgraph that does more than compute, or is not at hand, makes the node that runs it a barrier."""
        keeps = Keeps.NOTHING
        # what flex attention runs are functions of scores and indices: pure, whether at hand or not
        pure = is_higher_order(node.target, "flex_attention", "flex_attention_backward")
        for n in node.all_input_nodes:
            attribute = attribute_of(n)
            if isinstance(attribute, fx.GraphModule):
                inner = read_graph(attribute.graph)
                keeps = max([keeps, *inner.keeps.values()])
                if inner.writes or any(facts.comm for facts in inner.facts):
                    keeps = Keeps.BARRIER
            elif n.op == "get_attr" and (attribute is None or (isinstance(attribute, torch.nn.Module) and not pure)):
                keeps = Keeps.BARRIER
                self.reading.notes["unknown_op"] += 1
        return keeps


def attribute_of(node: fx.Node) -> Any:
    """What a ``get_attr`` node fetches; ``None`` where it cannot be found or the node is of another kind."""
    value: Any = node.graph.owning_module if node.op == "get_attr" else None
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


_FACTS_OF_KIND = {"placeholder": NO_CALL, "get_attr": NO_CALL, "output": NO_CALL}


def _nodes_in(argument: Any) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _nodes_in(item)
    elif isinstance(argument, dict):
        yield from _nodes_in(list(argument.values()))


def _unnested(node: fx.Node, facts: OpFacts) -> tuple[OpFacts, tuple[Any, ...], dict[str, Any]]:
    """Facts and arguments of the operator that a wrapper runs, with the wrapper's own demands kept."""
    args: tuple[Any, ...] = node.args
    kwargs: dict[str, Any] = node.kwargs
    if not facts.nested:
        return facts, args, kwargs
    if is_higher_order(node.target, "with_effects"):
        inner, args = facts_of(args[1]), args[2:]
    elif is_higher_order(node.target, "auto_functionalized", "auto_functionalized_v2"):
        # functional until torch decides to write in place after all, which shows only in the node's meta
        inner, args = facts_of(args[0]), ()
        if "_all_bases" in kwargs:
            inner = replace(inner, writes=(Arg((-1, "_all_bases")),))
    else:
        return facts, args, kwargs
    return replace(inner, keeps=max(inner.keeps, facts.keeps), nested=True), args, kwargs
