"""Matrix products that keep a device busy for about so long: beside collectives, and between them as in a step.

Ranks that leave a barrier together and wait for a collective at once do not meet as in a step: there each comes from
its own compute, and the collective before was one of the same group. Over gloo that makes a difference of 16 to 45 %::

    a barrier each time     |barrier|collective|        |barrier|collective|
    as in a step            |== products ==|collective|== products ==|collective|
"""

import math
import statistics

import torch

from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.stopwatch import Begin, End, Timing, Typical, steady_mean, together

_MATRIX = {"cpu": (128, torch.float32), "cuda": (4096, torch.bfloat16)}
"""Side and type of the square matrices: a product is short beside a collective, and keeps the device busy. A CPU
without instructions for bf16 takes 25 ms for a product of side 256 in it, 0.5 ms in fp32."""
_BETWEEN_US = 1_000.0
"""Products between two collectives."""


class Products:
    """Matrix products on each rank by itself; all ranks make it, and ask it the same."""

    def __init__(self, machine: Machine) -> None:
        side, dtype = _MATRIX[machine.device.type]
        self._matrix = torch.randn(side, side, device=machine.device, dtype=dtype)
        self._machine = machine

    def run(self, count: int) -> None:
        """So many."""
        for _ in range(count):
            torch.mm(self._matrix, self._matrix)

    def alone_us(self, count: int) -> float:
        """Return how long so many take while nothing is communicated, in microseconds."""
        return together(self._machine, lambda: self.run(count), lambda _: None, statistics.median).time_us

    def count_for(self, time_us: float) -> int:
        """How many take about so long; the same number on all ranks, one at least."""
        return self._machine.from_first(max(math.ceil(10 * time_us / self.alone_us(10)), 1))


def in_a_step(machine: Machine, begin: Begin, end: End, typical: Typical = steady_mean) -> Timing:
    """As :func:`~overlap_sched.distributed.calibration.stopwatch.together`, with products between the collectives.

    On a GPU the host launches ahead, and ranks meet on the device: there with a barrier each time.
    """
    if machine.device.type != "cpu":
        return together(machine, begin, end, typical)
    products = Products(machine)
    count = products.count_for(_BETWEEN_US)
    return together(machine, begin, end, typical, lambda: products.run(count))
