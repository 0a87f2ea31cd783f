"""One scheduling run: a list scheduler in simulated time that never leaves the memory budget.

The loop is ``list_schedule``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Order
from overlap_sched.scheduler.choose import Choice, Policy
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.state import State


@dataclass(frozen=True)
class Run:
    """What a run made.

    Attributes:
        order: The order, within the budget by construction.
        step_us: Its step time, as simulated.
        peak_bytes: Its peak, as tracked.
        longest_us: The longest path of the graph, communication included: no order is shorter.
        reasons: Per collective, why it was launched where it was.
        refusals: Per collective that the budget ever refused, the first time: (bytes above, node at whose step).
        work: What it took.
    """

    order: Order
    step_us: float
    peak_bytes: int
    longest_us: float
    reasons: dict[int, Reason]
    refusals: dict[int, tuple[int, int]]
    work: Work


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    chains: Sequence[tuple[int, int]] = (),
    beat_us: float = math.inf,
) -> Run | Work:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: See :class:`Policy`.
        chains: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.

    Returns:
        The run; of one that was given up only what it took.
    """
    state = State(reference, reference.keys_where(policy.prepares), limit, chains)
    choice = Choice(state, policy)
    while len(state.done) < len(reference.order):
        v, reason = choice.next()
        state.run(v, reason)
        if state.clock_us + state.keys.total_us - state.computed_us > beat_us:
            return state.work()
    step_us = state.streams.end_us(state.clock_us)
    made = (tuple(state.done), step_us, state.memory.peak_bytes, state.keys.longest_us)
    return Run(*made, state.reasons, state.refusals, state.work())
