"""How many collectives of a group are in flight at once, and what that costs each: what measurements say.

Launched together, k collectives that take T alone are all done after so many T (:class:`InFlight`)::

    one lane      1, 2, 4        one after the other: NCCL's stream
    two lanes     1, c, 2 c      two side by side, each c times as long (1 to 2), then two more: gloo's two threads
    four lanes    1, ., c        four side by side

The number of lanes is the one whose best c comes nearest to what was measured, of equals the fewest; and one where
several would get less than a tenth more done.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from overlap_sched.problem.contention import Contention

AT_ONCE = (2, 4)
"""How many are launched together where that is measured; as many lanes are told apart."""
WORTH = 1.1
"""Several lanes do at least so many times as much as one in the same time; less is noise."""


class InFlight(NamedTuple):
    """Collectives of one kind and group that were launched together.

    Attributes:
        kind: One of :data:`overlap_sched.cost.measured.table.KINDS`. at_once: how many.
        times: How many times as long as one alone all of them take together: 1 to ``at_once``.
        spread: Of ``times``, between the quartiles.
    """

    kind: str
    at_once: int
    times: float
    spread: float


class Lanes(NamedTuple):
    """As in :class:`overlap_sched.problem.contention.Contention`."""

    number: int = 1
    crowding: float = 1.0


def lanes_of(measured: Iterable[InFlight]) -> Lanes:
    """Return the lanes that fit the measurements of all kinds best; one lane where there are none."""
    ones = list(measured)
    if not ones:
        return Lanes()
    fits = [_fitted(count, ones) for count in (1, *AT_ONCE)]
    best = min(fits, key=lambda lanes: (round(_error(lanes, ones), 6), lanes.number))
    return best if best.number >= WORTH * best.crowding else Lanes()


def together(lanes: Lanes, at_once: int) -> float:
    """How many times as long as one alone so many take that are launched together."""
    crowded = Contention(lanes=lanes.number, crowding=lanes.crowding).crowded
    rounds, rest = divmod(at_once, lanes.number)
    return rounds * crowded(lanes.number) + (crowded(rest) if rest else 0.0)


def _fitted(count: int, ones: Sequence[InFlight]) -> Lanes:
    """The crowding with the least error: the error has one minimum, which is cut down to by thirds."""
    low, high = 1.0, float(count)
    while high - low > 1e-4:
        third = (high - low) / 3
        if _error(Lanes(count, low + third), ones) <= _error(Lanes(count, high - third), ones):
            high -= third
        else:
            low += third
    return Lanes(count, float(f"{low if low == 1.0 else (low + high) / 2:.4g}"))


def _error(lanes: Lanes, ones: Sequence[InFlight]) -> float:
    """Squares on a logarithmic scale."""
    return sum(math.log(together(lanes, one.at_once) / one.times) ** 2 for one in ones)
