"""Collectives of one group that are launched together, against one alone: do they run side by side?

::

    one   |launch|========|
    two   |launch|launch|============|      times = the part behind the first launch, as multiples of that of one
"""

from typing import Any

from overlap_sched.cost.measured.lanes import InFlight
from overlap_sched.distributed.calibration.collectives import (
    FUNCTIONAL,
    Division,
    Groups,
    launch_of,
    whole_elements,
)
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.products import in_a_step
from overlap_sched.distributed.calibration.stopwatch import Timing, rounded


def timed_in_flight(
    machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int, at_once: int
) -> InFlight:
    """Time one collective, then so many at once; all ranks call this.

    Arguments as of :func:`overlap_sched.distributed.calibration.slowdown.timed_collective`.
    """
    elements, group = whole_elements(nbytes, division.size), groups.mine(division)
    launches = [launch_of(kind, elements, group, division.size, machine.device) for _ in range(at_once)]
    alone = in_a_step(machine, launches[0], FUNCTIONAL.wait_tensor)

    def wait_all(launched: list[Any]) -> None:
        for one in launched:
            FUNCTIONAL.wait_tensor(one)

    every = in_a_step(machine, lambda: [launch() for launch in launches], wait_all)
    return in_flight_of(kind, at_once, alone, every)


def in_flight_of(kind: str, at_once: int, alone: Timing, every: Timing) -> InFlight:
    """Return what both times say; less than 1 and more than ``at_once`` is noise."""
    one_us = max(alone.time_us - alone.launch_us, 1e-3)
    times = (every.time_us - alone.launch_us) / one_us
    return InFlight(kind, at_once, rounded(min(max(times, 1.0), at_once)), rounded(every.spread_us / one_us))
