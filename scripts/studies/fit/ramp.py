"""Prices with more time for each kernel: what a GPU takes to fill up and to run empty, which a roofline does not know.

Many small kernels then cost more than few large ones: that bears on fission, whose parts are smaller kernels.
"""

from dataclasses import dataclass

from overlap_sched.cost import CostModel
from overlap_sched.cost.model import Collective, Compute


@dataclass(frozen=True)
class Ramped:
    """A cost model, and so many microseconds more for every kernel.

    Attributes:
        model: What prices all else.
        ramp_us: Added wherever something is computed.
    """

    model: CostModel
    ramp_us: float

    def compute_us(self, work: Compute) -> float:
        """As of the model, and the ramp; 0.0 where nothing runs."""
        us = self.model.compute_us(work)
        return us + self.ramp_us if us else 0.0

    def collective_us(self, work: Collective) -> float:
        """As of the model."""
        return self.model.collective_us(work)
