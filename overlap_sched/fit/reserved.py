"""What torch's caching allocator makes of plans: live bytes within a limit are not enough where they leave holes."""

from collections.abc import Sequence

from overlap_sched.fit.answer import FitPoint, Held
from overlap_sched.fit.limit import Limit
from overlap_sched.options import Options, kept_allocator
from overlap_sched.peak_memory.allocator.reserved import Requests, requests_of
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import EXPANDABLE, MIB, PLAIN

SMALL_BYTES, SEGMENTS_BYTES = 1024 * MIB, 40 * MIB
"""A limit below the first may be passed by the second: single segments decide there."""


def held_best(points: Sequence[FitPoint], limit: Limit, options: Options) -> tuple[FitPoint, Held]:
    """Return the point that answers a question best, and what the allocator makes of it.

    Within a memory limit: the shortest plan that runs on a device of so much memory, with retries where it needs them.
    Where none does: the one that lacks least, and how much.

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
    lacking = []
    for one in within:
        requests = asked if one is best else _requests(one)
        if requests.fits(capacity, settings):
            return one, _held(requests, 0)
        reserved = requests.replayed(settings).peak_reserved_bytes
        lacking.append((requests.smallest_capacity(settings, reserved) - limit.bytes, one, requests))
    over_bytes, best, asked = min(lacking, key=lambda each: each[0])
    return best, _held(asked, over_bytes)


def _requests(plan: FitPoint) -> Requests:
    return requests_of(LiveRanges(plan.problem), plan.order)


def _held(requests: Requests, over_bytes: int) -> Held:
    plain, expandable = (requests.replayed(one).peak_reserved_bytes for one in (PLAIN, EXPANDABLE))
    return Held(plain, expandable, max(over_bytes, 0))
