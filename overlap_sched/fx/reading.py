"""Read a graph once: what every node takes, gives, writes, launches and waits for. Later steps look only here."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from overlap_sched.fx.calls import (
    Communication,
    EffectiveCall,
    attribute_of,
    bodies_of,
    communicating,
    order_only,
    unwrapped,
)
from overlap_sched.fx.catalogue import FREES, SHAPES, WRITES
from overlap_sched.fx.operators import NO_CALL, UNKNOWN_CALL, OperatorTraits, Ordering, Role, traits_of
from overlap_sched.fx.sizes import Sizes
from overlap_sched.report.words.graph import AssumedSize

_NUMBERS = (type(None), int, float, bool, str, torch.SymInt, torch.SymFloat, torch.SymBool)


class Storages:
    """Storages by number, in the order in which the graph's values show them.

    A *raw* storage is one that ``meta["val"]`` shows. Its *root* is the storage that it is in reality: that of a wait
    is its collective's, that of an ``out=`` result is the buffer's (their fake kernels allocate anew). Where a pass has
    copied a node together with its ``val`` (recomputation, a reload after an offload), one shown storage stands for
    several raw ones, see :meth:`copy_for`.

    Args:
        notes: Counts; added to.
        nodes: Of the graph: what it asserts of sizes.

    Attributes:
        nbytes, device, root: Per raw storage: size (the largest that the graph admits), device type, root (itself, but
            for the cases above).
        fake: Per raw storage, whether a ``FakeTensor`` showed it: torch's ``MemoryTracker`` sees no other.
        bare: Raw storages of tensors that have none of their own (sparse tensors and the like).
        notes: Counts ``size_without_hint`` and ``no_storage`` (how many are ``bare``).
    """

    def __init__(self, notes: Counter[str], nodes: Sequence[fx.Node]) -> None:
        self._nodes = nodes
        self._sizes: Sizes | None = None
        self.nbytes: list[int] = []
        self.device: list[str] = []
        self.root: list[int] = []
        self.fake: list[bool] = []
        self.bare: set[int] = set()
        self.notes = notes
        self._raw_of: dict[int, int] = {}
        self._key: list[int] = []
        self._copies: dict[int, list[int]] = {}

    def of_value(self, val: Any) -> tuple[tuple[int, ...], int]:
        """Raw storages of a value, without repeats, and the bytes that reading its tensors takes."""
        kind = type(val)
        if kind is FakeTensor:
            return (self._of_tensor(val),), self.hint(val.numel()) * val.dtype.itemsize
        if kind in _NUMBERS:
            return (), 0
        tensors = [one for leaf in tree_leaves(val) if isinstance(leaf, torch.Tensor) for one in _unwrapped(leaf)]
        found = dict.fromkeys(self._of_tensor(tensor) for tensor in tensors)
        return tuple(found), sum(self.hint(tensor.numel()) * tensor.dtype.itemsize for tensor in tensors)

    def _of_tensor(self, tensor: torch.Tensor) -> int:
        try:
            storage = tensor.untyped_storage()
            key = storage._cdata
        except (NotImplementedError, RuntimeError):  # sparse, functorch wrappers: known by the tensor itself
            storage, key = None, -id(tensor)
        if key not in self._raw_of:
            self._raw_of[key] = len(self.root)
            nbytes = 0 if storage is None else self.largest(storage.nbytes())
            self._append(key, nbytes, tensor.device.type, isinstance(tensor, FakeTensor))
            if storage is None:
                self.bare.add(self._raw_of[key])
                self.notes["no_storage"] += 1
        return self._raw_of[key]

    def _append(self, key: int, nbytes: int, device: str, fake: bool) -> None:
        self._key.append(key)
        self.root.append(len(self.root))
        self.device.append(device)
        self.fake.append(fake)
        self.nbytes.append(nbytes)

    def unknown(self) -> int:
        """A storage of its own that no value shows: its size is not known, and counts as 0 bytes."""
        self._append(-1, 0, "cpu", False)
        return len(self.root) - 1

    def copy_for(self, raw: int, takes: tuple[int, ...]) -> int:
        """Which raw storage a shown one is, in the value of a node whose arguments have the roots ``takes``.

        What an operator returns is new, or one of its arguments. A storage that was shown before and that no argument
        has is therefore new: the node was copied with its ``val``. From then on values that show it mean the copy, in
        a node that takes that, and the original in a node that takes the original.
        """
        root = self.root
        if root[raw] in takes:
            return raw
        key = self._key[raw]
        copies = self._copies.setdefault(key, [raw])
        meant = [copy for copy in copies if root[copy] in takes]
        if not meant:
            meant = [len(root)]
            copies += meant
            self._append(key, self.nbytes[raw], self.device[raw], self.fake[raw])
        self._raw_of[key] = copy = min(meant, key=lambda s: takes.index(root[s]) if root[s] in takes else 0)
        return copy

    def hint(self, size: int | torch.SymInt) -> int:
        """A size as a plain number, for times: see :mod:`overlap_sched.fx.sizes`."""
        return size if type(size) is int else self._number(size, Sizes.hint)

    def largest(self, size: int | torch.SymInt) -> int:
        """A size as a plain number, for memory."""
        return size if type(size) is int else self._number(size, Sizes.largest)

    def sizes(self, env: Any) -> Sizes:
        """Numbers for symbols of torch's ``ShapeEnv``."""
        if self._sizes is None:
            self._sizes = Sizes(self._nodes, env)
        return self._sizes

    @property
    def assumed(self) -> tuple[AssumedSize, ...]:
        """The data-dependent sizes on which ``nbytes`` rest."""
        return () if self._sizes is None else self._sizes.assumed

    def _number(self, size: int | torch.SymInt, number: Callable[[Sizes, Any], int]) -> int:
        if not isinstance(size, torch.SymInt) or size.node.has_hint():
            return max(0, int(size.node.hint if isinstance(size, torch.SymInt) else size))
        self.notes["size_without_hint"] += 1
        return number(self.sizes(size.node.shape_env), size)


def _unwrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors in a tensor subclass (DTensor and the like), nested ones too."""
    if type(tensor) is FakeTensor or not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [plain for name in names for plain in _unwrapped(getattr(tensor, name))]


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
    communicates: dict[int, Communication] = field(default_factory=dict)
    transfers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    syncs: set[int] = field(default_factory=set)
    peeked: set[int] = field(default_factory=set)

    @property
    def undeclared(self) -> dict[str, bool]:
        """Operators of other libraries of which nothing was said, and whether they are taken for communication."""
        return dict(sorted({one for communication in self.communicates.values() for one in communication.undeclared}))

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
        call = EffectiveCall(node.target, node.args, node.kwargs)
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
            self._special(v, node, traits, call)
        if traits.writes_aliased and len(r.raw_fresh[v]) != len(r.raw_outs[v]):
            self._undeclared_alias(v, node, traits, call)
        if self.launched and not self.launched.keys().isdisjoint(takes):
            self._look(v, kind)
        if isinstance(node.target, OpOverload) and node.target.namespace == "dc":
            self._frees(v, node)

    def _undeclared_alias(self, v: int, node: fx.Node, traits: OperatorTraits, call: EffectiveCall) -> None:
        """Take a node that returns an argument of which its schema does not say so for one that writes it."""
        r = self.reading
        if traits.aliases and not traits.nested and len(r.takes[v]) == 1:
            return  # a view, as most
        raw = r.storages.of_value(call.given(node.meta.get("val")))[0] if traits.nested else r.raw_outs[v]
        aliased = [n for arg in traits.aliases for n in _nodes_in(arg.of(call.args, call.kwargs))]
        known = {*r.writes.get(v, ()), *(s for n in aliased for s in r.outs[self.index[n]])}
        roots = dict.fromkeys(r.storages.root[s] for s in raw if s not in r.raw_fresh[v])
        if unseen := tuple(s for s in roots if s not in known):
            r.writes[v] = (*r.writes.get(v, ()), *unseen)
            r.unseen.add(v)
            r.notes["undeclared_alias"] += 1

    def _frees(self, v: int, node: fx.Node) -> None:
        """Have what frees a storage by the numbers that it was made with use that storage: it is live until then."""
        r, name, numbers = self.reading, node.target._schema.name, tuple(node.args[1:3])
        if name in FREES.values():
            self.made[name, numbers] = r.outs[v]
        elif name in FREES:
            r.takes[v] = tuple(dict.fromkeys([*r.takes[v], *self.made.get((FREES[name], numbers), ())]))

    def _look(self, v: int, kind: str) -> None:
        """Note which outputs of collectives a node takes by a value that no wait has given.

        A wait completes its tensor in place, so an older name of it (the launch, a view made before, the buffer that
        was handed in) is read before or behind the wait, and means something else there.
        """
        r = self.reading
        known = {s: wait for u in r.looked_at(v) for s, wait in self.waited.get(u, {}).items()}
        if r.traits[v].role is Role.WAIT:
            self.waited[v] = dict.fromkeys(r.takes[v], v)
            return
        if kept := {s: wait for s, wait in known.items() if s in r.outs[v]}:
            self.waited[v] = kept
        target = r.nodes[v].target
        shape_only = isinstance(target, OpOverload) and target._schema.name in SHAPES
        if kind != "output" and not shape_only and not r.traits[v].selects:
            r.peeked.update(s for s in r.takes[v] if known.get(s, -1) < self.launched.get(s, -1))

    def _value(self, node: fx.Node, traits: OperatorTraits, takes: tuple[int, ...], call: EffectiveCall) -> None:
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
            self._join_with_arguments(traits, call, call.given(val), fresh)
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
        self, traits: OperatorTraits, call: EffectiveCall, val: Any, fresh: tuple[int, ...]
    ) -> None:
        """Give what returns its argument, or a view of it, the storage of that argument, whatever ``val`` says.

        Fake kernels of collectives allocate anew; passes that replace the argument of a view leave the view's value.
        """
        storages, args, kwargs = self.reading.storages, call.args, call.kwargs
        if traits.role is Role.WAIT:
            pairs = [(val, args[0] if args else next(iter(kwargs.values()), None))]
        else:  # a tensor has perhaps no known number of rows
            one_each = val if isinstance(val, list | tuple) and len(traits.returns) != 1 else [val]
            pairs = [(one, a.of(args, kwargs)) for one, a in zip(one_each, traits.returns, strict=False) if a]
        for value, argument in pairs:
            values = value if isinstance(value, list | tuple) else [value]
            arguments = argument if isinstance(argument, list | tuple) else [argument] * len(values)
            for one, source in zip(values, arguments, strict=False):
                raw, _ = storages.of_value(one)
                of = self.reading.outs[self.index[source]] if isinstance(source, fx.Node) else ()
                if len(raw) == len(of) == 1 and raw[0] in fresh:
                    storages.root[raw[0]] = of[0]

    def _special(self, v: int, node: fx.Node, traits: OperatorTraits, call: EffectiveCall) -> None:
        r, args, kwargs = self.reading, call.args, call.kwargs
        ordering = traits.ordering
        if ordering is Ordering.RANDOM and traits.dropout is not None and traits.dropout.of(args, kwargs, 0.0) == 0.0:
            ordering = Ordering.NONE
        if traits.nested and not call.in_body:
            ordering = max(ordering, self._ordering_of_subgraphs(v, node))
            if any(inner.outside for inner in r.inner.get(v, ())):  # for which of what it is given, nothing says
                pending = [u for s in r.takes[v] for u in self.in_flight.get(s, ())]
                r.ends |= {v: tuple(dict.fromkeys(pending))} if pending else {}
                r.outside |= set() if pending else {v}
        if ordering is not Ordering.NONE:
            r.ordering[v] = ordering
        if not traits.known:
            r.notes["unknown_op"] += 1
        written = [n for arg in traits.writes for n in _nodes_in(arg.of(args, kwargs))]
        if traits.writes_all or ordering >= Ordering.BARRIER:
            written = [r.nodes[u] for u in r.looked_at(v)]
        if roots := tuple(dict.fromkeys(s for n in written for s in r.outs[self.index[n]])):
            r.writes[v] = roots
            if isinstance(call.target, OpOverload) and call.target._schema.name in WRITES:
                r.unseen.add(v)
            if traits.overwrites:
                r.overwritten_bytes[v] = sum(r.value_bytes[self.index[n]] for n in written)
        if traits.non_blocking is not None:
            ends = tuple(dict.fromkeys((*r.takes[v], *r.outs[v])))
            to_host_or_from = len({r.storages.device[s] == "cpu" for s in ends}) == 2
            returns_early = traits.non_blocking.of(args, kwargs, False)
            r.transfers |= {v: ends} if to_host_or_from and returns_early else {}
            r.syncs |= {v} if to_host_or_from and not returns_early else set()
        if traits.syncs:
            r.syncs.add(v)
        if traits.comm is not None:
            r.notes["unknown_communication"] += not traits.comm.known
            self._communication(v, traits.comm.role)

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
            barrier = [Ordering.BARRIER] if inner.writes or any(traits.comm for traits in inner.traits) else []
            ordering = max([ordering, *barrier, *inner.ordering.values()])
        return ordering


def _nodes_in(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(argument, found.append)
    return found
