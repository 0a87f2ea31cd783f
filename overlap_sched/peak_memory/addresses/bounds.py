"""From what is placed so far: how low can each box that is still open lie, and can they all still fit?

Every section is one machine on which the boxes that are live there run one after the other (its bytes are the time),
each not before its lowest offset. Three arguments, each of them valid in every solution in which no box can be moved
down alone:

    blocked   a box that is not at the lowest offset that the placed boxes leave it is kept from there by an open box
              below it: it lies on or above the lowest end that such a box can have
    not first what lies lowest in a section must leave room for all the rest above it; who cannot, lies on or above
              the lowest end of those who can
    machine   boxes that lie at or above some offset need all of their bytes above it (Jackson's bound; MiniMalloc's
              section inference is the case of the lowest offset)
"""

from typing import NamedTuple

import numpy as np

from overlap_sched.peak_memory.addresses.boxes import Bools, Ints, Sectioned

NEVER = np.int64(2**62)


class Standing(NamedTuple):
    """A partial placement; arrays are replaced, not changed, except ``low``, which only ever rises.

    Attributes:
        open: Per box, whether it is still to be placed (n).
        least: Per box, the lowest offset above all placed boxes that it lives together with (n).
        low: Per box, no solution from here has it lower (n).
        rest: Per section, the sum of open boxes (s).
        crossings: Per section, how many open boxes are live there and in the next (s).
    """

    open: Bools
    least: Ints
    low: Ints
    rest: Ints
    crossings: Ints


def failing_section(boxes: Sectioned, now: Standing, limit: int, first: int, last: int) -> int | None:
    """Raise ``now.low`` of what is live in sections ``first`` to ``last - 1``; where one of them cannot hold, which.

    Time: some vector operations on (boxes that are open there) x (sections).
    """
    here = np.flatnonzero(now.open & (boxes.begin < last) & (boxes.end > first))
    if not len(here):
        return None
    size, low = boxes.bytes[here], now.low[here]
    blocked = np.flatnonzero(low > now.least[here])
    if len(blocked):
        who = here[blocked]
        below = boxes.together[who] & now.open & (now.low < (now.least + boxes.bytes)[who, None])
        raised = np.where(below, now.low + boxes.bytes, NEVER).min(axis=1)
        if raised.max() == NEVER:
            return int(boxes.begin[who[raised.argmax()]])
        low[blocked] = np.maximum(low[blocked], raised)
    covers, room = boxes.covers[here, first:last], limit - now.rest[first:last]
    late = covers & (low[:, None] > room)
    if late.any():
        lowest_end = np.where(covers & ~late, (low + size)[:, None], NEVER).min(axis=0)
        low = np.maximum(low, np.where(late, lowest_end, 0).max(axis=1))
        if low.max() == NEVER:
            return first + int((late.any(axis=0) & (lowest_end == NEVER)).argmax())
    now.low[here] = low
    falling = np.argsort(-low, kind="stable")
    needed = np.cumsum(covers[falling] * size[falling, None], axis=0) + low[falling, None]
    if needed.max() > limit:
        return first + int(needed.max(axis=0).argmax())
    return None
