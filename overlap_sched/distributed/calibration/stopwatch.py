"""Timing one thing on all ranks at once: warmed up, repeated, the median and the quartiles.

On a CPU the clock is the host's. On a GPU it is the GPU's (CUDA events), and each repetition begins with a kernel that
spins while the host launches what is timed: else a short kernel would be charged for its launch.
"""

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

WARM_UPS = 3
FEWEST, MOST = 7, 50
"""Repetitions."""
BUDGET_S = 0.6
"""About how long the repetitions of one thing may take; the fewest are made all the same."""
_SPIN_CYCLES = 2_000_000
"""About a millisecond on a GPU: longer than a launch takes."""


class Timing(NamedTuple):
    """Microseconds: the median of the repetitions, the distance of their quartiles, the median of the launches."""

    time_us: float
    spread_us: float
    launch_us: float


class _Once(NamedTuple):
    time_us: float
    launch_us: float


def together(machine: Machine, begin: Begin, end: End) -> Timing:
    """Time what all ranks do with each other, a collective.

    A rank that comes early waits for the others, and its time is too long by that much: of each repetition the shortest
    time of any rank counts, which is that of the rank that came last.
    """
    runs = machine.everyone(_repeated(machine, begin, end, meet=True))
    times = [min(once.time_us for once in of_ranks) for of_ranks in zip(*runs, strict=True)]
    return _timing(times, [once.launch_us for of_rank in runs for once in of_rank])


def side_by_side(machine: Machine, run: Callable[[], object], *, meet: bool = False) -> Timing:
    """Time what each rank does by itself, all at the same time: they share memory, caches and power.

    Args:
        machine: The ranks.
        run: What is timed.
        meet: Whether all ranks begin each repetition together: where it communicates.
    """
    runs = machine.everyone(_repeated(machine, run, lambda _: None, meet=meet))
    every = [once for of_rank in runs for once in of_rank]
    return _timing([once.time_us for once in every], [once.launch_us for once in every])


def _timing(times_us: Sequence[float], launches_us: Sequence[float]) -> Timing:
    low, middle, high = statistics.quantiles(times_us, n=4)
    return Timing(rounded(middle), rounded(high - low), rounded(statistics.median(launches_us)))


def rounded(value: float) -> float:
    """Six significant digits: no measurement has more."""
    return float(f"{value:.6g}")


def _repeated(machine: Machine, begin: Begin, end: End, *, meet: bool) -> list[_Once]:
    """``meet``: before each repetition. All ranks make as many."""
    machine.meet()
    for _ in range(WARM_UPS):
        last = once(machine.device, begin, end)
    slowest_s = max(machine.everyone(last.time_us)) / 1e6
    repeats = min(max(int(BUDGET_S / max(slowest_s, 1e-9)), FEWEST), MOST)
    runs = []
    for _ in range(repeats):
        if meet:
            machine.meet()
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
