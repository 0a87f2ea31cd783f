"""The launch sequence of a graph: which collectives it starts, in which order, on which groups.

Read without lifting the graph, so that a rank that cannot schedule it still has one to show. What communicates on the
compute stream is part of it, or may: it too must meet its partners in order. So are the launches in sub-graphs.

And the waits of a graph, by how many launches stand before each: with both it is seen, without anything that planned
it, whether an order is safe whatever the other ranks run (``docs/agreement.md``).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.distributed.digest import launches_of
from overlap_sched.distributed.sequences import Launch
from overlap_sched.fx.calls import Communications, Launched, bodies_of, live_ranks
from overlap_sched.fx.operators import Role, traits_of
from overlap_sched.problem import ANY_GROUP

Launches = tuple[fx.Node, ...]
"""The FX nodes that communicate, waits apart, in the order in which they do."""


@dataclass(frozen=True)
class Traffic:
    """What a graph launches and waits for, in an order.

    Attributes:
        launching: The launches in their order; one of several kernels stands there for each of them.
        before: Per wait, how many of these stand before it.
    """

    launching: Launches
    before: Mapping[Any, int]

    @property
    def launches(self) -> Launches:
        """Each launch once."""
        return tuple(dict.fromkeys(self.launching))

    def keeps(self, original: "Traffic") -> bool:
        """Does it launch as another order does, and has no wait passed a launch that stood before it there?"""
        alike = self.launching == original.launching and self.before.keys() == original.before.keys()
        return alike and all(self.before[wait] >= count for wait, count in original.before.items())


def traffic_in(nodes: Iterable[fx.Node]) -> Traffic:
    """That of the nodes of an FX graph."""
    listed = list(nodes)
    launches = launches_in(listed)
    launching, before, count = set(launches), dict[Any, int](), 0
    for node in listed:
        if waits(node):
            before[node] = count
        count += node in launching
    return Traffic(launches, before)


def waits(node: fx.Node) -> bool:
    """Does a node wait for a launch, by itself or in what it runs?"""
    if node.op != "call_function":
        return False
    called = (node.target, *(argument for argument in node.args if isinstance(argument, OpOverload)))
    if any(traits_of(one).role is Role.WAIT for one in called):
        return True
    return any(waits(inner) for body in bodies_of(node) if body is not None for inner in body.graph.nodes)


def launches_in(nodes: Iterable[fx.Node]) -> Launches:
    """Those of an FX graph."""
    listed = list(nodes)
    known = Communications(listed[0].graph) if listed else None
    return tuple(node for node in listed if known is not None and known.of(node))


def launch_digest(launches: Launches) -> str:
    """Return what ranks with equal launch sequences share, see :func:`overlap_sched.distributed.digest.launches_of`.

    Ranks of a mesh have other groups each, so a group is known by its size and the distances of its ranks.
    """
    known = Communications(launches[0].graph) if launches else None
    sequence = [one for node in launches if known is not None for one in known.of(node)]
    return launches_of([(one.op, name, distances) for one in sequence for name, distances in _groups(one)])


def launch_texts(launches: Launches) -> tuple[Launch, ...]:
    """Return what launches are known by in all graphs of a job, see :mod:`overlap_sched.distributed.sequences`."""
    known = Communications(launches[0].graph) if launches else None
    found = []
    for node in launches:
        parts = [(one.op, [d for _, d in _groups(one)]) for one in ([] if known is None else known.of(node))]
        groups = hashlib.sha256(repr([groups for _, groups in parts]).encode()).hexdigest()[:12]
        found.append(f"{'+'.join(op for op, _ in parts)} {groups} {_bytes_given(node)}")
    return tuple(found)


def _bytes_given(node: fx.Node) -> str:
    """The bytes of the tensors that a node is given; ``*``: not known before it runs."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes = [size for tensor in tensors for size in tensor.shape]
    if not tensors or not all(type(size) is int for size in sizes):
        return "*"
    return str(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def _groups(launched: Launched) -> Iterator[tuple[str, list[int] | None]]:
    """The names of process groups, and how far their ranks are from each other, where that is known."""
    for name, live in launched.groups or ((ANY_GROUP, None),):
        ranks = live_ranks(name if live is None else live)
        yield name, None if ranks is None else [b - a for a, b in pairwise(ranks)]
