"""A problem that is being rewritten: nodes may go and come, and whoever used the old ones is told of the new.

Ids of a draft are its own: those of the problem, then those of new nodes as they come. At the end the nodes are put
into an order again, and numbered by it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from overlap_sched.errors import RewriteError
from overlap_sched.problem import FINISH, LAUNCH, OF_HOST, Group, Kind, Node, NodeId, Problem, Storage, StorageId
from overlap_sched.problem.precedence import launched_on


class Draft:
    """What a problem has become so far.

    Attributes:
        nodes: By draft id; ``None``: gone.
        storages: Old and new; those that nobody allocates any more are dropped at the end.
        groups: Old and new.
        at: By draft id, where a node is in the order that the draft comes from: new nodes stand where they are put.
    """

    def __init__(self, problem: Problem, order: Sequence[NodeId]) -> None:
        """Nothing is rewritten yet.

        Args:
            problem: What is to be rewritten; stays as it is.
            order: A valid order of it: new nodes are put into this one.
        """
        self.problem = problem
        self.nodes: list[Node | None] = list(problem.nodes)
        self.storages: list[Storage] = list(problem.storages)
        self.groups: dict[str, Group] = dict(problem.groups)
        self._links = dict(problem.contention.links)
        self.at: list[float] = [0.0] * len(problem.nodes)
        for position, v in enumerate(order):
            self.at[v] = position
        self._ids = {node.name: v for v, node in enumerate(problem.nodes)}
        self._after: list[list[NodeId]] = [[] for _ in problem.nodes]
        self._users: list[list[NodeId]] = [[] for _ in problem.storages]
        for v, node in enumerate(problem.nodes):
            for u in node.deps:
                self._after[u].append(v)
            for s in node.use:
                self._users[s].append(v)

    def find(self, name: str) -> NodeId:
        """The node of this name.

        Raises:
            RewriteError: There is none.
        """
        v = self._ids.get(name)
        if v is None:
            raise RewriteError(f"there is no node {name!r} to rewrite: it is not in the graph, or gone by now.")
        return v

    def node(self, v: NodeId) -> Node:
        """A node that is there."""
        node = self.nodes[v]
        assert node is not None, f"node {v} is gone"
        return node

    def add(self, node: Node, at: float) -> NodeId:
        """A new node, whose deps are draft ids.

        Raises:
            RewriteError: Its name is taken.
        """
        if node.name in self._ids:
            raise RewriteError(f"a new node would be named {node.name!r}, as another one is already.")
        v = len(self.nodes)
        self.nodes.append(node)
        self.at.append(at)
        self._after.append([])
        self._ids[node.name] = v
        for u in node.deps:
            self._after[u].append(v)
        for s in node.use:
            self._users[s].append(v)
        return v

    def storage(self, nbytes: int) -> StorageId:
        """A new storage; whoever allocates it must say so."""
        self.storages.append(Storage(nbytes))
        self._users.append([])
        return len(self.storages) - 1

    def remove(self, v: NodeId) -> None:
        """Take a node away; those that depend on it must have been told (:meth:`redirect`)."""
        node = self.node(v)
        del self._ids[node.name]
        for u in node.deps:
            self._after[u].remove(v)
        for s in node.use:
            self._users[s].remove(v)
        self.nodes[v] = None

    def after(self, v: NodeId) -> Sequence[NodeId]:
        """Nodes that have v among their deps."""
        return self._after[v]

    def users(self, s: StorageId) -> Sequence[NodeId]:
        """Nodes that use a storage."""
        return self._users[s]

    def redirect(self, old: NodeId, new: NodeId, who: Iterable[NodeId] | None = None) -> None:
        """Those that depend on one node (or only some of them) depend on another one instead."""
        for w in list(self._after[old] if who is None else who):
            node = self.node(w)
            self.become(w, node._replace(deps=tuple(dict.fromkeys(new if u == old else u for u in node.deps))))

    def rehouse(self, old: StorageId, new: StorageId, who: Iterable[NodeId] | None = None) -> None:
        """Those that use one storage (or only some of them) use another one instead."""
        for w in list(self._users[old] if who is None else who):
            node = self.node(w)
            self.become(w, node._replace(use=tuple(dict.fromkeys(new if s == old else s for s in node.use))))

    def depend(self, v: NodeId, before: NodeId) -> None:
        """A node comes after another one from now on."""
        node = self.node(v)
        self.become(v, node._replace(deps=tuple(dict.fromkeys((*node.deps, before)))))

    def set_group(self, v: NodeId, group: str) -> None:
        """A collective runs in another group of the same ranks from now on: it uses the same wires."""
        old = self.node(v).group or ""
        self.groups[group] = self.groups[old]
        if old in self._links:
            self._links[group] = self._links[old]
        self.nodes[v] = self.node(v)._replace(group=group)

    def launch_node(self, v: NodeId) -> NodeId | None:
        """The node that stands for what launching a collective takes of the compute stream, where there is one."""
        return self._of_host(v, LAUNCH)

    def finish_node(self, v: NodeId) -> NodeId | None:
        """The node that stands for what a wait takes of it when its collective is done, where there is one."""
        return self._of_host(v, FINISH)

    def waits(self, v: NodeId) -> list[NodeId]:
        """List the waits of a collective; those of waits, too."""
        found = [w for w in self._after[v] if self.node(w).collective == v]
        for one in found:
            found += (w for w in self._after[one] if self.node(w).collective == v and w not in found)
        return found

    def _of_host(self, v: NodeId, op: str) -> NodeId | None:
        before = self._ids.get(f"{self.node(v).name}.{op}")
        return before if before is not None and before in self.node(v).deps else None

    def become(self, v: NodeId, node: Node) -> None:
        """A node is another one from now on: of the same name, its deps and storages those of the draft."""
        old = self.node(v)
        for u in set(old.deps).difference(node.deps):
            self._after[u].remove(v)
        for u in set(node.deps).difference(old.deps):
            self._after[u].append(v)
        for s in set(old.use).difference(node.use):
            self._users[s].remove(v)
        for s in set(node.use).difference(old.use):
            self._users[s].append(v)
        self.nodes[v] = node

    def finished(self) -> Problem:
        """The problem that it has become, its original order as near to the one it comes from as can be.

        Raises:
            RewriteError: Nodes that were merged need each other: there is no order.
        """
        order = self.order()
        new_id = dict(zip(order, range(len(order)), strict=True))
        there = list(map(self.node, order))
        kept = sorted([s for node in there for s in node.alloc])
        new_storage = dict(zip(kept, range(len(kept)), strict=True))
        nodes = []
        for node in there:
            deps = tuple([new_id[u] for u in node.deps])
            deps = deps if node.kind is Kind.OUTPUT else tuple(sorted(deps))
            alloc, use = tuple([new_storage[s] for s in node.alloc]), tuple([new_storage[s] for s in node.use])
            waited = None if node.collective is None else new_id[node.collective]
            nodes.append(node._replace(deps=deps, alloc=alloc, use=use, collective=waited))
        used = {group for node in nodes for group in launched_on(node)}
        groups = {group: facts for group, facts in self.groups.items() if group in used}
        links = {group: link for group, link in self._links.items() if group in groups}
        return Problem(
            name=self.problem.name,
            nodes=tuple(nodes),
            storages=tuple(self.storages[s] for s in kept),
            groups=groups,
            memory_model=self.problem.memory_model,
            contention=replace(self.problem.contention, links=links),
        )

    def order(self) -> list[NodeId]:
        """All nodes, each as soon as its place has come and not before what it needs: that is pulled ahead of it.

        Raises:
            RewriteError: Nodes that were merged need each other: there is no order.
        """
        nodes, at = self.nodes, self.at
        maker = {s: v for v, node in enumerate(nodes) if node is not None for s in node.alloc}
        places = sorted([v for v, node in enumerate(nodes) if node is not None], key=at.__getitem__)
        state = bytearray(len(nodes))  # 1: being visited, 2: in the order
        order: list[NodeId] = []
        for start in places:
            if self._in_place(start, maker, state):
                state[start] = 2
                order.append(start)
                continue
            stack = [start]
            while stack:
                v = stack[-1]
                if state[v] == 2:
                    stack.pop()
                    continue
                node = self.node(v)
                before = {*node.deps, *(maker[s] for s in node.use)} - {v}
                if node.collective is not None:
                    before.add(node.collective)
                missing = [u for u in before if state[u] != 2]
                if not missing:
                    for w in (v, *self._taken_out_of(v)):
                        state[w] = 2
                        order.append(w)
                    stack.pop()
                    continue
                state[v] = 1
                ring = [u for u in missing if state[u] == 1]
                if ring:
                    raise RewriteError(self._in_a_ring(v, ring[0]))
                stack.extend(sorted(missing, key=lambda u: (at[u], u), reverse=True))
        return order

    def _in_place(self, v: NodeId, maker: Mapping[StorageId, NodeId], state: bytearray) -> bool:
        """Is a node of the problem not in the order yet, and all that it needs? So it is of nearly all nodes."""
        if state[v] or v >= len(self.problem.nodes):
            return False
        node = self.node(v)
        for u in node.deps:
            if state[u] != 2:
                return False
        for s in node.use:
            if state[maker[s]] != 2 and maker[s] != v:
                return False
        return node.collective is None or state[node.collective] == 2

    def _taken_out_of(self, v: NodeId) -> list[NodeId]:
        """Views that need a new launch alone: each holds all its results, so they come at once behind it."""
        if v < len(self.problem.nodes) or self.node(v).kind is not Kind.COLLECTIVE:
            return []
        after = [(w, self.node(w)) for w in self._after[v]]
        return [w for w, node in after if node.kind is Kind.COMPUTE and node.deps == (v,) and node.op not in OF_HOST]

    def _in_a_ring(self, v: NodeId, u: NodeId) -> str:
        return (
            f"{self.node(v).name!r} and {self.node(u).name!r} would need each other: collectives that were merged lie "
            "on one path. Leave one of them out."
        )


def unique(ids: Iterable[int]) -> tuple[int, ...]:
    """Each once, in the order in which they come first."""
    return tuple(dict.fromkeys(ids))
