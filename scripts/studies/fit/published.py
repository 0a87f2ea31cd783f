"""What is published, to stand beside our rows: MAGIS and the systems that it was compared with, measured on a GPU.

Chen et al., "MAGIS: Memory Optimization via Coordinated Graph Transformation and Scheduling for DNN", ASPLOS 2024,
https://doi.org/10.1145/3620666.3651330: an RTX 3090 in a machine with two Xeon Silver 4210R (PCIe 3.0). Heights of the
bars of figures 9 and 10, to about 0.005, from the vector drawing in the authors' repository
(``media/magis-asplos24-paper.pdf``). The text gives ranges: within 10 % (5 %) slowdown 15 to 60 % (25 to 70 %) of
PyTorch's memory; at 80 % (40 %) of the memory at most 5 % (15 %) slowdown.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Published(NamedTuple):
    """One system on one workload, as parts of PyTorch's peak and step; ``None``: out of memory, or never fits.

    Attributes:
        peak_at_5, peak_at_10: The peak within 5 % and 10 % slowdown.
        slowdown_at_80, slowdown_at_40: The slowdown at 80 % and 40 % of the peak.
    """

    peak_at_5: float | None
    peak_at_10: float | None
    slowdown_at_80: float | None
    slowdown_at_40: float | None


MAGIS: Mapping[str, Published] = {
    "ResNet-50": Published(0.640, 0.511, 0.031, 0.132),
    "BERT-base": Published(0.700, 0.469, 0.019, 0.148),
    "ViT-base/16": Published(0.613, 0.375, 0.045, 0.095),
    "U-Net": Published(0.499, 0.256, 0.024, 0.060),
    "U-Net++": Published(0.258, 0.129, 0.020, 0.039),
    "GPT-Neo-1.3B": Published(0.640, 0.417, 0.050, 0.097),
    "BTLM-3B": Published(0.432, 0.263, 0.030, 0.080),
}
"""By workload."""

DTR: Mapping[str, Published] = {
    "ResNet-50": Published(0.849, 0.596, 0.041, 0.443),
    "BERT-base": Published(0.901, 0.769, 0.089, 0.235),
    "ViT-base/16": Published(0.950, 0.799, 0.087, 0.212),
    "U-Net": Published(0.700, 0.700, 0.026, 0.720),
    "U-Net++": Published(0.749, 0.700, 0.034, None),
    "GPT-Neo-1.3B": Published(None, 0.851, 0.133, None),
    "BTLM-3B": Published(None, None, None, None),
}
"""By workload: DTR (arXiv 2006.09616) as MegEngine has it, in the same figures."""
