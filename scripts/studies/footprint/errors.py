"""What can go wrong here: each message says how to repair it."""

from overlap_sched.errors import OverlapSchedError


class FootprintError(OverlapSchedError, RuntimeError):
    """A model did not run in a mode of ``torch.compile``."""
