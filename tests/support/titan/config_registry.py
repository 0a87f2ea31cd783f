"""torchtitan's debug models, small enough for CPU ranks: ``--module tests.support.titan --config llama3``."""

from typing import Any

from torchtitan.experiments.graph_trainer import deepseek_v3 as deepseek
from torchtitan.experiments.graph_trainer.deepseek_v3.config_registry import graph_trainer_deepseek_v3_debugmodel
from torchtitan.experiments.graph_trainer.llama3.config_registry import graph_trainer_llama3_debugmodel_sdpa

from tests.support.titan.cpu import GPU_ONLY
from tests.support.titan.data import NoTokenizer, RandomTokens


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
