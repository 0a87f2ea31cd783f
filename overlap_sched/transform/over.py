"""Results written over what they were made of: what is tried of it, judged by scheduling.

What need not be copied takes less time, and less memory where it lives twice; what must then come before what else
binds an order more. All that is legal is tried at once, and what lives near the peak alone, from the original order
and from the best.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import Order
from overlap_sched.scheduler.candidate import SAME_STEP
from overlap_sched.transform.found import Found
from overlap_sched.transform.in_place import legal_together, places
from overlap_sched.transform.rewrites import InPlace
from overlap_sched.transform.trial import Trial, TrialContext, tried

NEAR_THE_PEAK = 0.9
"""What lives where at least this part of the peak is live."""


class Over(NamedTuple):
    """What comes after some results are written in place: the graph, and its best order."""

    asked: TrialContext
    order: Order


def try_in_place(asked: TrialContext, found: Found, order: Order) -> Over | None:
    """Write in place; ``found`` gets the results.

    Args:
        asked: The problem, prices, the budget.
        found: What was found so far.
        order: The best without rewrites.

    Returns:
        What follows starts from this: the shortest that is no longer than the best order without; ``None``: none is.
    """
    best, best_us = None, found.best_us * (1 + 2 * SAME_STEP)
    everything = _legal(asked)
    for start, near in product((asked.problem.original_order, order), (False, True)):
        chosen = _near_the_peak(asked, everything, start) if near else everything
        key = (tuple(chosen), tuple(start))
        if found.enough or not chosen or key in found.known:
            continue
        found.known.add(key)
        what = f"{len(chosen)} {'result' if len(chosen) == 1 else 'results'} written in place"
        trial: Trial = tried(asked, what, chosen, start, best_us, found.policies())
        found.see(trial)
        if trial.step_us < best_us:
            best, best_us = trial, trial.step_us
    return None if best is None else Over(asked.after(best.rewrites, best.start), best.order)


def _legal(asked: TrialContext) -> list[InPlace]:
    """All that is legal at once; nothing where it is not known which of two inputs would be written over."""
    legal = [one for one in places(asked.problem) if not asked.refuses(one)]
    inputs = Counter(one.node for one in legal)
    return legal_together(asked.problem, [one for one in legal if inputs[one.node] == 1], asked.prices)


def _near_the_peak(asked: TrialContext, wanted: Sequence[InPlace], order: Order) -> list[InPlace]:
    profile, nodes = LiveRanges(asked.problem).profile(order), asked.problem.nodes
    least = NEAR_THE_PEAK * int(profile.max())
    near = {nodes[v].name for v, live_bytes in zip(order, profile, strict=True) if live_bytes >= least}
    return [one for one in wanted if one.node in near]
