"""torchtitan's debug models, small enough for CPU ranks: ``--module tests.support.titan --config llama3``.

They see random tokens, the same in every run: torchtitan's own data sets are not on this machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.experiments.graph_trainer import deepseek_v3 as deepseek
from torchtitan.experiments.graph_trainer.deepseek_v3.config_registry import graph_trainer_deepseek_v3_debugmodel
from torchtitan.experiments.graph_trainer.llama3.config_registry import graph_trainer_llama3_debugmodel_sdpa

from tests.support.titan.cpu import GPU_ONLY


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


def llama3() -> Any:
    """Llama-3's debug model with two layers, and attention that runs on a CPU."""
    return _small(graph_trainer_llama3_debugmodel_sdpa())


def deepseek_v3() -> Any:
    """DeepSeek-v3's debug model with three layers, two of them with experts."""
    config = graph_trainer_deepseek_v3_debugmodel()
    config.model_spec = deepseek.model_registry("debugmodel", attn_backend="sdpa")
    return _small(config, layers=3)


def _small(config: Any, layers: int = 2) -> Any:
    del config.model_spec.model.layers[layers:]
    config.tokenizer, config.dataloader = NoTokenizer.Config(), RandomTokens.Config()
    config.training.local_batch_size, config.training.seq_len, config.training.steps = 2, 64, 3
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.compile.disable_passes = list(GPU_ONLY)
    config.checkpoint.enable = config.validator.enable = False
    config.debug.enable_structured_logging = False
    config.debug.seed = 42
    return config
