"""From parts of live ranges to rewrites: each copy and each reload is one, the latest in the step first.

So whatever uses a copy is there, by its name, when that copy is made.
"""

from collections.abc import Iterable

from overlap_sched.fit.state import Again, LiveState, Part, Reload
from overlap_sched.problem import Kind, NodeId, StorageId
from overlap_sched.transform.rewrites import Offload, Recompute


def rewrites_of(state: LiveState) -> list[Recompute | Offload]:
    """Return the rewrites that make the chosen parts, in the order in which they are to be done."""
    return _Emitter(state).run()


class _Emitter:
    def __init__(self, state: LiveState) -> None:
        self.state = state
        self.nodes = state.problem.nodes
        self.names: dict[Again, str] = {}
        self.numbers: dict[tuple[str, NodeId], int] = {}

    def run(self) -> list[Recompute | Offload]:
        state = self.state
        copies = [(copy.at, copy.node, copy) for of_one in state.copies.values() for copy in of_one]
        reloads = [(reload.at, state.problem.maker[reload.storage], reload) for reload in state.reloads]
        made: list[Recompute | Offload] = []
        events: list[tuple[int, NodeId, Again | Reload]] = [*copies, *reloads]
        for _, _, one in sorted(events, key=lambda it: it[:2], reverse=True):
            found = self._recompute(one) if isinstance(one, Again) else self._offload(one)
            if found is not None:
                made.append(found)
        return made

    def _recompute(self, copy: Again) -> Recompute | None:
        needed: dict[NodeId, None] = {copy.node: None}
        users: dict[str, None] = {}
        for s, part in copy.parts.items():
            self._collect(s, part, needed, users)
        if not users:
            return None
        nodes = sorted(needed)
        number = self._number("again", nodes)
        made = Recompute(tuple(self.nodes[v].name for v in nodes), tuple(users), number)
        self.names[copy] = made.new_name(self.nodes[copy.node].name)
        return made

    def _offload(self, reload: Reload) -> Offload | None:
        s, maker = reload.storage, self.state.problem.maker[reload.storage]
        part = next(part for part in self.state.parts[s] if part.source is reload)
        needed: dict[NodeId, None] = {maker: None}
        users: dict[str, None] = {}
        self._collect(s, part, needed, users)
        if not users:
            return None
        views = [v for v in sorted(needed) if v != maker and self.nodes[v].kind is not Kind.WAIT]
        number = self._number("offload", [maker, *views])
        return Offload(self.nodes[maker].name, tuple(users), tuple(self.nodes[v].name for v in views), number)

    def _collect(self, s: StorageId, part: Part, needed: dict[NodeId, None], users: dict[str, None]) -> None:
        """Who takes the new storage, and through which views that must be made again, too."""
        inside = {user.node for user in part.users if user.copy is None}
        for user in part.users:
            name = self.nodes[user.node].name if user.copy is None else self.names.get(user.copy, "")
            outside = [c for c in self.nodes[user.node].deps if c not in inside and self.state.gives(c, s)]
            if name and outside:
                users[name] = None
                for c in outside:
                    needed.update(dict.fromkeys(self._through(c, s)))

    def _through(self, v: NodeId, s: StorageId) -> Iterable[NodeId]:
        """A view, and the views that it looks through, to the maker."""
        found, todo = {v: None}, [v]
        while todo:
            for c in self.nodes[todo.pop()].deps:
                if c not in found and self.state.gives(c, s):
                    found[c] = None
                    todo.append(c)
        return found

    def _number(self, what: str, nodes: Iterable[NodeId]) -> int:
        number = 1 + max(self.numbers.get((what, v), 0) for v in nodes)
        self.numbers.update({(what, v): number for v in nodes})
        return number
