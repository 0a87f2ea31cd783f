"""A problem that is being rewritten: nodes may go and come, and whoever used the old ones is told of the new.

Ids of a draft are its own: those of the problem, then those of new nodes as they come. At the end the nodes are put
into an order again, and numbered by it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from overlap_sched.errors import RewriteError
from overlap_sched.problem import FINISH, LAUNCH, OF_HOST, Group, Kind, Node, NodeId, Problem, Storage, StorageId
from overlap_sched.problem.precedence import launched_on
from overlap_sched.transform.recipes import Nodes, Single, refuse_if, sort_by_place, unique
from overlap_sched.transform.rewrites import BUCKETED

Alike = Mapping[str, str]
"""Per collective, by name, what a problem does not say and members must share: ``"bfloat16"``, ``"float32 sum"``.

Collectives that are not in it have ``""``: of a problem file it is not known, and taken to be alike by operator and
group."""
NOT_KNOWN: Alike = {}
WHOLE = (
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.view.default",
    "prims.convert_element_type.default",
)
"""Operators that give all elements of their one input, in their order; types and shapes a graph must compare."""


class Draft(Nodes[NodeId]):
    """What a problem has become so far.

    Attributes:
        nodes: By draft id; ``None``: gone.
        storages: Old and new; those that nobody allocates any more are dropped at the end.
        groups: Old and new.
    """

    def __init__(self, problem: Problem, order: Sequence[NodeId], alike: Alike = NOT_KNOWN) -> None:
        """Nothing is rewritten yet.

        Args:
            problem: What is to be rewritten; stays as it is.
            order: A valid order of it: new nodes are put into this one.
            alike: What members of a bucket must share besides operator and group.
        """
        places = {v: float(position) for position, v in enumerate(order)}
        super().__init__(places, {node.name: v for v, node in enumerate(problem.nodes)})
        self.problem = problem
        self.nodes: list[Node | None] = list(problem.nodes)
        self.storages: list[Storage] = list(problem.storages)
        self.groups: dict[str, Group] = dict(problem.groups)
        self._alike = alike
        self._links = dict(problem.contention.links)
        self._users: list[list[NodeId]] = [[] for _ in problem.nodes]
        self._holders: list[list[NodeId]] = [[] for _ in problem.storages]
        for v, node in enumerate(problem.nodes):
            for u in node.deps:
                self._users[u].append(v)
            for s in node.use:
                self._holders[s].append(v)

    def node(self, v: NodeId) -> Node:
        """A node that is there."""
        node = self.nodes[v]
        assert node is not None, f"node {v} is gone"
        return node

    def name(self, v: NodeId) -> str:
        """The name of a node that is there."""
        return self.node(v).name

    def taken(self, v: NodeId) -> Sequence[NodeId]:
        """The nodes that it depends on."""
        return self.node(v).deps

    def users(self, v: NodeId) -> Sequence[NodeId]:
        """Nodes that have v among their deps."""
        return self._users[v]

    def holders(self, s: StorageId) -> Sequence[NodeId]:
        """Nodes that use a storage."""
        return self._holders[s]

    def gives(self, v: NodeId) -> tuple[StorageId, ...]:
        """The storages that a node makes; of a wait, those of its collective."""
        node = self.node(v)
        return node.alloc if node.kind is not Kind.WAIT or node.collective is None else self.node(node.collective).alloc

    def readers(self, v: NodeId) -> list[NodeId]:
        """Nodes that use what a node gives."""
        return [w for s in self.gives(v) for w in self._holders[s]]

    def add(self, node: Node, at: float) -> NodeId:
        """A new node, whose deps are draft ids; refuses a name that is taken."""
        self.check_new(node.name)
        v = self.named[node.name] = len(self.nodes)
        self.nodes.append(None)
        self._users.append([])
        self.at[v] = at
        self.become(v, node)
        return v

    def storage(self, nbytes: int) -> StorageId:
        """A new storage; whoever allocates it must say so."""
        self.storages.append(Storage(nbytes))
        self._holders.append([])
        return len(self.storages) - 1

    def remove(self, v: NodeId, first: NodeId | None = None, last: NodeId | None = None) -> None:
        """Take a node away that nobody depends on any more, with the node that stands for what it takes of the host."""
        host = self.host_node(v)
        del self.named[self.name(v)]
        self.become(v, None)
        if host is not None:
            self.remove(host)

    def redirect(self, old: NodeId, new: Sequence[NodeId], who: Iterable[NodeId] | None = None) -> None:
        """Those that depend on one node (or only some of them) depend on others instead."""
        for w in list(self._users[old] if who is None else who):
            node = self.node(w)
            self.become(w, node._replace(deps=unique(t for u in node.deps for t in (new if u == old else [u]))))

    def rehouse(self, old: StorageId, new: Sequence[StorageId], who: Iterable[NodeId] | None = None) -> None:
        """Those that use one storage (or only some of them) use others instead."""
        for w in list(self._holders[old] if who is None else who):
            node = self.node(w)
            self.become(w, node._replace(use=unique(t for s in node.use for t in (new if s == old else [s]))))

    def depend(self, v: NodeId, before: NodeId) -> None:
        """A node comes after another one from now on."""
        self.become(v, self.node(v)._replace(deps=unique((*self.node(v).deps, before))))

    def become(self, v: NodeId, node: Node | None) -> None:
        """A node is another one from now on, its deps and storages those of the draft; ``None``: it is gone."""
        old, self.nodes[v] = self.nodes[v], node
        for who, before, after in (
            (self._users, old.deps if old else (), node.deps if node else ()),
            (self._holders, old.use if old else (), node.use if node else ()),
        ):
            for one in set(before).difference(after):
                who[one].remove(v)
            for one in set(after).difference(before):
                who[one].append(v)

    def set_group(self, v: NodeId, group: str) -> None:
        """A collective runs in another group of the same ranks from now on: it uses the same wires."""
        old = self.node(v).group or ""
        self.groups[group] = self.groups[old]
        if old in self._links:
            self._links[group] = self._links[old]
        self.nodes[v] = self.node(v)._replace(group=group)

    def host_node(self, v: NodeId) -> NodeId | None:
        """The node that stands for what a collective or a wait takes of the compute stream, where there is one."""
        node = self.node(v)
        before = self.named.get(f"{node.name}.{LAUNCH if node.kind is Kind.COLLECTIVE else FINISH}")
        return before if before is not None and before in node.deps else None

    def waits(self, v: NodeId) -> list[NodeId]:
        """List the waits of a collective by their places; those of waits, too."""
        found = [w for w in self._users[v] if self.node(w).collective == v]
        for one in found:
            found += (w for w in self._users[one] if self.node(w).collective == v and w not in found)
        return sorted(found, key=self.at.__getitem__)

    def single(self, name: str) -> Single[NodeId]:
        """The collective of this name, where it has one result, and nothing but waits looks at that.

        Raises:
            RewriteError: It has not, or another node does.
        """
        v = self.find(name)
        node = self.node(v)
        if node.kind is not Kind.COLLECTIVE or node.op not in BUCKETED:
            what = node.op or node.kind.value
            raise RewriteError(f"{name!r} is {what!r}: what can be rewritten is {', '.join(BUCKETED)}.")
        waits = tuple(self.waits(v))
        known = {*waits, *map(self.host_node, waits)}
        others = [w for w in self._users[v] if w not in known and self.node(w).kind is not Kind.OUTPUT]
        counts = f"{len(waits)} waits and {len(node.alloc)} results"
        refuse_if(not waits or len(node.alloc) > 1, f"{name!r} has {counts}: it needs a wait and one result.")
        if others:
            why = f"{self.name(others[0])!r} needs the launch of {name!r} itself, not its wait"
            raise RewriteError(f"{why}: a rewrite would lose that.")
        group = node.group or ""
        shared = {"operator": node.op, "process group": group, "type and reduction": self._alike.get(name, "")}
        sources = tuple(u for u in node.deps if u != self.host_node(v))
        return Single(v, node.op, group, self.groups[group].size, sources, waits, node.bytes, (), shared)

    def singles(self, may: Callable[[Node], bool]) -> list[Single[NodeId]]:
        """Those of the collectives that the problem had and that :meth:`single` does not refuse."""
        found = []
        for v in self.problem.collectives:
            with suppress(RewriteError):
                found += [self.single(self.name(v))] if may(self.node(v)) else []
        return found

    def cast(self, v: NodeId) -> tuple[str, int] | None:
        """Operator and bytes of a node of :data:`WHOLE`; what must also come after others may see what they write."""
        node = self.node(v)
        if node.kind is not Kind.COMPUTE or node.op not in WHOLE or len(node.deps) != 1:
            return None
        return node.op, sum(self.storages[s].bytes for s in node.alloc)

    def finish(self) -> Problem:
        """The problem that it has become, its original order as near to the one it comes from as can be.

        Raises:
            RewriteError: Nodes that were merged need each other: there is no order.
        """
        order = self.order()
        there = list(map(self.node, order))
        kept = sorted(s for node in there for s in node.alloc)
        new_id, new_storage = ({v: k for k, v in enumerate(ids)} for ids in (order, kept))
        nodes = []
        for node in there:
            deps = tuple([new_id[u] for u in node.deps])
            deps = deps if node.kind is Kind.OUTPUT else tuple(sorted(deps))
            alloc, use = tuple([new_storage[s] for s in node.alloc]), tuple([new_storage[s] for s in node.use])
            waited = None if node.collective is None else new_id[node.collective]
            nodes.append(node._replace(deps=deps, alloc=alloc, use=use, collective=waited))
        used = {group for node in nodes for group in launched_on(node)}
        links = {group: link for group, link in self._links.items() if group in used}
        return replace(
            self.problem,
            nodes=tuple(nodes),
            storages=tuple(self.storages[s] for s in kept),
            groups={group: facts for group, facts in self.groups.items() if group in used},
            contention=replace(self.problem.contention, links=links),
        )

    def order(self) -> list[NodeId]:
        """All nodes, each as soon as its place has come and not before what it needs.

        Raises:
            RewriteError: Nodes that were merged need each other: there is no order.
        """
        first_new = len(self.problem.nodes)
        maker = {s: v for v, node in enumerate(self.nodes) if node is not None for s in node.alloc}

        def before(v: NodeId) -> set[NodeId]:
            node = self.node(v)
            needed = {*node.deps, *[maker[s] for s in node.use]}
            if node.collective is not None:
                needed.add(node.collective)
            return needed - {v}

        def taken_out(v: NodeId) -> list[NodeId]:
            """Views that need a new launch alone: each holds all its results, so they come at once behind it."""
            if v < first_new or self.node(v).kind is not Kind.COLLECTIVE:
                return []
            users = [(w, self.node(w)) for w in self._users[v]]
            return [w for w, one in users if one.kind is Kind.COMPUTE and one.deps == (v,) and one.op not in OF_HOST]

        there = [v for v, node in enumerate(self.nodes) if node is not None]
        return sort_by_place(self.at, there, before, taken_out, self.name, self.rewrites)
