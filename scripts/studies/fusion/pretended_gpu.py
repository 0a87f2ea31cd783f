"""A CUDA device that is not there: enough of one for Inductor to merge loops for it, not to run anything.

Needs a CUDA build of torch, with Triton, and no GPU. What Inductor asks for are the properties of the device.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._dynamo.device_interface import CudaInterface

H100_SXM5 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 * 2**30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
    is_integrated=0,
)


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let torch think that there is an H100, as long as the ``with`` block lasts."""
    answers: dict[str, Any] = {
        "get_device_properties": H100_SXM5,
        "get_device_capability": (9, 0),
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "_lazy_init": None,
    }
    with ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, _value=value, **__: _value))
        for owner, name, value in (
            (CudaInterface, "is_available", True),
            (CudaInterface, "current_device", 0),
            (CudaInterface, "get_device_properties", H100_SXM5),
            (CudaInterface.Worker, "get_device_properties", H100_SXM5),
        ):
            answer = staticmethod(lambda *_, _value=value, **__: _value)
            stack.enter_context(mock.patch.object(owner, name, answer))
        for name in ("has_triton", "has_triton_package"):
            stack.enter_context(mock.patch(f"torch.utils._triton.{name}", return_value=True))
        yield
