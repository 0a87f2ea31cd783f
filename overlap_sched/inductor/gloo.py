"""A way around torch's gloo: functional all_gathers on a CPU, several in flight, without damage to memory.

In torch 2.13 ``_c10d_functional.all_gather_into_tensor`` goes through gloo's coalesced path, which has been seen to
corrupt memory when several are in flight (two ranks, eight in flight, aborts within two thousand rounds). The variant
with a given output, ``all_gather_into_tensor_out``, does not go that way. The abort depends on the machine: five times
two thousand rounds passed on another one, so the tests check the way taken, not that torch's own fails.

While :func:`safe_gathers` is on, the CPU's kernel of the operator is one that gives an output of its own to the
``_out`` variant, for groups whose CPU backend is gloo. Graphs, generated code and results stay the same. Code compiled
inside runs as it always did once it is off: leave it on for as long as graphs with overlapped gathers run.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

_FUNCTIONAL = torch.ops._c10d_functional
_holders: set[object] = set()
_library: Any = None


@contextmanager
def safe_gathers() -> Iterator[None]:
    """Route functional all_gathers of CPU tensors over gloo through the ``_out`` variant; may be nested."""
    holder = _hold()
    try:
        yield
    finally:
        release(holder)


def safe_gathers_with(owner: object) -> None:
    """Route them for as long as an object exists: the pass that a compiled function holds, say."""
    weakref.finalize(owner, release, _hold()).atexit = False


def _hold() -> object:
    global _library
    _holders.add(holder := object())
    if _library is None:
        _library = torch.library.Library("_c10d_functional", "IMPL")
        _library.impl("all_gather_into_tensor", _gather, "CPU")
    return holder


def release(holder: object) -> None:
    """One less that wants it; off with the last one."""
    global _library
    _holders.discard(holder)
    if _library is not None and not _holders:
        _library._destroy()
        _library = None


def _gather(input: Tensor, group_size: int, group_name: Any) -> Tensor:
    group = _resolve_process_group(group_name) if isinstance(group_name, str) else group_name
    if "cpu:gloo" not in str(dist.get_backend_config(group)) and dist.get_backend(group) != "gloo":
        operator = _FUNCTIONAL.all_gather_into_tensor.default
        result: Tensor = operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, input, group_size, group_name)
        return result
    out = input.new_empty((input.shape[0] * group_size, *input.shape[1:]))
    gathered: Tensor = _FUNCTIONAL.all_gather_into_tensor_out(input.contiguous(), group_size, group_name, out=out)
    return gathered
