"""Split what is waited for most, so that its first part is there sooner: what is tried, judged by scheduling."""

from itertools import islice, product

from overlap_sched.errors import RewriteError
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Order, Problem
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.found import Found
from overlap_sched.transform.members import member
from overlap_sched.transform.rewrites import Rewrite, Split
from overlap_sched.transform.trial import TrialContext, tried

PARTS = (2, 4)
MOST = (1, 4)
"""So many are split at once: those that stall compute most."""
UNIT_BYTES = 16
"""Parts of whole elements of any type: what a rank gives or takes is a multiple of so many bytes per part."""


def try_splitting(asked: TrialContext, found: Found, order: Order) -> None:
    """Split what the best order so far waits for; on top of what that has rewritten.

    Args:
        asked: The problem, prices, the budget.
        found: What was found so far; gets the results.
        order: The best without rewrites.
    """
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
