"""What can go wrong here and not in ``overlap_sched``: one class per mistake; each message says how to mend it."""

from overlap_sched.errors import OverlapSchedError


class TorchPassError(OverlapSchedError, RuntimeError):
    """torch's own overlap pass, run for comparison, is missing or failed."""


class GoldenError(OverlapSchedError, ValueError):
    """The committed numbers to compare with are missing or cannot be read."""


class CheckpointError(OverlapSchedError, ValueError):
    """A training checkpoint cannot be written or read, or is of another configuration."""


class TitanError(OverlapSchedError, RuntimeError):
    """torchtitan is missing, or one of its models cannot be traced."""
