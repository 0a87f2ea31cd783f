"""What the prediction of fusion needs to know of a graph: its steps, and what they read, views looked through."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from overlap_sched.cost.fusion.steps import CPP, TRITON, FusionRules, FusionStep, Read
from overlap_sched.fx.collectives import Role
from overlap_sched.fx.flops import formula
from overlap_sched.fx.loops import Loop, is_slow, is_sum_by_index, loop_of
from overlap_sched.fx.operator_traits import NO_CALL, arguments_of
from overlap_sched.fx.reading import Reading


class _Look(NamedTuple):
    """How a node's value is to be found in what some step has computed: see :class:`~overlap_sched.cost.Read`."""

    value: int
    window: int
    aligned: bool


def rules_for(reading: Reading) -> FusionRules:
    """The rules of Inductor's back end for the devices of a graph."""
    return CPP if all(device == "cpu" for device in reading.storages.device) else TRITON


def steps_of(
    reading: Reading, free: Collection[int], after: Mapping[int, set[int]], rules: FusionRules
) -> list[FusionStep | None]:
    """The steps of a graph; ``None`` for inputs, the output and views.

    Args:
        reading: Of the graph.
        free: Nodes that compute nothing.
        after: Dependencies that are not data, see :func:`overlap_sched.fx.graph_hazards.graph_hazards`. Besides, a
            collective comes after the one before it and what waited for that by then: Inductor merges loops before
            anything is reordered (``comms.py: decide_global_ordering_of_comms``).
        rules: Of the back end.
    """
    steps: list[FusionStep | None] = []
    looks: list[_Look] = []
    copied = _copied(reading)
    communication: list[int] = []  # the last launch and the waits behind it
    for v in range(len(reading.nodes)):
        role = reading.traits[v].role
        is_step = v in copied or (reading.traits[v] is not NO_CALL and v not in free)
        looks.append(_look(reading, looks, v, is_step))
        before = [*after.get(v, ()), *(communication if role in (Role.LAUNCH, Role.BLOCKING) else ())]
        steps.append(_step(reading, looks, v, before, rules) if is_step else None)
        if role is not None:
            communication = [*communication, v] if role is Role.WAIT else [v]
    for v, node in enumerate(reading.nodes):
        if node.op == "output":
            for u in reading.inputs[v]:
                made = steps[looks[u].value]
                if made is not None:
                    steps[looks[u].value] = made._replace(kept=True)
    return steps


def _copied(r: Reading) -> set[int]:
    """Broadcast views that matmuls and their like read: they take tensors as they lie in memory."""
    found = set()
    for v, node in enumerate(r.nodes):
        if node.target is torch.ops.aten.expand.default and r.value_bytes[v] > r.value_bytes[r.inputs[v][0]]:
            users = list(node.users)
            for user in users:  # grows
                if loop_of(user.target) is Loop.RESHAPE:
                    users.extend(user.users)
            if any(user.op == "call_function" and formula(user.target) is not None for user in users):
                found.add(v)
    return found


def _look(r: Reading, looks: Sequence[_Look], v: int, is_step: bool) -> _Look:
    """A view is looked through to what computes its first input with the same storage."""
    source = None if is_step else next((u for u in r.inputs[v] if not set(r.outs[u]).isdisjoint(r.outs[v])), None)
    if source is None:
        return _Look(v, v, loop_of(r.nodes[v].target) is not Loop.SCATTERS)
    value, window, aligned = looks[source]
    part = r.traits[v].selects and source == value and len(r.raw_outs[source]) > 1  # one result of several
    straight = part or loop_of(r.nodes[v].target) is Loop.RESHAPE
    return _Look(value, window if straight and not part else v, aligned and straight)


def _step(r: Reading, looks: Sequence[_Look], v: int, after: Collection[int], rules: FusionRules) -> FusionStep:
    node, loop = r.nodes[v], _loop(r, v, rules)
    reads = []
    for u in r.looked_at(v):
        value, window, aligned = looks[u]
        whole = r.value_bytes[value]
        nbytes = min(r.value_bytes[u], whole)
        if nbytes:
            reads.append(Read(value, window, nbytes, whole, aligned))
    before = tuple([looks[u].value for u in (*after, *r.order_only.get(v, ()))])
    if loop is None:
        return FusionStep("opaque", tuple(reads), r.value_bytes[v], after=before)
    if loop is Loop.PICKS and reads:
        reads[0] = reads[0]._replace(bytes=min(reads[0].bytes, r.value_bytes[v]), aligned=False)
    if node.target is torch.ops.aten.copy_.default:
        nbytes, sources = r.overwritten_bytes[v], tuple(reads[1:])
        return FusionStep("pointwise", sources, nbytes, _elements(r, v), stored=True, kept=True, after=before)
    if loop is Loop.REDUCTION:
        return _reduction(r, v, tuple(reads), before)
    if loop is Loop.SCATTERS:  # what is written into the copy is as much as what is read for it
        nbytes = r.value_bytes[v] + (reads[-1].bytes if len(reads) > 1 else 0)
        return FusionStep("pointwise", tuple(reads), nbytes, _elements(r, v), stored=True, after=before)
    ops = 1 + sum([isinstance(a, int | float) for a in node.args])
    stored, slow = loop is Loop.STORED, is_slow(node.target)
    return FusionStep(
        "pointwise", tuple(reads), r.value_bytes[v], _elements(r, v), ops=ops, slow=slow, stored=stored, after=before
    )


def _reduction(r: Reading, v: int, reads: tuple[Read, ...], after: tuple[int, ...]) -> FusionStep:
    node, source = r.nodes[v], r.nodes[r.inputs[v][0]]
    value = source.meta.get("val")
    sizes = [r.storages.hint(size) for size in value.shape]
    dims = _reduced_dims(node, len(sizes))
    reduced = math.prod([sizes[d] for d in dims])
    points = max(math.prod(sizes) // max(reduced, 1), 1)
    inner = not sizes or len(sizes) - 1 in dims
    return FusionStep("reduction", reads, r.value_bytes[v], points, max(reduced, 1), inner, after=after)


_aten = torch.ops.aten
_LAST_DIMS = frozenset({_aten.native_layer_norm, getattr(_aten, "_fused_rms_norm", None)})


def _reduced_dims(node: fx.Node, rank: int) -> set[int]:
    """The dimensions that a reduction runs along; all where it names none."""
    arguments = arguments_of(node.target, node.args, node.kwargs)
    if node.target.overloadpacket in _LAST_DIMS:
        return set(range(rank - len(arguments["normalized_shape"]), rank))
    given: Any = arguments.get("dim", arguments.get("dims"))
    dims = [given] if isinstance(given, int) else given
    if not isinstance(dims, list | tuple) or not dims or not all(isinstance(d, int) for d in dims):
        return set(range(rank))
    return {d % rank for d in dims} if rank else set()


def _loop(r: Reading, v: int, rules: FusionRules) -> Loop | None:
    """Return the loops that a node becomes; ``None`` for all that is called as it is."""
    node, traits = r.nodes[v], r.traits[v]
    loop = loop_of(node.target)
    if traits.comm is not None or (v in r.syncs and loop is not Loop.PICKS):
        return None
    if loop is Loop.RESHAPE:  # a step only where it is a copy
        return Loop.STORED
    if loop is None or (not rules.adds_by_index and is_sum_by_index(node.target)):
        return None
    values = [node.meta.get("val"), *(r.nodes[u].meta.get("val") for u in r.inputs[v])]
    if any(isinstance(value, torch.Tensor) and value.dtype.is_complex for value in values):
        return None  # Inductor has no complex numbers
    if loop is Loop.PICKS and any(getattr(value, "dtype", None) is torch.bool for value in values[2:]):
        return None  # a mask: how many it picks only the data knows
    if loop is Loop.REDUCTION and not (r.inputs[v] and isinstance(values[1], torch.Tensor)):
        return None
    return loop


def _elements(r: Reading, v: int) -> int:
    value = r.nodes[v].meta.get("val")
    return r.value_bytes[v] // value.dtype.itemsize if isinstance(value, torch.Tensor) else 1
