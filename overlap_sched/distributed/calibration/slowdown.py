"""What compute and a collective cost each other when they run at the same time, in both directions.

A collective is launched, matrix products run, then it is waited for; once with products for about as long as the
collective takes alone, T, and once with products for much longer::

    long     |launch|===:===:===:===:===:===|finish|     the products take longer than alone, by the time *lost*
    short    |launch|===:===:===|..... wait .....|       what is left of the collective is seen at the wait

In the short run the products took D, and T less what was left was done beside them: the collective is *stretched* by
D / (T - left). So, in the long run, it was in flight for T * stretch, in which compute lost what it lost: the *factor*
with which a replay finds that again. What other processes take of a busy machine is no part of it: compute loses to a
collective at most what the other threads of its process have had of a processor meanwhile. On the processors that gloo
and compute share both are large; there, hiding a collective gains little.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from overlap_sched.cost.measured.table import CollectiveTime, SlowdownFactor
from overlap_sched.distributed.calibration.collectives import (
    ELEMENT_BYTES,
    FUNCTIONAL,
    Division,
    Groups,
    launch_of,
    whole_elements,
)
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.stopwatch import Timing, rounded, together

LARGEST = 20.0
"""No factor is larger: a collective may cost compute all the time that it takes, or not get on at all beside it."""
_SIDE = {"cpu": 256, "cuda": 4096}
"""Of the square matrices: a product is short beside the collective, and keeps the device busy."""
_LONG_TIMES, _LONG_MORE_US = 2.0, 5_000.0
"""Products for so many times as long as the collective, and so much more, outlast it."""


class Beside(NamedTuple):
    """A collective beside products.

    Attributes:
        products_us: What the products take alone. timing: of both; its ``launch_us`` ends with the products.
    """

    products_us: float
    timing: Timing


def timed_collective(machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int) -> CollectiveTime:
    """Time a collective: alone, and the wait for it once it is long done; all ranks call this.

    Args:
        machine: The ranks.
        groups: Their groups.
        kind: One of :data:`overlap_sched.cost.measured.table.KINDS`.
        division: Which groups communicate.
        nbytes: The larger of input and output; cut down to what divides evenly.
    """
    elements = whole_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups.mine(division), division.size, machine.device)
    alone = together(machine, launch, FUNCTIONAL.wait_tensor)
    finish_us = 0.0
    if machine.device.type == "cpu":  # a GPU's stream does not wait for the host
        finish_us = _beside(machine, launch, _long_us(alone), _warmed).timing.finish_us
    nodes = division.nodes(machine.size, machine.ranks_per_node)
    times = (alone.time_us, alone.spread_us, alone.launch_us, finish_us)
    return CollectiveTime(kind, division.size, nodes, elements * ELEMENT_BYTES, *times)


def timed_slowdown(machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int) -> SlowdownFactor:
    """Measure what a collective and compute cost each other; arguments as of :func:`timed_collective`."""
    elements = whole_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups.mine(division), division.size, machine.device)
    alone = together(machine, launch, FUNCTIONAL.wait_tensor)
    long = _beside(machine, launch, _long_us(alone))
    if machine.device.type == "cpu":
        return slowdown_of(kind, alone, _beside(machine, launch, alone.time_us), long)
    # on a GPU the host launches ahead, and nothing that computes keeps a collective's kernel from running
    ended = long._replace(timing=long.timing._replace(launch_us=long.timing.time_us))
    return slowdown_of(kind, alone._replace(launch_us=0.0), None, ended)


def slowdown_of(kind: str, alone: Timing, short: Beside | None, long: Beside) -> SlowdownFactor:
    """The factors, see the module; the spread is that of the long run.

    Args:
        kind: Of the collective.
        alone: The collective alone.
        short: It beside products for as long; ``None`` where nothing stretches it.
        long: It beside products that outlast it.
    """
    time_us = max(alone.time_us - alone.launch_us, 1e-3)
    stretch = 1.0
    if short is not None:
        beside_us = short.timing.launch_us - alone.launch_us
        left_us = max(short.timing.finish_us - long.timing.finish_us, 0.0)
        stretch = min(max(beside_us / max(time_us - left_us, 1e-3), 1.0), LARGEST)

    def factor(busy_us: float) -> float:
        lost_us = min(busy_us - alone.launch_us - long.products_us, long.timing.others_us)
        lost = lost_us / (time_us * stretch)
        return 1 / (1 - min(max(lost, 0.0), 1 - 1 / LARGEST))

    busy_us, half_us = long.timing.launch_us, long.timing.spread_us / 2
    spread = factor(busy_us + half_us) - factor(busy_us - half_us)
    return SlowdownFactor(kind, rounded(factor(busy_us)), rounded(spread), rounded(stretch))


def _long_us(alone: Timing) -> float:
    return _LONG_TIMES * alone.time_us + _LONG_MORE_US


def _warmed() -> None:
    """Run the code of a wait, for what nothing is in flight.

    After some milliseconds of products it is out of the caches, and a wait takes 80 to 120 us instead of 10 to 20; in a
    step, which calls operators all the time, it is not.
    """
    FUNCTIONAL.wait_tensor(torch.empty(1))


def _beside(
    machine: Machine, launch: Callable[[], Any], products_us: float, then: Callable[[], None] = lambda: None
) -> Beside:
    """The collective beside products that take about so long; ``then`` runs behind them."""
    device = machine.device
    matrix = torch.randn(_SIDE[device.type], _SIDE[device.type], device=device, dtype=torch.bfloat16)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    def alone_us(count: int) -> float:
        return together(machine, lambda: products(count), lambda _: None, statistics.median).time_us

    count = machine.from_first(max(math.ceil(10 * products_us / alone_us(10)), 1))

    def both() -> Any:
        launched = launch()
        products(count)
        then()
        return launched

    return Beside(alone_us(count), together(machine, both, FUNCTIONAL.wait_tensor, statistics.median))
