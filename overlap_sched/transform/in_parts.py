"""What a fission makes of a problem: nodes in parts, slices in, what leaves put together.

A part takes as long as the cost model says of 1/n of the operations, and of the bytes that it moves: its part of what
is cut, and all of what goes in whole. The node's own time is scaled by that, so that times from elsewhere (a file, a
profile, a fused kernel) keep what they know. Where the model knows nothing of the node, 1/n of its time. The least time
of a kernel is thus the model's.

Storages of parts have 1/n of the bytes, rounded up, but for those listed in ``Fission.full``. What is put together is
allocated as the whole was.
"""

from collections.abc import Sequence

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId, StorageId
from overlap_sched.transform.bucket import CAT, CLONE, SLICE, VIEW
from overlap_sched.transform.draft import Draft, unique
from overlap_sched.transform.fission import Fission, Leave, Slice
from overlap_sched.transform.members import launched
from overlap_sched.transform.part_times import ADD, PartTimes
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recipes import places

PERMUTE = "aten.permute.default"
Entered = dict[StorageId, tuple[StorageId, ...]]
"""Per storage of what enters in part, what a part holds in its place: itself, where it takes a view."""
_KINDS = (Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT)


def fissioned(draft: Draft, fission: Fission, prices: Prices) -> None:
    """Run nodes in parts, where what is used outside leaves."""
    _Fissioning(draft, fission, prices).run()


class _Fissioning:
    """What is carried from node to node while one fission is done."""

    def __init__(self, draft: Draft, fission: Fission, prices: Prices) -> None:
        self.draft, self.fission, self.prices = draft, fission, prices
        rank = {v: k for k, v in enumerate(draft.order())}  # places alone do not say what needs what
        self.ids = sorted(map(draft.find, fission.nodes), key=rank.__getitem__)
        self.inside = set(self.ids)
        self.stay = {draft.find(name) for name in fission.views}
        self.copies: dict[NodeId, list[NodeId]] = {v: [] for v in self.ids}
        self.of_part: list[dict[StorageId, StorageId]] = [{} for _ in range(fission.parts)]
        self.taken: dict[tuple[NodeId, int], tuple[NodeId, tuple[StorageId, ...]]] = {}
        self.entered: dict[tuple[NodeId, int], Entered] = {}
        self.sliced: dict[NodeId, Slice] = {draft.find(one.value): one for one in fission.slices}
        self.full = {s for name, k in fission.full for s in draft.node(draft.find(name)).alloc[k : k + 1]}
        self.times = PartTimes(prices, fission.parts, self.full)
        self.left: set[StorageId] = set()
        self.of_host = {v: u for v in self.ids if (u := _host_node(draft, v)) is not None}
        gone = {*self.inside, *self.of_host.values()} - self.stay
        self.users = {v: [w for w in draft.after(v) if w not in gone] for v in self.ids}

    def run(self) -> None:
        """Copies, then what leaves, then the whole ones go."""
        self._check()
        at = [self.draft.at[v] for v in self.ids]
        waits = [self.draft.node(v).kind is Kind.WAIT for v in self.ids]
        where = places(at, waits, self.fission.parts)
        for p in range(self.fission.parts):
            for v, place in zip(self.ids, where[p], strict=True):
                self.copies[v].append(self._copy(v, p, place))
        self.left = {s for leave in self.fission.leaves for s in self._whole(leave)}
        outs = {self.draft.find(leave.value): self._leave(leave) for leave in self.fission.leaves}
        self._tell_users(outs)
        for v in reversed(self.ids):
            if v not in self.stay:
                self.draft.remove(v)
                if v in self.of_host:
                    self.draft.remove(self.of_host[v])

    def _check(self) -> None:
        if self.fission.parts < 2 or len(self.inside) < len(self.fission.nodes) or not self.ids:
            raise RewriteError(f"{self.fission.name!r} has {self.fission.parts} parts: 2 at least, and each node once.")
        for v in self.ids:
            node = self.draft.node(v)
            if node.kind not in _KINDS:
                raise RewriteError(f"{node.name!r} is an {node.kind.value}: it cannot run in parts.")
            if node.kind is Kind.WAIT and node.collective not in self.inside:
                raise RewriteError(f"{node.name!r} waits for a collective that does not run in parts.")

    def _copy(self, v: NodeId, p: int, at: float) -> NodeId:
        """A node in one part; what it takes in part is sliced before it, where that has not been done yet."""
        node, own = self.draft.node(v), self.of_part[p]
        name, alloc = self.fission.part(node.name, p), []
        for s in node.alloc:
            nbytes = self.draft.storages[s].bytes
            own[s] = self.draft.storage(nbytes if s in self.full else -(-nbytes // self.fission.parts))
            alloc.append(own[s])
        deps = []
        entered: Entered = {}
        for u in (*node.deps, *(() if node.collective is None else (node.collective,))):
            if u in self.sliced:
                source, given = self._taken(u, p, at)
                deps.append(source)
                _add(entered, {s: given or (s,) for s in self._storages(u)})
            elif u != self.of_host.get(v):
                deps.append(self.copies[u][p] if u in self.inside else u)
                _add(entered, self.entered.get((u, p), {}))
        if not node.alloc or node.kind is Kind.COLLECTIVE:  # users of a view hold what it looks at; a wait, both sides
            self.entered[v, p] = entered
        use = unique(t for s in node.use for t in ((own[s],) if s in own else entered.get(s, (s,))))
        if node.kind is Kind.COLLECTIVE:
            return self._collective(node, name, (deps, alloc, use), at)
        made = node._replace(name=name, deps=unique(deps), alloc=tuple(alloc), use=use)
        if node.kind is Kind.WAIT:
            return self._wait(v, made, p, at)
        nbytes = self.times.bytes(node, self.draft.storages, [s for s in node.use if s in own or s in entered])
        us = self.times.us(node, nbytes)
        return self.draft.add(made._replace(time_us=us, flops=self.times.flops(node), bytes=nbytes), at)

    def _collective(self, node: Node, name: str, what: tuple[list[int], list[int], tuple[int, ...]], at: float) -> int:
        deps, alloc, use = what
        group = self.draft.groups[node.group or ""]
        nbytes = node.bytes if self.full.issuperset(node.alloc) else -(-node.bytes // self.fission.parts)
        us = self.prices.collective_us(node.op, nbytes, group)
        before = launched(self.draft, name, unique(deps), self.prices.launch_us(node.op, nbytes, group), at)
        made = node._replace(name=name, deps=before, alloc=tuple(alloc), use=use, time_us=us, bytes=nbytes)
        return self.draft.add(made, at)

    def _wait(self, v: NodeId, made: Node, p: int, at: float) -> NodeId:
        launch, deps = made.collective, made.deps
        assert launch is not None
        if v in self.of_host:  # what ends a wait takes of the host, it takes for every part
            finish = self.draft.node(self.of_host[v])
            finished = Node(f"{made.name}.{finish.op}", Kind.COMPUTE, deps, time_us=finish.time_us, op=finish.op)
            deps = (*deps, self.draft.add(finished, at))
        return self.draft.add(made._replace(deps=deps, collective=self.copies[launch][p]), at)

    def _storages(self, v: NodeId) -> tuple[StorageId, ...]:
        """The storage of a value from outside; none where it is not counted."""
        one = self.sliced[v]
        return self.draft.node(self.draft.find(one.maker)).alloc[one.result : one.result + 1]

    def _taken(self, v: NodeId, p: int, at: float) -> tuple[NodeId, tuple[StorageId, ...]]:
        """A part of a value from outside: its node, and the storage of its copy (none: it is a view)."""
        if (v, p) not in self.taken:
            self.taken[v, p] = self._slice(v, p, at)
        return self.taken[v, p]

    def _slice(self, v: NodeId, p: int, at: float) -> tuple[NodeId, tuple[StorageId, ...]]:
        one, add = self.sliced[v], self.draft.add
        name, use = f"{self.fission.name}_{one.value}", self._storages(v)
        if one.free:
            return add(Node(f"{name}_in_{p}", Kind.COMPUTE, (v,), (), use, op=SLICE), at), ()
        source = v
        if one.cut.outer > 1:
            if p == 0:
                add(Node(f"{name}_runs", Kind.COMPUTE, (v,), (), use, op=VIEW), at)
            source = self.draft.find(f"{name}_runs")
        part = add(Node(f"{name}_slice_{p}", Kind.COMPUTE, (source,), (), use, op=SLICE), at)
        nbytes = one.bytes // self.fission.parts
        given = (self.draft.storage(nbytes),)
        us = self.prices.copy_us(CLONE, 2 * nbytes)
        copied = f"{name}_copy_{p}" if one.cut.outer > 1 else f"{name}_in_{p}"
        copy = add(Node(copied, Kind.COMPUTE, (part,), given, use, us, CLONE, bytes=2 * nbytes), at)
        if one.cut.outer > 1:
            copy = add(Node(f"{name}_in_{p}", Kind.COMPUTE, (copy,), (), given, op=VIEW), at)
        return copy, given

    def _whole(self, leave: Leave) -> tuple[StorageId, ...]:
        """The storage of what leaves; none where it is not counted."""
        return self.draft.node(self.draft.find(leave.maker)).alloc[leave.result : leave.result + 1]

    def _leave(self, leave: Leave) -> tuple[NodeId, ...]:
        """Return what users outside take: one node, or all parts."""
        parts = self.copies[self.draft.find(leave.value)]
        whole = self._whole(leave)
        if leave.how == "parts":
            self._rehouse(whole, [own[s] for own in self.of_part for s in whole])
            return tuple(parts)
        if leave.how == "same":
            self._rehouse(whole, [self.of_part[0][s] for s in whole])
            return (parts[0],)
        if leave.how == "sum":
            return (self._sum(leave, parts, whole),)
        return (self._cat(leave, parts, whole),)

    def _cat(self, leave: Leave, parts: Sequence[NodeId], whole: tuple[StorageId, ...]) -> NodeId:
        name, at = f"{self.fission.name}_{leave.value}", self.draft.at[parts[-1]]
        each = [tuple(own[s] for s in whole) for own in self.of_part]

        def views(what: str, op: str, of: Sequence[NodeId]) -> list[NodeId]:
            nodes = [Node(f"{name}_{what}_{p}", Kind.COMPUTE, (u,), (), each[p], op=op) for p, u in enumerate(of)]
            return [self.draft.add(node, at) for node in nodes]

        parts = views("laid", PERMUTE, parts) if leave.order else parts
        parts = views("runs", VIEW, parts) if leave.cut.outer > 1 else parts
        moved, use = 2 * leave.bytes, unique(s for one in each for s in one)
        us = self.prices.copy_us(CAT, moved)
        out = self.draft.add(Node(f"{name}_cat", Kind.COMPUTE, tuple(parts), whole, use, us, CAT, bytes=moved), at)
        if leave.cut.outer > 1:
            out = self.draft.add(Node(f"{name}_whole", Kind.COMPUTE, (out,), (), whole, op=VIEW), at)
        if leave.order:
            out = self.draft.add(Node(f"{name}_back", Kind.COMPUTE, (out,), (), whole, op=PERMUTE), at)
        return out

    def _sum(self, leave: Leave, parts: Sequence[NodeId], whole: tuple[StorageId, ...]) -> NodeId:
        name, moved = f"{self.fission.name}_{leave.value}", 3 * leave.bytes
        us = self.prices.copy_us(ADD, moved)
        total, held = parts[0], tuple(self.of_part[0][s] for s in whole)
        for p in range(1, len(parts)):
            given = whole if p == len(parts) - 1 else tuple(self.draft.storage(leave.bytes) for _ in whole)
            use = unique((*held, *(self.of_part[p][s] for s in whole)))
            node = Node(f"{name}_sum_{p}", Kind.COMPUTE, (total, parts[p]), given, use, us, ADD, bytes=moved)
            total, held = self.draft.add(node, self.draft.at[parts[p]]), given
        return total

    def _rehouse(self, whole: Sequence[StorageId], parts: Sequence[StorageId]) -> None:
        """Users outside of a whole storage hold those of parts instead."""
        for w in {w for s in whole for w in self.draft.users(s) if w not in self.inside or w in self.stay}:
            node = self.draft.node(w)
            use = unique(t for s in node.use for t in (parts if s in whole else (s,)))
            self.draft.become(w, node._replace(use=use))

    def _tell_users(self, outs: dict[NodeId, tuple[NodeId, ...]]) -> None:
        """Users outside depend on what leaves; those that only have to come later, on all parts."""
        launched_for = {self.draft.node(v).collective: out for v, out in outs.items()}
        for v, users in self.users.items():
            out = outs.get(v) or launched_for.get(v)
            for w in users if v not in self.stay else ():
                node = self.draft.node(w)
                if out is None and self._only_later(v, node):
                    out = tuple(self.copies[v])
                if out is None:
                    what = self.draft.node(v).name
                    raise RewriteError(f"{node.name!r} uses {what!r}, which runs in parts and does not leave.")
                deps = unique(t for u in node.deps for t in (out if u == v else (u,)))
                self.draft.become(w, node._replace(deps=deps))

    def _only_later(self, v: NodeId, user: Node) -> bool:
        """Tell whether a node takes of what another one gives only what leaves: it writes to what that has read."""
        node = self.draft.node(v)
        given = node.alloc or node.use
        taken = set(given).intersection((*user.use, *user.alloc))
        return bool(given) and taken <= self.left


def _host_node(draft: Draft, v: NodeId) -> NodeId | None:
    """The node that stands for what a collective or a wait takes of the host, where there is one."""
    return draft.launch_node(v) if draft.node(v).kind is Kind.COLLECTIVE else draft.finish_node(v)


def _add(entered: Entered, more: Entered) -> None:
    for s, given in more.items():
        entered[s] = unique((*entered.get(s, ()), *given))
