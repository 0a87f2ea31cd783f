"""Everything that can be wrong with what a user hands us: one class per mistake.

Each message says what is wrong, where, and how to mend it.
"""


class OverlapSchedError(Exception):
    """Base of all errors that overlap_sched raises on purpose."""


class OverlapSchedWarning(UserWarning):
    """The original order was kept where a better one was asked for; the message says why."""


class OptionsError(OverlapSchedError, ValueError):
    """An option has a value that it cannot have."""


class ProblemError(OverlapSchedError, ValueError):
    """A problem breaks one of the rules in :mod:`overlap_sched.problem`."""


class CycleError(ProblemError):
    """Nodes wait for each other in a ring: no order exists."""


class ContentionError(ProblemError):
    """Contention names a group that is not there, or a factor that makes compute faster."""


class ProblemFileError(OverlapSchedError, ValueError):
    """A problem file cannot be read: not there, cut short, not gzip, not JSON, or not of our format."""


class InputTooLargeError(OverlapSchedError, ValueError):
    """An input is larger than the limit: its bytes once decompressed, or its nodes."""


class PinError(OverlapSchedError, ValueError):
    """Pins contradict each other, or the graph; or no order that keeps them keeps the budget."""


class OrderError(OverlapSchedError, ValueError):
    """An order is not a permutation of the problem's nodes, or breaks a rule."""


class RewriteError(OverlapSchedError, ValueError):
    """A collective cannot be rewritten in the way asked for; the message says what stands in the way."""


class UnreachableError(OverlapSchedError, ValueError):
    """A memory limit or a step was asked for that no order found keeps."""


class VerificationError(OverlapSchedError, RuntimeError):
    """``strict=True`` and the emitted order failed verification (or making it raised)."""


class OutputError(OverlapSchedError, OSError):
    """A result file cannot be written."""


class MissingExtraError(OverlapSchedError, ImportError):
    """What was asked for needs an optional package that is not installed."""


class DumpError(OverlapSchedError, ValueError):
    """A torch graph dump (``fx_graph_runnable``) cannot be loaded."""


class DumpFileError(DumpError):
    """A dump cannot be read, or is not one that torch wrote."""


class DumpSyntaxError(DumpError):
    """A part of a dump that must be Python is not: cut short, or edited."""


class DumpStatementError(DumpError):
    """A statement of a dump is not one of those that torch writes."""


class DumpInputError(DumpError):
    """What ``load_args`` says of an input is missing, does not fit, or is no tensor metadata."""


class DumpShapeError(DumpError):
    """The shape of a node's result cannot be found: its operator is unknown to this torch, or refuses its inputs."""


class DumpGroupError(DumpError):
    """The size of a process group is not known, or two sources disagree about it."""


class DumpNameError(DumpError):
    """A group or size is given by a name that does not occur in the dump."""


class InputNameError(OverlapSchedError, ValueError):
    """A name given as parameter or donated input is not an input of the graph."""


class CostError(OverlapSchedError, ValueError):
    """A cost callable returned something that is not a time."""


class ClusterError(OverlapSchedError, ValueError):
    """A cluster is not one: an unknown key, a number without its unit or out of its range, parts that do not fit."""


class PlacementError(OverlapSchedError, ValueError):
    """A process group does not fit the ranks: of the cluster, or of the device mesh."""


class TableError(OverlapSchedError, ValueError):
    """Measured times have none of what is asked for, or hold what is no time."""


class CalibrationError(OverlapSchedError, RuntimeError):
    """A machine cannot be measured as asked for, or two measurements are not of one machine."""


class ProfileError(OverlapSchedError, ValueError):
    """A trace of torch.profiler cannot be read, or does not belong to the graph or to the traces beside it."""


class TorchVersionError(OverlapSchedError, RuntimeError):
    """This torch is none of those whose private names we know."""


class NotUnderstoodError(OverlapSchedError, RuntimeError):
    """A compiled graph has something in it that we do not know how to order."""


class ShardingError(OverlapSchedError, ValueError):
    """A model cannot be sharded in the way asked for."""


class AgreementError(OverlapSchedError, RuntimeError):
    """``strict=True`` and the ranks do not agree on an order, or cannot find out whether they do."""


class SequenceError(AgreementError):
    """Other ranks run a launch sequence that this graph cannot follow: to run it would mix values, or hang."""


class InfeasibleLimitError(OverlapSchedError, ValueError):
    """No order of the graph has a peak as low as the one asked for: proven."""


class NoSolutionError(OverlapSchedError, RuntimeError):
    """The exact search ended at its limits: neither an order as low as asked for, nor a proof that there is none."""


class PipelineError(OverlapSchedError, ValueError):
    """A pipelined job or a schedule of it breaks a rule of :mod:`overlap_sched.pipeline`."""


class PipelineFileError(PipelineError):
    """A file of a pipelined job or of its schedule cannot be read: not there, not TOML or CSV, or an unknown key."""
