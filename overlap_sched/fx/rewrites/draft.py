"""An FX graph that is being rewritten: new nodes are there, old ones still stand beside them, all can be undone.

::

    make new nodes, tell users of them -> sort -> commit: the old nodes go, the order is set
                                       -> undo:   the new nodes go, users take what they took
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.graphs import own_meta
from overlap_sched.fx.operators import Arg
from overlap_sched.fx.rewrites.hazards import Hazards, as_named, in_places, users_first
from overlap_sched.fx.rewrites.known import Known, shares_storage
from overlap_sched.fx.rewrites.values import meta_in_part, value_of

_KEPT_META = ("stack_trace", "nn_module_stack", "seq_nr", "custom", "autograd_backward", "partitioner_tag")
"""What new nodes take over from the collective that they stand for, where it has it."""
KEPT_WHOLE = "should_fallback"
"""Metadata with which Inductor calls a node's operator instead of generating code (``GraphLowering.call_function``).

It would read a copy's source in whatever uses the copy. Then sums over it run in another order, since the source has
other strides, and round otherwise; and the source lives until the last of those uses.
"""


def kept_whole(copy: fx.Node) -> fx.Node:
    """The node, which copies, marked so that Inductor leaves it as it is: see :data:`KEPT_WHOLE`."""
    copy.meta[KEPT_WHOLE] = True
    return copy


class GraphDraft(Known):
    """A graph with rewrites that are not yet committed.

    Attributes:
        hazards: Who must come after whom without taking its value.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Nothing is rewritten yet."""
        super().__init__(graph)
        self.hazards = Hazards(self.facts.after, self._gone)
        self._by_name = {node.name: node for node in graph.nodes}
        self._values: dict[fx.Node, Any] = {}
        self._took: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._number = dict(self.facts.at)
        self._made: list[fx.Node] = []
        self._made_by: dict[fx.Node, str] = {}

    def find(self, name: str) -> fx.Node:
        """The node of this name.

        Raises:
            RewriteError: There is none.
        """
        node = self._by_name.get(name)
        if node is None:
            raise RewriteError(f"there is no node {name!r} to rewrite: it is not in the graph, or gone by now.")
        return node

    def call(
        self,
        name: str,
        target: Any,
        args: tuple[Any, ...],
        at: float,
        like: fx.Node,
        kwargs: Mapping[str, Any] | None = None,
    ) -> fx.Node:
        """A new node, and its value on fake tensors.

        Args:
            name: Its name, not taken yet.
            target: What it calls.
            args: With nodes.
            at: Where it is to stand.
            like: A collective that it stands for: where in the program that comes from is where this one does.
            kwargs: With nodes.
        """
        node = self.call_giving(name, target, args, at, like, None, kwargs)
        node.meta["val"] = value_of(target, node.args, node.kwargs)
        return node

    def call_in_part(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        at: float,
        whole: fx.Node,
        parts: int,
    ) -> fx.Node:
        """A node's call in one of so many parts; what is known of the node is true of it.

        Raises:
            RuntimeError: The operator does not work on what a part gives it.
        """
        node = self.call_giving(name, whole.target, args, at, whole, None, kwargs)
        node.meta.update(meta_in_part(node.target, node.args, node.kwargs, whole, parts))
        self.stands_beside(node, whole)
        return node

    def call_giving(
        self,
        name: str,
        target: Any,
        args: tuple[Any, ...],
        at: float,
        like: fx.Node,
        value: Any,
        kwargs: Mapping[str, Any] | None = None,
    ) -> fx.Node:
        """The same, with a value that the caller knows."""
        node = self._new(name, target, args, dict(kwargs or {}), at)
        node.meta.update(own_meta({key: like.meta[key] for key in _KEPT_META if key in like.meta}))
        node.meta["val"] = value
        return node

    def copy(self, node: fx.Node, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: float) -> fx.Node:
        """A second call of a node's function, with its metadata; what it must come after, the copy must, too."""
        made = self._new(name, node.target, args, dict(kwargs), at)
        made.meta.update(own_meta(node.meta))
        self.stands_beside(made, node)
        self.hazards.copy(node, made)
        return made

    def write_over(self, node: fx.Node, target: Any, over: fx.Node) -> None:
        """A node calls what writes to its first argument, and gives that; views of the old result look at it."""
        views = [reader for reader in self.readers(node) if shares_storage(reader, node)]
        self._copied[node] = node.target
        node.target = target
        self._values.setdefault(node, node.meta["val"])
        node.meta["val"] = over.meta["val"]
        for view in views:
            self._values.setdefault(view, view.meta["val"])
            view.meta["val"] = value_of(view.target, view.args, view.kwargs)

    def add_hazard(self, node: fx.Node, before: fx.Node) -> None:
        """A node comes after another one, whose value it does not take."""
        self.hazards.add(node, before)

    def _new(self, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], at: float) -> fx.Node:
        if name in self._by_name:
            raise RewriteError(f"a new node would be named {name!r}, as another one is already.")
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        node.name = name  # also where an earlier node had it that is gone
        self._made.append(node)
        self._by_name[name] = node
        self.at[node], self._number[node] = at, len(self._number)
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
        del self._by_name[node.name]

    def owned_by(self, rewrite: str, since: int) -> None:
        """The nodes made since then belong to a rewrite: for messages."""
        self._made_by.update(dict.fromkeys(self._made[since:], rewrite))

    @property
    def made(self) -> int:
        """How many nodes have been made."""
        return len(self._made)

    def sorted(self) -> list[fx.Node]:
        """All nodes that stay: each where its place is, what it needs is pulled ahead of it."""
        stay = (node for node in self.at if node not in self._gone)
        return in_places(stay, self._place, self.hazards.before(), self._made_by)

    def in_order(self, names: Sequence[str]) -> list[fx.Node]:
        """All nodes that stay, in an order of the rewritten problem, by names: see :func:`as_named`."""
        return as_named(names, self._by_name, self.hazards.before())

    def _place(self, node: fx.Node) -> tuple[float, int]:
        return self.at[node], self._number[node]

    def gone(self) -> list[fx.Node]:
        """The nodes that go, each before what it takes: places do not say that where a rewrite undoes another's."""
        return users_first(self._gone, self._place)

    def undo(self) -> None:
        """The graph as it was."""
        for user, (args, kwargs) in self._took.items():
            user.args, user.kwargs = args, kwargs
        for node, target in self._copied.items():
            node.target = target
        for view, value in self._values.items():
            view.meta["val"] = value
        for node in reversed(self._made):
            self.graph.erase_node(node)

    def _remember(self, node: fx.Node) -> None:
        self._took.setdefault(node, (node.args, dict(node.kwargs)))
