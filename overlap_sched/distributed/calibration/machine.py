"""The ranks that measure together: who they are, and how they tell each other what they have seen.

They speak over gloo and with Python objects, so that nothing of it runs on the network of the GPUs while that is being
measured.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from overlap_sched.errors import CostError

DeviceChoice = Literal["auto", "cpu", "cuda"]
_Seen = TypeVar("_Seen")
_TIMEOUT = timedelta(minutes=5)
"""Longer than any single measurement takes, by far: where a rank dies, the others end too."""


@dataclass(frozen=True)
class Machine:
    """This process among the ranks that measure.

    Attributes:
        rank, size: Its number, and how many there are.
        ranks_per_node: How many of them are on one machine.
        device: What is measured.
        control: The gloo group of all ranks over which they speak; of a rank alone nothing asks for it.
    """

    rank: int
    size: int
    ranks_per_node: int
    device: torch.device
    control: Any

    def everyone(self, own: _Seen) -> list[_Seen]:
        """Return what each rank has, on every rank."""
        if self.size == 1:
            return [own]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, own, group=self.control)
        return every

    def from_first(self, own: _Seen) -> _Seen:
        """Return what rank 0 has, on every rank."""
        if self.size == 1:
            return own
        box: list[Any] = [own]
        dist.broadcast_object_list(box, src=0, group=self.control)
        found: _Seen = box[0]
        return found

    def meet(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    @property
    def name(self) -> str:
        """The name of the device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"


def alone_on(device: torch.device) -> Machine:
    """A rank alone, without a process group: it measures kernels."""
    return Machine(0, 1, 1, device, None)


@contextmanager
def joined(choice: DeviceChoice) -> Iterator[Machine]:
    """Join the ranks that torchrun has started; a process group that is up already is used as it is.

    Args:
        choice: ``"auto"``: a GPU with NCCL where each local rank can have one, else the CPU with gloo.

    Raises:
        CostError: torchrun has not started this process, or there are fewer GPUs than local ranks.
    """
    if dist.is_initialized():
        yield machine_on(_device(choice))
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise CostError(
            "calibrate measures what several processes do at once, and torchrun has not started this one. Run: "
            "torchrun --nproc-per-node N -m overlap_sched calibrate --out cluster.toml "
            "(N: the GPUs of this machine; without GPUs, 2 or more processes)"
        )
    device = _device(choice)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=_TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        yield machine_on(device)
    finally:
        dist.destroy_process_group()


def machine_on(device: torch.device) -> Machine:
    """This process and the others of its process group, which is up; all ranks call this."""
    size = dist.get_world_size()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return Machine(dist.get_rank(), size, per_node, device, dist.new_group(backend="gloo", timeout=_TIMEOUT))


def _device(choice: DeviceChoice) -> torch.device:
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cuda" and found < local_size:
        raise CostError(
            f"--device cuda needs {local_size} GPUs on this machine, one per local rank; torch sees {found}. "
            "Start fewer ranks (--nproc-per-node), or use --device cpu."
        )
    return torch.device("cuda", local_rank) if choice != "cpu" and found >= local_size else torch.device("cpu")
