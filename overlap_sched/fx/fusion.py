"""Operations of a node, and what the prediction of fusion needs to know of a graph: its steps, views looked through.

Operations come from the formulas of torch's own counter; which operators a compiler writes loops for, by operator
objects, as TorchInductor lowers them (``lowering.py``).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from overlap_sched.cost.fusion import CPP, TRITON, FusionRules, FusionStep, Read
from overlap_sched.fx.operators import NO_CALL, Role, arguments_of
from overlap_sched.fx.reading import Reading

Formula = Callable[..., int]


def _grouped_mm(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Matmuls of groups of rows (a 2-d, b 3-d), of columns (3-d, 2-d) or of the inner dimension (2-d, 2-d).

    Together the groups cover the divided dimension once.
    """
    batches = a.shape[0] if a.dim() == 3 and b.dim() == 3 else 1
    return 2 * batches * a.shape[-2] * a.shape[-1] * b.shape[-1]


_AS_FLASH = ("flash_attention_for_cpu", "fused_attention_overrideable")
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward
_ADDED: Mapping[str, Formula] = {
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped_mm),
    **dict.fromkeys(("_scaled_mm_v2", "_int_mm"), _grouped_mm),  # of one group
    **{f"_scaled_dot_product_{kind}": flop_registry[_FLASH] for kind in _AS_FLASH},
    **{f"_scaled_dot_product_{kind}_backward": flop_registry[_FLASH_BACKWARD] for kind in _AS_FLASH},
}
"""Operators that torch's counter (2.13) has no formula for. Attention counts its whole square, causal or not, as
torch's formulas do."""


@cache
def formula(target: Any) -> Formula | None:
    """The formula of a target, or ``None``: it counts as no operations."""
    key = target.overloadpacket if isinstance(target, OpOverload) else target
    return flop_registry.get(key) or _ADDED.get(str(key).removeprefix("aten."))


class Loop(Enum):
    """What loops an operator becomes."""

    POINTWISE = "pointwise"
    """Each element of the result from elements of the arguments."""
    PICKS = "picks"
    """Pointwise; takes from its first argument no more elements than the result has."""
    STORED = "stored"
    """Pointwise, and always written to memory."""
    SCATTERS = "scatters"
    """A copy of its first argument, then loops over its last one that write into it."""
    REDUCTION = "reduction"
    """Fewer elements than it reads, or as many where it reduces along a dimension and goes on from there."""
    RESHAPE = "reshape"
    """A view of all elements in the same order, broadcast or not."""


_ATEN: dict[Loop, tuple[str, ...]] = {
    Loop.POINTWISE: (
        *("clone", "_to_copy", "copy", "lift_fresh_copy", "full", "full_like", "new_full", "zeros", "zeros_like"),
        *("new_zeros", "ones", "ones_like", "new_ones", "arange", "scalar_tensor", "eye", "fill", "where"),
        *("tril", "triu", "constant_pad_nd", "slice_backward", "select_backward", "slice_scatter"),
        *("select_scatter", "floor_divide", "repeat", "flip", "roll", "rsub", "hardtanh_backward"),
    ),
    Loop.PICKS: ("index", "_unsafe_index", "gather", "embedding", "index_select"),
    Loop.STORED: ("cat", "copy_"),
    Loop.SCATTERS: (
        *("scatter", "scatter_add", "scatter_reduce", "index_put", "index_add", "_unsafe_index_put"),
        "_unsafe_masked_index_put_accumulate",
    ),
    Loop.REDUCTION: (
        *("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "logsumexp"),
        *("var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"),
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "_fused_rms_norm"),
    ),
    Loop.RESHAPE: (
        *("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "alias", "detach", "expand", "_reshape_alias"),
        *("unflatten", "flatten"),
    ),
}
_PRIMS: dict[Loop, tuple[str, ...]] = {
    Loop.POINTWISE: ("convert_element_type", "fma", "iota", "inductor_random", "inductor_lookup_seed", "device_put"),
    Loop.REDUCTION: ("sum", "amax", "amin", "prod", "var", "xor_sum", "prepare_softmax_online"),
}
_TABLES = (("aten", _ATEN), ("prims", _PRIMS))
_LOOPS = {f"{of}.{name}": loop for of, table in _TABLES for loop, names in table.items() for name in names}
_SLOW = ("exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh", "silu", "silu_backward", "gelu", "gelu_backward")
"""What Inductor calls heavy on a CPU (``StorageBox.should_realize_on_reuse``), and what it decomposes into such."""
_SUMS_BY_INDEX = ("aten.scatter_add", "aten.scatter_reduce")
"""They add to places that an index names."""


@cache
def loop_of(target: Any) -> Loop | None:
    """Return the loops that an operator becomes; ``None``: it is called as it is, or is not known."""
    if not isinstance(target, OpOverload):
        return None
    pointwise = torch.Tag.pointwise in target.tags and not target._schema.is_mutable
    return _LOOPS.get(str(target.overloadpacket), Loop.POINTWISE if pointwise else None)


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
        after: Dependencies that are not data, see :func:`overlap_sched.fx.hazards.graph_hazards`. Besides, a
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
                if (made := steps[looks[u].value]) is not None:
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
        if nbytes := min(r.value_bytes[u], whole):
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
    stored, slow = loop is Loop.STORED, str(node.target.overloadpacket).removeprefix("aten.") in _SLOW
    return FusionStep(
        "pointwise", tuple(reads), r.value_bytes[v], _elements(r, v), ops=ops, slow=slow, stored=stored, after=before
    )


def _reduction(r: Reading, v: int, reads: tuple[Read, ...], after: tuple[int, ...]) -> FusionStep:
    sizes = [r.storages.hint(size) for size in r.nodes[r.inputs[v][0]].meta["val"].shape]
    dims = _reduced_dims(r.nodes[v], len(sizes))
    reduced = math.prod([sizes[d] for d in dims])
    points = max(math.prod(sizes) // max(reduced, 1), 1)
    inner = not sizes or len(sizes) - 1 in dims
    return FusionStep("reduction", reads, r.value_bytes[v], points, max(reduced, 1), inner, after=after)


def _reduced_dims(node: fx.Node, rank: int) -> set[int]:
    """The dimensions that a reduction runs along; all where it names none."""
    arguments = arguments_of(node.target, node.args, node.kwargs)
    if "normalized_shape" in arguments:
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
    if loop is None or (not rules.adds_by_index and str(node.target.overloadpacket) in _SUMS_BY_INDEX):
        return None
    values = [node.meta.get("val"), *(r.nodes[u].meta.get("val") for u in r.inputs[v])]
    if any(isinstance(value, torch.Tensor) and value.dtype.is_complex for value in values):
        return None  # Inductor has no complex numbers
    if loop is Loop.PICKS and any(getattr(value, "dtype", None) is torch.bool for value in values[2:]):
        return None  # a mask: how many it picks is data-dependent
    reads = any(isinstance(value, torch.Tensor) for value in values[1:2])
    return loop if reads or loop is not Loop.REDUCTION else None


def _elements(r: Reading, v: int) -> int:
    value = r.nodes[v].meta.get("val")
    return r.value_bytes[v] // value.dtype.itemsize if isinstance(value, torch.Tensor) else 1
