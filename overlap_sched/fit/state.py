"""Live ranges along one order, while values are chosen that need not: live ranges cut into parts.

The order is the problem's own (relabel it first): a node's id is its place. A storage has one part at first, from its
maker to its last use. Each choice cuts a part in two at an idle gap::

    uses        m  .  u  .  .  .  .  .  w  .  x          gap (u, w)
    parts       [=====]                 [=====]          again: its maker runs again before w
    parts       [=======]            [========]          offload: with the time of the copies

What runs again uses what its maker used: those parts get a use more. What it takes to have a storage again at a place
is nothing, a longer life, or its maker run again, and so on back::

    need(s, q)    s is live at q               nothing
                  its part before could last   where that is not over the limit: it does
                  its maker may run again      at q, if all that it reads can be there: need(x, q) for each
"""

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.fit.tuning import TUNING
from overlap_sched.problem import Kind, NodeId, Position, Problem, StorageId
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.apply import is_view, refusal, writes
from overlap_sched.transform.prices import HostLink

Bytes = npt.NDArray[np.int64]


@dataclass(eq=False)
class Again:
    """A copy of a node, run just before a place, and the parts that begin with it."""

    node: NodeId
    at: Position
    parts: dict[StorageId, "Part"] = field(default_factory=dict)


@dataclass(eq=False)
class Reload:
    """A storage that goes to the host after one use and is back before another, at place ``at``; its copies' times."""

    storage: StorageId
    at: Position
    out_us: float
    in_us: float


@dataclass(eq=False)
class User:
    """A node that uses a part; or a copy of it."""

    node: NodeId
    copy: Again | None = None

    @property
    def at(self) -> Position:
        """Where it runs."""
        return self.node if self.copy is None else self.copy.at

    @property
    def last(self) -> Position:
        """The last node at which it needs what it uses."""
        return self.node if self.copy is None else self.copy.at - 1

    @property
    def key(self) -> tuple[Position, int, NodeId]:
        """Copies run before the node at whose place they are, those of earlier nodes first."""
        return (self.node, 1, self.node) if self.copy is None else (self.copy.at, 0, self.node)


@dataclass(eq=False)
class Part:
    """Where a storage is live: at all nodes from ``begin`` to ``end``, and at copies that run just before ``end + 1``.

    ``users`` are in order; of what is made there (``source`` is ``None``), the maker is the first. What only copies at
    one place use is live at no node: ``end == begin - 1``.
    """

    begin: Position
    end: Position
    users: list[User]
    source: Again | Reload | None = None


class LiveState:
    """The parts of all storages, and the profile that they make.

    Attributes:
        problem: Relabelled: ids are places.
        profile: Bytes live at each place. limit_bytes: what they should not be above.
        parts: Per storage, by place.
        fixed: Per storage: it may neither be made again nor go to the host (never freed, returned, or written to).
        may_run_again: Per node.
        beside: Per place, by how much copies that run before it need more than the node itself.
        copies: Per node, those that have been chosen.
    """

    def __init__(self, problem: Problem, limit_bytes: int, rerun: frozenset[str] | None) -> None:
        """Nothing is chosen yet; ``rerun``: names of nodes that may run again, ``None``: by operator, attention not."""
        self.problem, self.limit_bytes = problem, limit_bytes
        nodes, n = problem.nodes, len(problem.nodes)
        ranges = LiveRanges(problem)
        self.profile: Bytes = ranges.profile(problem.original_order).astype(np.int64)
        self.size = [storage.bytes for storage in problem.storages]
        self.writers: list[list[Position]] = [[] for _ in problem.storages]
        self.parts: list[list[Part]] = [[] for _ in problem.storages]
        for v, node in enumerate(nodes):
            if writes(node) or (node.kind is Kind.COLLECTIVE and not node.alloc):
                for s in node.use:
                    self.writers[s].append(v)
        given = {s for node in nodes if node.kind is Kind.OUTPUT for s in node.use}
        self.fixed = [one.pinned or s in given or bool(self.writers[s]) for s, one in enumerate(problem.storages)]
        for live in ranges.of(problem.original_order):
            s = live.storage
            last = n - 1 if problem.storages[s].pinned else live.last
            made_by = problem.maker[s]
            self.parts[s] = [Part(live.first, last, [User(v) for v in (made_by, *ranges.users[s])])]
        self.may_run_again = [
            bool(node.alloc)
            and not refusal(node)
            and ("attention" not in node.op and "empty" not in node.op if rerun is None else node.name in rerun)
            for node in nodes
        ]
        self.copies: dict[NodeId, list[Again]] = {}
        self.beside = np.zeros(n, dtype=np.int64)
        self.alloc_bytes = ranges.alloc_bytes
        self.reloads: list[Reload] = []

    @property
    def excess(self) -> Bytes:
        """Bytes above the limit at each place."""
        return np.maximum(self.profile + self.beside - self.limit_bytes, 0)

    @property
    def fits(self) -> bool:
        """Tell whether nothing is above the limit."""
        return int((self.profile + self.beside).max()) <= self.limit_bytes

    def covers(self, s: StorageId, at: Position) -> Part | None:
        """The part that is live for a copy that runs just before a place."""
        return next((part for part in self.parts[s] if part.begin <= at <= part.end + 1), None)

    def gives(self, v: NodeId, s: StorageId) -> bool:
        """Tell whether a node's result is the storage, or a view of it."""
        node = self.problem.nodes[v]
        if node.kind is Kind.WAIT and node.collective is not None:
            return s in self.problem.nodes[node.collective].alloc
        return s in node.alloc or (s in node.use and (is_view(node) or node.kind is Kind.WAIT))

    def cut(
        self, s: StorageId, part: Part, after: User, source: Again | Reload | None, end: Position, begin: Position
    ) -> Part:
        """Cut a part behind a user: the first is then live to ``end``, the second from ``begin`` on."""
        k = part.users.index(after) + 1
        rest = Part(begin, part.end, part.users[k:], source)
        self.profile[end + 1 : begin] -= self.size[s]
        part.end, part.users = end, part.users[:k]
        self.parts[s].insert(self.parts[s].index(part) + 1, rest)
        return rest

    def joins(self, s: StorageId, part: Part) -> bool:
        """Tell whether a part and the one before it could be one within the limit."""
        before = self.parts[s][self.parts[s].index(part) - 1]
        between = slice(before.end + 1, part.begin)
        if part.begin <= before.end + 1 or not part.users:
            return True
        return int((self.profile + self.beside)[between].max()) + self.size[s] <= self.limit_bytes

    def join(self, s: StorageId, part: Part) -> None:
        """A part and the one before it become one; where nobody uses it, it goes."""
        if not part.users:
            self.profile[part.begin : part.end + 1] -= self.size[s]
            self.parts[s].remove(part)
            return
        before = self.parts[s][self.parts[s].index(part) - 1]
        self.profile[before.end + 1 : part.begin] += self.size[s]
        before.end = max(before.end, part.end)
        before.users += part.users
        self.parts[s].remove(part)

    def use(self, s: StorageId, copy: Again) -> None:
        """A copy uses the part that is live where it runs."""
        part = self.covers(s, copy.at)
        assert part is not None, f"storage {s} is not live at {copy.at}"
        part.users.append(User(copy.node, copy))
        part.users.sort(key=attrgetter("key"))

    def unuse(self, s: StorageId, copy: Again) -> None:
        """Take that back; the part stays as long as it is."""
        for part in self.parts[s]:
            part.users = [user for user in part.users if user.copy is not copy]

    def added(self, first: Position, last: Position, nbytes: int) -> int:
        """Return what so many more bytes at each of these places add above the limit, in bytes times places."""
        if first > last or not nbytes:
            return 0
        if first == last:
            one = int(self.profile[first]) - self.limit_bytes
            return max(one + nbytes, 0) - max(one, 0)
        there: Bytes = self.profile[first : last + 1] - self.limit_bytes
        if int(there.max()) + nbytes <= 0:
            return 0
        return int((np.maximum(there + nbytes, 0) - np.maximum(there, 0)).sum())

    def place(self, v: NodeId, at: Position) -> Again:
        """Place a copy of a node; what it reads is live there."""
        copy = Again(v, at)
        for s in self.problem.nodes[v].use:
            self.use(s, copy)
        self.copies.setdefault(v, []).append(copy)
        return copy


class RemakePrice(NamedTuple):
    """What it takes.

    Attributes:
        us: Compute.
        excess: What it adds above the limit, in bytes times places.
        held: Bytes that are made for it, and held until it is used. peak: the most at once on the way.
    """

    us: float
    excess: int
    held: int = 0
    peak: int = 0


FREE = RemakePrice(0.0, 0)


class Remake:
    """One question to a state; ``commit`` does what the answer says."""

    def __init__(self, state: LiveState, most_us: float = math.inf, commit: bool = False) -> None:
        """Ask, or do.

        Args:
            state: Changed only where ``commit``.
            most_us: What takes longer is not asked for any further.
            commit: Do it.
        """
        self.state, self.most_us, self.commit = state, most_us, commit
        self._seen: dict[StorageId, None] = {}
        self._nodes, self._us = 0, 0.0

    def again(self, v: NodeId, at: Position) -> RemakePrice | None:
        """Return what it takes to run a node again just before a place; ``None``: it cannot be."""
        state = self.state
        self._nodes += 1
        node = state.problem.nodes[v]
        self._us += node.time_us
        if not state.may_run_again[v]:
            return None
        if not self.commit and (self._nodes > TUNING.longest or self._us > self.most_us):
            return None
        us, excess, held, peak = node.time_us, 0, 0, 0
        for s in node.use:
            if any(v < writer < at for writer in state.writers[s]):
                return None
            price = self.need(s, at)
            if price is None:
                return None
            peak = max(peak, held + price.peak)
            us, excess, held = us + price.us, excess + price.excess, held + price.held
        return RemakePrice(us, excess, held, max(peak, held + sum(state.size[s] for s in node.alloc)))

    def need(self, s: StorageId, at: Position) -> RemakePrice | None:
        """Return what it takes to have a storage at a place."""
        state = self.state
        if state.covers(s, at) is not None or s in self._seen:
            return FREE
        parts = state.parts[s]
        before = parts[bisect_right(parts, at, key=attrgetter("begin")) - 1]
        longer = state.added(before.end + 1, at - 1, state.size[s])
        price = self._make(s, at) if longer and not state.fixed[s] else None
        self._seen[s] = None
        if price is not None:
            return price
        if self.commit:
            state.profile[before.end + 1 : at] += state.size[s]
            before.end = at - 1
        return RemakePrice(0.0, longer)

    def _make(self, s: StorageId, at: Position) -> RemakePrice | None:
        v = self.state.problem.maker[s]
        if self.commit and Remake(self.state).again(v, at) is None:
            return None
        price = self.again(v, at)
        if price is not None and self.commit:
            copy, parts = self.state.place(v, at), self.state.parts[s]
            copy.parts[s] = Part(at, at - 1, [], copy)
            parts.insert(bisect_left(parts, at, key=attrgetter("begin")), copy.parts[s])
        return None if price is None else price._replace(held=self.state.size[s])


class LinkTime:
    """Slots of the link that are taken, in microseconds of the order."""

    def __init__(self, link: HostLink) -> None:
        """All is free."""
        self.link = link
        self._taken: list[tuple[float, float]] = []

    def slots(self, nbytes: int, from_us: float, to_us: float) -> tuple[float, float] | None:
        """Begin of a copy out, as soon as may be, and of one back, as late as may be; ``None``: not both between."""
        us, taken, out, back_end = self.link.copy_us(nbytes), self._taken, from_us, to_us
        for begin, end in taken[max(bisect_left(taken, (from_us,)) - 1, 0) :]:
            if out + us <= begin:
                break
            out = max(out, end)
        for begin, end in reversed(taken[: bisect_left(taken, (to_us,))]):
            if end <= back_end - us:
                break
            back_end = min(back_end, begin)
        back = back_end - us
        return (out, back) if out + us <= back and back >= 0 else None

    def take(self, nbytes: int, out_us: float, in_us: float) -> None:
        """Both slots are taken."""
        us = self.link.copy_us(nbytes)
        insort(self._taken, (out_us, out_us + us))
        insort(self._taken, (in_us, in_us + us))
