"""What runs try, one policy each, in the order in which they are tried.

Which one suits a graph depends on what binds: compute, the network, memory. That is known only afterwards.
"""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Policy:
    """What one run tries; times are parts of all compute time, so that they fit graphs of every size.

    Attributes:
        lead: How much earlier than its latest start a collective is launched; negative: later.
        slack: How much earlier than its latest start a node of the critical path is moved ahead; negative: later.
        window: How many positions ahead of the first open node compute is looked for.
        prepares: Is cheap compute moved to prepare launches? Else it fills stalls, and launches follow.
        keeps_busy: Does a launch never leave its stream idle for a more urgent one, where the stream has more to do
            than there is time for?
        beside: The lead, instead, of what can be in flight beside a collective of another link: under contention
            two at once slow compute no more than one. 0: nothing is launched for that.
        again: Does the run start from the best order so far?
    """

    lead: float
    slack: float
    window: float = math.inf
    prepares: bool = True
    keeps_busy: bool = False
    beside: float = 0.0
    again: bool = False


FAR, NEAR, NEXT = 8_000, 1_000, 250
"""How many positions ahead compute is looked for: in large graphs all of them would be most of the work."""

IN_ORDER = Policy(0.005, -1.0, FAR)
"""Reference order, come what may."""
FAR_AHEAD = Policy(0.005, 0.12, FAR)
"""The critical path far ahead, weight gradients behind it."""
WHILE_STALLED = Policy(0.02, -0.03, NEAR, prepares=False)
"""Compute stalls often enough to prepare launches meanwhile."""
EARLY = Policy(0.1, -0.03, FAR)
"""Launches very early."""

LAST = (
    Policy(1.0, -0.03, FAR),  # every collective as soon as memory allows
    IN_ORDER,
    Policy(1.0, 1.0, FAR),  # the longest path first, come what may
)
"""Graphs of a few layers are anything; these find most of what the others miss there."""

COMPUTE_BINDS = (
    FAR_AHEAD,
    Policy(0.02, -0.03, NEAR),  # the critical path only when it is late: memory binds
    Policy(0.0, -0.03, FAR),  # the same, launches at their latest start: memory binds more
    Policy(0.01, -0.03, NEAR),
    *LAST,
)
NETWORK_BINDS = (
    WHILE_STALLED,
    Policy(-0.02, -0.03, NEXT, prepares=False),  # launches late, next to nothing far ahead: memory binds too
    EARLY,
    Policy(0.02, -0.03, NEAR),
    FAR_AHEAD,
    *LAST,
)
BESIDE = 0.1
"""Under contention, how much earlier than its latest start a collective is launched beside one of another link."""

CONTENDED_LAST = tuple(replace(policy, beside=BESIDE) for policy in LAST)
CONTENDED_COMPUTE_BINDS = (
    Policy(0.0, -0.03, FAR, beside=BESIDE),  # launches at their latest start, or where they cost nothing
    Policy(0.02, -0.03, NEAR, beside=BESIDE),
    Policy(0.005, 0.12, FAR, beside=BESIDE),
    Policy(0.01, -0.03, NEAR, beside=BESIDE),
    *CONTENDED_LAST,
)
CONTENDED_NETWORK_BINDS = (
    Policy(0.02, -0.03, NEAR, prepares=False, beside=BESIDE),
    Policy(0.6, -0.03, FAR, keeps_busy=True, beside=BESIDE),  # launches very early: a link that is shared never rests
    Policy(0.4, -0.03, FAR, keeps_busy=True, beside=BESIDE, again=True),
    Policy(0.0, -0.03, FAR, beside=BESIDE),
    Policy(0.02, -0.03, NEAR, beside=BESIDE),
    Policy(0.1, -0.03, FAR),
    *CONTENDED_LAST,
)
INTERLEAVED = (
    Policy(0.005, -1.0, FAR, keeps_busy=True),  # reference order, come what may: it goes from chain to chain already
    Policy(0.02, -0.03, NEAR, keeps_busy=True),
    Policy(1.0, -0.03, FAR, keeps_busy=True),  # every collective as soon as memory allows
    Policy(0.005, 0.12, FAR, keeps_busy=True),  # the critical path far ahead, weight gradients behind it
)
"""For runs from an order of several chains (:mod:`overlap_sched.scheduler.interleave`)."""


def policies_for(compute_binds: bool, contended: bool = False) -> tuple[Policy, ...]:
    """Those for a graph whose compute is longer than any stream (else: for one where a stream is)."""
    if contended:
        return CONTENDED_COMPUTE_BINDS if compute_binds else CONTENDED_NETWORK_BINDS
    return COMPUTE_BINDS if compute_binds else NETWORK_BINDS
