"""Timing one thing on all ranks at once: warmed up, repeated, a typical time.

On a CPU the clock is the host's. On a GPU it is the GPU's (CUDA events), and each repetition begins with a kernel that
spins while the host launches what is timed: else a short kernel would be charged for its launch.

Ranks that leave a barrier together and wait for a collective at once do not meet as in a step: there each comes from
its own compute, and the collective before was one of the same group. Over gloo that makes a difference of 16 to 45 %::

    a barrier each time     |barrier|collective|        |barrier|collective|
    as in a step            |== products ==|collective|== products ==|collective|

So between collectives, and beside them, matrix products keep a device busy for about so long.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from overlap_sched.distributed.calibration.machine import Machine

Begin = Callable[[], Any]
"""Starts what is timed."""
End = Callable[[Any], object]
"""Waits for what ``Begin`` has returned."""
Typical = Callable[[Sequence[float]], float]
"""One time for those of all repetitions."""

WARM_UPS = 3
FEWEST, MOST = 7, 100
"""Repetitions."""
BUDGET_S = 0.6
"""About how long the repetitions of one thing may take; the fewest are made all the same."""
_SPIN_CYCLES = 2_000_000
"""About a millisecond on a GPU: longer than a launch takes."""
_MATRIX = {"cpu": (128, torch.float32), "cuda": (4096, torch.bfloat16)}
"""Side and type of the square matrices: a product is short beside a collective, and keeps the device busy. A CPU
without instructions for bf16 takes 25 ms for a product of side 256 in it, 0.5 ms in fp32."""
_BETWEEN_US = 1_000.0
"""Products between two collectives."""
_WHILE = 10
"""Repetitions in a row whose mean is taken."""


class Timing(NamedTuple):
    """Microseconds.

    Attributes:
        time_us: Of one repetition: the median; of a collective alone a mean (:func:`steady_mean`). Over gloo its times
            have two modes, some tenths of a millisecond and 4 ms (a thread that waits for the kernel's next tick), and
            a step adds them up.
        launch_us: Until ``Begin`` has returned, as ``time_us``.
        finish_us: From there to the end, as ``time_us``; of each repetition on the rank where it was shortest.
    """

    time_us: float
    launch_us: float
    finish_us: float


class _Once(NamedTuple):
    time_us: float
    launch_us: float


def steady_mean(values: Sequence[float]) -> float:
    """The median of the means of ten repetitions in a row; with fewer than thirty the mean of all.

    Both modes of a time count as often as they occur: a mean without the largest values, or of the least of the tens,
    would leave out the long mode. What other processes do to less than half of the tens does not count.
    """
    tens = [values[low : low + _WHILE] for low in range(0, len(values) - _WHILE + 1, _WHILE)]
    return statistics.median(map(statistics.fmean, tens)) if len(tens) >= 3 else statistics.fmean(values)


def together(
    machine: Machine,
    begin: Begin,
    end: End,
    typical: Typical = steady_mean,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Time what all ranks do with each other, a collective.

    A rank that comes early waits for the others, and its time is too long by that much: of each repetition the shortest
    time of any rank counts, which is that of the rank that came last. ``before`` is done before each repetition and not
    timed; ``None``: the ranks meet.
    """
    runs = machine.everyone(_repeated(machine, begin, end, before or machine.meet))
    last = [min(of_ranks, key=lambda once: once.time_us) for of_ranks in zip(*runs, strict=True)]
    finishes = [min(once.time_us - once.launch_us for once in of_ranks) for of_ranks in zip(*runs, strict=True)]
    return _timing(last, [once for of_rank in runs for once in of_rank], finishes, typical)


def side_by_side(machine: Machine, run: Callable[[], object], before: Callable[[], object] = lambda: None) -> Timing:
    """Time what each rank does by itself, all at the same time: they share memory, caches and power.

    ``before`` is done before each repetition and not timed.
    """
    runs = machine.everyone(_repeated(machine, run, lambda _: None, before))
    every = [once for of_rank in runs for once in of_rank]
    return _timing(every, every, [0.0], statistics.median)


def _timing(ones: Sequence[_Once], launches: Sequence[_Once], finishes_us: Sequence[float], typical: Typical) -> Timing:
    times_us = [one.time_us for one in ones]
    launches_us = [one.launch_us for one in launches]
    figures = (typical(times_us), typical(launches_us), typical(finishes_us))
    return Timing(*map(rounded, figures))


def rounded(value: float) -> float:
    """Six significant digits: no measurement has more."""
    return float(f"{value:.6g}")


def _repeated(machine: Machine, begin: Begin, end: End, before: Callable[[], object]) -> list[_Once]:
    """All ranks make as many."""
    machine.meet()
    for _ in range(WARM_UPS):
        last = once(machine.device, begin, end)
    slowest_s = max(machine.everyone(last.time_us)) / 1e6
    repeats = min(max(int(BUDGET_S / max(slowest_s, 1e-9)), FEWEST), MOST)
    runs = []
    for _ in range(repeats):
        before()
        runs.append(once(machine.device, begin, end))
    return runs


def once(device: torch.device, begin: Begin, end: End) -> _Once:
    """One repetition."""
    return _on_gpu(device, begin, end) if device.type == "cuda" else _on_host(begin, end)


def _on_host(begin: Begin, end: End) -> _Once:
    began = time.perf_counter()
    started = begin()
    launched = time.perf_counter()
    end(started)
    done = time.perf_counter()
    return _Once((done - began) * 1e6, (launched - began) * 1e6)


def _on_gpu(device: torch.device, begin: Begin, end: End) -> _Once:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(_SPIN_CYCLES)
    first.record()
    began = time.perf_counter()
    started = begin()
    launched = time.perf_counter()
    end(started)
    last.record()
    last.synchronize()
    return _Once(first.elapsed_time(last) * 1e3, (launched - began) * 1e6)


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

    def count_for(self, time_us: float) -> int:
        """How many take about so long; the same number on all ranks, one at least."""
        ten_us = together(self._machine, lambda: self.run(10), lambda _: None, statistics.median).time_us
        return self._machine.from_first(max(math.ceil(10 * time_us / ten_us), 1))


def in_a_step(machine: Machine, begin: Begin, end: End, typical: Typical = steady_mean) -> Timing:
    """As :func:`together`, with products between the collectives.

    On a GPU the host launches ahead, and ranks meet on the device: there with a barrier each time.
    """
    if machine.device.type != "cpu":
        return together(machine, begin, end, typical)
    products = Products(machine)
    count = products.count_for(_BETWEEN_US)
    return together(machine, begin, end, typical, lambda: products.run(count))
