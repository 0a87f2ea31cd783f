"""Share the time of fused kernels among the nodes that they may have been made of, by the kernels' names.

Inductor names a kernel after the operators in it, sorted: ``triton_poi_fused_add_mul_3``, ``cpp_fused__to_copy_mean_5``
(``torch._inductor.utils.get_fused_kernel_name``). Predicted kernels are found by their operators: those that have most
in common with the name. Several may be alike, so a kernel's time goes to all of them, in proportion to what was
predicted: the sum is that of the trace, the parts are an estimate.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FUSED = re.compile(r"(?:^|_)(?:cpp|triton_[a-z]+|triton_[a-z]+_[a-z]+)_fused_(.*?)_\d+$")
_NAMES = {"convert_element_type": "_to_copy"}
"""Operators of a graph that kernels are not named after, and after what instead."""


class PredictedKernel(NamedTuple):
    """A predicted kernel, or a node alone.

    Attributes:
        names: Its operators: ``aten::add``.
        us: Its predicted time.
        fuses: Whether it may be in a kernel that no operator of its own is named in: it is no matmul, nor attention.
    """

    names: frozenset[str]
    us: float
    fuses: bool = True


def fused_ops(kernel: str) -> str | None:
    """The operators in the name of a fused kernel, as they stand there; ``None``: it is not the name of one."""
    found = _FUSED.search(kernel)
    return None if found is None else found[1]


def shared(parts: Sequence[PredictedKernel], kernels: Mapping[str, float]) -> list[float | None]:
    """Per part its share of the time of kernels, by what :func:`fused_ops` gives; ``None``: of none.

    A kernel is shared by the parts that are most like it and by those that are like no other more; by all if there are
    none. (Kernels are named after operators before decomposition: a part whose operators are in no name may be in each
    of them.)
    """
    ops = [{_named(name) for name in part.names} for part in parts]
    every = set().union(*ops)
    named = {kernel: {name for name in every if _has(kernel, name)} for kernel in kernels}
    likeness = {
        kernel: [
            len(mine & its) / len(mine | its) if part.us > 0.0 and (part.fuses or mine & its) else -1.0
            for part, mine in zip(parts, ops, strict=True)
        ]
        for kernel, its in named.items()
    }
    best = [max((row[k] for row in likeness.values()), default=-1.0) for k in range(len(parts))]
    result: list[float | None] = [None] * len(parts)
    for kernel, row in likeness.items():
        most = max(row, default=-1.0)
        able = [k for k, like in enumerate(row) if like >= 0.0]
        members = [k for k in able if row[k] == most > 0.0 or row[k] == best[k]] or able
        whole = sum(parts[k].us for k in members)
        for k in members:
            result[k] = (result[k] or 0.0) + kernels[kernel] * parts[k].us / whole
    return result


def _named(name: str) -> str:
    op = name.partition("::")[2]
    return _NAMES.get(op, op)


def _has(ops: str, name: str) -> bool:
    return f"_{name}_" in f"_{ops}_"
