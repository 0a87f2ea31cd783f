r"""Orders that fragment little: runs of the list scheduler, in two ways, and orders nearer to the original one.

Runs beside an allocator that admits no more than the original order reserves
(:mod:`overlap_sched.scheduler.allocator_gate`); and within tighter budgets, as less that is in flight leaves fewer
holes::

    bytes  |- - - - - - - - - peak - - - - - - - -
           |   ____________________________          live + part * (peak - live)
           |__/      ________              \____
           |  ______/        \_________________      live in the original order
           +-------------------------------------> position
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, zip_longest

import numpy as np

from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.list_scheduler import list_schedule
from overlap_sched.scheduler.needs import Reserve
from overlap_sched.scheduler.policies import FAR, NEAR, NETWORK_BINDS, NEXT, Policy
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.relink import between
from overlap_sched.scheduler.result import Work
from overlap_sched.scheduler.shift import shifted

TIGHT, TIGHTER = (0.7, 0.45, 0.3, 0.2), 2
"""Tighter budgets, as parts of the way from what is live in the original order at each place to its peak; and policies
that are run within each."""
NEARER, NEARER_SHIFTS = (95, 90, 80, 70, 50, 30, 20, 10, 5, 2), (40, 12)
"""Percent of the way from what runs start from to the best; and how many positions each of these orders is shifted at
most, before it is taken as it is."""
_NEAREST = ((0.0, NEAR), (-0.2, NEXT), (0.12, FAR))
"""Slack and window."""
POLICIES = (
    *(Policy(0.005, slack, window) for slack, window in _NEAREST),
    Policy(0.02, 0.12, FAR),
    *(Policy(0.005, slack, NEAR) for slack in (-0.03, 0.12)),
    *(Policy(0.02, slack, window) for slack, window in (*_NEAREST[:2], (-0.03, NEAR), (0.12, NEAR))),
    *(Policy(0.0, slack, window) for slack, window in (*_NEAREST, (-0.03, NEAR), (0.12, NEAR))),
)
"""Near the reference order in one way or another: that is what fragments least."""


def runs_beside_an_allocator(reserve: Reserve, reference: Reference) -> Iterator[Callable[..., Candidate | Work]]:
    """Runs beside an allocator, policy by policy; they are told what step is to be beaten."""
    task = reserve.task
    for policy in _policies(reserve):
        for gate in reserve.gates():
            yield partial(list_schedule, reference, task.limit, policy, task.pairs, gate=gate)


def tighter_runs(reserve: Reserve, reference: Reference, most_us: float) -> Iterator[Candidate | Work]:
    """Runs within tighter and tighter budgets, until all of one are given up, as the step becomes too long."""
    task = reserve.task
    live = np.minimum(task.live_ranges.profile(reference.order), task.limit)
    for part in TIGHT:
        limit = (live + part * (task.limit - live)).astype(np.int64)
        runs = [
            list_schedule(reference, limit, policy, task.pairs, most_us)
            for policy in islice(_policies(reserve), TIGHTER)
        ]
        yield from runs
        if all(isinstance(run, Work) for run in runs):
            return


def nearer_orders(task: Task, reference: Reference, best: Candidate) -> Iterator[Iterator[Candidate]]:
    """Nearer and nearer to what runs start from; those at one place together, shifted less and less far."""
    limit = task.limit_after(best)
    for percent in NEARER:
        order = between(reference.order, best.order, percent)
        if task.within_budget(order):
            alike = (shifted(task.live_ranges, order, limit, task.pairs, farthest) for farthest in NEARER_SHIFTS)
            yield (replace(task.remeasured(best, found), unshifted=None) for found in chain(alike, [order]))


def _policies(reserve: Reserve) -> Iterator[Policy]:
    compute_us, stream_us = busy_us(reserve.task.problem)
    yield from POLICIES if compute_us >= stream_us else _in_turn(NETWORK_BINDS, POLICIES)


def _in_turn(first: Sequence[Policy], second: Sequence[Policy]) -> Iterator[Policy]:
    """One of each, until there are none."""
    for pair in zip_longest(first, second):
        yield from (policy for policy in pair if policy is not None)
