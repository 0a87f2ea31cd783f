"""Models by name, and how a model is divided among ranks."""

from dataclasses import replace

from llama_repro.capture.configs import LlamaConfig, look_up
from overlap_sched.errors import OptionsError

SIZES = {
    config.name: config
    for config in (
        LlamaConfig("tiny", 128, 256, 2, 4, 4, 256, 2, 64, fsdp=1),
        LlamaConfig("short", 512, 1536, 3, 8, 4, 2048, 2, 128, fsdp=1),
        LlamaConfig("small", 512, 1536, 8, 8, 4, 2048, 2, 128, fsdp=1),
        LlamaConfig("125m", 768, 2048, 12, 12, 12, 32000, 2, 512, fsdp=1),
        LlamaConfig("1b", 2048, 8192, 16, 32, 8, 128256, 1, 4096, fsdp=1),
        LlamaConfig("3b", 3072, 8192, 28, 24, 8, 128256, 1, 8192, fsdp=1),
        LlamaConfig("8b", 4096, 14336, 32, 32, 8, 128256, 1, 8192, fsdp=1),
    )
}
"""``1b``, ``3b`` and ``8b`` have the sizes of Llama 3.2 and 3.1 (but no output projection is tied to the embedding)."""


def sized(name: str, fsdp: int, tp: int, batch: int | None = None, sequence: int | None = None) -> LlamaConfig:
    """The model of that name, sharded over ``fsdp * tp`` ranks.

    Args:
        name: One of :data:`SIZES`.
        fsdp: Ranks over which each parameter is sharded, each with data of its own.
        tp: Ranks of tensor parallelism.
        batch: Sequences per rank and micro batch; ``None``: as in the table.
        sequence: Tokens per sequence; ``None``: as in the table.

    Raises:
        OptionsError: There is no such model, or it cannot be divided so; the message says what can.
    """
    config = replace(look_up(SIZES, name, "model"), fsdp=fsdp, tp=tp)
    config = replace(config, batch=batch or config.batch, sequence=sequence or config.sequence)
    for what, length, ranks in _divided(config):
        if length % ranks:
            raise OptionsError(
                f"model {name!r} cannot be sharded over {config.world} ranks ({fsdp} x {tp} tensor parallel): "
                f"{what} {length} is not divisible by {ranks}. Use {_fitting(length)} of them, or another model."
            )
    return config


def _divided(config: LlamaConfig) -> list[tuple[str, int, int]]:
    """What is divided, into how many equal parts."""
    return [
        ("key/value heads", config.kv_heads, config.tp),
        ("sequence", config.sequence, config.tp),
        ("hidden width", config.hidden, config.world),
        ("feed-forward width", config.ffn, config.world),
        ("vocabulary", config.vocabulary, config.world),
        ("key/value width", config.kv_heads * config.head_dim, config.world),
    ]


def _fitting(length: int) -> str:
    """The small numbers of parts that fit: ``"1, 2, 4 or 8"``."""
    few = [str(n) for n in range(1, 9) if length % n == 0]
    return few[0] if len(few) == 1 else f"{', '.join(few[:-1])} or {few[-1]}"
