"""Operators of newer versions of torch, so that an older one can read dumps that hold them.

They are registered under this package's own name, when a dump first asks for one: torch's own namespaces say what this
torch has.
"""

from functools import cache
from typing import Any

import torch

_SCHEMAS = {("_c10d_functional", "wait_tensors"): "wait_tensors(Tensor[] tensors) -> Tensor[]"}  # torch 2.15


def stand_in(namespace: str, name: str, overload: str | None = None) -> Any:
    """Return what stands for an operator that this torch does not have; ``None``: nothing does."""
    if (namespace, name) not in _SCHEMAS or overload not in (None, "default"):
        return None
    _register()
    packet = getattr(torch.ops.overlap_sched, name)
    return packet if overload is None else packet.default


@cache
def _register() -> torch.library.Library:
    """Define them all; they exist as long as what this returns, which the cache keeps."""
    library = torch.library.Library("overlap_sched", "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    library.impl("wait_tensors", list, "Meta")  # as torch 2.15 has it: the tensors themselves
    return library
