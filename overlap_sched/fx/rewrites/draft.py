"""An FX graph that is being rewritten: new nodes are there, old ones still stand beside them, all can be undone.

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
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import constrain_range
from torch.utils._pytree import key_get, tree_leaves, tree_map

from overlap_sched.errors import RewriteError
from overlap_sched.fx.graphs import own_meta
from overlap_sched.fx.operators import Arg
from overlap_sched.fx.rewrites.facts import GraphFacts
from overlap_sched.fx.sizes import Sizes
from overlap_sched.transform.recipes import New, Nodes, sort_by_place

_KEPT_META = ("stack_trace", "nn_module_stack", "seq_nr", "custom", "autograd_backward", "partitioner_tag")
"""What new nodes take over from the collective that they stand for, where it has it."""
BINDINGS = "unbacked_bindings"
"""Metadata with which torch's compilers find where a symbol is first seen."""

_CONCLUDED = "_unbacked_replacements"
"""Where a ``ShapeEnv`` remembers which sizes are equal, once it has been asked for a hint."""


class GraphDraft(Nodes[fx.Node]):
    """A graph with rewrites that are not yet committed.

    Attributes:
        graph: It.
        facts: About the nodes that it had.
        after: Per node, the earlier ones that it must come after without taking their values.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Nothing is rewritten yet."""
        self.graph, self.facts = graph, GraphFacts(graph)
        super().__init__(dict(self.facts.at), {node.name: node for node in graph.nodes})
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

    def call_in_part(self, new: New[fx.Node], args: Any, kwargs: Mapping[str, Any], parts: int) -> fx.Node:
        """A node's call in one of so many parts; what is known of the node is true of it.

        Raises:
            RuntimeError: The operator does not work on what a part gives it.
        """
        node = self._create(new, new.like.target, args, kwargs, _KEPT_META)
        node.meta.update(meta_in_part(node.target, node.args, node.kwargs, new.like, parts))
        self._originals[node] = self.originals(new.like)
        return node

    def call_again(self, new: New[fx.Node], args: Any, kwargs: Mapping[str, Any]) -> fx.Node:
        """A second call of a node's function, with its metadata; what it must come after, the copy must, too."""
        made = self._create(new, new.like.target, args, kwargs, new.like.meta)
        self._originals[made] = self.originals(new.like)
        self.after[made] += self.after.get(new.like, ())
        return made

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

    def set_argument(self, node: fx.Node, argument: Arg, value: Any) -> None:
        """A node gets another argument, given as it was."""
        self._remember(node)
        position, name = argument
        if 0 <= position < len(node.args):
            node.update_arg(position, value)
        else:
            node.update_kwarg(name, value)

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
            late = [u for u in before(node) if u not in done]
            if late:
                raise RewriteError(f"the order has {node.name!r} before {late[0].name!r}, which it needs.")
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
    if target is operator.getitem or (fakes and not any(map(_is_symbolic, (*taken, *given)))):
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


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(type(size) is int for size in value.shape)
    return isinstance(value, torch.SymInt)


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
