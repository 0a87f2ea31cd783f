"""Stages that only polish an order: single launches and waits are shifted, then the tail is filled.

Neither needs more memory than the order itself, or the one that memory is counted from, takes anyway.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.fill_tail import fill_tail
from overlap_sched.scheduler.shift import FARTHEST, shift
from overlap_sched.scheduler.stage import Context

SHIFT, FILL_TAIL = "shift", "fill tail"


def farthest(context: Context) -> int:
    """Positions that a shift goes at most: none where nothing is shifted."""
    return FARTHEST if context.has(SHIFT) else 0


def polished(context: Context, best: Candidate, limit: npt.NDArray[np.int64]) -> Candidate:
    """Return an order within a limit in bytes by both stages, as far as they are done at all."""
    made = shift(context.task, best, limit) if context.has(SHIFT) else best
    if context.has(FILL_TAIL):
        made = fill_tail(context.task, best, made, limit, farthest(context))
    return replace(made, unshifted=best.order)


def shifted(context: Context, best: Candidate) -> Candidate:
    """The stage: what runs have made, shifted; any other order is as good as it gets."""
    if not best.reasons:
        return best
    return replace(shift(context.task, best, context.task.limit_after(best)), unshifted=best.order)


def tail_filled(context: Context, best: Candidate) -> Candidate:
    """The stage: what runs have made, as it was before it was shifted, with the tail filled, then shifted."""
    if not best.reasons:
        return best
    source = best if best.unshifted is None else context.task.remeasured(best, best.unshifted)
    made = fill_tail(context.task, source, best, context.task.limit_after(source), farthest(context))
    return best if made is best else replace(made, unshifted=source.order)
