"""The world of ranks: torchrun's, or one of a single rank where there is no torchrun."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from llama_repro.capture.parallelism import Ranks
from llama_repro.training.sharding import Kind, Place
from overlap_sched.errors import OptionsError

DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class World:
    """This process among the ranks.

    Attributes:
        rank, size: Its number, and how many there are.
        device: Where it computes.
        backend: ``"gloo"`` or ``"nccl"``.
        note: What the user should know about it, or ``""``.
    """

    rank: int
    size: int
    device: torch.device
    backend: str
    note: str = ""


@contextmanager
def world_of(choice: DeviceChoice = "auto") -> Iterator[World]:
    """Join the process group that torchrun's environment names; without one, a world of one rank.

    Args:
        choice: ``"auto"``: a GPU with NCCL where each local rank can have one, else the CPU with gloo.

    Raises:
        OptionsError: ``"cuda"`` was asked for, but there are fewer GPUs than local ranks.
    """
    alone = "RANK" not in os.environ or "WORLD_SIZE" not in os.environ
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cuda" and found < local_size:
        raise OptionsError(
            f"--device cuda needs {local_size} GPUs on this machine, one per local rank; torch sees {found}. "
            "Start fewer ranks (--nproc-per-node), or use --device cpu."
        )
    on_gpu = choice == "cuda" or (choice == "auto" and found >= local_size)
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    backend = "nccl" if on_gpu else "gloo"
    if on_gpu:
        torch.cuda.set_device(device)
    if alone:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend, device_id=device if on_gpu else None)
    note = (
        "no torchrun environment: a world of one rank, in which nothing is communicated. "
        "Start it with torchrun --nproc-per-node 2."
        if alone
        else ""
    )
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device, backend, note)
    finally:
        dist.destroy_process_group()


def degrees(kind: Kind, size: int, tp: int) -> tuple[int, int]:
    """(fsdp, tp) for a world of ``size`` ranks.

    Raises:
        OptionsError: The world cannot be divided so.
    """
    if kind != "2d":
        return size, 1
    if tp < 1 or size % tp:
        raise OptionsError(
            f"a world of {size} ranks cannot be divided into tensor-parallel groups of {tp} (--tp). "
            f"Start a multiple of {max(tp, 1)} ranks, or choose --tp among the divisors of {size}."
        )
    return size // tp, tp


def place_in(world: World, kind: Kind, fsdp: int, tp: int) -> Place:
    """The groups of this rank; tensor-parallel ranks are neighbours, so that they share a node."""
    everybody = init_device_mesh(world.device.type, (world.size,))
    if kind != "2d":
        return Place(everybody, everybody, None, world.rank, 0)
    mesh = init_device_mesh(world.device.type, (fsdp, tp), mesh_dim_names=("fsdp", "tp"))
    ranks = Ranks(mesh["tp"].get_group().group_name, tp) if tp > 1 else None
    return Place(everybody, mesh["fsdp"], ranks, *divmod(world.rank, tp))
