"""THE main loop: a list scheduler in simulated time that never leaves the memory budget.

::

    until every node has run:
        v = the node that the first rule finds      LaunchRules.choose   which node, and why
        run v                                       SchedulerState.run   clock, streams and memory advance

A rule proposes the most urgent node of its set; memory (:mod:`overlap_sched.scheduler.admission`) admits it, or blocks
it until its obstacle is gone. The first open node of the reference order is always admitted: the loop never gets stuck.
Where the loop stands is in :mod:`overlap_sched.scheduler.state`, the rules are in :mod:`overlap_sched.scheduler.rules`,
the sets in :mod:`overlap_sched.scheduler.ready_list`, their keys in :mod:`overlap_sched.scheduler.priority`.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlap_sched.problem.precedence import Pair
from overlap_sched.scheduler.candidate import Candidate, SchedulerRun
from overlap_sched.scheduler.policies import Policy
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.rules import LaunchRules
from overlap_sched.scheduler.state import SchedulerState
from overlap_sched.scheduler.streams import StreamTimes

_ROUNDING = 1e-12
"""Relative: the same times, summed up in another order, differ by less."""


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    pairs: Sequence[Pair] = (),
    beat_us: float = math.inf,
    times: StreamTimes | None = None,
) -> SchedulerRun:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: What this run tries.
        pairs: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.
        times: When collectives are finished, where not as each in its turn: they may go together.

    Returns:
        What it made, within the budget by construction, and what that took.
    """
    state = SchedulerState(reference, limit, reference.priorities(policy.prepares), pairs, times)
    rules, given_up_us = LaunchRules(state, policy), beat_us * (1 + _ROUNDING)
    while len(state.order) < len(reference.order):
        v, reason = rules.choose()
        state.run(v, reason)
        if state.least_end_us() > given_up_us:
            return SchedulerRun(state.work())
    made = Candidate(
        order=tuple(state.order),
        step_us=state.streams.end_us(state.clock_us),
        peak_bytes=state.memory.peak_bytes,
        reasons=state.reasons,
        refusals=state.refusals,
        work=state.work(),
    )
    return SchedulerRun(made.work, made)
