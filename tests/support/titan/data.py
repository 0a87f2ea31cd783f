"""Random tokens, the same in every run: torchtitan's own data sets are not on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer


class RandomTokens(BaseDataLoader):
    """Batches of random tokens, others on each data-parallel rank."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        vocab_size: int = 2048

    def __init__(self, config: Config, *, dp_rank: int, seq_len: int, local_batch_size: int, **_: Any) -> None:
        self.shape = local_batch_size, seq_len + 1
        self.vocab_size = config.vocab_size
        self.generator = torch.Generator().manual_seed(17 + dp_rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            tokens = torch.randint(0, self.vocab_size, self.shape, generator=self.generator)
            inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            positions = torch.arange(inputs.shape[1], dtype=torch.int32).expand(inputs.shape).contiguous()
            yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class NoTokenizer(BaseTokenizer):
    """There is no text."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return 2048
