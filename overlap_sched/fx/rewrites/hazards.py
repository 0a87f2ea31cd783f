"""In which order nodes stand while they go, come, and run in parts: in their places, or as a problem has them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import fx

from overlap_sched.errors import RewriteError

Before = Callable[[fx.Node], Iterable[fx.Node]]
"""All that a node must come after."""


class Hazards:
    """Order with no data between."""

    def __init__(
        self, after: Mapping[fx.Node, Sequence[fx.Node]], gone: Mapping[fx.Node, tuple[fx.Node, fx.Node]]
    ) -> None:
        """As a graph had them.

        Args:
            after: Per node, the earlier ones.
            gone: Of nodes that go, what stands for them: after others, and before others. It is filled meanwhile.
        """
        self._after = {node: list(before) for node, before in after.items()}
        self._gone = gone

    def has(self, node: fx.Node) -> bool:
        """Tell whether a node must come after one whose value it does not take."""
        return bool(self._after.get(node))

    def add(self, node: fx.Node, *before: fx.Node) -> None:
        """A node comes after other ones, whose values it does not take."""
        self._after.setdefault(node, []).extend(before)

    def copy(self, node: fx.Node, made: fx.Node) -> None:
        """Let a copy come after whatever its original must come after."""
        if node in self._after:
            self._after[made] = list(self._after[node])

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
                        self.add(copy, first)
                    continue
                for one in runs.get(later, (later,)):
                    self.add(one, *runs.get(u, (u,)))

    def before(self) -> Before:
        """Return, for every node that stays, what it takes, and what else it must come after."""
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


Place = Callable[[fx.Node], tuple[float, int]]


def in_places(nodes: Iterable[fx.Node], place: Place, before: Before, made_by: Mapping[fx.Node, str]) -> list[fx.Node]:
    """All nodes: each in its place, what it needs pulled ahead of it; ``made_by``: rewrites, for the message."""
    done: set[fx.Node] = set()
    open_: set[fx.Node] = set()
    order: list[fx.Node] = []
    for start in sorted(nodes, key=place):
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
                raise RewriteError(_ring([n for n in stack if n in open_], missing, made_by))
            stack.extend(sorted(missing, key=place, reverse=True))
    return order


def _ring(open_: Sequence[fx.Node], missing: Sequence[fx.Node], made_by: Mapping[fx.Node, str]) -> str:
    again = next(u for u in missing if u in set(open_))
    ring = open_[open_.index(again) :]
    buckets = list(dict.fromkeys(made_by[node] for node in ring if node in made_by))
    named = " and ".join(map(repr, buckets)) or repr(again.name)
    through = next((node.name for node in ring if node not in made_by), again.name)
    return f"{named} would need itself, through {through!r}: merged collectives lie on one path. Leave one out."


def as_named(names: Sequence[str], by_name: Mapping[str, fx.Node], before: Before) -> list[fx.Node]:
    """All nodes, in an order of the rewritten problem; names with a dot stand for no node of a graph."""
    order = [by_name[name] for name in names if name in by_name]
    unknown = [name for name in names if name not in by_name and "." not in name]
    if unknown or len(order) != len(by_name) or len(set(order)) != len(order):
        missing = sorted(by_name.keys() - set(names))
        raise RewriteError(
            f"the order has {len(order)} of the {len(by_name)} nodes of the rewritten graph: it lacks "
            f"{missing[:3]} and has {unknown[:3]} that are not there."
        )
    done: set[fx.Node] = set()
    for node in order:
        late = [u for u in before(node) if u not in done]
        if late:
            raise RewriteError(f"the order has {node.name!r} before {late[0].name!r}, which it needs.")
        done.add(node)
    return order


def users_first(nodes: Collection[fx.Node], place: Place) -> list[fx.Node]:
    """Nodes that go, each before what it takes: places do not say that where a rewrite undoes another's."""
    users = {node: len(node.users) for node in nodes}  # all of them go, too
    free = [node for node in sorted(nodes, key=place) if not users[node]]
    order = []
    while free:
        order.append(node := free.pop())
        for taken in node.all_input_nodes:
            if taken in users:
                users[taken] -= 1
                if not users[taken]:
                    free.append(taken)
    return order
