"""Which operators a compiler writes loops for: by operator objects, as TorchInductor lowers them (``lowering.py``)."""

from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload


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
_SLOW = ("exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh", "silu", "silu_backward", "gelu", "gelu_backward")
"""What Inductor calls heavy on a CPU (``StorageBox.should_realize_on_reuse``), and what it decomposes into such."""


@cache
def loop_of(target: Any) -> Loop | None:
    """Return the loops that an operator becomes; ``None``: it is called as it is, or is not known."""
    if not isinstance(target, OpOverload):
        return None
    for namespace, table in ((torch.ops.aten, _ATEN), (torch.ops.prims, _PRIMS)):
        for loop, names in table.items():
            if _is_one_of(target, namespace, names):
                return loop
    functional = not target._schema.is_mutable
    return Loop.POINTWISE if functional and torch.Tag.pointwise in target.tags else None


@cache
def is_slow(target: Any) -> bool:
    """Tell whether an elementwise operator computes a slow function."""
    return isinstance(target, OpOverload) and _is_one_of(target, torch.ops.aten, _SLOW)


@cache
def is_sum_by_index(target: Any) -> bool:
    """Tell whether an operator adds to places that an index names, by ``scatter``."""
    return isinstance(target, OpOverload) and _is_one_of(target, torch.ops.aten, ("scatter_add", "scatter_reduce"))


def _is_one_of(target: OpOverload, namespace: Any, names: tuple[str, ...]) -> bool:
    """Some operators exist only once their module has been imported: they are looked up when asked for."""
    return any(getattr(namespace, name, None) is target.overloadpacket for name in names)
