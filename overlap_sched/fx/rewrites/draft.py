"""An FX graph that is being rewritten: new nodes are there, old ones still stand beside them, all can be undone.

::

    make new nodes, tell users of them -> sort -> commit: the old nodes go, the order is set
                                       -> undo:   the new nodes go, users take what they took
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.facts import GraphFacts
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


class Draft:
    """A graph with rewrites that are not yet committed.

    Attributes:
        graph: It.
        facts: About the nodes that it had.
        at: Per node, where it is to stand: the position of an old node, as near as can be.
    """

    def __init__(self, graph: fx.Graph) -> None:
        """Nothing is rewritten yet."""
        self.graph = graph
        self.facts = GraphFacts(graph)
        self.at: dict[fx.Node, float] = dict(self.facts.at)
        self._by_name = {node.name: node for node in graph.nodes}
        self._values: dict[fx.Node, Any] = {}
        self._took: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._number = dict(self.facts.at)
        self._made: list[fx.Node] = []
        self._made_by: dict[fx.Node, str] = {}
        self._gone: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self._after = {node: list(before) for node, before in self.facts.after.items()}
        self._first: dict[fx.Node, tuple[fx.Node, ...]] = {}
        self._copied: dict[fx.Node, Any] = {}

    def find(self, name: str) -> fx.Node:
        """The node of this name.

        Raises:
            RewriteError: There is none.
        """
        node = self._by_name.get(name)
        if node is None:
            raise RewriteError(f"there is no node {name!r} to rewrite: it is not in the graph, or gone by now.")
        return node

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives."""
        return [user for user in node.users if user not in self._gone]

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
            name: Its name.
            target: What it calls.
            args: With nodes.
            at: Where it is to stand.
            like: A collective that it stands for: where in the program that comes from is where this one does.
            kwargs: With nodes.

        Raises:
            RewriteError: Its name is taken.
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
        """A node's call in one of several parts; what is known of the node is true of it.

        Args:
            name: Its name.
            args: With nodes.
            kwargs: With nodes.
            at: Where it is to stand.
            whole: The node.
            parts: How many parts there are.

        Raises:
            RewriteError: Its name is taken.
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
        node.meta.update({key: like.meta[key] for key in _KEPT_META if key in like.meta})
        node.meta["val"] = value
        return node

    def copy(self, node: fx.Node, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: float) -> fx.Node:
        """A second call of a node's function, with its metadata; what it must come after, the copy must, too.

        Raises:
            RewriteError: Its name is taken.
        """
        made = self._new(name, node.target, args, dict(kwargs), at)
        made.meta.update(node.meta)
        self.stands_beside(made, node)
        if node in self._after:
            self._after[made] = list(self._after[node])
        return made

    def stands_beside(self, made: fx.Node, *nodes: fx.Node) -> None:
        """A new node does what others do: what is known of those is true of it."""
        self._first[made] = tuple(dict.fromkeys(one for node in nodes for one in self._known(node)))

    def _known(self, node: fx.Node) -> tuple[fx.Node, ...]:
        return self._first.get(node, (node,))

    def impure(self, node: fx.Node) -> str:
        """Why a node must not run a second time; ``""``: it may."""
        if self._over(node):
            return "gives what something writes to"
        return next(filter(None, map(self.facts.impure, self._known(node))), "")

    def written(self, node: fx.Node) -> bool:
        """Whether anything writes to what a node gives."""
        return bool(self._over(node)) or any(map(self.facts.written, self._known(node)))

    def _over(self, *nodes: fx.Node) -> list[fx.Node]:
        """Those that a rewrite has made write over what one of some nodes gives, or to a view of it."""
        return [w for w in self._copied if any(one is w or shares_storage(one, w) for one in nodes)]

    def write_over(self, node: fx.Node, target: Any, over: fx.Node) -> None:
        """A node calls what writes to its first argument, and gives that; views of the old result look at it."""
        views = [reader for reader in self.readers(node) if shares_storage(reader, node)]
        self._copied[node] = node.target
        node.target = target
        self._values.setdefault(node, node.meta["val"])
        node.meta["val"] = over.meta["val"]
        self._look_again(views)

    def makes_its_own(self, node: fx.Node) -> bool:
        """Whether a node computes, and makes one storage: not its input's, and no other."""
        return node not in self._copied and self.facts.makes_one(node)

    def looks_at(self, one: fx.Node, node: fx.Node) -> bool:
        """Whether what one node gives is a storage of another's."""
        return self.facts.share(one, node) or shares_storage(one, node)

    def lookers(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives or a view of it, and waits of collectives that read that."""
        return list(dict.fromkeys((*self.facts.lookers(node), *self.readers(node))))

    def next_writers(self, node: fx.Node) -> list[fx.Node]:
        """Who writes next to what a node reads, or to what that reads of which it is a copy or a part; per storage."""
        found = [w for one in self._known(node) for w in self.facts.next_writers(one)]
        later = [w for w in self._over(*node.all_input_nodes) if self.at[w] > self.at[node]]
        return list(dict.fromkeys((*found, *later)))

    def read_after_a_write(self, node: fx.Node, readers: Collection[fx.Node]) -> fx.Node | None:
        """The first of some nodes that may read what a node gave after something has written to that."""
        if node in self.facts.at:
            return self.facts.read_after_a_write(node, readers)
        written = any(map(self.facts.written, self._known(node)))  # where a new node stands is not known yet
        return next((user for user in node.users if user in readers), None) if written else None

    def sharers(self, node: fx.Node) -> list[fx.Node]:
        """Who takes or gives what a node gives where anything writes to that, by what the graph had at first."""
        return list(dict.fromkeys(one for known in self._known(node) for one in self.facts.sharers(known)))

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives, or a view of it."""
        found, todo = dict.fromkeys(self.users(node)), self.users(node)
        while todo:
            user = todo.pop()
            if shares_storage(user, node):
                for other in self.users(user):
                    if other not in found:
                        found[other] = None
                        todo.append(other)
        return list(found)

    def has_hazard(self, node: fx.Node) -> bool:
        """Whether a node must come after one whose value it does not take."""
        return bool(self._after.get(node))

    def add_hazard(self, node: fx.Node, before: fx.Node) -> None:
        """A node comes after another one, whose value it does not take."""
        self._after.setdefault(node, []).append(before)

    def in_parts(self, copies: Mapping[fx.Node, Sequence[fx.Node]], stay: Collection[fx.Node] = ()) -> None:
        """Nodes run once per part from now on: what came after another one without taking its value, still does.

        Within a part where both run in parts; else every copy comes after, or before, the one that stays whole.

        Args:
            copies: Per node that runs in parts, one node per part.
            stay: Those of them that also run whole.
        """
        runs = {node: (*parts, node) if node in stay else tuple(parts) for node, parts in copies.items()}
        before, self._after = self._after, {}
        for node, earlier in before.items():
            later, whole = self._stands_for(node, 0), [self._stands_for(u, 1) for u in earlier]
            for u in whole:
                if later in copies and u in copies:
                    for copy, first in zip(copies[later], copies[u], strict=True):
                        self.add_hazard(copy, first)
                    continue
                for one in runs.get(later, (later,)):
                    self._after.setdefault(one, []).extend(runs.get(u, (u,)))

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

    def stand_in(self, old: fx.Node, new: fx.Node) -> None:
        """All users of a node take another one; views of the old value become views of the new one, in metadata, too.

        A view whose schema does not say so (``_unsafe_view``) would else be read as a tensor of its own.
        """
        views = [reader for reader in self.readers(old) if shares_storage(reader, old)]
        self.replace(old, new)
        self._look_again(views)

    def _look_again(self, views: Iterable[fx.Node]) -> None:
        for view in views:
            self._values.setdefault(view, view.meta["val"])
            view.meta["val"] = value_of(view.target, view.args, view.kwargs)

    def set_argument(self, node: fx.Node, position: int, value: Any) -> None:
        """A node gets another argument."""
        self._remember(node)
        node.update_arg(position, value)

    def remove(self, node: fx.Node, first: fx.Node, last: fx.Node) -> None:
        """Take a node away that nobody uses any more.

        Args:
            node: It.
            first: What stands for it from now on where it must come after something.
            last: The same, where something must come after it.
        """
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
        """All nodes that stay: each where its place is, what it needs is pulled ahead of it.

        Raises:
            RewriteError: Nodes need each other: what was merged lies on one path.
        """
        before = self._before()
        done: set[fx.Node] = set()
        open_: set[fx.Node] = set()
        order: list[fx.Node] = []
        for start in sorted((node for node in self.at if node not in self._gone), key=self._place):
            stack = [start]
            while stack:
                node = stack[-1]
                missing = [u for u in before(node) if u not in done]
                if node in done or not missing:
                    stack.pop()
                    open_.discard(node)
                    if node not in done:
                        done.add(node)
                        order.append(node)
                    continue
                open_.add(node)
                if any(u in open_ for u in missing):
                    raise RewriteError(self._ring([n for n in stack if n in open_], missing))
                stack.extend(sorted(missing, key=self._place, reverse=True))
        return order

    def in_order(self, names: Sequence[str]) -> list[fx.Node]:
        """All nodes that stay, in an order of the rewritten problem.

        Args:
            names: Of its nodes. Those with a dot stand for no node of a graph: launches, and waits of several
                collectives that are listed once for each of them.

        Raises:
            RewriteError: They are not the nodes of the rewritten graph, each once, or one comes before what it needs.
        """
        order = [self._by_name[name] for name in names if name in self._by_name]
        unknown = [name for name in names if name not in self._by_name and "." not in name]
        if unknown or len(order) != len(self._by_name) or len(set(order)) != len(order):
            missing = sorted(self._by_name.keys() - set(names))
            raise RewriteError(
                f"the order has {len(order)} of the {len(self._by_name)} nodes of the rewritten graph: it lacks "
                f"{missing[:3]} and has {unknown[:3]} that are not there."
            )
        before, done = self._before(), set()
        for node in order:
            late = [u for u in before(node) if u not in done]
            if late:
                raise RewriteError(f"the order has {node.name!r} before {late[0].name!r}, which it needs.")
            done.add(node)
        return order

    def _place(self, node: fx.Node) -> tuple[float, int]:
        return self.at[node], self._number[node]

    def _before(self) -> Any:
        later: dict[fx.Node, set[fx.Node]] = {}
        for node, earlier in self._after.items():
            stands = self._stands_for(node, 0)
            later.setdefault(stands, set()).update({self._stands_for(u, 1) for u in earlier} - {stands})

        def before(node: fx.Node) -> Iterable[fx.Node]:
            hazards = later.get(node)
            return node.all_input_nodes if hazards is None else [*node.all_input_nodes, *hazards]

        return before

    def _stands_for(self, node: fx.Node, side: int) -> fx.Node:
        while node in self._gone:
            node = self._gone[node][side]
        return node

    def _ring(self, open_: Sequence[fx.Node], missing: Sequence[fx.Node]) -> str:
        again = next(u for u in missing if u in set(open_))
        ring = open_[open_.index(again) :]
        buckets = list(dict.fromkeys(self._made_by[node] for node in ring if node in self._made_by))
        named = " and ".join(map(repr, buckets)) or repr(again.name)
        through = next((node.name for node in ring if node not in self._made_by), again.name)
        return f"{named} would need itself, through {through!r}: merged collectives lie on one path. Leave one out."

    def gone(self) -> list[fx.Node]:
        """The nodes that go, each before what it takes: places do not say that where a rewrite undoes another's."""
        users = {node: len(node.users) for node in self._gone}  # all of them go, too
        free = [node for node in sorted(self._gone, key=self._place) if not users[node]]
        order = []
        while free:
            order.append(node := free.pop())
            for taken in node.all_input_nodes:
                if taken in users:
                    users[taken] -= 1
                    if not users[taken]:
                        free.append(taken)
        return order

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


def shares_storage(one: fx.Node, other: fx.Node) -> bool:
    """Whether two values are tensors on one storage, and the first is computed."""
    values = [node.meta.get("val") for node in (one, other)]
    if one.op != "call_function" or not all(isinstance(value, FakeTensor) for value in values):
        return False
    here, there = (value.untyped_storage()._cdata for value in values)
    return bool(here == there)
