"""How long a step takes: hardware, networks, and the roofline that joins them. Pure numbers, no torch.

>>> from overlap_sched.cost import Compute, Roofline
>>> Roofline().compute_us(Compute("aten.mm.default", flops=68719476736, bytes=155189248)).__round__(3)
115.689
"""

from overlap_sched.cost.model import (
    A100,
    DEVICES,
    FREE,
    H100,
    H200,
    RTX_3090,
    RTX_3090_TF32,
    XEON_8480,
    Collective,
    Compute,
    CostModel,
    Device,
    Link,
    Network,
    Price,
    Roofline,
    device_named,
)

__all__ = [
    "A100",
    "DEVICES",
    "FREE",
    "H100",
    "H200",
    "RTX_3090",
    "RTX_3090_TF32",
    "XEON_8480",
    "Collective",
    "Compute",
    "CostModel",
    "Device",
    "Link",
    "Network",
    "Price",
    "Roofline",
    "device_named",
]
