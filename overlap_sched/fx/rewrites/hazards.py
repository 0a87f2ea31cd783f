"""Who must come after whom without taking its value, while nodes go, come, and run in parts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import fx

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
