"""What torch's caching allocator makes of plans: live bytes within a limit are not enough where they leave holes."""

from collections.abc import Sequence

from overlap_sched.fit.answer import FitPoint, Held
from overlap_sched.fit.limit import Limit
from overlap_sched.options import Options, kept_allocator
from overlap_sched.peak_memory.allocator.reserved import Requests, requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import EXPANDABLE, MIB, PLAIN

TRIED = 4
"""So many of the shortest plans within a limit are looked at, until the allocator can hold one."""
SMALL_BYTES, SEGMENTS_BYTES = 1024 * MIB, 40 * MIB
"""A limit below the first may be passed by the second: single segments decide there."""


def held_best(points: Sequence[FitPoint], limit: Limit, options: Options) -> tuple[FitPoint, Held]:
    """What answers a question best, and what the allocator makes of it.

    Within a memory limit: the shortest of a few plans that runs on a device of so much memory, with retries where it
    needs them. Where the allocator can hold none of them: the shortest, and how much it lacks.

    Args:
        points: All plans.
        limit: The question.
        options: ``allocator`` says how it is set up; ``"none"``: live bytes alone count.
    """
    best, settings = limit.best(points), kept_allocator(options)
    asked = _requests(best)
    if limit.bytes is None or settings is None or best.peak_bytes > limit.bytes:
        return best, _held(asked, 0)
    capacity = limit.bytes + (SEGMENTS_BYTES if limit.bytes < SMALL_BYTES else 0)
    within = sorted((one for one in points if one.peak_bytes <= limit.bytes), key=lambda one: one.step_us)
    for one in within[:TRIED]:
        requests = asked if one is best else _requests(one)
        if requests.fits(capacity, settings):
            return one, _held(requests, 0)
    reserved = asked.replayed(settings).peak_reserved_bytes
    return best, _held(asked, asked.smallest_capacity(settings, reserved) - capacity)


def _requests(plan: FitPoint) -> Requests:
    return requests_of(LiveRanges(plan.problem), plan.order)


def _held(requests: Requests, over_bytes: int) -> Held:
    plain, expandable = (requests.replayed(one).peak_reserved_bytes for one in (PLAIN, EXPANDABLE))
    return Held(plain, expandable, max(over_bytes, 0))
