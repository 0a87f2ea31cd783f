"""One rank's training: model, optimizer, data, and the step that is compiled."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import AdamW

from llama_repro.capture.configs import LlamaConfig
from llama_repro.training.arguments import Arguments
from llama_repro.training.data import Data, data_of, part_of
from llama_repro.training.net import Llama, rotations
from llama_repro.training.sharding import Place, local_shards, shard_
from llama_repro.training.sizes import sized
from llama_repro.training.world import World, degrees, place_in

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Trainer:
    """What a step needs; the parameters are this rank's shards, in fp32."""

    world: World
    place: Place
    config: LlamaConfig
    accumulate: int
    model: nn.Module
    optimizer: AdamW
    data: Data
    compiled: Callable[..., torch.Tensor]
    rotation: tuple[torch.Tensor, torch.Tensor]

    def step(self, number: int) -> float:
        """Train on the batches of step ``number`` (from 0); returns the mean loss over ranks and micro batches."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        for micro in range(self.accumulate):
            at = (number * self.accumulate + micro) * self.config.fsdp + self.place.fsdp_rank
            batch = part_of(self.data.batch(at), self.place.tp_rank, self.config.tp)
            tokens, labels = (x.to(self.world.device, non_blocking=True) for x in batch)
            loss = self.compiled(tokens, labels, *self.rotation)
            (loss / self.accumulate).backward()  # gradients are means over ranks
            total += loss.detach() / (self.world.size * self.accumulate)
        self.optimizer.step()
        dist.all_reduce(total)
        return total.item()

    def static_bytes(self) -> int:
        """Bytes of this rank's shards, gradients and optimizer state."""
        kept: list[Any] = [*self.model.parameters(), *(p.grad for p in self.model.parameters() if p.grad is not None)]
        kept += [v for values in self.optimizer.state.values() for v in values.values() if torch.is_tensor(v)]
        local = (x.to_local() if hasattr(x, "to_local") else x for x in kept)
        return sum(x.numel() * x.element_size() for x in local)

    def digests(self) -> list[str]:
        """Per rank, a SHA-256 of all its shards: equal where weights are bitwise equal."""
        own = hashlib.sha256()
        for name, shard in local_shards(self.model):
            own.update(name.encode() + shard.cpu().contiguous().numpy().tobytes())
        every: list[Any] = [None] * self.world.size
        dist.all_gather_object(every, own.hexdigest())
        return every


def make_trainer(arguments: Arguments, world: World) -> Trainer:
    """Build this rank's part of the model.

    Raises:
        OptionsError: Unknown model, or it or the world cannot be divided as asked for; unusable data.
    """
    fsdp, tp = degrees(arguments.sharding, world.size, arguments.tp)
    config = sized(arguments.model, fsdp, tp, arguments.batch, arguments.sequence)
    data = data_of(arguments.data, config, arguments.seed)
    place = place_in(world, arguments.sharding, fsdp, tp)
    dtype = DTYPES[arguments.dtype]
    model = Llama(config, place.tp, dtype)
    shard_(model, config, place, dtype, arguments.seed, world.device)
    optimizer = AdamW(model.parameters(), lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.1)
    cosine, sine = (x.to(world.device) for x in rotations(config))
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    return Trainer(world, place, config, arguments.accumulate, model, optimizer, data, compiled, (cosine, sine))


def identity(arguments: Arguments, trainer: Trainer) -> dict[str, Any]:
    """What must be the same for a checkpoint to fit, and for losses to be comparable: not the scheduler."""
    config = trainer.config
    return {
        "model": arguments.model,
        "sharding": arguments.sharding,
        "ranks": trainer.world.size,
        "tp": config.tp,
        "dtype": arguments.dtype,
        "batch": config.batch,
        "sequence": config.sequence,
        "accumulate": arguments.accumulate,
        "data": arguments.data,
        "lr": arguments.lr,
        "seed": arguments.seed,
    }
