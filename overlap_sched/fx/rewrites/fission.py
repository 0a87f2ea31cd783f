"""A sub-graph runs in parts: what a fission makes of an FX graph.

The nodes and their names are listed in :mod:`overlap_sched.transform.fission`. How each node is cut is asked again of
the rules here, and not believed of the rewrite: a fission that does not fit the graph is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.dimensions.region import Region, followed
from overlap_sched.fx.operators import Arg
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.sites import ATEN, WAIT, check_same_value
from overlap_sched.transform.dimension_graph.cut import Cut, Uncut, is_cut_of
from overlap_sched.transform.dimension_graph.shapes import through_permute
from overlap_sched.transform.fission import Fission, How, Leave, Slice
from overlap_sched.transform.recipes import places


def fission(draft: GraphDraft, rewrite: Fission) -> None:
    """Run nodes in parts, where each can be cut so, and what is used outside leaves."""
    _GraphFission(draft, rewrite).run()


class _GraphFission:
    """What is carried from node to node while one fission is done."""

    def __init__(self, draft: GraphDraft, rewrite: Fission) -> None:
        self.draft, self.rewrite, self.parts = draft, rewrite, rewrite.parts
        rank = {node: k for k, node in enumerate(draft.sorted())}  # places alone do not say what needs what
        self.nodes = sorted(map(draft.find, rewrite.nodes), key=rank.__getitem__)
        self.stay = {draft.find(name) for name in rewrite.views}
        self.slices = {draft.find(one.value): one for one in rewrite.slices}
        self.copies: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.nodes}
        self.entered: dict[tuple[fx.Node, int], fx.Node] = {}

    def run(self) -> None:
        """Copies, then what leaves, then the whole ones go."""
        self._check()
        self.region = self._followed()
        at = [self.draft.at[node] for node in self.nodes]
        where = places(at, [node.target is WAIT for node in self.nodes], self.parts)
        for p in range(self.parts):
            for node, place in zip(self.nodes, where[p], strict=True):
                self.copies[node].append(self._copy(node, p, place))
        self._tell_users({self.draft.find(leave.value): leave for leave in self.rewrite.leaves})
        self.draft.hazards.in_parts(self.copies, self.stay)
        for node in reversed(self.nodes):
            if node not in self.stay:
                self.draft.remove(node, self.copies[node][0], self.copies[node][-1])

    def _check(self) -> None:
        """Every part writes to what is its own, and what enters is read as it was at any time."""
        if self.parts < 2 or len(self.copies) < len(self.rewrite.nodes) or not self.nodes:
            raise RewriteError(f"{self.rewrite.name!r} has {self.parts} parts: 2 at least, and each node once.")
        facts = self.draft.facts
        for node in (*self.nodes, *self.slices):
            if facts.by_address(node):
                raise RewriteError(f"{node.name!r} is looked at by its address: it stays whole.")
        for node, one in self.slices.items():
            reader = self.draft.read_after_a_write(node, self.copies)
            if reader is not None and not one.free:  # a view is read when a part's reader runs; a copy, when it is made
                raise RewriteError(f"{node.name!r} is written to before {reader.name!r} reads it: it stays whole.")
        for node in self.nodes:
            outside = [u for u in self.draft.sharers(node) if u not in self.copies]
            if outside:
                raise RewriteError(
                    f"{node.name!r} is written to, and {outside[0].name!r}, which does not run in parts, shares its "
                    "memory: it stays whole."
                )

    def _followed(self) -> Region:
        """How each node is cut."""
        region = followed(self.nodes, {node: one.cut for node, one in self.slices.items()}, self.parts)
        for node in self.nodes:
            why = region.ends.get(node, "none of its inputs is cut")
            if node in region.gives:
                more = [u for u in node.all_input_nodes if u in region.slices and u not in self.slices]
                if not more:
                    continue
                why = f"{more[0].name!r} would have to be cut, too"
            raise RewriteError(f"{node.name!r} cannot run in {self.parts} parts: {why}.")
        return region

    def _copy(self, node: fx.Node, p: int, at: float) -> fx.Node:
        def of_part(u: fx.Node) -> fx.Node:
            if u in self.slices:
                return self._slice(u, p, at)
            return self.copies[u][p] if u in self.copies else u

        args = list(fx.node.map_arg(node.args, of_part))
        kwargs = dict(fx.node.map_arg(node.kwargs, of_part))
        changes = self.region.told[node].changes if node in self.region.told else {}
        names = [a.name for a in node.target._schema.arguments] if changes else []
        for name, value in changes.items():
            position = names.index(name)
            if position < len(args):
                args[position] = value
            else:
                kwargs[name] = value
        try:
            return self.draft.call_in_part(self.rewrite.part(node.name, p), tuple(args), kwargs, at, node, self.parts)
        except RuntimeError as error:  # a view of what lies otherwise in memory for a part; no symbol for a size
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
            raise RewriteError(f"{node.name!r} cannot run in {self.parts} parts: {why}.") from None

    def _slice(self, v: fx.Node, p: int, at: float) -> fx.Node:
        if (v, p) not in self.entered:
            self.entered[v, p] = self._sliced(self.slices[v], v, p, at)
        return self.entered[v, p]

    def _sliced(self, one: Slice, v: fx.Node, p: int, at: float) -> fx.Node:
        """A part of a value from outside."""
        name, cut, sizes = f"{self.rewrite.name}_{one.value}", one.cut, tuple(v.meta["val"].shape)
        if not is_cut_of(cut, sizes, self.parts):
            raise RewriteError(f"{one.value!r} of shape {sizes} cannot be cut as {cut} into {self.parts} parts.")
        source, dim = v, cut.dim
        if cut.outer > 1:
            dim += 1
            source = self.entered.get((v, -1)) or self._call(f"{name}_runs", ATEN.view, (v, _runs(sizes, cut)), at, v)
            self.entered[v, -1] = source
        rows = (p * cut.inner, (p + 1) * cut.inner)
        named = f"{name}_in_{p}" if one.free else f"{name}_slice_{p}"
        part = self.draft.call(named, ATEN.slice.Tensor, (source, dim, *rows), at, v)
        if one.free:
            return part
        named = f"{name}_copy_{p}" if cut.outer > 1 else f"{name}_in_{p}"
        part = self._call(named, ATEN.clone, (part,), at, v)  # dense, its dimensions in memory as those of the whole
        if cut.outer > 1:
            part = self._call(f"{name}_in_{p}", ATEN.view, (part, list(cut.part(sizes))), at, v)
        return part

    def _call(self, name: str, packet: Any, args: tuple[Any, ...], at: float, like: fx.Node) -> fx.Node:
        return self.draft.call(name, packet.default, args, at, like)

    def _tell_users(self, leaves: Mapping[fx.Node, Leave]) -> None:
        """Users outside take what leaves."""
        outs: dict[fx.Node, fx.Node | list[fx.Node]] = {}
        for node, leave in leaves.items():
            outs[node] = self._leave(node, leave)
            if node.target is WAIT:
                outs.setdefault(node.args[0], outs[node])
        for node in self.nodes:
            outside = [u for u in self.draft.users(node) if u not in self.copies or u in self.stay]
            if node in self.stay or not outside:
                continue
            out = outs.get(node)
            if out is None:
                what = f"{outside[0].name!r} uses {node.name!r}"
                raise RewriteError(f"{what}, which runs in parts and does not leave.")
            if isinstance(out, fx.Node):
                self.draft.replace(node, out, outside)
            else:
                self._return_parts(node, out, outside)

    def _return_parts(self, node: fx.Node, parts: list[fx.Node], outside: list[fx.Node]) -> None:
        for user in outside:
            if user.op != "output":
                raise RewriteError(f"{user.name!r} uses {node.name!r}, which leaves in parts: only the output may.")

            def each(u: fx.Node) -> Any:
                return tuple(parts) if u is node else u

            self.draft.set_argument(user, Arg((0, "result")), fx.node.map_arg(user.args[0], each))

    def _leave(self, node: fx.Node, leave: Leave) -> fx.Node | list[fx.Node]:
        """Return what users outside take."""
        parts, name, given = self.copies[node], f"{self.rewrite.name}_{node.name}", self.region.gives[node]
        if given != _GIVES.get(leave.how, leave.cut):
            raise RewriteError(f"{node.name!r} comes out of its parts as {given}: it does not leave as {_said(leave)}.")
        if leave.how == "parts":
            return parts
        if leave.how == "same":
            return parts[0]
        out = self._sum(name, node, parts) if leave.how == "sum" else self._cat(name, node, parts, leave)
        check_same_value(node.name, node, out)
        return out

    def _sum(self, name: str, node: fx.Node, parts: list[fx.Node]) -> fx.Node:
        total = parts[0]
        for p in range(1, len(parts)):
            at = self.draft.at[parts[p]]
            total = self.draft.call(f"{name}_sum_{p}", ATEN.add.Tensor, (total, parts[p]), at, node)
        return total

    def _cat(self, name: str, node: fx.Node, parts: list[fx.Node], leave: Leave) -> fx.Node:
        at, cut, sizes = self.draft.at[parts[-1]], leave.cut, tuple(node.meta["val"].shape)
        if leave.order:
            cut, sizes = through_permute(cut, leave.order), tuple(sizes[dim] for dim in leave.order)
            parts = self._each(name, "laid", ATEN.permute, parts, leave.order, node)
        if cut.outer > 1:
            parts = self._each(name, "runs", ATEN.view, parts, _runs(cut.part(sizes), cut), node)
        out = self._call(f"{name}_cat", ATEN.cat, (parts, cut.dim + (cut.outer > 1)), at, node)
        if cut.outer > 1:
            out = self._call(f"{name}_whole", ATEN.view, (out, list(sizes)), at, node)
        if leave.order:
            back = [leave.order.index(dim) for dim in range(len(sizes))]
            out = self._call(f"{name}_back", ATEN.permute, (out, back), at, node)
        return out

    def _each(
        self, name: str, what: str, packet: Any, parts: list[fx.Node], argument: Sequence[int], like: fx.Node
    ) -> list[fx.Node]:
        at = self.draft.at[parts[-1]]
        return [self._call(f"{name}_{what}_{p}", packet, (u, list(argument)), at, like) for p, u in enumerate(parts)]


_GIVES: Mapping[How, Uncut] = {"sum": Uncut.PARTIAL, "same": Uncut.SAME}


def _said(leave: Leave) -> str:
    return repr(leave.how) if leave.how in _GIVES else f"{leave.how!r} of {leave.cut}"


def _runs(shape: tuple[int, ...], cut: Cut) -> list[int]:
    """A shape with the dimension that is cut as runs and rows of a run."""
    return [*shape[: cut.dim], cut.outer, shape[cut.dim] // cut.outer, *shape[cut.dim + 1 :]]
