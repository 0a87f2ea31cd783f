"""What is known of the nodes of a graph that is being rewritten: of old ones, and so of new ones that do the same."""

from collections.abc import Collection
from typing import Any

from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.fx.rewrites.facts import GraphFacts


class Known:
    """Questions about nodes, old and new; nothing is changed here.

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
        self._gone: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}  # what stands for them where order matters
        self._first: dict[fx.Node, tuple[fx.Node, ...]] = {}  # of new nodes, the old ones that they do the same as
        self._copied: dict[fx.Node, Any] = {}  # what has come to write over its input: what it called before

    def users(self, node: fx.Node) -> list[fx.Node]:
        """Those that take what a node gives."""
        return [user for user in node.users if user not in self._gone]

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
        """Tell whether anything writes to what a node gives."""
        return bool(self._over(node)) or any(map(self.facts.written, self._known(node)))

    def _over(self, *nodes: fx.Node) -> list[fx.Node]:
        """Those that a rewrite has made write over what one of some nodes gives, or to a view of it."""
        return [w for w in self._copied if any(one is w or shares_storage(one, w) for one in nodes)]

    def makes_its_own(self, node: fx.Node) -> bool:
        """Tell whether a node computes, and makes one storage: not its input's, and no other."""
        return node not in self._copied and self.facts.makes_one(node)

    def looks_at(self, one: fx.Node, node: fx.Node) -> bool:
        """Tell whether what one node gives is a storage of another's."""
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


def shares_storage(one: fx.Node, other: fx.Node) -> bool:
    """Tell whether two values are tensors on one storage, and the first is computed."""
    values = [node.meta.get("val") for node in (one, other)]
    if one.op != "call_function" or not all(isinstance(value, FakeTensor) for value in values):
        return False
    here, there = (value.untyped_storage()._cdata for value in values)
    return bool(here == there)
