"""What can go wrong here: each message says how to repair it."""

from overlap_sched.errors import OverlapSchedError


class OverBudgetError(OverlapSchedError, RuntimeError):
    """What one step needs at once does not fit, or nearly all the time would go into recomputing."""
