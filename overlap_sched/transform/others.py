"""What is tried besides buckets, judged by scheduling from the original order and from the best: their peaks differ.

To write results over what they were made of takes less time, and less memory where it lives twice; what must then come
before what else binds an order more. All that is legal is tried at once, and what lives near the peak alone.

To keep what is gathered for its next use saves a gather and takes memory; where there is room, those first that take
most time for what they hold. To gather again is the inverse, tried where the memory of an order is at its peak: what is
freed there may let others be launched in time.

To split what is waited for most lets its first part be there sooner.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, product

from overlap_sched.errors import RewriteError
from overlap_sched.judge.replay import replay
from overlap_sched.problem import NodeId, Order, Problem
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.found import Found
from overlap_sched.transform.in_place import legal_together, places
from overlap_sched.transform.keeping import GatherGap, admitted, casts_of, chained, to_gather_again, to_keep, twice
from overlap_sched.transform.members import member
from overlap_sched.transform.rewrites import InPlace, Keep, Recompute, Regather, Rewrite, Split
from overlap_sched.transform.trial import Trial, TrialContext, tried

NEAR_THE_PEAK = 0.9
"""What lives where at least this part of the peak is live."""


PARTS_KEPT, PARTS_AGAIN = (1, 2), (1, 4)
"""All that fits is kept, or one of two; all that spans the peak is gathered again, or one of four."""
PARTS = (2, 4)
MOST = (1, 4)
"""So many are split at once: those that stall compute most."""
UNIT_BYTES = 16
"""Parts of whole elements of any type: what a rank gives or takes is a multiple of so many bytes per part."""


def try_in_place(asked: TrialContext, found: Found, order: Order) -> tuple[TrialContext, Order] | None:
    """Write in place; ``found`` gets the results.

    Args:
        asked: The problem, prices, the budget.
        found: What was found so far.
        order: The best without rewrites.

    Returns:
        What follows starts from this graph and this order of it: the shortest that is no longer than the best order
        without; ``None``: none is.
    """
    best, best_us = None, found.best_us * (1 + 2 * SAME_STEP)
    everything = _legal(asked)
    for start, near in product((asked.problem.original_order, order), (False, True)):
        chosen = _near_the_peak(asked, everything, start) if near else everything
        what = f"{len(chosen)} {'result' if len(chosen) == 1 else 'results'} written in place"
        trial = _try(asked, found, what, chosen, start, best_us)
        if trial is not None and trial.step_us < best_us:
            best, best_us = trial, trial.step_us
    return None if best is None else (asked.after(best.rewrites, best.start), best.order)


def _try(
    asked: TrialContext,
    found: Found,
    what: str,
    rewrites: Sequence[Rewrite],
    start: Sequence[NodeId],
    beat_us: float,
) -> Trial | None:
    """Try it unless the same was tried, or the best is good enough."""
    key = (tuple(rewrites), tuple(start))
    if found.enough or not rewrites or key in found.known:
        return None
    found.known.add(key)
    trial = tried(asked, what, rewrites, start, beat_us, found.policies())
    found.see(trial)
    return trial


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


def try_keeping(asked: TrialContext, found: Found, order: Order) -> None:
    """Keep gathers for their next use, as many as an order has room for; as :func:`try_in_place`."""
    problem = asked.problem
    groups = twice(problem, asked.alike)
    for start, parts in product((problem.original_order, order), PARTS_KEPT) if groups else ():
        gaps = sorted(to_keep(problem, start, groups), key=lambda gap: -gap.us_per_byte)
        kept = admitted(problem, start, [gap for gap in gaps if not asked.refuses(gap.rewrite)], asked.budget_bytes)
        kept = kept[: -(-len(kept) // parts)]
        _try(asked, found, f"{len(kept)} gathers kept for their next use", chained(kept), start, found.best_us)


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
            _try(asked, found, what, (*again, *best), start, found.best_us)


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


def try_splitting(asked: TrialContext, found: Found, order: Order) -> None:
    """Split what the best order so far waits for; on top of what that has rewritten."""
    best, start, rewrites = found.best, order, tuple[Rewrite, ...]()
    late = _late(asked.problem, order, asked.problem)
    if best is not None and best.problem is not None:
        start, rewrites = best.start, best.rewrites
        late = _late(best.problem, best.order, asked.problem)
    draft = Draft(asked.problem, asked.problem.original_order)
    for parts, most in product(PARTS, MOST):
        if found.enough:
            return
        wanted = (Split(name, parts) for name in late)
        splits = list(islice((split for split in wanted if _may(asked, draft, split)), most))
        if splits:
            what = f"{len(splits)} that stall most in {parts} parts"
            found.see(tried(asked, what, (*rewrites, *splits), start, found.best_us, found.policies()))


def _late(scheduled: Problem, order: Order, problem: Problem) -> list[str]:
    """Collectives of a problem that compute waits for in an order of it, rewritten: those first that stall most."""
    timeline, there = replay(scheduled, order), {node.name for node in problem.nodes}
    stall_us: dict[str, float] = {}
    for v in scheduled.collectives:
        name = scheduled.nodes[v].name
        stalled = sum(timeline.stall_us[w] for w in scheduled.waits.get(v, ()))
        if name in there and stalled > 0:
            stall_us[name] = stalled
    return sorted(stall_us, key=lambda name: (-stall_us[name], name))


def _may(asked: TrialContext, draft: Draft, split: Split) -> bool:
    """Tell whether a collective may be cut into equal parts of whole elements."""
    if asked.alike is not None and split.collective not in asked.alike:
        return False
    try:
        one = member(draft, split.collective)
    except RewriteError:
        return False
    return one.node.bytes % (one.ranks * split.parts * UNIT_BYTES) == 0 and not asked.refuses(split)
