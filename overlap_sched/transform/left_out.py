"""What each rewrite buys: the step of the plan with that one left out.

What a bucket saves on its stream is not what it takes off the step: the latency that it saves may be hidden, and
others may have to wait for it. So the plan is scheduled again without it, in the way in which it was found: from the
same order, by the same policy, within the same budget. One run per rewrite, which is why it is done only where asked
for. Runs differ by a little from the plan itself, which has been improved since: compare with ``Left.with_us``, the
same run with all rewrites.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from overlap_sched.transform.draft import Alike
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.records import Record
from overlap_sched.transform.rewrites import Bucket, Recompute, Regather, Rewrite, Stream, to_json
from overlap_sched.transform.search import POLICIES, RewriteSearch, Trial, schedule_rewritten


class Left(NamedTuple):
    """A plan with one rewrite left out.

    Attributes:
        rewrite: The one.
        step_us: The step without it; ``inf``: none was found within the budget.
        with_us: The step with all of them, by the same run.
        why_not: Why there is no step, in words; ``""``: there is one.
    """

    rewrite: Rewrite
    step_us: float
    with_us: float
    why_not: str = ""

    @property
    def bought_us(self) -> float:
        """The time that the rewrite takes off the step; negative: what it adds to it."""
        return self.step_us - self.with_us


def left_out(found: Plan, prices: Prices, alike: Alike | None = None, most: int = 12) -> tuple[Left, ...]:
    """Leave out one rewrite after the other, those first that take most off their stream.

    Args:
        found: A plan.
        prices: Those that it was made with.
        alike: The same.
        most: So many rewrites are looked at.

    Returns:
        In the order of :func:`largest`; nothing where nothing was rewritten.
    """
    if not found.rewrites:
        return ()
    own = next(one for one in found.trials if one.problem is not None and one.rewrites == found.rewrites)
    asked = RewriteSearch(found.without.problem, prices, alike, found.without.budget_bytes)
    with_us = _again(asked, own, found.rewrites).step_us
    return tuple(_left(asked, own, record.rewrite, with_us) for record in largest(found.records, most))


def largest(records: Sequence[Record], most: int) -> list[Record]:
    """Those that take most off their stream; of equals those that come first."""
    return sorted(records, key=lambda one: -one.stream_us)[:most]


def without(rewrites: Sequence[Rewrite], one: Rewrite) -> tuple[Rewrite, ...]:
    """All but one; members of a bucket that was on a second communicator go there one by one.

    What is cast for a gather that is not done again is not cast again either.
    """
    members = one.members if isinstance(one, Bucket) else ()
    rest: list[Rewrite] = []
    for other in rewrites:
        if isinstance(one, Bucket) and isinstance(other, Stream) and other.collective == one.name:
            rest += map(Stream, members)
        elif isinstance(one, Regather) and isinstance(other, Recompute) and other.users == (one.name,):
            continue
        elif other != one:
            rest.append(other)
    return tuple(rest)


def _left(asked: RewriteSearch, own: Trial, one: Rewrite, with_us: float) -> Left:
    trial = _again(asked, own, without(own.rewrites, one))
    return Left(one, trial.step_us, with_us, trial.why_not)


def _again(asked: RewriteSearch, own: Trial, rewrites: Sequence[Rewrite]) -> Trial:
    return schedule_rewritten(asked, own.what, rewrites, own.start, math.inf, own.policies[:1] or POLICIES)


def left_json(found: Sequence[Left]) -> list[dict[str, Any]]:
    """For ``--json``: the rewrite, microseconds; ``step_us`` is null where there is no step."""
    return [
        {
            "rewrite": to_json([one.rewrite])[0],
            "step_us": one.step_us if math.isfinite(one.step_us) else None,
            "with_us": one.with_us,
            "why_not": one.why_not,
        }
        for one in found
    ]
