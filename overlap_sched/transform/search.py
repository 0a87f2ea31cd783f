"""Which rewrites pay: chosen together with the order, by what the whole step becomes.

Merging saves latency on a stream and costs memory, copies, and the time until the first member may be used; to keep
what is gathered saves a gather and costs memory; which of them binds shows only in a schedule. So candidates are
scheduled, few of them, and the best is kept::

    the best order without rewrites                       always a candidate
      -> keep           gathers for their next use, where that fits                   others
      -> buckets        what is left goes together, on one stream or two; then all    choose
      -> gather again   what is held where memory is short                            others
      -> copied         the best again with copies, where both forms may be used
      -> again          the best from its own order, while that helps
      -> phases         all that the scheduler does, on the best                      scheduler.pipeline
      -> verify         the judges look at it; else no rewrites

How much is tried is counted, never timed: every rank comes to the same plan.
"""

from overlap_sched.problem import Order
from overlap_sched.scheduler.policies import FAR_AHEAD, IN_ORDER
from overlap_sched.scheduler.portfolio import busy_us
from overlap_sched.transform.choose import try_buckets
from overlap_sched.transform.found import Found, RunsPaid
from overlap_sched.transform.keys import batch_time, keys_of, without_latency
from overlap_sched.transform.others import try_gathering_again, try_keeping
from overlap_sched.transform.rewrites import Bucket, Form
from overlap_sched.transform.trial import TrialContext, again, tried
from overlap_sched.transform.wanted import Wanted

AGAIN, POLICIES_AGAIN = 3, (FAR_AHEAD, IN_ORDER)
"""The best is scheduled so many times from its own order, as long as that helps, by these: the other policies are among
those that the phases run from that order in any case."""


def search(
    asked: TrialContext, wanted: Wanted, order: Order, step_us: float, enough_us: float, runs_paid: RunsPaid
) -> Found:
    """Try what may pay.

    Args:
        asked: The problem, prices, the budget.
        wanted: What may be tried.
        order: The best without rewrites.
        step_us: Its step.
        enough_us: Once a step is as short as this, nothing more is tried.
        runs_paid: How many runs of the scheduler pay for what a step can still become shorter by: no more, give or take
            those of the last try.
    """
    found = Found(step_us, enough_us, runs_paid)
    if wanted.keeps:
        try_keeping(asked, found, order)
    if found.best is None:
        try_buckets(asked, wanted, found)
    else:
        try_buckets(asked.after(found.best.rewrites, found.best.start), wanted, found)
        _try_buckets_alone(asked, wanted, found, step_us)
    if wanted.regathers and not found.enough:
        try_gathering_again(asked, found, order)
    if len(wanted.forms) > 1:
        _try_other_form(asked, found, wanted.forms[1])
    for _ in range(AGAIN):
        if found.best is None or found.enough or not found.see(again(asked, found.best, POLICIES_AGAIN)):
            break
    return found


def _try_buckets_alone(asked: TrialContext, wanted: Wanted, found: Found, step_us: float) -> None:
    """Search for buckets as if nothing were kept (what is kept may leave no room for them), from step to step.

    Not where they cannot win even without any latency.
    """
    keys = keys_of(asked.problem, asked.alike, asked.ops)
    free = without_latency(asked.problem, keys, batch_time(asked.problem, asked.prices))
    if wanted.streams or max(busy_us(free)) < found.best_us:
        alone = found.without_best(step_us)
        try_buckets(asked, wanted, alone)
        found.join(alone)


def _try_other_form(asked: TrialContext, found: Found, form: Form) -> None:
    """The best with its buckets in another form."""
    if found.best is None or found.enough or not any(isinstance(one, Bucket) for one in found.best.rewrites):
        return
    others = tuple(Bucket(one.members, form) if isinstance(one, Bucket) else one for one in found.best.rewrites)
    found.see(tried(asked, f"{found.best.what}, {form}", others, found.best.start, found.best_us, found.policies()))
