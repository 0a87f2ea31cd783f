"""Gloo that coalesces gathers, as NCCL does: for ranks that run what is the default there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from overlap_sched.fx.rewrites import backends
from overlap_sched.inductor import gloo


@contextmanager
def coalescing_gloo() -> Iterator[None]:
    """Its own coalesced gathers damage memory when several are in flight: these are one gather per tensor."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor_coalesced", _gather, "CPU")
    try:
        with mock.patch.object(backends, "over_gloo", return_value=False):
            yield
    finally:
        library._destroy()


def _gather(inputs: Sequence[torch.Tensor], group_size: int, group_name: Any) -> list[torch.Tensor]:
    return [gloo._gather(one, group_size, group_name) for one in inputs]
