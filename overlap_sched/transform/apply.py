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
from typing import Any, NamedTuple

from overlap_sched.errors import RewriteError
from overlap_sched.problem import FINISH, LAUNCH, Group, Kind, Node, NodeId, Problem, StorageId
from overlap_sched.transform.draft import NOT_KNOWN, Alike, Draft
from overlap_sched.transform.host import OUT
from overlap_sched.transform.prices import PartTimes, Prices
from overlap_sched.transform.recipes import ADD, CAT, GETITEM, VIEW, Maker, New, Reshape, Single, rewrite, unique
from overlap_sched.transform.recompute import is_view, refusal, writes
from overlap_sched.transform.rewrites import Fission, Leave, Rewrite, Slice

WAIT, HOST_WAIT = "_c10d_functional.wait_tensor.default", "ao.wait_tensor.default"
OFFLOAD, RELOAD = "offload", "reload"
"""Operators of new nodes."""


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
    draft = _ProblemMaker(problem, problem.original_order if order is None else order, prices, alike)
    make: Maker[NodeId] = draft
    for one in rewrites:
        rewrite(make, one)
    return draft.finish()


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


class _ProblemMaker(Draft):
    """Makes the nodes of :mod:`overlap_sched.transform.recipes`; columns are bytes, of whichever side is larger."""

    def __init__(self, problem: Problem, order: Sequence[NodeId], prices: Prices, alike: Alike = NOT_KNOWN) -> None:
        """Nothing is rewritten yet."""
        super().__init__(problem, order, alike)
        self.prices = prices
        self._values: dict[NodeId, _Value] = {}
        self._results: dict[NodeId, _Value] = {}  # of what enters and leaves a fission, whole

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

    def _add(self, node: Node, at: float, value: _Value) -> NodeId:
        v = self.add(node, at)
        self._values[v] = value
        return v

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
        us = self.prices.launch_us(node.op, node.bytes, self.groups[node.group or ""])
        v = self._behind_host(node, LAUNCH, us, at)
        self._values[v] = _Value(node.alloc, node.bytes, v, node.use)
        return v

    def _behind_host(self, node: Node, op: str, us: float, at: float) -> NodeId:
        if us:
            host = self.add(Node(f"{node.name}.{op}", Kind.COMPUTE, node.deps, time_us=us, op=op), at)
            node = node._replace(deps=(*node.deps, host))
        return self.add(node, at)

    def relaunch(self, new: New[NodeId], one: Single[NodeId]) -> NodeId:
        node = self.node(one.launch)
        return self._in_flight(node._replace(name=new.name, deps=one.sources, alloc=self._like(node.alloc)), new.at)

    def wait(self, new: New[NodeId], of: NodeId) -> NodeId:
        value = self._values[of]
        assert value.launch is not None
        node, use = self.node(value.launch), unique((*value.read, *value.held))
        us = self.prices.finish_us(node.op, node.bytes, self.groups[node.group or ""])
        ended = Node(new.name, Kind.WAIT, (of,), (), use, op=WAIT, collective=value.launch)
        v = self._behind_host(ended, FINISH, us, new.at)
        self._values[v] = _Value(value.held, value.bytes)
        return v

    def _fresh(self, nbytes: int, counted: bool) -> tuple[StorageId, ...]:
        return (self.storage(nbytes),) if counted else ()

    def _like(self, storages: Iterable[StorageId]) -> tuple[StorageId, ...]:
        """New storages as large as others."""
        return tuple(self.storage(self.storages[s].bytes) for s in storages)

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
        if len(node.alloc) != 1 or node.kind not in (Kind.COMPUTE, Kind.INPUT, Kind.COLLECTIVE):
            raise RewriteError(f"{name!r} makes {len(node.alloc)} storages: what makes one can be offloaded.")
        storage = self.storages[node.alloc[0]]
        if storage.pinned or not storage.bytes:
            why = "is never freed" if storage.bytes else "is empty"
            raise RewriteError(f"{name!r} {why}: to offload it saves nothing.")
        waits = self.waits(v) if node.kind is Kind.COLLECTIVE else [v]
        if len(waits) != 1:
            raise RewriteError(f"{name!r} has {len(waits)} waits: what has one can be offloaded.")
        return waits[0]

    def to_host(self, new: New[NodeId]) -> NodeId:
        launch = Node(new.name, Kind.COLLECTIVE, (new.like,), (), self.gives(new.like), op=OFFLOAD, group=OUT)
        return self._transfer(launch, new.at)

    def to_device(self, new: New[NodeId], there: NodeId) -> NodeId:
        fresh = self._like(self.gives(new.like))
        return self._transfer(Node(new.name, Kind.COLLECTIVE, (there,), fresh, op=RELOAD, group=OUT), new.at)

    def _transfer(self, launch: Node, at: float) -> NodeId:
        self.groups.setdefault(OUT, Group(1, True))
        nbytes = sum(self.storages[s].bytes for s in (*launch.use, *launch.alloc))
        return self.add(launch._replace(time_us=self.prices.host.copy_us(nbytes), bytes=nbytes), at)

    def wait_copied(self, new: New[NodeId], launch: NodeId, behind: NodeId) -> NodeId:
        node = self.node(launch)
        held = (*node.use, *node.alloc)
        return self.add(Node(new.name, Kind.WAIT, (behind, launch), (), held, op=HOST_WAIT, collective=launch), new.at)

    def repeat(self, new: New[NodeId], made: Mapping[NodeId, NodeId]) -> NodeId:
        node, house = self.node(new.like), self._house(made)
        house |= zip(node.alloc, self._like(node.alloc), strict=True)
        deps, use = unique(made.get(u, u) for u in node.deps), tuple(house.get(s, s) for s in node.use)
        copy = node._replace(name=new.name, deps=deps, alloc=tuple(house[s] for s in node.alloc), use=use)
        v = self.add(copy, new.at)
        for s in copy.use:
            behind = [w for w in self.holders(s) if w != v and self.at[w] > self.at[new.like] and writes(self.node(w))]
            for w in sorted(behind, key=self.at.__getitem__)[:1]:
                if self.at[w] < new.at:
                    raise RewriteError(
                        f"{node.name!r} cannot run again: {self.name(w)!r} writes to what it reads before that."
                    )
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
                if others := [w for w in node.deps if self._looks_at(w, old)]:
                    looks = self.name(others[0])
                    raise RewriteError(f"{node.name!r} also looks at it through {looks!r}: name that, too.")
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
            if node.kind not in (Kind.COMPUTE, Kind.COLLECTIVE, Kind.WAIT):
                raise RewriteError(f"{node.name!r} is an {node.kind.value}: it cannot run in parts.")
            if node.kind is Kind.WAIT and node.collective not in inside:
                raise RewriteError(f"{node.name!r} waits for a collective that does not run in parts.")
        for v, one in slices.items():
            self._results[v] = self._values[v] = _Value(self._allocated(one.maker, one.result), one.bytes)
        gone = inside.difference(stay)
        hosts = {u for v in gone if (u := self.host_node(v)) is not None}
        full = {s for name, k in fission.full for s in self._allocated(name, k)}
        times = PartTimes(self.prices, fission.parts, full)
        self._parts = _Parts(fission.parts, slices, gone | hosts, times, [{} for _ in range(fission.parts)], {}, set())

    def _allocated(self, maker: str, result: int) -> tuple[StorageId, ...]:
        """The storage of a value that enters or leaves; none where it is not counted."""
        return self.node(self.find(maker)).alloc[result : result + 1]

    def waits_for(self, v: NodeId) -> NodeId | None:
        return self.node(v).collective

    def make_part(self, new: New[NodeId], p: int, of_part: Callable[[NodeId], NodeId]) -> NodeId:
        node, parts, times, at = self.node(new.like), self._parts, self._parts.times, new.at
        own, host = parts.own[p], self.host_node(new.like)
        for s in node.alloc:
            nbytes = self.storages[s].bytes
            own[s] = self.storage(nbytes if s in times.full else -(-nbytes // parts.parts))
        deps: list[NodeId] = []
        entered = defaultdict[StorageId, list[StorageId]](list)
        for u in (*node.deps, *(() if node.collective is None else (node.collective,))):
            if u != host:
                deps.append(of_part(u))
                if u in parts.slices:
                    parts.entered[deps[-1]] = dict.fromkeys(self._results[u].held, self._values[deps[-1]].held)
                for s, given in parts.entered.get(deps[-1], {}).items():
                    entered[s].extend(given)
        use = unique(t for s in node.use for t in ([own[s]] if s in own else entered.get(s, [s])))
        made = node._replace(name=new.name, deps=unique(deps), alloc=tuple(own[s] for s in node.alloc), use=use)
        if node.kind is Kind.COLLECTIVE:
            nbytes = node.bytes if times.full.issuperset(node.alloc) else -(-node.bytes // parts.parts)
            us = self.prices.collective_us(node.op, nbytes, self.groups[node.group or ""])
            copy = self._in_flight(made._replace(time_us=us, bytes=nbytes), at)
        elif node.kind is Kind.WAIT:  # what ends a wait takes of the host, it takes for every part
            us = 0.0 if host is None else self.node(host).time_us
            assert node.collective is not None
            copy = self._behind_host(made._replace(collective=of_part(node.collective)), FINISH, us, at)
        else:
            nbytes = times.bytes(node, self.storages, [s for s in node.use if s in own or s in entered])
            us = times.us(node, nbytes)
            copy = self.add(made._replace(time_us=us, flops=node.flops // parts.parts, bytes=nbytes), at)
        if not node.alloc or node.kind is Kind.COLLECTIVE:  # users of a view hold what it looks at; a wait, both sides
            parts.entered[copy] = entered
        return copy

    def check_leave(self, v: NodeId, leave: Leave, parts: Sequence[NodeId]) -> None:
        whole = self._allocated(leave.maker, leave.result)
        self._results[v] = _Value(whole, leave.bytes)
        self._parts.left.update(whole)
        for own, part in zip(self._parts.own, parts, strict=True):
            self._values[part] = _Value(tuple(own[s] for s in whole), leave.bytes)
        for s in whole if leave.how == "same" else ():
            self.rehouse(s, [self._parts.own[0][s]], [w for w in self.holders(s) if w not in self._parts.gone])

    def hand_out(self, v: NodeId, out: NodeId | None, users: Sequence[NodeId], copies: Sequence[NodeId]) -> None:
        given = self.node(v).alloc or self.node(v).use
        for w in users:
            node = self.node(w)
            if w in self._parts.gone:  # what a node that goes takes of the host
                continue
            if out is None:  # it may come later alone: it writes to what this node has read
                taken = set(given).intersection((*node.use, *node.alloc))
                if not given or not taken <= self._parts.left:
                    raise RewriteError(f"{node.name!r} uses {self.name(v)!r}, which runs in parts and does not leave.")
            self.redirect(v, copies if out is None else [out], [w])


class _Parts(NamedTuple):
    """What is carried from node to node while one fission is done.

    Attributes:
        parts: How many. slices: nodes that enter in part.
        gone: Nodes that go, and what stands for what they take of the host.
        times: Of nodes in a part.
        own: Per part, per storage that a node inside makes, the part's.
        entered: Per new node, per storage of what enters in part, what a part holds in its place: itself, where it
            takes a view.
        left: Storages that leave.
    """

    parts: int
    slices: Collection[NodeId]
    gone: Collection[NodeId]
    times: PartTimes
    own: Sequence[dict[StorageId, StorageId]]
    entered: dict[NodeId, Mapping[StorageId, Sequence[StorageId]]]
    left: set[StorageId]
