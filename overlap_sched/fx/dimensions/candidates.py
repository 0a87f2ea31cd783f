"""Which fissions to try: whole graph-level dimensions, stretches of them between narrow waists, single large values.

A tree, as MAGIS has it: at its root a region grown from an input; below it the halves of what is above, cut where the
fewest values cross; beside these the neighbourhoods of the largest values that live at the peak. Each has its *heat*:
time that the compute stream stands still at its waits, and bytes that it holds at the peak. Nothing is rewritten here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import fx

from overlap_sched.fx.dimensions.border import fission_of
from overlap_sched.fx.dimensions.call import shape
from overlap_sched.fx.dimensions.region import Region, inverse, region_from
from overlap_sched.fx.dimensions.storages import is_view
from overlap_sched.fx.lifting import Lifted
from overlap_sched.judge.validate import measure
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, range_cut
from overlap_sched.transform.fission import Fission

DEPTH = 3
"""Of the tree: eighths of a region are the smallest stretches."""
LARGE = 4
"""Values at the peak that are looked at."""
AROUND = 24
"""Nodes before and behind a large value that may run in parts with it."""


def fission_candidates(
    lifted: Lifted,
    *,
    parts: Sequence[int] = (2, 4),
    sums: bool = False,
    returned_in_parts: bool = False,
    effort: int = 48,
) -> list[Fission]:
    """Fissions to try, the most promising first: by their share of all stalls and of the peak, less what is copied.

    Args:
        lifted: Of a graph with collectives that compute could hide, or with a peak that should shrink.
        parts: Into how many.
        sums: Whether sums may be split (results are then rounded otherwise).
        returned_in_parts: As of :func:`~overlap_sched.fx.dimensions.border.fission_of`.
        effort: Regions grown at most; each reads the graph a few times.
    """
    graph = lifted.nodes[0].graph
    heats = _Heats(lifted)
    found: dict[Fission, float] = {}
    for done, region in enumerate(_regions(graph, heats, parts, sums)):
        one = fission_of(region, returned_in_parts=returned_in_parts)
        if one is not None and one not in found:
            found[one] = heats.score(one)
        if done + 1 >= effort:
            break
    return sorted((one for one in found if found[one] > 0), key=lambda one: -found[one])


class _Heats:
    """Heat of any set of nodes, from one replay of the original order."""

    def __init__(self, lifted: Lifted) -> None:
        problem = lifted.problem
        measured = measure(problem, problem.original_order)
        self.peak_bytes = max(measured.profile)
        at = list(measured.profile).index(self.peak_bytes)
        self.total_us = measured.timeline.exposed_us
        self.stall_us = {problem.nodes[v].name: us for v, us in enumerate(measured.timeline.stall_us) if us}
        self.held: dict[str, int] = {}
        last = {s: v for v, node in enumerate(problem.nodes) for s in (*node.alloc, *node.use)}
        for v, node in enumerate(problem.nodes[: at + 1]):
            held = sum(problem.storages[s].bytes for s in node.alloc if last[s] >= at)
            if held and problem.compute_us[v]:
                self.held[node.name] = held

    def score(self, one: Fission) -> float:
        """Shares of all that stands still and of the peak that parts could save."""
        stall_us = sum(self.stall_us.get(name, 0.0) for name in one.nodes)
        stalls = stall_us / self.total_us if self.total_us else 0.0
        copied = sum(leave.bytes for leave in one.leaves if leave.how in ("cat", "sum"))
        kept = max(sum(self.held.get(name, 0) for name in one.nodes) - copied, 0)  # what leaves is held whole, too
        return (stalls + kept / max(self.peak_bytes, 1)) * (1 - 1 / one.parts)


def _regions(graph: fx.Graph, heats: _Heats, parts: Sequence[int], sums: bool) -> Iterator[Region]:
    """Roots for each number of parts, the same without their tails, large values, then stretches, level by level."""
    roots = []
    for n in parts:
        for seeds in _inputs(graph, n):
            region = region_from(graph, seeds, n, sums=sums)
            if region.gives:
                roots.append(region)
                yield region
    for region in roots:
        tail = _tail(region)
        if tail:
            yield region_from(graph, region.seeds, region.parts, never=tail, sums=sums)
    for n in parts:
        yield from _around_large(graph, heats, n, sums)
    level = roots
    for _ in range(DEPTH):
        level = [half for region in level for half in _halves(graph, region, sums)]
        yield from level


def _tail(region: Region) -> set[fx.Node]:
    """List the nodes after the last wait of a region: it hides one collective, its result is joined (logits)."""
    nodes = list(region.gives)
    waits = [k for k, node in enumerate(nodes) if node.target is torch.ops._c10d_functional.wait_tensor.default]
    return {node for node in nodes[waits[-1] + 1 :] if any(u.op == "output" for u in _behind(node))} if waits else set()


def _behind(node: fx.Node) -> list[fx.Node]:
    """Users, through views."""
    return [u for user in node.users for u in (_behind(user) if is_view(user) else [user])]


def _inputs(graph: fx.Graph, parts: int) -> Iterator[Mapping[fx.Node, Cut]]:
    """Inputs that carry a batch, likely ones first: whole numbers (tokens), tangents, then three dimensions or more."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    values = {node: node.meta.get("val") for node in placeholders}
    tensors = [node for node in placeholders if isinstance(values[node], torch.Tensor) and values[node].ndim]
    tokens = [node for node in tensors if not values[node].is_floating_point() and not values[node].is_complex()]
    tangents = [node for node in tensors if node not in tokens and node.name.startswith("tangents")]
    others = [node for node in tensors if node not in (*tokens, *tangents) and values[node].ndim > 2]
    for node in (*tokens, *tangents, *others):
        for dim in range(min(2, len(node.meta["val"].shape))):
            try:
                yield {node: range_cut(shape(node), dim, parts)}
            except EndsError:
                continue


def _around_large(graph: fx.Graph, heats: _Heats, parts: int, sums: bool) -> Iterator[Region]:
    """Regions around the largest values at the peak: cut along each dimension, by the cut of what they are made of."""
    nodes = {node.name: node for node in graph.nodes}
    order = {node: at for at, node in enumerate(graph.nodes)}
    for name in sorted((name for name in heats.held if name in nodes), key=lambda name: -heats.held[name])[:LARGE]:
        node = nodes[name]
        near = [u for u in graph.nodes if abs(order[u] - order[node]) <= AROUND]
        value = node.meta.get("val")
        for dim in range(value.ndim) if isinstance(value, torch.Tensor) else ():
            try:
                seeds = inverse(node, range_cut(shape(node), dim, parts), parts)
            except EndsError:
                continue
            if seeds:
                yield region_from(graph, seeds, parts, only=set(near), sums=sums)


def _halves(graph: fx.Graph, region: Region, sums: bool) -> Iterator[Region]:
    """A region cut in two where the fewest of its values cross, in the middle third."""
    nodes = list(region.gives)
    if len(nodes) < 6:
        return
    at = {node: k for k, node in enumerate(nodes)}
    crossing = [0] * (len(nodes) + 1)
    for node in nodes:
        last = max((at[user] for user in node.users if user in at), default=at[node])
        crossing[at[node] + 1] += 1
        crossing[last + 1] -= 1
    for k in range(1, len(crossing)):
        crossing[k] += crossing[k - 1]
    middle = range(len(nodes) // 3, 2 * len(nodes) // 3)
    cut = min(middle, key=lambda k: (crossing[k], abs(k - len(nodes) // 2)))
    for stretch in (nodes[:cut], nodes[cut:]):
        yield region_from(graph, _entering(region, stretch), region.parts, only=set(stretch), sums=sums)


def _entering(region: Region, stretch: Collection[fx.Node]) -> Mapping[fx.Node, Cut]:
    """Values from outside a stretch, as the region has them cut."""
    inside = set(stretch)
    outside = [u for node in stretch for u in node.all_input_nodes if u not in inside]
    return {u: cut for u in dict.fromkeys(outside) if (cut := region.cut(u)) is not None}
