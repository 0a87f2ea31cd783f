"""How much longer compute takes beside a collective.

A collective is launched, matrix products run that take about twice as long as it, then it is waited for. What the whole
takes longer than the products alone (and the launch) is what the collective has cost them. The factor is the one with
which a replay finds that time again: while the collective is in flight, T microseconds, compute gets T / factor done::

    alone        |== products ==================|
    beside one   |launch|===:===:===:===|=============|      lost = T - T / factor

So a collective that works on the same processors (gloo) has a large factor; there, hiding it gains little.
"""

import math
from typing import Any

import torch

from overlap_sched.cost.table import SlowdownFactor
from overlap_sched.distributed.calibration.collectives import Division, Groups, launch_of
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.stopwatch import Timing, rounded, side_by_side, together

_FUNCTIONAL = torch.ops._c10d_functional
LARGEST = 20.0
"""A collective may cost compute all the time that it takes, and more: no factor says that."""
_SIDE = {"cpu": 256, "cuda": 4096}
"""Of the square matrices: a product is short beside the collective, and keeps the device busy."""
_BYTES = {"cpu": 2**23, "cuda": 2**28}
_TIMES = 2.0


def timed_slowdown(machine: Machine, groups: Groups, kind: str, division: Division) -> SlowdownFactor:
    """Measure it for a kind of collective; all ranks call this."""
    device = machine.device
    elements = _BYTES[device.type] // 4 // division.size * division.size
    launch = launch_of(kind, elements, groups.mine(division), division.size, device)
    matrix = torch.randn(_SIDE[device.type], _SIDE[device.type], device=device, dtype=torch.bfloat16)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    alone = together(machine, launch, _FUNCTIONAL.wait_tensor)
    one_us = side_by_side(machine, lambda: products(10)).time_us / 10
    count = machine.from_first(math.ceil(_TIMES * alone.time_us / one_us))

    def both() -> Any:
        launched = launch()
        products(count)
        return _FUNCTIONAL.wait_tensor(launched)

    compute = side_by_side(machine, lambda: products(count), meet=True)
    launch_us = alone.launch_us if device.type == "cpu" else 0.0  # a GPU's stream does not wait for the host
    return slowdown_of(kind, alone.time_us, compute, side_by_side(machine, both, meet=True), launch_us)


def slowdown_of(kind: str, alone_us: float, compute: Timing, both: Timing, launch_us: float) -> SlowdownFactor:
    """The factor, from the times of the collective alone, of compute alone, of both; its spread is that of ``both``."""

    def factor(both_us: float) -> float:
        lost = (both_us - launch_us - compute.time_us) / alone_us
        return 1 / (1 - min(max(lost, 0.0), 1 - 1 / LARGEST))

    half_us = both.spread_us / 2
    spread = factor(both.time_us + half_us) - factor(both.time_us - half_us)
    return SlowdownFactor(kind, rounded(factor(both.time_us)), rounded(spread))
