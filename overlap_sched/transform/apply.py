# ruff: noqa: D102  # methods without a docstring have theirs in ``overlap_sched.transform.recipes.Maker``
"""What rewrites make of a problem: problem in, problem out.

>>> from overlap_sched.cost import Roofline
>>> from overlap_sched.problem import EXAMPLE
>>> from overlap_sched.transform.rewrites import Stream
>>> after = apply(EXAMPLE, [Stream("scatter")], Prices(Roofline()))
>>> sorted(after.groups)
['fsdp', 'fsdp/2']

This is what the nodes of a bucket hold::

    copied, all_gather                      ids of storages
      in       allocates the inputs, packed; uses each input            the inputs may die here
      b        allocates all results, packed; uses `in`                 both live until the wait
      copy_i   allocates result i; uses the packed results              these die with the last copy

    copied, reduce_scatter and all_reduce   the same, without copies behind: results are parts of one storage,
                                            which is live as long as any of them
    coalesced                               b allocates each result, and uses each input until its last wait

What goes to the host is held on the device until the wait of the copy, which comes behind all other users and frees it.
The host's memory is no storage of the problem; :func:`host_bytes` counts it.

In a fission, storages of parts have 1/n of the bytes, rounded up, but for those listed in ``Fission.full``. What is put
together is allocated as the whole was.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from overlap_sched.cost.model import Compute
from overlap_sched.errors import RewriteError
from overlap_sched.problem import FINISH, LAUNCH, OF_HOST, Group, Kind, Node, NodeId, Problem, Storage, StorageId
from overlap_sched.problem.precedence import launched_on
from overlap_sched.transform.prices import OUT, UNPRICED, Prices
from overlap_sched.transform.recipes import (
    ADD,
    CAT,
    GETITEM,
    OFFLOAD,
    RELOAD,
    VIEW,
    Maker,
    New,
    Reshape,
    Single,
    refuse_if,
    rewrite,
    sort_by_place,
    unique,
)
from overlap_sched.transform.rewrites import BUCKETED, Fission, Leave, Rewrite, Slice

WAIT, HOST_WAIT = "_c10d_functional.wait_tensor.default", "ao.wait_tensor.default"
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


def apply(
    problem: Problem,
    rewrites: Sequence[Rewrite],
    prices: Prices,
    alike: Alike = NOT_KNOWN,
    order: Sequence[NodeId] | None = None,
) -> Problem:
    """The rewritten problem; its original order is the given one with new nodes in the place of old ones.

    A new launch stands where the last of its members stood, or before its first user where that is earlier; what
    stands for a wait, where that stood. What must run before a node that is moved up is moved up with it.

    Args:
        problem: In the ``runtime`` memory model.
        rewrites: Done in this order.
        prices: Of new nodes.
        alike: What members of a bucket must share besides operator and group.
        order: A valid order of the problem; ``None``: its original one.

    Raises:
        RewriteError: One of them is not legal here; the message says which, and why.
    """
    if problem.memory_model != "runtime":
        raise RewriteError(
            f"problem {problem.name!r} is in the {problem.memory_model!r} memory model: rewrites want 'runtime'."
        )
    make = ProblemMaker(problem, order, prices, alike)
    for one in rewrites:
        rewrite(make, one)
    return make.finish()


def host_bytes(problem: Problem, order: Sequence[int]) -> int:
    """The most bytes of pinned host memory in use at once: from the launch of an offload to the wait of its reload."""
    used = most = 0
    for v in order:
        node = problem.nodes[v]
        if node.op == OFFLOAD and node.kind is Kind.COLLECTIVE:
            used += node.bytes
            most = max(most, used)
        elif node.collective is not None and problem.nodes[node.collective].op == RELOAD:
            used -= problem.nodes[node.collective].bytes
    return most


_RANDOM = ("bernoulli", "dropout", "exponential", "multinomial", "normal", "poisson", "rand", "seed", "uniform")
"""Parts of names of operators that draw random numbers, or hand out seeds."""


def refusal(node: Node) -> str:
    """Why a node may never run again, as far as its name and kind tell; ``""``: nothing speaks against it."""
    if node.kind is not Kind.COMPUTE or node.op in OF_HOST:
        kind = node.kind.value
        return f"is {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if node.launches:
        return f"communicates, or may ({node.op})"
    name = _name(node.op)
    if any(part in name for part in _RANDOM) and "backward" not in name and name != "layer_norm":
        return f"draws random numbers ({node.op})"
    return f"writes to what it is given ({node.op})" if writes(node) else ""


def writes(node: Node) -> bool:
    """Tell whether a compute node writes to what it is given: by its name, or as it takes time and makes nothing."""
    name = _name(node.op)
    in_place = (name.endswith("_") and not name.endswith("__")) or node.op.endswith(("out", "auto_functionalized"))
    return node.kind is Kind.COMPUTE and node.op not in OF_HOST and (in_place or (not node.alloc and node.time_us > 0))


def _name(op: str) -> str:
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_view(node: Node) -> bool:
    """Tell whether a node looks at a storage of another one: it makes nothing and takes no time."""
    return node.kind is Kind.COMPUTE and not node.alloc and not node.time_us and not writes(node)


class _Value(NamedTuple):
    """What a new node gives.

    Attributes:
        held: Storages that it is in; none: they are not counted. bytes: of it.
        launch: Of what is in flight, its collective. read: what that reads until it is waited for.
    """

    held: tuple[StorageId, ...]
    bytes: int
    launch: NodeId | None = None
    read: tuple[StorageId, ...] = ()


class ProblemMaker(Maker[NodeId]):
    """What a problem has become so far; columns are bytes, of whichever side is larger.

    Ids are its own: those of the problem, then those of new nodes as they come. At the end the nodes are put into an
    order again, and numbered by it.

    Attributes:
        nodes: By id; ``None``: gone.
        storages: Old and new; those that nobody allocates any more are dropped at the end.
        groups: Old and new.
    """

    def __init__(
        self,
        problem: Problem,
        order: Sequence[NodeId] | None = None,
        prices: Prices = UNPRICED,
        alike: Alike = NOT_KNOWN,
    ) -> None:
        """Nothing is rewritten yet; who only looks needs no prices."""
        order = problem.original_order if order is None else order
        self.at, self.rewrites = {v: float(position) for position, v in enumerate(order)}, []
        self.named = {node.name: v for v, node in enumerate(problem.nodes)}
        self.problem, self.prices = problem, prices
        self.nodes: list[Node | None] = list(problem.nodes)
        self.storages: list[Storage] = list(problem.storages)
        self.groups: dict[str, Group] = dict(problem.groups)
        self._alike, self._links = alike, dict(problem.contention.links)
        self._users: list[list[NodeId]] = [[] for _ in problem.nodes]
        self._holders: list[list[NodeId]] = [[] for _ in problem.storages]
        for v, node in enumerate(problem.nodes):
            for u in node.deps:
                self._users[u].append(v)
            for s in node.use:
                self._holders[s].append(v)
        self._values: dict[NodeId, _Value] = {}
        self._results: dict[NodeId, _Value] = {}  # of what enters and leaves a fission, whole

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

    def gives(self, v: NodeId) -> tuple[StorageId, ...]:
        """The storages that a node makes; of a wait, those of its collective."""
        node = self.node(v)
        return node.alloc if node.kind is not Kind.WAIT or node.collective is None else self.node(node.collective).alloc

    def readers(self, v: NodeId) -> list[NodeId]:
        """Nodes that use what a node gives."""
        return [w for s in self.gives(v) for w in self._holders[s]]

    def _add(self, node: Node, at: float, value: _Value | None = None) -> NodeId:
        """A new node, and what it gives where others look at that; refuses a name that is taken."""
        self.check_new(node.name)
        v = self.named[node.name] = len(self.nodes)
        self.nodes.append(None)
        self._users.append([])
        self.at[v] = at
        self.become(v, node)
        if value is not None:
            self._values[v] = value
        return v

    def _storage(self, nbytes: int) -> StorageId:
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
        other = node.kind is not Kind.COLLECTIVE or node.op not in BUCKETED
        refuse_if(other, f"{name!r} is {node.op or node.kind.value!r}: what can be rewritten is {', '.join(BUCKETED)}.")
        waits = tuple(self.waits(v))
        known = {*waits, *map(self.host_node, waits)}
        others = [w for w in self._users[v] if w not in known and self.node(w).kind is not Kind.OUTPUT]
        counts = f"{len(waits)} waits and {len(node.alloc)} results"
        refuse_if(not waits or len(node.alloc) > 1, f"{name!r} has {counts}: it needs a wait and one result.")
        self.check_waited(name, others)
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

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """A graph may know a reason against it, or have more to do; a problem does not."""

    check_member = check_gather = check_kept = check_same = end_parts = _nothing

    def is_output(self, v: NodeId) -> bool:
        return self.node(v).kind is Kind.OUTPUT

    def is_view(self, v: NodeId, sources: Sequence[NodeId]) -> bool:
        return is_view(self.node(v)) and not set(self.node(v).use).isdisjoint(self.gives(sources[0]))

    def why_not_again(self, v: NodeId) -> str:
        return refusal(self.node(v))

    def group(self, v: NodeId) -> str | None:
        return self.node(v).group

    def view_input(self, new: New[NodeId], one: Single[NodeId], reshape: Reshape) -> NodeId:
        node = self.node(one.launch)
        size = self.groups[one.group].size if "all_gather" in one.op else 1
        view = Node(new.name, Kind.COMPUTE, one.sources, (), node.use, op=VIEW)
        return self._add(view, new.at, _Value(node.use, -(-node.bytes // size)))

    def look(self, new: New[NodeId], op: str, of: NodeId, *args: Any, nbytes: int | None = None) -> NodeId:
        value, held = self._values[of], self._values[of].held
        if op == GETITEM:  # in one of several storages; it holds all
            value = value._replace(held=self._result(new.like).held)
        value = value if nbytes is None else value._replace(bytes=nbytes)
        return self._add(Node(new.name, Kind.COMPUTE, (of,), (), held, op=op), new.at, value)

    def compute(
        self, new: New[NodeId], op: str, of: Sequence[NodeId], *args: Any, result: bool, packed: bool = False
    ) -> NodeId:
        taken, value = [self._values[u] for u in of], self._result(new.like)
        use = unique(s for one in taken for s in one.held)
        if not result:
            nbytes = sum(one.bytes for one in taken) if op == CAT else taken[0].bytes
            value = _Value(self._fresh(nbytes, bool(value.held or use)), nbytes)
        moved = (3 if op == ADD else 2) * value.bytes
        us = self.prices.copy_us(op, moved)
        return self._add(Node(new.name, Kind.COMPUTE, tuple(of), value.held, use, us, op, bytes=moved), new.at, value)

    def launch(self, new: New[NodeId], members: Sequence[Single[NodeId]], packed: NodeId | None = None) -> NodeId:
        launches, results = [self.node(one.launch) for one in members], [self._result(one.launch) for one in members]
        op, group, nbytes = members[0].op, members[0].group, sum(node.bytes for node in launches)
        if packed is None:
            op, deps = f"{op}_coalesced", unique(u for one in members for u in one.sources)
            use = unique(s for node in launches for s in node.use)
            alloc = unique(s for node in launches for s in node.alloc)
        else:
            deps, use = (packed,), self._values[packed].held
            alloc = self._fresh(sum(one.bytes for one in results), bool(results[0].held))
        us = self.prices.collective_us(op, nbytes, self.groups[group])
        return self._in_flight(Node(new.name, Kind.COLLECTIVE, deps, alloc, use, us, op, group, bytes=nbytes), new.at)

    def _in_flight(self, node: Node, at: float) -> NodeId:
        """A new collective, behind a launch node of its own where launching takes time of the compute stream."""
        v = self._behind_host(node, LAUNCH, self.prices.launch_us(*self._facts(node)), at)
        self._values[v] = _Value(node.alloc, node.bytes, v, node.use)
        return v

    def _facts(self, node: Node) -> tuple[str, int, Group]:
        return node.op, node.bytes, self.groups[node.group or ""]

    def _behind_host(self, node: Node, op: str, us: float, at: float) -> NodeId:
        if us:
            host = self._add(Node(f"{node.name}.{op}", Kind.COMPUTE, node.deps, time_us=us, op=op), at)
            node = node._replace(deps=(*node.deps, host))
        return self._add(node, at)

    def relaunch(self, new: New[NodeId], one: Single[NodeId]) -> NodeId:
        node = self.node(one.launch)
        return self._in_flight(node._replace(name=new.name, deps=one.sources, alloc=self._like(node.alloc)), new.at)

    def wait(self, new: New[NodeId], of: NodeId) -> NodeId:
        value = self._values[of]
        assert value.launch is not None
        use = unique((*value.read, *value.held))
        ended = Node(new.name, Kind.WAIT, (of,), (), use, op=WAIT, collective=value.launch)
        v = self._behind_host(ended, FINISH, self.prices.finish_us(*self._facts(self.node(value.launch))), new.at)
        self._values[v] = _Value(value.held, value.bytes)
        return v

    def _fresh(self, nbytes: int, counted: bool) -> tuple[StorageId, ...]:
        return (self._storage(nbytes),) if counted else ()

    def _like(self, storages: Iterable[StorageId]) -> tuple[StorageId, ...]:
        """New storages as large as others."""
        return tuple(self._storage(self.storages[s].bytes) for s in storages)

    def _result(self, v: NodeId) -> _Value:
        """Return what a collective gives, or what enters or leaves a fission."""
        if v in self._results:
            return self._results[v]
        node = self.node(v)
        size = self.groups[node.group or ""].size if "reduce_scatter" in node.op else 1
        return _Value(node.alloc, -(-node.bytes // size))

    def find_offloaded(self, name: str) -> NodeId:
        v = self.find(name)
        node = self.node(v)
        other = len(node.alloc) != 1 or node.kind not in (Kind.COMPUTE, Kind.INPUT, Kind.COLLECTIVE)
        refuse_if(other, f"{name!r} makes {len(node.alloc)} storages: what makes one can be offloaded.")
        storage = self.storages[node.alloc[0]]
        why = "is never freed" if storage.bytes else "is empty"
        refuse_if(storage.pinned or not storage.bytes, f"{name!r} {why}: to offload it saves nothing.")
        waits = self.waits(v) if node.kind is Kind.COLLECTIVE else [v]
        refuse_if(len(waits) != 1, f"{name!r} has {len(waits)} waits: what has one can be offloaded.")
        return waits[0]

    def transfer(self, new: New[NodeId], op: str, of: NodeId) -> NodeId:
        self.groups.setdefault(OUT, Group(1, True))
        held, nbytes = self.gives(new.like), sum(self.storages[s].bytes for s in self.gives(new.like))
        use, alloc = (held, ()) if op == OFFLOAD else ((), self._like(held))
        us = self.prices.host.copy_us(nbytes)
        launch = self._add(Node(new.name, Kind.COLLECTIVE, (of,), alloc, use, us, op, OUT, bytes=nbytes), new.at)
        ended = Node(f"{new.name}_wait", Kind.WAIT, (of, launch), (), (*use, *alloc), op=HOST_WAIT, collective=launch)
        return self._add(ended, new.at)

    def repeat(self, new: New[NodeId], made: Mapping[NodeId, NodeId]) -> NodeId:
        node, house = self.node(new.like), self._house(made)
        house |= zip(node.alloc, self._like(node.alloc), strict=True)
        deps, use = unique(made.get(u, u) for u in node.deps), tuple(house.get(s, s) for s in node.use)
        copy = node._replace(name=new.name, deps=deps, alloc=tuple(house[s] for s in node.alloc), use=use)
        v = self._add(copy, new.at)
        for s in copy.use:
            behind = [w for w in self._holders[s] if w != v and self.at[w] > self.at[new.like] and writes(self.node(w))]
            for w in sorted(behind, key=self.at.__getitem__)[:1]:
                self.check_writer(new, w)
                self.depend(w, v)
        return v

    def _house(self, new: Mapping[NodeId, NodeId]) -> dict[StorageId, StorageId]:
        """Per storage of old nodes, that of the new one."""
        pairs = ((old, self.gives(made)) for old, made in new.items())
        return {s: fresh for old, given in pairs for s, fresh in zip(self.gives(old), given, strict=True)}

    def move(self, users: Sequence[NodeId], new: Mapping[NodeId, NodeId]) -> None:
        """Through views, those behind the users, too; none may look at an old storage besides."""
        hosts = {u: self.host_node(u) if self.node(u).kind is Kind.COLLECTIVE else None for u in users}
        for u, host in hosts.items():
            for old, made in new.items():
                self.redirect(old, [made], [w for w in (u, host) if w is not None and old in self.node(w).deps])
        for old, storage in self._house(new).items():
            todo = [u for u in users if old in self.node(u).use]
            while todo:
                u = todo.pop()
                node = self.node(u)
                if old not in node.use:
                    continue
                for w in node.deps:
                    looks = f"{node.name!r} also looks at it through {self.name(w)!r}: name that, too."
                    refuse_if(self._looks_at(w, old), looks)
                waits = self.waits(u) if node.kind is Kind.COLLECTIVE else ()  # they hold what it reads
                self.rehouse(old, [storage], [u, *(w for w in waits if old in self.node(w).use)])
                if is_view(node):
                    todo.extend(w for w in self.users(u) if old in self.node(w).use)

    def _looks_at(self, v: NodeId, s: StorageId) -> bool:
        """Tell whether the result of v is the storage, or a view of it."""
        node = self.node(v)
        return s in self.gives(v) or (
            node.collective is None and s in node.use and (is_view(node) or node.kind is Kind.WAIT)
        )

    def stand_in(self, one: Single[NodeId], first: NodeId, out: NodeId) -> None:
        held = self._values[out].held if out in self._values else self.gives(out)
        for old, new in zip(self.node(one.launch).alloc, held, strict=False):
            self.rehouse(old, [new])
        for v in (*one.waits, one.launch):  # of the launch: an output, which comes after everything
            self.redirect(v, [out])
            self.remove(v)

    def begin_parts(
        self, fission: Fission, nodes: Sequence[NodeId], slices: Mapping[NodeId, Slice], stay: Collection[NodeId]
    ) -> None:
        inside = set(nodes)
        for v in nodes:
            node = self.node(v)
            given = node.kind in (Kind.INPUT, Kind.OUTPUT)
            refuse_if(given, f"{node.name!r} is an {node.kind.value}: it cannot run in parts.")
            apart = node.kind is Kind.WAIT and node.collective not in inside
            refuse_if(apart, f"{node.name!r} waits for a collective that does not run in parts.")
        for v, one in slices.items():
            self._results[v] = self._values[v] = _Value(self._allocated(one.maker, one.result), one.bytes)
        gone = inside.difference(stay)
        self._gone = gone | {u for v in gone if (u := self.host_node(v)) is not None}
        self._parts, self._slices = fission.parts, slices
        self._full = {s for name, k in fission.full for s in self._allocated(name, k)}
        self._own: list[dict[StorageId, StorageId]] = [{} for _ in range(fission.parts)]
        self._entered: dict[NodeId, Mapping[StorageId, Sequence[StorageId]]] = {}
        self._left = set[StorageId]()

    def _allocated(self, maker: str, result: int) -> tuple[StorageId, ...]:
        """The storage of a value that enters or leaves; none where it is not counted."""
        return self.node(self.find(maker)).alloc[result : result + 1]

    def waits_for(self, v: NodeId) -> NodeId | None:
        return self.node(v).collective

    def make_part(self, new: New[NodeId], p: int, of_part: Callable[[NodeId], NodeId]) -> NodeId:
        node, own, host, at = self.node(new.like), self._own[p], self.host_node(new.like), new.at
        for s in node.alloc:
            nbytes = self.storages[s].bytes
            own[s] = self._storage(nbytes if s in self._full else -(-nbytes // self._parts))
        deps: list[NodeId] = []
        entered = defaultdict[StorageId, list[StorageId]](list)
        for u in (*node.deps, *(() if node.collective is None else (node.collective,))):
            if u != host:
                deps.append(of_part(u))
                if u in self._slices:
                    self._entered[deps[-1]] = dict.fromkeys(self._results[u].held, self._values[deps[-1]].held)
                for s, given in self._entered.get(deps[-1], {}).items():
                    entered[s].extend(given)
        use = unique(t for s in node.use for t in ([own[s]] if s in own else entered.get(s, [s])))
        made = node._replace(name=new.name, deps=unique(deps), alloc=tuple(own[s] for s in node.alloc), use=use)
        if node.kind is Kind.COLLECTIVE:
            nbytes = node.bytes if self._full.issuperset(node.alloc) else -(-node.bytes // self._parts)
            us = self.prices.collective_us(node.op, nbytes, self.groups[node.group or ""])
            copy = self._in_flight(made._replace(time_us=us, bytes=nbytes), at)
        elif node.kind is Kind.WAIT:  # what ends a wait takes of the host, it takes for every part
            us = 0.0 if host is None else self.node(host).time_us
            assert node.collective is not None
            copy = self._behind_host(made._replace(collective=of_part(node.collective)), FINISH, us, at)
        else:
            nbytes = self._part_bytes(node, [s for s in node.use if s in own or s in entered])
            us, flops = self._part_us(node, nbytes), node.flops // self._parts
            copy = self._add(made._replace(time_us=us, flops=flops, bytes=nbytes), at)
        if not node.alloc or node.kind is Kind.COLLECTIVE:  # users of a view hold what it looks at; a wait, both sides
            self._entered[copy] = entered
        return copy

    def _part_bytes(self, node: Node, cut: Collection[StorageId]) -> int:
        """Count the bytes that a part moves: 1/n of what is cut; all of what goes in or comes out whole."""
        whole = sum(self.storages[s].bytes for s in node.use if s not in cut or s in self._full)
        whole += sum(self.storages[s].bytes for s in node.alloc if s in self._full)
        if whole > node.bytes:  # of a table, only some rows are read
            whole = 0
        return whole + -(-(node.bytes - whole) // self._parts)

    def _part_us(self, node: Node, nbytes: int) -> float:
        """The node's time, scaled as the model scales its own; 1/n of it, where that knows nothing of the node."""
        whole = self.prices.model.compute_us(Compute(node.op, node.flops, node.bytes))
        part = self.prices.model.compute_us(Compute(node.op, node.flops // self._parts, nbytes))
        return node.time_us * part / whole if whole else node.time_us / self._parts

    def check_leave(self, v: NodeId, leave: Leave, parts: Sequence[NodeId]) -> None:
        whole = self._allocated(leave.maker, leave.result)
        self._results[v] = _Value(whole, leave.bytes)
        self._left.update(whole)
        for own, part in zip(self._own, parts, strict=True):
            self._values[part] = _Value(tuple(own[s] for s in whole), leave.bytes)
        for s in whole if leave.how == "same" else ():
            self.rehouse(s, [self._own[0][s]], [w for w in self._holders[s] if w not in self._gone])

    def hand_out(self, v: NodeId, out: NodeId | None, users: Sequence[NodeId], copies: Sequence[NodeId]) -> None:
        given = self.node(v).alloc or self.node(v).use
        for w in users:
            node = self.node(w)
            if w in self._gone:  # what a node that goes takes of the host
                continue
            if out is None:  # it may come later alone: it writes to what this node has read
                taken = set(given).intersection((*node.use, *node.alloc))
                if not given or not taken <= self._left:
                    raise RewriteError(f"{node.name!r} uses {self.name(v)!r}, which runs in parts and does not leave.")
            self.redirect(v, copies if out is None else [out], [w])
