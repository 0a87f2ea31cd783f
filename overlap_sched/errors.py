"""Everything that can be wrong with what a user hands us: one class per mistake that a caller can tell apart.

Each message says what is wrong, where, and how to repair it.
"""


class OverlapSchedError(Exception):
    """Base of all errors that overlap_sched raises on purpose."""


class OverlapSchedWarning(UserWarning):
    """The original order was kept where a better one was asked for; the message says why."""


class OptionsError(OverlapSchedError, ValueError):
    """An option or argument has a value that it cannot have."""


class ProblemError(OverlapSchedError, ValueError):
    """A problem, a file of one, or an order of its nodes breaks a rule of :mod:`overlap_sched.problem`."""


class InputTooLargeError(OverlapSchedError, ValueError):
    """An input is larger than the limit: its bytes once decompressed, or its nodes."""


class PinError(OverlapSchedError, ValueError):
    """Pins contradict each other, or the graph; or no order that keeps them keeps the budget."""


class RewriteError(OverlapSchedError, ValueError):
    """A collective cannot be rewritten in the way asked for; the message says what stands in the way."""


class UnreachableError(OverlapSchedError, ValueError):
    """A memory limit or a step was asked for that no order found keeps; the message says whether that is proven."""


class VerificationError(OverlapSchedError, RuntimeError):
    """``strict=True`` and the emitted order failed verification (or making it raised)."""


class OutputError(OverlapSchedError, OSError):
    """A result file cannot be written."""


class MissingExtraError(OverlapSchedError, ImportError):
    """What was asked for needs an optional package that is not installed."""


class DumpError(OverlapSchedError, ValueError):
    """A torch graph dump (``fx_graph_runnable``) cannot be loaded."""


class DumpGroupError(DumpError):
    """The size of a process group of a dump is not known, or two sources disagree about it."""


class CostError(OverlapSchedError, ValueError):
    """Prices that are none: a cost model, a cluster, a calibration, a trace; or groups that do not fit the ranks."""


class UnsupportedError(OverlapSchedError, RuntimeError):
    """This torch is not one that we know, or a compiled graph has something in it that we cannot order."""


class ShardingError(OverlapSchedError, ValueError):
    """A model cannot be sharded in the way asked for."""


class AgreementError(OverlapSchedError, RuntimeError):
    """``strict=True`` and the ranks do not agree on an order, or cannot find out whether they do."""


class SequenceError(AgreementError):
    """Other ranks run a launch sequence that this graph cannot follow: to run it would mix values, or hang."""


class PipelineError(OverlapSchedError, ValueError):
    """A pipelined job, a file of one, or a schedule of it breaks a rule of :mod:`overlap_sched.pipeline`."""
