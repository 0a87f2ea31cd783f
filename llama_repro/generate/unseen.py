"""Graphs beside those of the benchmark: other widths, depths, ranks and splits."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from llama_repro.capture.cache import traced_graphs
from llama_repro.capture.configs import LlamaConfig
from overlap_sched.problem import Problem

_CONFIGS = (
    LlamaConfig("1b", 2048, 8192, 16, 32, 8, 128256, 4, 4096, fsdp=16),
    LlamaConfig("1b-8x2", 2048, 5632, 22, 32, 4, 32000, 4, 2048, fsdp=8, tp=2),
    LlamaConfig("3b", 3072, 8192, 28, 24, 8, 128256, 2, 4096, fsdp=32),
    LlamaConfig("8b-4x2", 4096, 14336, 16, 32, 8, 128256, 1, 4096, fsdp=4, tp=2),
    LlamaConfig("8b-16x4", 4096, 14336, 32, 32, 8, 128256, 1, 8192, fsdp=16, tp=4),
    LlamaConfig("13b-16x4", 5120, 13824, 20, 40, 40, 32000, 1, 4096, fsdp=16, tp=4),
    LlamaConfig("34b", 7168, 20480, 12, 56, 8, 64000, 1, 4096, fsdp=64),
    LlamaConfig("70b-32x8", 8192, 28672, 12, 64, 8, 128256, 1, 8192, fsdp=32, tp=8),
    LlamaConfig("2b-32x4", 2560, 10240, 24, 32, 8, 100000, 3, 2048, fsdp=32, tp=4),
    LlamaConfig("7b-8", 4096, 11008, 16, 32, 32, 32000, 2, 4096, fsdp=8),
    LlamaConfig("13b-8x8", 5120, 13824, 24, 40, 40, 32000, 2, 4096, fsdp=8, tp=8),
    LlamaConfig("14b-16x2", 5120, 17408, 14, 40, 8, 151936, 1, 4096, fsdp=16, tp=2),
    LlamaConfig("3b-4x4", 3072, 8192, 20, 24, 8, 128256, 2, 8192, fsdp=4, tp=4),
    LlamaConfig("9b-16x8", 4096, 14336, 18, 32, 8, 256000, 1, 4096, fsdp=16, tp=8),
    LlamaConfig("6b-16", 4096, 16384, 14, 32, 32, 50000, 2, 4096, fsdp=16),
    LlamaConfig("20b-32x2", 6144, 16384, 10, 48, 8, 100000, 1, 4096, fsdp=32, tp=2),
    LlamaConfig("5b-64", 3584, 12544, 18, 28, 4, 64000, 2, 4096, fsdp=64),
    LlamaConfig("11b-8x4", 4608, 12288, 16, 36, 12, 128000, 1, 8192, fsdp=8, tp=4),
    LlamaConfig("4b-64x2", 3072, 8192, 26, 24, 8, 151936, 2, 4096, fsdp=64, tp=2),
    LlamaConfig("40b-16x8", 8192, 22016, 10, 64, 8, 32000, 1, 4096, fsdp=16, tp=8),
)
UNSEEN = {config.name: config for config in _CONFIGS}
"""By name: size, and FSDP x tensor parallel. Some have fewer layers than models of that size."""


def unseen_problems(config: LlamaConfig, progress: Callable[[str], None] = lambda text: None) -> Iterator[Problem]:
    """Forward and backward graph of one of them, from the cache or traced now."""
    for part, problem in zip(("forward", "backward"), traced_graphs(config, progress), strict=True):
        yield replace(problem, name=f"{config.name} {part}")
