# ruff: noqa: D102  # methods without a docstring have theirs in ``overlap_sched.transform.recipes.Maker``
"""The nodes of :mod:`overlap_sched.transform.recipes`, made on an FX graph; what a rewrite must leave alone there.

**Collectives**: functional ones of one tensor, which nothing but waits uses. To keep a gathered tensor, or to gather it
again, needs that it and the shard stay as they are. A second communicator must be there, on all ranks, before a graph
is rewritten: :func:`overlap_sched.distributed.second_communicators`.

**Copies** have their node's own value as metadata: the storages of a copied node are new, as
:meth:`overlap_sched.fx.reading.Storages.copy_for` reads them. On CUDA devices values go to the host by torch's own
operators for activation offloading, ``torch.ops.ao`` (2.13 and 2.15:
``torch/_functorch/_activation_offloading/offload_ops.py``), whose wait frees the device's storage. Elsewhere by plain
copies, which stand for them: nothing is freed sooner there.

**Parts**: how each node is cut is asked again of the rules here, and not believed of the rewrite: a fission that does
not fit the graph is refused.

**A graph that is being rewritten**: new nodes are there, old ones still stand beside them, all can be undone.

::

    make new nodes, tell users of them -> sort -> commit: the old nodes go, the order is set
                                       -> undo:   the new nodes go, users take what they took

New nodes are worth what their operators give on fake tensors. Sizes that depend on data are symbols. A call whose
result has one is run as it was when the graph was traced, so that what counts its own rows gets symbols of its own::

    whole     _local_scalar_dense(counts[0]) -> u0       all_to_all(rows, [u0, u1], ..) -> (u0 + u1, 8)
    part 0    _local_scalar_dense(..)        -> u7       all_to_all(rows, [u7, u8], ..) -> (u7 + u8, 8)

Of such a symbol is known what is known of that of the whole, as far as it is true of a part: that it is a size and not
negative; not how large it is at most, or at least. Its hint is that of the whole, divided by the number of parts.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import constrain_range
from torch.utils._pytree import key_get, tree_leaves, tree_map

from overlap_sched.errors import RewriteError, UnsupportedError
from overlap_sched.fx.calls import GROUPS_KEY, live_ranks, name_and_group
from overlap_sched.fx.dimensions.region import Region, follow_cuts
from overlap_sched.fx.graphs import own_meta
from overlap_sched.fx.operators import Arg, Role, traits_of
from overlap_sched.fx.rewrites import facts
from overlap_sched.fx.rewrites.facts import GraphFacts, check_exact
from overlap_sched.fx.sizes import Sizes
from overlap_sched.transform.apply import WHOLE
from overlap_sched.transform.dimension_graph import Uncut, is_cut_of
from overlap_sched.transform.recipes import (
    CAT,
    CLONE,
    GETITEM,
    OFFLOAD,
    VIEW,
    Maker,
    New,
    Reshape,
    Single,
    refuse_if,
    sort_by_place,
)
from overlap_sched.transform.rewrites import BUCKETED, Fission, Form, How, Leave, Slice, second_group

_C10D, _ATEN = torch.ops._c10d_functional, torch.ops.aten
_WAIT = _C10D.wait_tensor.default
LAUNCHES: dict[Any, str] = {getattr(_C10D, op).default: op for op in BUCKETED}
ALIGNMENT = 16
"""Bytes: kernels read vectors of up to so many, and libraries pick another kernel where a tensor starts elsewhere."""
KEPT_WHOLE = "should_fallback"
"""Metadata with which Inductor calls a node's operator instead of generating code (``GraphLowering.call_function``).

It would read a copy's source in whatever uses the copy. Then sums over it run in another order, since the source has
other strides, and round otherwise; and the source is live until the last of those uses.
"""
_GIVES: Mapping[How, Uncut] = {"sum": Uncut.PARTIAL, "same": Uncut.SAME}
_KEPT_META = ("stack_trace", "nn_module_stack", "seq_nr", "custom", "autograd_backward", "partitioner_tag")
"""What new nodes take over from the collective that they stand for, where it has it."""
BINDINGS = "unbacked_bindings"
"""Metadata with which torch's compilers find where a symbol is first seen."""

_CONCLUDED = "_unbacked_replacements"
"""Where a ``ShapeEnv`` remembers which sizes are equal, once it has been asked for a hint."""


class GraphMaker(Maker[fx.Node]):
    """A graph with rewrites that are not yet committed; columns are elements per rank.

    Attributes:
        graph: It.
        facts: About the nodes that it had.
        after: Per node, the earlier ones that it must come after without taking their values.
    """

    _region: Region

    def __init__(self, graph: fx.Graph) -> None:
        """Nothing is rewritten yet."""
        self.graph, self.facts, self.rewrites = graph, GraphFacts(graph), []
        self.at, self.named = dict(self.facts.at), {node.name: node for node in graph.nodes}
        self._made: list[fx.Node] = []
        self._gone: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}  # what stands for them where order matters
        self._originals: dict[fx.Node, tuple[fx.Node, ...]] = {}  # of new nodes, the old ones that they do the same as
        self.after = defaultdict[fx.Node, list[fx.Node]](list, {v: list(u) for v, u in self.facts.after.items()})
        self._took: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives."""
        return [user for user in node.users if user not in self._gone]

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives, or a view of it."""
        found, todo = dict.fromkeys(self.users(node)), self.users(node)
        while todo:
            user = todo.pop()
            more = [one for one in self.users(user) if one not in found] if shares_storage(user, node) else []
            found |= dict.fromkeys(more)
            todo += more
        return list(found)

    def originals(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The nodes that the graph had which do what this one does: what is known of them is true of it."""
        return self._originals.get(node, (node,))

    def why_not_again(self, node: fx.Node) -> str:
        """Why a node must not run a second time; ``""``: it may."""
        return next(filter(None, map(self.facts.impure, self.originals(node))), "")

    def written(self, node: fx.Node) -> bool:
        """Tell whether anything writes to what a node gives."""
        return any(map(self.facts.written, self.originals(node)))

    def next_writers(self, node: fx.Node) -> list[fx.Node]:
        """Who writes next to what a node reads, or to what that reads of which it is a copy or a part; per storage."""
        return list(dict.fromkeys(w for one in self.originals(node) for w in self.facts.next_writers(one)))

    def read_after_a_write(self, node: fx.Node, readers: Collection[fx.Node]) -> fx.Node | None:
        """The first of some nodes that may read what a node gave after something has written to that."""
        if node in self.facts.at:
            return self.facts.read_after_a_write(node, readers)
        # where a new node stands is not known yet
        return next((user for user in node.users if user in readers), None) if self.written(node) else None

    def call(
        self,
        new: New[fx.Node],
        target: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        value: Any = None,
    ) -> fx.Node:
        """A new node, and its value, ``None``: on fake tensors; it is where in the program its like comes from."""
        node = self._create(new, target, args, kwargs or {}, _KEPT_META)
        node.meta["val"] = value_of(target, node.args, node.kwargs) if value is None else value
        return node

    def depend(self, v: fx.Node, before: fx.Node) -> None:
        """Let a node come after another one, whose value it does not take."""
        self.after[v].append(before)

    def end_parts(self, copies: Mapping[fx.Node, Sequence[fx.Node]], stay: Collection[fx.Node]) -> None:
        """Nodes run once per part from now on: what came after another one without taking its value, still does.

        Within a part where both run in parts; else every copy comes after, or before, the one that stays whole.

        Args:
            copies: Per node that runs in parts, one node per part.
            stay: Those of them that also run whole.
        """
        runs = {node: (*parts, node) if node in stay else tuple(parts) for node, parts in copies.items()}
        before, self.after = self.after, defaultdict(list)
        for node, earlier in before.items():
            later = self._stands_for(node, 0)
            for u in (self._stands_for(u, 1) for u in earlier):
                if later in copies and u in copies:
                    for copy, first in zip(copies[later], copies[u], strict=True):
                        self.after[copy].append(first)
                    continue
                for one in runs.get(later, (later,)):
                    self.after[one] += runs.get(u, (u,))

    def _stands_for(self, node: fx.Node, side: int) -> fx.Node:
        while node in self._gone:
            node = self._gone[node][side]
        return node

    def _before(self) -> Callable[[fx.Node], Iterable[fx.Node]]:
        """Return, for every node that stays, what it takes, and what else it must come after."""
        later = defaultdict[fx.Node, set[fx.Node]](set)
        for node, earlier in self.after.items():
            stands = self._stands_for(node, 0)
            later[stands] |= {self._stands_for(u, 1) for u in earlier} - {stands}
        return lambda node: [*node.all_input_nodes, *later.get(node, ())]

    def _create(
        self, new: New[fx.Node], target: Any, args: Any, kwargs: Mapping[str, Any], kept: Iterable[str]
    ) -> fx.Node:
        self.check_new(new.name)
        node = self.graph.create_node("call_function", target, tuple(args), dict(kwargs), new.name)
        node.name = new.name  # also where an earlier node had it that is gone
        self.named[new.name], self.at[node] = node, new.at
        self._made.append(node)
        node.meta.update(own_meta({key: new.like.meta[key] for key in kept if key in new.like.meta}))
        return node

    def replace(self, old: fx.Node, new: fx.Node, users: Iterable[fx.Node] | None = None) -> None:
        """Users of a node (or only some of them) take another one instead."""
        for user in self.users(old) if users is None else users:
            self._remember(user)
            user.replace_input_with(old, new)

    def remove(self, node: fx.Node, first: fx.Node, last: fx.Node) -> None:
        """Take a node away that nobody uses any more; ``first`` (after others) and ``last`` (before) stand for it."""
        assert not self.users(node), f"{node} is used by {self.users(node)}"
        self._gone[node] = (first, last)
        del self.named[node.name]

    def order(self) -> list[fx.Node]:
        """All nodes that stay: each where its place is, what it needs is pulled ahead of it."""
        stay = (node for node in self.at if node not in self._gone)
        return sort_by_place(self.at, stay, self._before(), lambda _: (), lambda node: node.name, self.rewrites)

    def in_order(self, names: Sequence[str]) -> list[fx.Node]:
        """All nodes that stay, in an order of the rewritten problem; names with a dot stand for no node of a graph."""
        order = [self.named[name] for name in names if name in self.named]
        unknown = [name for name in names if name not in self.named and "." not in name]
        if unknown or len(order) != len(self.named) or len(set(order)) != len(order):
            missing = sorted(self.named.keys() - set(names))
            raise RewriteError(
                f"the order has {len(order)} of the {len(self.named)} nodes of the rewritten graph: it lacks "
                f"{missing[:3]} and has {unknown[:3]} that are not there."
            )
        done, before = set[fx.Node](), self._before()
        for node in order:
            for u in before(node):
                refuse_if(u not in done, f"the order has {node.name!r} before {u.name!r}, which it needs.")
            done.add(node)
        return order

    def gone(self) -> list[fx.Node]:
        """The nodes that go, each before what it takes; all of their users go, too."""
        return list(TopologicalSorter({node: list(node.users) for node in self._gone}).static_order())

    def undo(self) -> None:
        """The graph as it was."""
        for user, (args, kwargs) in self._took.items():
            user.args, user.kwargs = args, kwargs
        for node in reversed(self._made):
            self.graph.erase_node(node)

    def _remember(self, node: fx.Node) -> None:
        self._took.setdefault(node, (node.args, dict(node.kwargs)))

    def name(self, v: fx.Node) -> str:
        return v.name

    def taken(self, v: fx.Node) -> list[fx.Node]:
        return v.all_input_nodes

    def is_output(self, v: fx.Node) -> bool:
        return v.op == "output"

    def is_view(self, v: fx.Node, sources: Sequence[fx.Node]) -> bool:
        return not self.why_not_again(v) and any(shares_storage(v, source) for source in sources)

    def cast(self, v: fx.Node) -> object | None:
        if v.op != "call_function" or len(v.all_input_nodes) != 1 or traits_of(v.target).op not in WHOLE:
            return None
        return v.target, v.args[1:], v.kwargs, self.next_writers(v)

    def single(self, name: str) -> Single[fx.Node]:
        node = self.find(name)
        op = LAUNCHES.get(node.target)
        args = arguments(node) if op is not None else ()
        if op is None or len(args) != len(node.target._schema.arguments):
            what = str(node.target) if node.op == "call_function" else node.op
            raise RewriteError(f"{name!r} is {what!r}: what can be rewritten is {', '.join(BUCKETED)}.")
        users = sorted(self.users(node), key=self.at.__getitem__)
        self.check_waited(name, [user for user in users if user.target is not _WAIT])
        refuse_if(not users, f"{name!r} has 0 waits: it needs one.")
        source, wait = args[0], users[0]
        group, _ = name_and_group(node)
        taken, given = _plain(f"the input of {name!r}", source), _plain(f"the result of {name!r}", wait)
        written = self.facts.written(wait)
        refuse_if(written, f"something writes to the result of {name!r}: it must stay a tensor of its own.")
        self._check_order(group)
        ranks = self.facts.ranks(group) if op == "all_reduce" else int(args[2 if "scatter" in op else 1])
        where = "" if taken.device.type in ("cpu", "cuda") else f" on {taken.device.type}"
        shared = {
            "operator": op,
            "process group": group,
            "type and reduction": f"{str(taken.dtype).removeprefix('torch.')} {_reduction(node)}".rstrip() + where,
            "device": str(taken.device),
            "number of ranks": ranks,
        }
        columns = (given if "scatter" in op else taken).numel()
        return Single(node, op, group, ranks, (source,), tuple(users), columns, tuple(given.shape), shared)

    def _check_order(self, group: str) -> None:
        refuse_if(self.facts.sends(group), f"process group {group!r} also sends or receives: its order must stay.")

    def check_member(self, one: Single[fx.Node], form: Form) -> None:
        name, taken, given = one.launch.name, one.sources[0].meta["val"], one.waits[0]
        check_exact(name, one.op, _reduction(one.launch), taken.dtype, one.ranks)
        if "gather" in one.op:
            # four ranks abort within some hundred rounds in torch 2.13 and 2.15, as with plain ones: inductor.gloo
            damages = form == "coalesced" and taken.device.type == "cpu" and facts.over_gloo(arguments(one.launch)[-1])
            why = f"{name!r} would be a coalesced all_gather over gloo, where several in flight damage memory"
            refuse_if(damages, f"{why}. Use form='copied'.")
        elif form == "copied":  # results become parts of one storage
            whose, nbytes = f"the result of {name!r}", given.meta["val"].nbytes
            seen = self.facts.by_address(given)
            refuse_if(seen, f"{whose} is looked at by its address: it must stay a tensor of its own.")
            why = f"no multiple of {ALIGNMENT}: packed, kernels do not expect the next one there"
            refuse_if(nbytes % ALIGNMENT, f"{whose} has {nbytes} bytes, {why}.")

    def check_gather(self, one: Single[fx.Node]) -> None:
        why = f"something writes to the input of {one.launch.name!r}: a later gather of it may give something else."
        refuse_if(self.written(one.sources[0]), why)

    def check_kept(self, first: Single[fx.Node], later: Single[fx.Node]) -> None:
        one, other = first.launch.name, later.launch.name
        swapped = self.at[first.launch] > self.at[later.launch]
        refuse_if(swapped, f"{other!r} is gathered before {one!r}: name them in order.")
        both = self.facts.returned(first.waits[0]) and self.facts.returned(later.waits[0])
        refuse_if(both, f"the graph returns the results of {one!r} and {other!r}: one tensor must not stand for both.")
        for wait in later.waits:
            self.check_same(wait, first.waits[0])

    def check_same(self, old: fx.Node, new: fx.Node) -> None:
        """Shape, type, device, and strides where there is more than one step."""
        was, now = layout(old.meta["val"]), layout(new.meta["val"])
        refuse_if(was != now, f"{old.name!r} would be {now} and was {was}.")

    def group(self, v: fx.Node) -> str | None:
        argument = _group_argument(v)
        group = None if argument is None else argument.of(v.args, v.kwargs)
        if not isinstance(group, str):
            return None
        self._check_order(group)
        second, ranks = second_group(group), live_ranks(group)
        known = group.endswith(second_group("")) or group in self._carried() or ranks is None
        refuse_if(
            not known and live_ranks(second) != ranks,
            f"there is no second communicator {second!r}. Make it on all ranks before compiling: "
            "overlap_sched.distributed.second_communicators().",
        )
        return group

    def set_group(self, v: fx.Node, group: str) -> None:
        argument, carried = _group_argument(v), self._carried()
        assert argument is not None
        old = argument.of(v.args, v.kwargs)
        if old in carried:
            carried[group] = carried[old]
        self._remember(v)
        position, name = argument
        if 0 <= position < len(v.args):
            v.update_arg(position, group)
        else:
            v.update_kwarg(name, group)

    def _carried(self) -> dict[str, Any]:
        """The groups that the graph of a dump carries along."""
        return getattr(self.graph.owning_module, "meta", {}).get(GROUPS_KEY) or {}

    def view_input(self, new: New[fx.Node], one: Single[fx.Node], reshape: Reshape) -> fx.Node:
        return self.look(new, VIEW, one.sources[0], reshape)

    def look(self, new: New[fx.Node], op: str, of: fx.Node, *args: Any, nbytes: int | None = None) -> fx.Node:
        if op == VIEW:
            args = (list(args[0](tuple(of.meta["val"].shape))),)
        return self.call(new, _target(op), (of, *args))

    def compute(
        self, new: New[fx.Node], op: str, of: Sequence[fx.Node], *args: Any, result: bool, packed: bool = False
    ) -> fx.Node:
        """Call it; what is not packed is dense, its dimensions in memory as those of the whole."""
        kwargs = {"memory_format": torch.contiguous_format} if packed and op == CLONE else {}
        made = self.call(new, _target(op), (list(of), *args) if op == CAT else (*of, *args), kwargs)
        if packed:
            made.meta[KEPT_WHOLE] = True
        return made

    def launch(self, new: New[fx.Node], members: Sequence[Single[fx.Node]], packed: fx.Node | None = None) -> fx.Node:
        one = members[0]
        target = getattr(_C10D, f"{one.op}_coalesced").default if packed is None else one.launch.target
        taken = [of.sources[0] for of in members] if packed is None else packed
        return self.call(new, target, (taken, *arguments(one.launch)[1:]))

    def relaunch(self, new: New[fx.Node], one: Single[fx.Node]) -> fx.Node:
        return self.launch(new, [one], one.sources[0])

    def wait(self, new: New[fx.Node], of: fx.Node) -> fx.Node:
        return self.call(new, _WAIT, (of,))

    def find_offloaded(self, name: str) -> fx.Node:
        node = self.find(name)
        waits = [user for user in self.users(node) if user.target is _WAIT]
        refuse_if(len(waits) > 1, f"{name!r} has {len(waits)} waits: what has one can be offloaded.")
        source = waits[0] if waits else node
        view = not waits and any(shares_storage(source, taken) for taken in source.all_input_nodes)
        refuse_if(view, f"{name!r} is no node that makes a storage of its own: what makes one can be offloaded.")
        value = _known_value(repr(name), source)
        refuse_if(
            value.untyped_storage().nbytes() != value.nbytes,
            f"{name!r} is a part of its storage: what is whole can be offloaded.",
        )
        refuse_if(self.facts.written(source), f"something writes to {name!r}: its copy would not know.")
        return source

    def transfer(self, new: New[fx.Node], op: str, of: fx.Node) -> fx.Node:
        """``torch.ops.ao`` on CUDA devices, a plain copy elsewhere."""
        value = new.like.meta["val"]
        device, sizes = value.device, (list(value.shape), list(value.stride()))
        with value.fake_mode:
            if op == OFFLOAD:
                given = torch.empty(value.shape, dtype=value.dtype, device="cpu")
            else:
                given = torch.empty_strided(*sizes, dtype=value.dtype, device=device)
        end = New(f"{new.name}_wait", new.at, new.like)
        if device.type != "cuda":
            launch = self.call(new, _ATEN._to_copy.default, (of,), {"device": given.device}, given)
            return self.call(end, _ATEN.alias.default, (launch,), value=given)
        args = (of,) if op == OFFLOAD else (of, device, *sizes)
        launch = self.call(new, getattr(_offload_operators(), op).default, args, value=given)
        return self.call(end, torch.ops.ao.wait_tensor.default, (launch, of), value=given)

    def repeat(self, new: New[fx.Node], made: Mapping[fx.Node, fx.Node]) -> fx.Node:
        args, kwargs = fx.node.map_arg((new.like.args, new.like.kwargs), lambda one: made.get(one, one))
        copy = self._create(new, new.like.target, args, kwargs, new.like.meta)
        self._originals[copy] = self.originals(new.like)
        self.after[copy] += self.after.get(new.like, ())
        for writer in self.next_writers(new.like):
            self.check_writer(new, writer)
            self.depend(writer, copy)
        return copy

    def move(self, users: Sequence[fx.Node], new: Mapping[fx.Node, fx.Node]) -> None:
        for old, made in new.items():
            self.replace(old, made, [user for user in users if old in user.all_input_nodes])

    def stand_in(self, one: Single[fx.Node], first: fx.Node, out: fx.Node) -> None:
        for wait in one.waits:
            self.check_same(wait, out)
            self.replace(wait, out)
            self.remove(wait, first, out)
        self.remove(one.launch, first, out)

    def begin_parts(
        self,
        fission: Fission,
        nodes: Sequence[fx.Node],
        slices: Mapping[fx.Node, Slice],
        stay: Collection[fx.Node],
    ) -> None:
        """Every part writes to what is its own, and what enters is read as it was at any time."""
        inside, parts = set(nodes), fission.parts
        for node in (*nodes, *slices):
            sharers = (u for known in self.originals(node) for u in self.facts.sharers(known))
            outside = next((u for u in sharers if u not in inside), None) if node in inside else None
            reader = self.read_after_a_write(node, inside) if node in slices and not slices[node].free else None
            why = "is looked at by its address" if self.facts.by_address(node) else ""
            if reader is not None:  # a view is read when a part's reader runs; a copy, when it is made
                why = f"is written to before {reader.name!r} reads it"
            elif outside is not None:
                why = f"is written to, and {outside.name!r}, which does not run in parts, shares its memory"
            refuse_if(why, f"{node.name!r} {why}: it stays whole.")
        for node, one in slices.items():
            sizes = tuple(node.meta["val"].shape)
            why = f"{one.value!r} of shape {sizes} cannot be cut as {one.cut} into {parts} parts."
            refuse_if(not is_cut_of(one.cut, sizes, parts), why)
        self._parts, self._region = parts, follow_cuts(nodes, {v: one.cut for v, one in slices.items()}, parts)
        for node in nodes:
            why = self._region.ends.get(node, "none of its inputs is cut")
            if node in self._region.gives:
                more = [u for u in node.all_input_nodes if u in self._region.slices and u not in slices]
                if not more:
                    continue
                why = f"{more[0].name!r} would have to be cut, too"
            raise RewriteError(f"{node.name!r} cannot run in {parts} parts: {why}.")

    def waits_for(self, v: fx.Node) -> fx.Node | None:
        return v.all_input_nodes[0] if v.target is _WAIT else None

    def make_part(self, new: New[fx.Node], p: int, of_part: Callable[[fx.Node], fx.Node]) -> fx.Node:
        v = new.like
        args, kwargs = fx.node.map_arg((v.args, v.kwargs), of_part)
        changes = self._region.calls[v].changes if v in self._region.calls else {}
        if changes:
            names = [one.name for one in v.target._schema.arguments]
            args = tuple(changes.get(name, one) for name, one in zip(names, args, strict=False))
            kwargs = {**kwargs, **{name: one for name, one in changes.items() if name not in names[: len(args)]}}
        part = self._create(new, v.target, args, kwargs, _KEPT_META)
        self._originals[part] = self.originals(v)
        try:
            part.meta.update(meta_in_part(part.target, part.args, part.kwargs, v, self._parts))
        except RuntimeError as error:  # a view of what lies otherwise in memory for a part; no symbol for a size
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
            raise RewriteError(f"{v.name!r} cannot run in {self._parts} parts: {why}.") from None
        return part

    def check_leave(self, v: fx.Node, leave: Leave, parts: Sequence[fx.Node]) -> None:
        given = self._region.gives[v]
        if given != _GIVES.get(leave.how, leave.cut):
            said = repr(leave.how) if leave.how in _GIVES else f"{leave.how!r} of {leave.cut}"
            raise RewriteError(f"{v.name!r} comes out of its parts as {given}: it does not leave as {said}.")

    def hand_out(self, v: fx.Node, out: fx.Node | None, users: Sequence[fx.Node], copies: Sequence[fx.Node]) -> None:
        if out is None:
            raise RewriteError(f"{users[0].name!r} uses {v.name!r}, which runs in parts and does not leave.")
        self.replace(v, out, users)


def shares_storage(one: fx.Node, other: fx.Node) -> bool:
    """Tell whether two values are tensors on one storage, and the first is computed."""
    values = [node.meta.get("val") for node in (one, other)]
    if one.op != "call_function" or not all(isinstance(value, FakeTensor) for value in values):
        return False
    here, there = (value.untyped_storage()._cdata for value in values)
    return bool(here == there)


def value_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute what a call gives, straight from the meta kernels: a tenth of what a ``FakeTensorMode`` takes.

    Args:
        target: What it calls.
        args: With nodes.
        kwargs: With nodes.
    """
    values, named = _values(args), _values(kwargs)
    if target is operator.getitem:
        return target(*values)
    like = next(leaf for leaf in tree_leaves((values, named)) if isinstance(leaf, FakeTensor))
    mode, device = like.fake_mode, like.fake_device
    if named.get("device") is not None:  # what makes tensors would make real ones
        device, named = torch.device(named["device"]), {**named, "device": "meta"}
    with in_kernel_invocation_manager(mode), torch.no_grad():
        result = target(*values, **named)
    return tree_map(lambda one: FakeTensor(mode, one, device) if type(one) is torch.Tensor else one, result)


def meta_in_part(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], whole: fx.Node, parts: int
) -> dict[str, Any]:
    """The value of a call in one of several parts, as metadata; with where new symbols are, where the whole says that.

    Args:
        target: What it calls.
        args: With nodes.
        kwargs: With nodes.
        whole: The call that it is a part of.
        parts: How many there are.

    Raises:
        RuntimeError: The operator does not work on these values.
    """
    values, named, of = _values(args), _values(kwargs), whole.meta["val"]
    taken, given = tree_leaves((values, named)), tree_leaves(of)
    fakes = [leaf for leaf in taken if isinstance(leaf, FakeTensor)]
    symbolic = any(isinstance(size, torch.SymInt) for size in _sizes((taken, given)))
    if target is operator.getitem or (fakes and not symbolic):
        return {"val": value_of(target, args, kwargs)}
    mode = next(leaf for leaf in (*fakes, *given) if isinstance(leaf, FakeTensor)).fake_mode
    env = mode.shape_env
    pending = [] if env is None else env.pending_fresh_unbacked_symbols
    before = len(pending)
    with mode, torch.no_grad():
        value = target(*values, **named)
    if getattr(env, _CONCLUDED, None) is not None:  # the call may have shown that some sizes are equal
        setattr(env, _CONCLUDED, None)
    fresh = set(pending[before:])
    del pending[before:]  # torch would look for them in the next value that it makes
    for new, old in zip(_sizes(value), _sizes(of), strict=True):
        if isinstance(new, torch.SymInt) and isinstance(old, torch.SymInt) and new.node.expr in fresh:
            _liken(new, old, parts)
    bindings = whole.meta.get(BINDINGS)
    if not bindings:
        return {"val": value}
    return {"val": value, BINDINGS: {key_get(value, path).node.expr: path for path in bindings.values()}}


def _values(arguments: Any) -> Any:
    return fx.node.map_arg(arguments, lambda node: node.meta.get("val", ""))  # kernels look at no process group


def _sizes(value: Any) -> list[Any]:
    """All sizes in a value, in order: numbers, and shapes of tensors."""
    return [size for leaf in tree_leaves(value) for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]


def _liken(new: torch.SymInt, old: torch.SymInt, parts: int) -> None:
    """Tell of a symbol what is known of the whole's."""
    env, symbol, of = new.node.shape_env, new.node.expr, old.node._expr  # as it was made, not what it is known to be
    if of in env.size_like:
        env.size_like.add(symbol)
    known = env.var_to_range.get(of)
    if known is not None and known.lower >= 0:
        constrain_range(new, min=0)
    hints = getattr(env, "var_to_hint_override", None)  # torch 2.11 has none
    sizes = Sizes((), env)
    if hints is not None and not sizes.follows(of):
        hints[symbol] = -(-sizes.largest(of) // parts)


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a call in the order of its schema, however they are given; those left out are not there."""
    behind = [argument.name for argument in node.target._schema.arguments[len(node.args) :]]
    return (*node.args, *(node.kwargs[name] for name in behind if name in node.kwargs))


def _reduction(node: fx.Node) -> str:
    """``"sum"``; ``""`` of a gather."""
    return "" if "gather" in LAUNCHES[node.target] else str(arguments(node)[1])


def _plain(what: str, node: fx.Node) -> FakeTensor:
    value = _known_value(what, node)
    refuse_if(not value.is_contiguous(), f"{what} is not contiguous, its strides are {tuple(value.stride())}.")
    refuse_if(not value.numel(), f"{what} is empty.")
    return value


def _known_value(what: str, node: fx.Node) -> FakeTensor:
    """The value of a node, where it is one tensor of known sizes; ``what`` it is called in messages."""
    value = node.meta.get("val")
    refuse_if(type(value) is not FakeTensor, f"{what} is no fake tensor: its shape is not known.")
    refuse_if(not all(type(size) is int for size in value.shape), f"{what} has a symbolic shape, {tuple(value.shape)}.")
    return value


def layout(value: torch.Tensor) -> tuple[Any, ...]:
    """Return the layout of a tensor, but for the strides of dimensions of size 1, which mean nothing."""
    strides = tuple(stride if size > 1 else 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    return tuple(value.shape), strides, value.dtype, value.device


def _group_argument(node: fx.Node) -> Arg | None:
    """Where a functional collective takes its group; ``None``: it is none."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    comm = traits_of(node.target).comm
    if comm is None or comm.role is not Role.LAUNCH or comm.point_to_point:
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    return Arg((names.index("group_name"), "group_name")) if "group_name" in names else None


def _target(op: str) -> Any:
    """``"aten.cat.default"`` -> ``torch.ops.aten.cat.default``."""
    if op == GETITEM:
        return operator.getitem
    _, name, overload = op.split(".")
    return getattr(getattr(_ATEN, name), overload)


def _offload_operators() -> Any:
    try:
        import torch._functorch._activation_offloading.offload_ops  # registers them
    except ImportError:
        raise UnsupportedError(
            f"torch {torch.__version__} has no operators for offloading (torch.ops.ao). Use 2.13 or newer."
        ) from None
    return torch.ops.ao
