"""Share the time of fused kernels among the nodes that they may have been made of, by the kernels' names.

Inductor names a kernel after the operators in it, sorted: ``triton_poi_fused_add_mul_3``, ``cpp_fused__to_copy_mean_5``
(``torch._inductor.utils.get_fused_kernel_name``). A name does not say which additions they are, so a kernel's time goes
to all nodes of its operators, in proportion to what was predicted for them: the sum is that of the trace, the parts are
an estimate.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FUSED = re.compile(r"(?:^|_)(?:cpp|triton_[a-z]+|triton_[a-z]+_[a-z]+)_fused_(.*?)_\d+$")
_NAMES = {"convert_element_type": "_to_copy"}
"""Operators of a graph that kernels are not named after, and after what instead."""


class Part(NamedTuple):
    """A node that may be in a fused kernel.

    Attributes:
        name: Its operator: ``aten::add``.
        us: Its predicted time.
        fuses: Whether it has no kernel of its own for sure: no matmul, nor attention.
    """

    name: str
    us: float
    fuses: bool = True


def fused_ops(kernel: str) -> str | None:
    """The operators in the name of a fused kernel, as they stand there; ``None``: it is not the name of one."""
    found = _FUSED.search(kernel)
    return None if found is None else found[1]


def shared(parts: Sequence[Part], kernels: Mapping[str, float]) -> list[float | None]:
    """Per node its share of the time of kernels, by what :func:`fused_ops` gives; ``None``: of none.

    Kernels are named after operators before decomposition: a node whose operator is in no name may be in each kernel.
    """
    names = [_NAMES.get(part.name.partition("::")[2], part.name.partition("::")[2]) for part in parts]
    named = {name for name in set(names) if any(_has(ops, name) for ops in kernels)}
    result: list[float | None] = [None] * len(parts)
    for ops, us in kernels.items():
        members = [
            k
            for k, name in enumerate(names)
            if (_has(ops, name) if name in named else parts[k].fuses) and parts[k].us > 0.0
        ]
        whole = sum(parts[k].us for k in members)
        for k in members:
            result[k] = (result[k] or 0.0) + us * parts[k].us / whole
    return result


def _has(ops: str, name: str) -> bool:
    return f"_{name}_" in f"_{ops}_"
