"""What lives when, along one order, while values are chosen that need not: live ranges cut into parts.

The order is the problem's own (relabel it first): a node's id is its place. A storage has one part at first, from its
maker to its last use. Each choice cuts a part in two at an idle gap::

    uses        m  .  u  .  .  .  .  .  w  .  x          gap (u, w)
    parts       [=====]                 [=====]          again: its maker runs again before w
    parts       [=======]            [========]          offload: with the time of the copies

What runs again uses what its maker used: those parts get a use more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Position, Problem, StorageId
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.recompute import is_view, refusal, writes

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


_KEY: Callable[[User], tuple[Position, int, NodeId]] = lambda user: user.key  # noqa: E731


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
        self.fixed = [storage.pinned for storage in problem.storages]
        self.parts: list[list[Part]] = [[] for _ in problem.storages]
        for v, node in enumerate(nodes):
            if writes(node) or (node.kind is Kind.COLLECTIVE and not node.alloc):
                for s in node.use:
                    self.writers[s].append(v)
                    self.fixed[s] = True
            if node.kind is Kind.OUTPUT:
                for s in node.use:
                    self.fixed[s] = True
        for live in ranges.of(problem.original_order):
            s = live.storage
            last = n - 1 if problem.storages[s].pinned else live.last
            made_by = problem.maker[s]
            self.parts[s] = [Part(live.first, last, [User(v) for v in (made_by, *ranges.users[s])])]
        self.may_run_again = [self._may_run_again(v, rerun) for v in range(n)]
        self.copies: dict[NodeId, list[Again]] = {}
        self.beside = np.zeros(n, dtype=np.int64)
        self.alloc_bytes = ranges.alloc_bytes
        self.reloads: list[Reload] = []

    def _may_run_again(self, v: NodeId, rerun: frozenset[str] | None) -> bool:
        node = self.problem.nodes[v]
        if refusal(node) or not node.alloc:
            return False
        return "attention" not in node.op and "empty" not in node.op if rerun is None else node.name in rerun

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

    def around(self, s: StorageId, at: Position) -> tuple[Part, Part | None]:
        """The last part that begins before a place, and the next one."""
        parts = self.parts[s]
        k = bisect_right(parts, at, key=lambda part: part.begin)
        return parts[k - 1], parts[k] if k < len(parts) else None

    def written_between(self, s: StorageId, begin: Position, end: Position) -> bool:
        """Tell whether something writes to a storage between two places."""
        k = bisect_right(self.writers[s], begin)
        return k < len(self.writers[s]) and self.writers[s][k] < end

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

    def extend(self, s: StorageId, part: Part, at: Position) -> None:
        """A part lives on until a copy just before a place."""
        self.profile[part.end + 1 : at] += self.size[s]
        part.end = at - 1

    def pull(self, s: StorageId, part: Part, to: Position) -> None:
        """A part begins sooner."""
        self.profile[to : part.begin] += self.size[s]
        part.begin = to

    def use(self, s: StorageId, copy: Again) -> None:
        """A copy uses the part that is live where it runs."""
        part = self.covers(s, copy.at)
        assert part is not None, f"storage {s} is not live at {copy.at}"
        part.users.append(User(copy.node, copy))
        part.users.sort(key=_KEY)

    def unuse(self, s: StorageId, copy: Again) -> None:
        """Take that back; the part stays as long as it is."""
        for part in self.parts[s]:
            part.users = [user for user in part.users if user.copy is not copy]

    def add_part(self, s: StorageId, source: Again) -> Part:
        """A storage is made again where it was not live."""
        part = Part(source.at, source.at - 1, [], source)
        parts = self.parts[s]
        parts.insert(bisect_left(parts, source.at, key=lambda other: other.begin), part)
        source.parts[s] = part
        return part
