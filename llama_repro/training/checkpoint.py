"""Save and resume: one folder per step, a file per rank, visible only when it is whole.

    DIR/step-00000100/config.json   what was trained, compared before anything is loaded
    DIR/step-00000100/rank-0.pt     shards and optimizer state of a rank

All ranks must see one file system. Resuming needs as many ranks as saved: shards are not divided again.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from llama_repro.errors import CheckpointError
from llama_repro.training.sharding import local_shards

_CONFIG, _KEPT = "config.json", 2
Config = Mapping[str, Any]
"""What must be the same to resume: plain JSON."""


def save(folder: Path, step: int, config: Config, model: nn.Module, optimizer: Optimizer) -> Path:
    """Save after ``step`` steps; all ranks call it. Older checkpoints go, but for the last two.

    Raises:
        CheckpointError: It cannot be written.
    """
    final, rank = folder / f"step-{step:08}", dist.get_rank()
    partial = final.with_suffix(".partial")
    failed = ""
    try:
        partial.mkdir(parents=True, exist_ok=True)
        torch.save(
            {"step": step, "shards": dict(local_shards(model)), "optimizer": _optimizer_state(optimizer)},
            partial / f"rank-{rank}.pt",
        )
        if rank == 0:
            (partial / _CONFIG).write_text(json.dumps(dict(config), indent=1))
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a missing folder or a full disk
        failed = f"rank {rank}: {error}"
    failures = _failures_of_all(failed)
    if not failures and rank == 0:
        try:
            if final.exists():
                shutil.rmtree(final)
            partial.rename(final)
            for old in _complete(folder)[:-_KEPT]:
                shutil.rmtree(old)
        except OSError as error:
            failed = f"rank 0: {error}"
    failures = failures or _failures_of_all(failed)
    if failures:
        raise CheckpointError(
            f"the checkpoint {final} cannot be written ({'; '.join(failures)}). Is there room, and may we write there?"
        )
    return final


def resume(folder: Path, config: Config, model: nn.Module, optimizer: Optimizer) -> int:
    """Load the newest checkpoint of ``folder`` into model and optimizer; returns its step, 0 where there is none.

    Raises:
        CheckpointError: It is of another configuration, or cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"--checkpoint {folder} is a file. Name a folder; it is made where there is none.")
    found = _complete(folder)
    if not found:
        return 0
    newest = found[-1]
    _check_config(newest, config)
    path = newest / f"rank-{dist.get_rank()}.pt"
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}). Remove {newest} to resume from the one before."
        ) from error
    with torch.no_grad():
        for name, shard in local_shards(model):
            shard.copy_(saved["shards"][name])
    _load_optimizer(optimizer, saved["optimizer"])
    step: int = saved["step"]
    return step


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


def _check_config(newest: Path, config: Config) -> None:
    path = newest / _CONFIG
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}). Remove {newest} to resume from the one before."
        ) from None
    wanted = json.loads(json.dumps(dict(config)))
    differing = [
        f"{name} was {saved.get(name)!r} and is {wanted.get(name)!r}"
        for name in sorted({*saved, *wanted})
        if saved.get(name) != wanted.get(name)
    ]
    if differing:
        raise CheckpointError(
            f"{newest} is a checkpoint of another configuration: {'; '.join(differing)}. "
            "Start with the same arguments and ranks, or name another --checkpoint folder."
        )


def _optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """State by parameter, as plain tensors of this rank."""
    state = optimizer.state_dict()["state"]
    return {str(i): {name: _local(value) for name, value in values.items()} for i, values in state.items()}


def _load_optimizer(optimizer: Optimizer, saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the values back in the form that each parameter has: DTensors for DTensors."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, values in saved.items():
        parameter = parameters[int(i)]
        optimizer.state[parameter] = {name: _like(parameter, value) for name, value in values.items()}


def _local(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def _like(parameter: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:  # AdamW keeps its step count on the CPU
        return value
    result = torch.zeros_like(parameter.detach())
    _local(result).copy_(value)
    return result


def _failures_of_all(text: str) -> list[str]:
    """The failures of all ranks, which all of them call this to learn; a barrier, too."""
    given: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(given, text)
    return [one for one in given if one]
