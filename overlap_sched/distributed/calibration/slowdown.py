"""What compute and a collective cost each other when they run at the same time, in both directions.

A collective is launched, matrix products run, then it is waited for: with products for parts and multiples of the time
that the collective takes alone, T, and with products for much longer::

    long     |launch|===:===:===:===:===:===|finish|     the products take longer than alone, by the time *lost*
    short    |launch|===:===|....... wait .......|       what is left of the collective is seen at the wait
    shorter  |launch|===|........ wait .........|

With a *stretch* s the products of a short run, which took D, have left max(T - D / s, 0) of the collective. The stretch
is that with which the squares of the differences to what was seen are least, over all short runs. One run would not do:
behind one that outlasts the collective nothing is left, whenever that was done. A stretch below 1 is common over gloo:
behind a little compute less is left than an immediate wait of all ranks suggests.

So, in the long run, the collective was in flight for T * s, in which compute lost what it lost: the *factor* with which
a replay finds that again. What other processes take of a busy machine is no part of it: compute loses to a
collective at most what the other threads of its process have had of a processor meanwhile. On the processors that gloo
and compute share both are large; there, hiding a collective gains little.

Collectives of one group that are launched together, against one alone: do they run side by side? ::

    one   |launch|========|
    two   |launch|launch|============|      times = the part behind the first launch, as multiples of that of one
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from overlap_sched.cost.measured.lanes import InFlight
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
from overlap_sched.distributed.calibration.stopwatch import (
    Begin,
    End,
    Products,
    Timing,
    in_a_step,
    rounded,
    together,
)

LARGEST = 20.0
"""No factor is larger: a collective may cost compute all the time that it takes, or not get on at all beside it. And no
stretch is below 1 / ``LARGEST``."""
_SHORT_TIMES = (0.25, 0.5, 1.0, 2.0)
"""Products of short runs, as multiples of the time of the collective."""
_LONG_TIMES, _LONG_MORE_US = 2.0, 5_000.0
"""Products for so many times as long as the collective, and so much more, outlast it."""


class OverlappedCollective(NamedTuple):
    """A collective beside products.

    Attributes:
        products_us: What the products take alone. timing: of both; its ``launch_us`` ends with the products.
    """

    products_us: float
    timing: Timing


def timed_collective(machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int) -> CollectiveTime:
    """Time a collective: alone, and the wait for it once it is long done; all ranks call this.

    ``kind`` is one of :data:`overlap_sched.cost.measured.table.KINDS`, ``division`` says which groups communicate, and
    ``nbytes`` is the larger of input and output, cut down to what divides evenly.
    """
    elements = whole_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups.mine(division), division.size, machine.device)
    alone = in_a_step(machine, launch, FUNCTIONAL.wait_tensor)
    finish_us = 0.0
    if machine.device.type == "cpu":  # a GPU's stream does not wait for the host
        twice_us = 2 * _long_us(alone)
        finish_us = _beside(machine, lambda: (launch(), launch()), twice_us, _second_of).timing.finish_us
    nodes = division.nodes(machine.size, machine.ranks_per_node)
    times = (alone.time_us, alone.spread_us, alone.launch_us, finish_us)
    return CollectiveTime(kind, division.size, nodes, elements * ELEMENT_BYTES, *times)


def timed_slowdown(machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int) -> SlowdownFactor:
    """Measure what a collective and compute cost each other; arguments as of :func:`timed_collective`."""
    elements = whole_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups.mine(division), division.size, machine.device)
    alone = in_a_step(machine, launch, FUNCTIONAL.wait_tensor)
    long = _beside(machine, launch, _long_us(alone))
    if machine.device.type == "cpu":
        time_us = alone.time_us - alone.launch_us
        short = [_beside(machine, launch, part * time_us, timed=in_a_step) for part in _SHORT_TIMES]
        return slowdown_of(kind, alone, short, long)
    # on a GPU the host launches ahead, and nothing that computes keeps a collective's kernel from running
    ended = long._replace(timing=long.timing._replace(launch_us=long.timing.time_us))
    return slowdown_of(kind, alone._replace(launch_us=0.0), (), ended)


def slowdown_of(
    kind: str, alone: Timing, short: Sequence[OverlappedCollective], long: OverlappedCollective
) -> SlowdownFactor:
    """The factors, see the module; the spread is that of the long run.

    ``short``: beside products for about as long or less, none where nothing stretches it; ``long`` outlasts it.
    """
    time_us = max(alone.time_us - alone.launch_us, 1e-3)
    left_us = {
        one.timing.launch_us - alone.launch_us: max(one.timing.finish_us - long.timing.finish_us, 0.0) for one in short
    }
    stretch = stretch_of(time_us, left_us) if left_us else 1.0

    def factor(busy_us: float) -> float:
        lost_us = min(busy_us - alone.launch_us - long.products_us, long.timing.others_us)
        lost = lost_us / (time_us * stretch)
        return 1 / (1 - min(max(lost, 0.0), 1 - 1 / LARGEST))

    busy_us, half_us = long.timing.launch_us, long.timing.spread_us / 2
    spread = factor(busy_us + half_us) - factor(busy_us - half_us)
    return SlowdownFactor(kind, rounded(factor(busy_us)), rounded(spread), rounded(stretch))


def timed_in_flight(
    machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int, at_once: int
) -> InFlight:
    """Time one collective, then so many at once; all ranks call this.

    Arguments as of :func:`timed_collective`.
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


def stretch_of(time_us: float, left_us: Mapping[float, float]) -> float:
    """The stretch that explains best what is left of a collective; of equals the largest.

    Which runs are short enough to leave something is not known: the least squares over the k shortest runs, for every
    k, have the best stretch among them.

    Args:
        time_us: Of the collective alone, above 0.
        left_us: By how long compute ran beside it, in microseconds: what was left.
    """
    shortest = sorted(left_us)
    speeds = []
    for count in range(1, len(shortest) + 1):
        square = sum(beside**2 for beside in shortest[:count])
        done = sum(beside * (time_us - left_us[beside]) for beside in shortest[:count])
        speeds.append(min(max(done / max(square, 1e-6), 1 / LARGEST), LARGEST))

    def error(speed: float) -> float:
        return sum((max(time_us - beside * speed, 0.0) - left) ** 2 for beside, left in left_us.items())

    return 1 / min(speeds, key=lambda speed: (error(speed), speed))


def _long_us(alone: Timing) -> float:
    return _LONG_TIMES * alone.time_us + _LONG_MORE_US


def _second_of(launched: tuple[Any, Any]) -> Any:
    """Wait for the first of two, and leave the second.

    After some milliseconds of products the code of a wait is out of the caches, and a wait takes several times as long
    as right behind another; in a step, which calls operators all the time, it is not.
    """
    first, second = launched
    FUNCTIONAL.wait_tensor(first)
    return second


def _as_launched(launched: Any) -> Any:
    return launched


def _medians(machine: Machine, begin: Begin, end: End) -> Timing:
    return together(machine, begin, end, statistics.median)


def _beside(
    machine: Machine,
    launch: Callable[[], Any],
    products_us: float,
    then: Callable[[Any], Any] = _as_launched,
    timed: Callable[[Machine, Begin, End], Timing] = _medians,
) -> OverlappedCollective:
    """Time what ``launch`` starts beside products that take about so long; then run ``then`` on what it returns."""
    products = Products(machine)
    count = products.count_for(products_us)

    def both() -> Any:
        launched = launch()
        products.run(count)
        return then(launched)

    return OverlappedCollective(products.alone_us(count), timed(machine, both, FUNCTIONAL.wait_tensor))
