"""Read a graph once, node by node."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fx.catalogue import FREES, SHAPES, WRITES
from overlap_sched.fx.collectives import Role
from overlap_sched.fx.communication import communicating
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.operator_traits import NO_CALL, UNKNOWN_CALL, OperatorTraits
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.reading import Reading, attribute_of
from overlap_sched.fx.storages import Storages
from overlap_sched.fx.wrappers import EffectiveCall, bodies_of, order_only, unwrapped

_MISSING = object()
_NONE: tuple[int, ...] = ()
_TRAITS_OF_KIND = {"placeholder": NO_CALL, "get_attr": NO_CALL, "output": NO_CALL}


def read_graph(graph: fx.Graph) -> Reading:
    """Read an FX graph; about ten microseconds a node."""
    notes: Counter[str] = Counter()
    nodes = list(graph.nodes)
    reading = Reading(nodes, Storages(notes, nodes), notes)
    reader = _Reader(reading)
    for v, node in enumerate(reading.nodes):
        reader.read(v, node)
    on_streams = {v for v, t in enumerate(reading.traits) if t.role in (Role.LAUNCH, Role.WAIT)}
    reading.communicates.update((v, one) for v, one in communicating(graph).items() if v not in on_streams)
    notes["custom_op"] = sum(not one.groups for one in reading.communicates.values())
    return reading


class _Reader:
    """What is carried from node to node while a graph is read."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.index: dict[fx.Node, int] = {}
        self.attributes: dict[Any, tuple[int, ...]] = {}
        self.in_flight: dict[int, list[int]] = {}
        self.launched: dict[int, int] = {}
        self.made: dict[tuple[str, tuple[Any, ...]], tuple[int, ...]] = {}
        """By operator and numbers: what it has made, which another one frees."""
        self.waited: dict[int, dict[int, int]] = {}
        """Per value that comes from a wait or is a view of one: per storage, that wait."""
        self.bodies: dict[fx.GraphModule, Reading] = {}

    def read(self, v: int, node: fx.Node) -> None:
        """Append one node to the reading."""
        r, index = self.reading, self.index
        index[node] = v
        ids = looked_at = tuple([index[u] for u in node.all_input_nodes])
        kind = node.op
        traits = traits_of(node.target) if kind == "call_function" else _TRAITS_OF_KIND.get(kind, UNKNOWN_CALL)
        call = None
        if traits.nested:
            traits, call = unwrapped(node, traits)
            if only := [index[u] for u in order_only(node)]:
                r.order_only[v] = tuple(only)
                looked_at = tuple([u for u in ids if u not in only])
        one = len(looked_at) == 1
        takes = r.outs[looked_at[0]] if one else tuple(dict.fromkeys([s for u in looked_at for s in r.outs[u]]))
        r.traits.append(traits)
        r.inputs.append(ids)
        r.takes.append(takes)
        self._value(node, traits, takes, call)
        if not traits.plain:
            self._special(v, node, traits, call or EffectiveCall(node.target, node.args, node.kwargs, None))
        if traits.writes_aliased and len(r.raw_fresh[v]) != len(r.raw_outs[v]):
            self._undeclared_alias(v, node, traits, call)
        if self.launched and not self.launched.keys().isdisjoint(takes):
            self._look(v, kind)
        if isinstance(node.target, OpOverload) and node.target.namespace == "dc":
            self._frees(v, node)

    def _undeclared_alias(self, v: int, node: fx.Node, traits: OperatorTraits, call: EffectiveCall | None) -> None:
        """Take a node that returns an argument of which its schema does not say so for one that writes it."""
        r, args, kwargs = self.reading, node.args, node.kwargs
        raw = r.raw_outs[v]
        if traits.aliases and call is None and len(r.takes[v]) == 1:
            return  # a view, as most
        if call is not None:
            args, kwargs = call.args, call.kwargs
            raw, _ = r.storages.of_value(None if call.given is None else call.given(node.meta.get("val")))
        declared = {s for arg in traits.aliases for n in _nodes_in(arg.of(args, kwargs)) for s in r.outs[self.index[n]]}
        fresh, written = r.raw_fresh[v], r.writes.get(v, ())
        roots = dict.fromkeys(r.storages.root[s] for s in raw if s not in fresh)
        if unseen := tuple(s for s in roots if s not in declared and s not in written):
            r.writes[v] = (*written, *unseen)
            r.unseen.add(v)
            r.notes["undeclared_alias"] += 1

    def _frees(self, v: int, node: fx.Node) -> None:
        """Have what frees a storage by the numbers that it was made with use that storage: it lives until then."""
        name, numbers = node.target._schema.name, tuple(node.args[1:3])
        if name in FREES.values():
            self.made[name, numbers] = self.reading.outs[v]
        elif name in FREES:
            made = self.made.get((FREES[name], numbers), ())
            self.reading.takes[v] = tuple(dict.fromkeys([*self.reading.takes[v], *made]))

    def _look(self, v: int, kind: str) -> None:
        """Note which outputs of collectives a node takes by a value that no wait has given.

        A wait completes its tensor in place, so an older name of it (the launch, a view made before, the buffer that
        was handed in) is read before or behind the wait, and means something else there.
        """
        r = self.reading
        known: dict[int, int] = {}
        for u in r.looked_at(v):
            known |= self.waited.get(u, {})
        if r.traits[v].role is Role.WAIT:
            self.waited[v] = dict.fromkeys(r.takes[v], v)
            return
        kept = {s: wait for s, wait in known.items() if s in r.outs[v]}
        if kept:
            self.waited[v] = kept
        target = r.nodes[v].target
        shape_only = isinstance(target, OpOverload) and target._schema.name in SHAPES
        if kind != "output" and not shape_only and not r.traits[v].selects:
            r.peeked.update(s for s in r.takes[v] if known.get(s, -1) < self.launched.get(s, -1))

    def _value(self, node: fx.Node, traits: OperatorTraits, takes: tuple[int, ...], call: EffectiveCall | None) -> None:
        r, storages = self.reading, self.reading.storages
        val = node.meta.get("val", _MISSING)
        seen = len(storages.root)
        if val is _MISSING:
            val = self._value_without_meta(node)
        if val is _MISSING:
            launches = traits.role is Role.LAUNCH and not any(traits.returns)
            raw, nbytes = (storages.unknown(),) if launches else _NONE, 0  # by its result waits know a launch
            outs = raw or takes
        else:
            raw, nbytes = storages.of_value(val)
            if len(storages.root) - seen < len(raw) and node.op == "call_function" and traits.known:
                raw = tuple(dict.fromkeys([s if s >= seen else storages.copy_for(s, takes) for s in raw]))
            outs = raw
        fresh = tuple([s for s in raw if s >= seen]) if len(storages.root) > seen else _NONE
        if node.op == "get_attr":
            first = self.attributes.setdefault(node.target, outs)
            storages.root[seen:] = first if len(first) == len(fresh) else fresh  # the same attribute again
            outs = first
        elif fresh and (traits.returns or traits.comm is not None):
            if call is None:
                self._join_with_arguments(traits, node.args, node.kwargs, val, fresh)
            elif call.given is not None:
                self._join_with_arguments(traits, call.args, call.kwargs, call.given(val), fresh)
        if storages.bare and not storages.bare.isdisjoint((*raw, *takes) if traits.returns else raw):
            outs = tuple(dict.fromkeys([*outs, *takes]))  # a sparse tensor, or a part of one: it may be what it takes
        if traits.returns or traits.comm is not None or (raw and storages.root[raw[0]] != raw[0]) or len(raw) > 1:
            outs = tuple(dict.fromkeys([storages.root[s] for s in outs]))
        r.raw_outs.append(raw)
        r.raw_fresh.append(fresh)
        r.outs.append(outs)
        r.value_bytes.append(nbytes)

    def _value_without_meta(self, node: fx.Node) -> Any:
        """The value of a node without ``meta["val"]`` where it is known otherwise."""
        if node.op == "get_attr":
            value = attribute_of(node)
            return value if isinstance(value, torch.Tensor) else None
        if node.op == "output" or (isinstance(node.target, OpOverload) and not node.target._schema.returns):
            return None
        self.reading.notes["no_val"] += 1
        return _MISSING

    def _join_with_arguments(
        self, traits: OperatorTraits, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any, fresh: tuple[int, ...]
    ) -> None:
        """Give what returns its argument, or a view of it, the storage of that argument, whatever ``val`` says.

        Fake kernels of collectives allocate anew; passes that replace the argument of a view leave the view's value.
        """
        storages, pairs = self.reading.storages, []
        if traits.role is Role.WAIT:
            pairs.append((val, args[0] if args else next(iter(kwargs.values()), None)))
        elif len(traits.returns) == 1 and traits.returns[0] is not None:
            pairs.append((val, traits.returns[0].of(args, kwargs)))
        else:
            one_each = val if isinstance(val, list | tuple) else [val]  # a tensor has perhaps no known number of rows
            pairs += [(one, a.of(args, kwargs)) for one, a in zip(one_each, traits.returns, strict=False) if a]
        for value, argument in pairs:
            values = value if isinstance(value, list | tuple) else [value]
            arguments = argument if isinstance(argument, list | tuple) else [argument] * len(values)
            for one, source in zip(values, arguments, strict=False):
                raw, _ = storages.of_value(one)
                of = self.reading.outs[self.index[source]] if isinstance(source, fx.Node) else ()
                if len(raw) == 1 and len(of) == 1 and raw[0] in fresh:
                    storages.root[raw[0]] = of[0]

    def _special(self, v: int, node: fx.Node, traits: OperatorTraits, call: EffectiveCall) -> None:
        r, args, kwargs = self.reading, call.args, call.kwargs
        ordering = traits.ordering
        if ordering is Ordering.RANDOM and traits.dropout is not None and traits.dropout.of(args, kwargs, 0.0) == 0.0:
            ordering = Ordering.NONE
        if traits.nested and not call.in_body:
            ordering = max(ordering, self._ordering_of_subgraphs(v, node))
            if any(inner.outside for inner in r.inner.get(v, ())):
                self._wait_inside(v)
        if ordering is not Ordering.NONE:
            r.ordering[v] = ordering
        if not traits.known:
            r.notes["unknown_op"] += 1
        if traits.writes_all or ordering >= Ordering.BARRIER:
            written = [r.nodes[u] for u in r.looked_at(v)]
        else:
            written = [n for arg in traits.writes for n in _nodes_in(arg.of(args, kwargs))]
        roots = tuple(dict.fromkeys(s for n in written for s in r.outs[self.index[n]]))
        if roots:
            r.writes[v] = roots
            if isinstance(call.target, OpOverload) and call.target._schema.name in WRITES:
                r.unseen.add(v)
            if traits.overwrites:
                r.overwritten_bytes[v] = sum(r.value_bytes[self.index[n]] for n in written)
        if traits.non_blocking is not None:
            self._transfer(v, bool(traits.non_blocking.of(args, kwargs, False)))
        if traits.syncs:
            r.syncs.add(v)
        if traits.comm is not None:
            r.notes["unknown_communication"] += not traits.comm.known
            self._communication(v, traits.comm.role)

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
            outside = [s for s in r.takes[v] if s not in self.launched]
            pending = [u for s in r.takes[v] for u in self.in_flight.pop(s, ())]  # so a wait does not look early
            if not pending and all(map(self._has_finished, r.looked_at(v))):
                r.traits[v] = replace(r.traits[v], comm=None, free=True)
                return
            if launched:
                r.launch_of[v] = max(pending or launched)
                r.ends[v] = tuple(dict.fromkeys([*pending, r.launch_of[v]]))
            if outside:  # in flight from the start: who reads it, the graph does not show
                r.outside.add(v)
                r.peeked.update(outside)
            r.notes["wait_outside"] += not launched

    def _wait_inside(self, v: int) -> None:
        """A sub-graph waits for what it is given: for which of that, its arguments do not say."""
        pending = [u for s in self.reading.takes[v] for u in self.in_flight.get(s, ())]
        if pending:
            self.reading.ends[v] = tuple(dict.fromkeys(pending))
        else:
            self.reading.outside.add(v)

    def _has_finished(self, v: int) -> bool:
        """Tell whether a value is that of a wait, or a view of one: to wait for it again is to do nothing."""
        r = self.reading
        while (role := r.traits[v].role) is not Role.WAIT:
            before = [u for u in r.looked_at(v) if not set(r.outs[u]).isdisjoint(r.outs[v])]
            if role is not None or len(before) != 1:
                return False
            (v,) = before
        return True

    def _ordering_of_subgraphs(self, v: int, node: fx.Node) -> Ordering:
        """A subgraph that does more than compute, or is not at hand, makes the node that runs it a barrier."""
        ordering = Ordering.NONE
        for body in bodies_of(node):
            if body is None:
                self.reading.notes["unknown_op"] += 1
                ordering = Ordering.BARRIER
                continue
            if body not in self.bodies:
                self.bodies[body] = read_graph(body.graph)
            inner = self.bodies[body]
            self.reading.inner[v] = (*self.reading.inner.get(v, ()), inner)
            if inner.writes or any(traits.comm for traits in inner.traits):
                ordering = Ordering.BARRIER
            else:
                ordering = max([ordering, *inner.ordering.values()])
        return ordering


def _nodes_in(argument: Any) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _nodes_in(item)
    elif isinstance(argument, dict):
        yield from _nodes_in(list(argument.values()))
