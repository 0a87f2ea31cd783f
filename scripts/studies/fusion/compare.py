"""One graph by both front ends: before Inductor, with predicted fusion, and after it, with its own kernels.

Inductor lowers the graph and merges its loops as always; it is stopped behind that, so that no code is generated. The
FX graph that it had is lifted with ``fusion="inductor"`` and with ``"none"``, and its kernels by
:func:`overlap_sched.inductor.lifting.lift_kernels`; all with one cost model.
"""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.virtualized import V

from overlap_sched.cost import Price
from overlap_sched.fx.fusion import loop_of
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.inductor.lifting import LiftedKernels, lift_kernels
from overlap_sched.problem import Kind, Node

NEAR = 0.1
"""A kernel is found again when its predicted time is off by at most this part."""


@dataclass(frozen=True)
class Comparison:
    """Compute of one graph, microseconds.

    Attributes:
        name: Of the graph.
        kernels_us: By Inductor's kernels. fused_us: predicted. unfused_us: node by node.
        loops_us: Of ``kernels_us``, what is not a matmul, attention or another kernel that is called as it is.
        near_percent: Part of that time in kernels whose prediction is off by at most :data:`NEAR`.
        spread_percent: Median error of those kernels, weighted by time.
        worst: The kernels furthest off, in microseconds: (operators, Inductor's, predicted).
    """

    name: str
    kernels_us: float
    fused_us: float
    unfused_us: float
    loops_us: float
    near_percent: float
    spread_percent: float
    worst: tuple[tuple[str, float, float], ...]

    @property
    def off_percent(self) -> float:
        """How far the prediction of all compute is off."""
        return 100 * (self.fused_us / self.kernels_us - 1) if self.kernels_us else 0.0


class _SeenError(BaseException):
    """Stops a compilation; not an ``Exception``, so that nothing takes it for a failure."""


def compared(name: str, graph_module: fx.GraphModule) -> Comparison:
    """Compare one graph.

    Args:
        name: Of the graph.
        graph_module: As Inductor's inner compiler gets it; inputs with fake values.
    """
    seen: list[tuple[LiftedKernels, Lifted, Lifted]] = []

    def look(snodes: list[Any]) -> list[Any]:
        graph = V.graph.graph
        seen.append((lift_kernels(snodes), lift(graph, fusion="inductor"), lift(graph)))
        raise _SeenError

    inputs = [node.meta["val"] for node in graph_module.graph.nodes if node.op == "placeholder"]
    mode = next(value.fake_mode for value in inputs if isinstance(value, torch._subclasses.FakeTensor))
    passes = {"reorder_for_compute_comm_overlap": True, "reorder_for_compute_comm_overlap_passes": [look]}
    context = torch._guards.tracing(torch._guards.TracingContext(mode))
    with config.patch(**passes, fx_graph_cache=False), context, V.set_fake_mode(mode), suppress(_SeenError):
        compile_fx_inner(graph_module, inputs)
    return _figures(name, *seen[0])


def _figures(name: str, kernels: LiftedKernels, fused: Lifted, unfused: Lifted) -> Comparison:
    pairs = _matched(kernels, fused)
    loops = sum(real for _, real, _ in pairs)
    errors = sorted((abs(ours / real - 1), real) for _, real, ours in pairs if real)
    near = sum(real for error, real in errors if error <= NEAR)
    return Comparison(
        name,
        _total(kernels.problem.nodes),
        _total(fused.problem.nodes),
        _total(unfused.problem.nodes),
        loops,
        100 * near / loops if loops else 100.0,
        100 * _weighted_median(errors),
        tuple(sorted(pairs, key=lambda pair: -abs(pair[1] - pair[2]))[:3]),
    )


def _total(nodes: Sequence[Node]) -> float:
    return sum(node.time_us for node in nodes if node.kind is Kind.COMPUTE)


def _weighted_median(errors: Sequence[tuple[float, float]]) -> float:
    weights = [max(round(weight), 1) for _, weight in errors]
    return statistics.median([e for (e, _), w in zip(errors, weights, strict=True) for _ in range(w)] or [0.0])


def _matched(kernels: LiftedKernels, fused: Lifted) -> list[tuple[str, float, float]]:
    """Kernels with loops: operators, Inductor's time, predicted time. Where one side has merged more, all of it."""
    group_of = {n: p.part_of or n.name for n, p in zip(fused.nodes, fused.prices, strict=True)}
    times: dict[str, float] = {}
    for node, price in zip(fused.nodes, fused.prices, strict=True):
        if _computes(price):
            times[group_of[node]] = times.get(group_of[node], 0.0) + price.time_us
    joined = _Joined()
    timed = [
        (node, snode)
        for node, snode in zip(kernels.problem.nodes, kernels.snodes, strict=True)
        if node.kind is Kind.COMPUTE and node.time_us and snode is not None
    ]
    for node, snode in timed:
        for group in _groups(snode, group_of, times):
            joined.join(node.name, group)
    loops = {joined.root(node.name): node.op for node, snode in timed if not snode.is_extern()}
    real, ours = dict.fromkeys(loops, 0.0), dict.fromkeys(loops, 0.0)
    for node, _ in timed:
        root = joined.root(node.name)
        real[root] = real.get(root, 0.0) + node.time_us
    for group, us in times.items():
        root = joined.root(group)
        ours[root] = ours.get(root, 0.0) + us
    return [(op, real[root], ours[root]) for root, op in loops.items()]


def _computes(price: Price) -> bool:
    return price.source in ("roofline", "fusion") and price.bound not in ("latency", "bandwidth")


def _groups(snode: Any, group_of: dict[fx.Node, str], times: dict[str, float]) -> list[str]:
    """The predicted kernels of what a kernel computes: by the last node of each part that has a time."""
    found = []
    for part in snode.get_nodes():
        exact = getattr(part.node, "origin_node", None)
        if exact in group_of and group_of[exact] in times:
            found.append(group_of[exact])
            continue
        origins = getattr(part.node, "origins", None) or ()
        # a copy names who reads it, and a call who computes what it reads
        own = [o for o in group_of if o in origins and (loop_of(o.target) is None) == snode.is_extern()]
        found += [group_of[o] for o in own if group_of[o] in times][-1:]
    return found


class _Joined:
    """Names that belong together (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, name: str) -> str:
        while (parent := self._parent.get(name, name)) != name:
            name = parent
        return name

    def join(self, one: str, two: str) -> None:
        self._parent[self.root(f"{one}")] = self.root(two)
