"""What is reported is the order that the generated code has: compared when the code is written.

Where our order comes last, nothing of torch runs between it and the code. Where other code reorders there all the same,
or torch's passes do as our order could not come last, the report says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from overlap_sched.fx.apply import Report
from overlap_sched.inductor.attempt import Attempt
from overlap_sched.inductor.console import warn
from overlap_sched.judge.replay import replay
from overlap_sched.report.units import duration

if TYPE_CHECKING:
    from overlap_sched.inductor.lift.lifting import LiftedKernels


@dataclass
class Planned:
    """What planning leaves besides a report.

    Attributes:
        last: Whether the order comes last, behind all passes of torch.
        ordered: The scheduler nodes in their new order.
        lifted: What was scheduled.
    """

    last: bool
    ordered: list[Any] = field(default_factory=list)
    lifted: "LiftedKernels | None" = None


def read_back(attempt: Attempt, report: Report, planned: Planned, written: Sequence[Any]) -> None:
    """Record the report of a reordered graph, corrected where its code has another order. Never raises.

    ``written`` are the scheduler nodes in the order of their code; fewer where torch has failed on the way.
    """
    try:
        expected, found = _names(planned.ordered), _names(written)
        known = set(expected)
        if len(found) >= len(expected) and [name for name in found if name in known] != expected:
            report = replace(report, changed=False, reason=_undone(planned, written))
            warn(f"overlap_sched: {report.name!r} does not run in its new order: {report.reason}")
    except Exception as error:  # the code is written
        warn(f"overlap_sched could not read the order of {report.name!r} back", error)
    try:
        attempt.record(report)
    except Exception as error:
        warn(f"overlap_sched could not report on {report.name!r}", error)


def _names(snodes: Sequence[Any]) -> list[str]:
    from overlap_sched.inductor import private

    return [member.get_name() for snode in snodes for member in private.members(snode)]


def _undone(planned: Planned, written: Sequence[Any]) -> str:
    """Who has undone it, and what stays exposed in the order that was written, where that is known."""
    from overlap_sched.inductor import private

    theirs = [] if planned.last else private.passes_behind()
    who = f"torch's {' or '.join(theirs)}" if theirs else "other code, behind torch's passes"
    try:
        assert planned.lifted is not None
        exposed_us = replay(planned.lifted.problem, planned.lifted.order_of(written)).exposed_us
    except Exception:  # nodes that were not there before
        return f"its new order was undone by {who}"
    return f"its new order was undone by {who}; {duration(exposed_us)} stay exposed"
