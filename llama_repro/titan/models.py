"""Which of torchtitan's models are traced, and over how many ranks."""

from dataclasses import dataclass, replace
from pathlib import Path

GRAPHS = Path(__file__).parent / "graphs"
"""Where the problem files are that ``python -m llama_repro.titan --all`` has written: one per entry of ``MODELS``."""


@dataclass(frozen=True)
class TitanModel:
    """One of torchtitan's models and the world it is trained in.

    Attributes:
        name: What ``--model`` takes, and the name of its problem file.
        family, flavor: Its folder in ``torchtitan.experiments.graph_trainer``, and which of the sizes there.
        fsdp, tp: Ranks over which parameters are sharded, and of tensor parallelism. The world has ``fsdp * tp`` ranks.
        ep: Ranks over which experts are spread, out of those of ``fsdp`` (1: none).
        batch, sequence: Sequences per rank, and tokens per sequence.
        layers: How many of its layers; 0: all.
        memory_policy: Of torchtitan's ``--compile.memory_policy``: which activations are kept.
    """

    name: str
    family: str
    flavor: str
    fsdp: int
    tp: int = 1
    ep: int = 1
    batch: int = 1
    sequence: int = 8192
    layers: int = 0
    memory_policy: str = "default"

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.fsdp * self.tp

    @property
    def problem_file(self) -> Path:
        """Where its problem file is kept."""
        return GRAPHS / f"{self.name}.json.gz"

    def shortened(self, layers: int) -> "TitanModel":
        """The same with fewer layers."""
        return replace(self, name=f"{self.name}-{layers}-layers", layers=layers)

    def spread(self, ranks: int) -> "TitanModel":
        """The same with experts spread over other ranks."""
        return replace(self, name=f"{self.name}-ep{ranks}", ep=ranks)


MODELS = {
    model.name: model
    for model in (
        TitanModel("titan-llama3-8b-fsdp64", "llama3", "8B", fsdp=64),
        TitanModel("titan-llama3-8b-fsdp8-tp8", "llama3", "8B", fsdp=8, tp=8),
        TitanModel("titan-deepseek3-16b-fsdp64-ep8", "deepseek_v3", "16B", fsdp=64, ep=8, sequence=4096),
        TitanModel("titan-qwen3-14b-fsdp64", "qwen3", "14B", fsdp=64, sequence=4096),
    )
}
"""By name; batches are such that a step fits into the memory of one GPU."""
