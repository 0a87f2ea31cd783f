"""What is tried besides buckets, judged by scheduling from the original order and from the best: their peaks differ.

To keep what is gathered for its next use saves a gather and takes memory; where there is room, those first that take
most time for what they hold. To gather again is the inverse, tried where the memory of an order is at its peak: what is
freed there may let others be launched in time.
"""

from collections.abc import Sequence
from itertools import product

from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.transform.found import Found
from overlap_sched.transform.keeping import GatherGap, admitted, casts_of, chained, to_gather_again, to_keep, twice
from overlap_sched.transform.rewrites import Keep, Recompute, Regather, Rewrite
from overlap_sched.transform.trial import TrialContext, tried

PARTS_KEPT, PARTS_AGAIN = (1, 2), (1, 4)
"""All that fits is kept, or one of two; all that spans the peak is gathered again, or one of four."""


def _try(
    asked: TrialContext,
    found: Found,
    what: str,
    rewrites: Sequence[Rewrite],
    start: Sequence[NodeId],
) -> None:
    """Try it unless the same was tried, or the best is good enough."""
    key = (tuple(rewrites), tuple(start))
    if rewrites and not found.enough and key not in found.known:
        found.known.add(key)
        found.see(tried(asked, what, rewrites, start, found.best_us, found.policies()))


def try_keeping(asked: TrialContext, found: Found, order: Order) -> None:
    """Keep gathers for their next use, as many as an order has room for."""
    problem = asked.problem
    groups = twice(problem, asked.alike)
    for start, parts in product((problem.original_order, order), PARTS_KEPT) if groups else ():
        gaps = sorted(to_keep(problem, start, groups), key=lambda gap: -gap.us_per_byte)
        kept = admitted(problem, start, [gap for gap in gaps if not asked.refuses(gap.rewrite)], asked.budget_bytes)
        kept = kept[: -(-len(kept) // parts)]
        _try(asked, found, f"{len(kept)} gathers kept for their next use", chained(kept), start)


def try_gathering_again(asked: TrialContext, found: Found, order: Order) -> None:
    """Gather again, behind the peak, what is held there; on top of the best so far."""
    problem = asked.problem
    best = () if found.best is None else found.best.rewrites
    held = {one.first for one in best if isinstance(one, Keep)}
    for start, parts in product((problem.original_order, order), PARTS_AGAIN):
        gaps = [gap for gap in _at_the_peak(asked, start) if gap.rewrite.gather not in held]
        gaps = gaps[: -(-len(gaps) // parts)]
        again = [one for gap in gaps for one in _with_casts(problem, gap.rewrite)]
        if again:
            what = f"{len(gaps)} gathered again behind the peak"
            _try(asked, found, what, (*again, *best), start)


def _at_the_peak(asked: TrialContext, order: Order) -> list[GatherGap[Regather]]:
    """Gaps that span the peak of an order: those first that take least time for what they free."""
    peak = int(LiveRanges(asked.problem).profile(order).argmax())
    gaps = to_gather_again(asked.problem, order, asked.alike)
    spanning = [gap for gap in gaps if gap.begin <= peak < gap.end and not asked.refuses(gap.rewrite)]
    return sorted(spanning, key=lambda gap: gap.us_per_byte)


def _with_casts(problem: Problem, again: Regather) -> list[Rewrite]:
    """And casts that are made for the gather alone, so that the parameter is held and not its cast."""
    casts = casts_of(problem, again.gather)
    return [again, Recompute(casts, (again.name,))] if casts else [again]
