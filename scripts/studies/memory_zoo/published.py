"""What is published by others, to stand beside our own rows; on their traces and machines, not on ours.

MODeL: Steiner et al., "MODeL: Memory Optimizations for Deep Learning", ICML 2023: order and addresses by Gurobi, in
7.4 s on average, for 118 to 2,116 operators. torch: https://github.com/pytorch/pytorch/pull/134874, the best of lpmf,
bfs and dfs in Inductor.
"""

from typing import NamedTuple


class Average(NamedTuple):
    """MODeL's averages over its models at one batch size, in percent."""

    order: float
    total: float


MODEL_AVERAGES = {1: Average(23.9, 31.4), 32: Average(11.7, 32.8)}
"""By batch size."""

MODEL_LIKE = (
    "AlexNet",
    "VGG16",
    "ResNet18",
    "ResNet50",
    "MobileNetV2",
    "MNASNet",
    "ResNet3D-18",
    "ViT-B/16",
    "Transformer",
    "BERT-base MLM",
    "XLM-R classifier",
)
"""The rows that our average is taken over: models like those of the paper (ours are not its traces)."""

TORCH_RATIOS = {("AlexNet", 128): 1.19, ("VGG16", 64): 1.15, ("DeBERTa-v2 QA", 1): 1.10}
"""Peak before / after, by model and batch size, without recomputation."""
