"""From regions to fissions: what crosses a region's border, and which fissions to try.

Regions grown from inputs, and the neighbourhoods of the largest values that live at the peak. Each has its *heat*, as
in MAGIS: time that the compute stream stalls at its waits, and bytes that it holds at the peak. Nothing is rewritten
here.

Layers with experts: tokens in parts, so that one part's all_to_all hides behind another's compute. Where numbers are
sorted (tokens by their expert), the dimension is followed back to where the tokens come from, and grows from there
through forward and backward: all between two attentions, in all layers. A narrower one is tried, too: from where rows
are picked to where they are added up again, as torchtitan chunks its layers by hand.
"""

import contextlib
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.region import Region, inverse, is_view, maker_of, region_from, with_results
from overlap_sched.fx.dimensions.routing import SORTS
from overlap_sched.fx.dimensions.rules import is_float, results, shape
from overlap_sched.fx.lifting import Lifted
from overlap_sched.judge.validate import measure
from overlap_sched.transform.dimension_graph import Cut, EndsError, Given, Routed, Uncut, is_range, range_cut
from overlap_sched.transform.rewrites import Fission, How, Leave, Slice
from overlap_sched.transform.tuning import TUNING

_HOW: Mapping[Uncut, How] = {Uncut.SAME: "same", Uncut.PARTIAL: "sum"}


def fission_of(region: Region) -> Fission | None:
    """The fission of a region; ``None``: it is empty, or one of its results cannot leave.

    Views that are used outside stay, and look at what leaves: then one value leaves for all views of it, laid out as
    it was. A collective whose launch is used outside (a graph that returns what is still in flight) leaves by its wait.
    """
    inside = region.gives
    if not inside:
        return None
    stay: set[fx.Node] = set()
    leaving: set[fx.Node] = set()
    open_ends = [node for node in inside if not inside.keys() >= node.users.keys()]
    through = {wait for node in open_ends if (wait := _wait_of(node)) is not None}
    for node in reversed(inside):
        used = any(user not in inside or user in stay for user in node.users)
        if not used and node not in through:
            continue
        if is_view(node):
            stay.add(node)
        elif node.target is operator.getitem and is_view(node.args[0]):
            stay.update((node, node.args[0]))
        elif node in through or _wait_of(node) is None:
            leaving.add(node)
    if any(isinstance(inside[node], tuple | Routed) for node in leaving):
        return None
    return Fission(
        tuple(node.name for node in inside),
        region.parts,
        tuple(_slice(node, cut) for node, cut in region.slices.items()),
        tuple(_leave(node, inside[node]) for node in inside if node in leaving),
        tuple(node.name for node in inside if node in stay),
        tuple(pair for node in region.calls for pair in _full(node, inside[node])),
    )


def _wait_of(node: fx.Node) -> fx.Node | None:
    """The wait for a launch; ``None``: the node launches nothing, or nobody waits for it."""
    waits = torch.ops._c10d_functional.wait_tensor.default
    return next((user for user in node.users if user.target is waits and user.args[0] is node), None)


def _leave(node: fx.Node, given: Any) -> Leave:
    (maker, result), value = maker_of(node), node.meta["val"]
    if isinstance(given, Uncut):
        return Leave(node.name, _HOW[given], Cut(0), _bytes(node), maker.name, result)
    order = () if value.is_contiguous() else sorted(range(value.ndim), key=lambda dim: (-value.stride(dim), dim))
    return Leave(node.name, "cat", given, _bytes(node), maker.name, result, tuple(order))


def _slice(node: fx.Node, cut: Cut) -> Slice:
    (maker, result), value = maker_of(node), node.meta["val"]
    dense = value.is_contiguous() or not any(value.stride())  # one element, expanded: its slices are laid out as it is
    return Slice(node.name, cut, _bytes(node), dense and is_range(cut, value.shape), maker.name, result)


def _full(node: fx.Node, given: Given | tuple[Given, ...]) -> list[tuple[str, int]]:
    """Allocations of a call that are as large in every part as in the whole."""
    tensors = [isinstance(one, torch.Tensor) for one in results(node.meta["val"])]
    whole = [way.rows is None if isinstance(way, Routed) else not isinstance(way, Cut) for way in results(given)]
    full = [at for at, is_whole in enumerate(whole) if is_whole and (tensors[at] or not isinstance(given, tuple))]
    return [(node.name, sum(tensors[:at])) for at in full]


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel()) * int(value.dtype.itemsize)


INTO = 2
"""Parts of a region."""


def fission_candidates(lifted: Lifted) -> list[Fission]:
    """Fissions to try, the most promising first: by their share of all stalls and of the peak, less what is copied.

    ``lifted``: a graph with collectives that compute could hide, or with a peak that should shrink.
    """
    heats = _Heats(lifted)
    found = map(fission_of, itertools.islice(_regions(lifted.nodes[0].graph, heats), TUNING.regions))
    scores = {one: heats.score(one) for one in found if one is not None}
    return sorted((one for one in scores if scores[one] > 0), key=lambda one: -scores[one])[:INTO]


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
        """Shares of all stalls and of the peak that parts could save."""
        stall_us = sum(self.stall_us.get(name, 0.0) for name in one.nodes)
        stalls = stall_us / self.total_us if self.total_us else 0.0
        copied = sum(leave.bytes for leave in one.leaves if leave.how in ("cat", "sum"))
        kept = max(sum(self.held.get(name, 0) for name in one.nodes) - copied, 0)  # what leaves is held whole, too
        return (stalls + kept / max(self.peak_bytes, 1)) * (1 - 1 / one.parts)


def _regions(graph: fx.Graph, heats: _Heats) -> Iterator[Region]:
    """Roots, grown from inputs; the same without their tails; then what is around large values."""
    roots = [region for seeds in _inputs(graph) if (region := region_from(graph, seeds, INTO)).gives]
    yield from roots
    for region in roots:
        if tail := _tail(region):
            yield region_from(graph, region.seeds, INTO, never=tail)
    yield from _around_large(graph, heats)


def _tail(region: Region) -> set[fx.Node]:
    """List the nodes after the last wait of a region: it hides one collective, its result is joined (logits)."""
    nodes = list(region.gives)
    waits = [k for k, node in enumerate(nodes) if node.target is torch.ops._c10d_functional.wait_tensor.default]
    return {node for node in nodes[waits[-1] + 1 :] if any(u.op == "output" for u in _behind(node))} if waits else set()


def _behind(node: fx.Node) -> list[fx.Node]:
    """Users, through views."""
    return [u for user in node.users for u in (_behind(user) if is_view(user) else [user])]


def _inputs(graph: fx.Graph) -> Iterator[Mapping[fx.Node, Cut]]:
    """Inputs that carry a batch, likely ones first: whole numbers (tokens), tangents, then three dimensions or more."""
    placeholders = {node: node.meta.get("val") for node in graph.nodes if node.op == "placeholder"}
    tensors = {node: one.ndim for node, one in placeholders.items() if isinstance(one, torch.Tensor) and one.ndim}
    tokens = [node for node in tensors if not is_float(node)]
    tangents = [node for node in tensors if node not in tokens and node.name.startswith("tangents")]
    others = [node for node, ndim in tensors.items() if node not in (*tokens, *tangents) and ndim > 2]
    for node in (*tokens, *tangents, *others):
        for dim in range(min(2, tensors[node])):
            with contextlib.suppress(EndsError):
                yield {node: range_cut(shape(node), dim, INTO)}


def _around_large(graph: fx.Graph, heats: _Heats) -> Iterator[Region]:
    """Regions around the largest values at the peak: cut along each dimension, by the cut of what they are made of."""
    nodes = list(graph.nodes)
    at = {node.name: k for k, node in enumerate(nodes)}
    for name in sorted(heats.held.keys() & at, key=lambda name: (-heats.held[name], at[name]))[:1]:
        node, value = nodes[at[name]], nodes[at[name]].meta.get("val")
        for dim in range(value.ndim) if isinstance(value, torch.Tensor) else ():
            with contextlib.suppress(EndsError):
                if seeds := inverse(node, range_cut(shape(node), dim, INTO), INTO):
                    yield region_from(graph, seeds, INTO)


def expert_fissions(lifted: Lifted, parts: Sequence[int] = (2, 4)) -> list[Fission]:
    """Fissions of all layers with experts at once; by ascending number of parts, the wider one first.

    Gradients of weights are sums over the parts, and rounded otherwise.

    Args:
        lifted: Of a step, or of its forward or backward graph.
        parts: Into how many; where the tokens do not divide, it is left out.
    """
    found = [fission_of(region) for n in parts for region in expert_regions(lifted.nodes[0].graph, n)]
    return [one for one in dict.fromkeys(found) if one is not None]


def expert_regions(graph: fx.Graph, parts: int) -> Iterator[Region]:
    """Yield regions that can run in parts: grown from where the tokens come from."""
    seeds: dict[fx.Node, Cut] = {}
    for sort in (node for target in SORTS for node in graph.find_nodes(op="call_function", target=target)):
        seeds.update(_source(sort, parts))
    if not seeds:
        return
    wide = region_from(graph, seeds, parts, sums=True)
    yield wide
    # what takes or gives something that each part has its own of
    routed = wide.routed.keys()
    own = (node for node in wide.calls if not routed.isdisjoint((*node.all_input_nodes, *with_results(node))))
    only = dict.fromkeys(own)
    entering = {u: wide.cut(u) for node in only for u in node.all_input_nodes if u not in only}
    if cuts := {u: cut for u, cut in entering.items() if cut is not None}:
        yield region_from(graph, cuts, parts, only=only, sums=True)


def _source(sort: fx.Node, parts: int) -> Mapping[fx.Node, Cut]:
    """Where the tokens come from that are sorted by expert; empty: they cannot be cut."""
    node: Any = sort.args[0]
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != 1 or value.is_floating_point():
        return {}
    with contextlib.suppress(EndsError):
        cut = range_cut(shape(node), 0, parts)
        while needs := inverse(node, cut, parts):
            node, cut = max(needs.items(), key=lambda pair: pair[0].meta["val"].numel())
        return {node: cut}
    return {}
