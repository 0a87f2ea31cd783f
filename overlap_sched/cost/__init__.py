"""How long a step takes: hardware, networks, and the roofline that joins them. Pure numbers, no torch.

>>> from overlap_sched.cost import Compute, Roofline
>>> Roofline().compute_us(Compute("aten.mm.default", flops=68719476736, bytes=155189248)).__round__(3)
115.689
"""

from overlap_sched.cost.compute import A100 as A100
from overlap_sched.cost.compute import B200 as B200
from overlap_sched.cost.compute import DEVICES as DEVICES
from overlap_sched.cost.compute import H100 as H100
from overlap_sched.cost.compute import H200 as H200
from overlap_sched.cost.compute import MI300X as MI300X
from overlap_sched.cost.compute import RTX_3090 as RTX_3090
from overlap_sched.cost.compute import RTX_3090_TF32 as RTX_3090_TF32
from overlap_sched.cost.compute import XEON_8480 as XEON_8480
from overlap_sched.cost.compute import Compute as Compute
from overlap_sched.cost.compute import Device as Device
from overlap_sched.cost.compute import device_named as device_named
from overlap_sched.cost.model import FREE as FREE
from overlap_sched.cost.model import Collective as Collective
from overlap_sched.cost.model import CostModel as CostModel
from overlap_sched.cost.model import Link as Link
from overlap_sched.cost.model import Network as Network
from overlap_sched.cost.model import Price as Price
from overlap_sched.cost.model import Roofline as Roofline
