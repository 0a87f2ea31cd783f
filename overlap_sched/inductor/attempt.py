"""One graph on its way through a plug-in: planned, agreed with the other ranks, or left as it was.

    plan -> all ranks agree -> use it
     any failure up to here: the graph as it was, and why

Only what fails before the ranks have agreed may change the outcome: one rank that fell back by itself afterwards would
launch its collectives in another order than the others, which hangs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from overlap_sched.errors import AgreementError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.agree import settle
from overlap_sched.inductor.reporting import GraphReport, record, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Problem


@dataclass
class Attempt:
    """What is known so far of a graph that is being scheduled: as much as a failure leaves.

    Attributes:
        settings: How to schedule.
        name: The graph's.
        key: Under which the ranks meet, see :func:`overlap_sched.inductor.agree.graph_key`; ``None``: not yet known, or
            there is nothing to agree on.
        problem: What was scheduled.
    """

    settings: Settings
    name: str = "a graph"
    key: str | None = None
    problem: Problem | None = None

    def decided(self, plan: Callable[["Attempt"], Report]) -> Report:
        """Plan, then ask the other ranks: ``changed`` only where every rank uses the same order.

        Raises:
            VerificationError, AgreementError: With ``strict``, instead of a fallback.
        """
        try:
            report = plan(self)
        except Exception as error:  # a pass that fails must not take the compilation with it
            report = self.failed(error)
        return settle(report, self.problem, self.settings, self.key)

    def failed(self, error: Exception) -> Report:
        """The report of a failure, with a warning.

        Raises:
            VerificationError, AgreementError: With ``strict``.
        """
        reason = f"{type(error).__name__}: {error}"
        if self.settings.options.strict:
            if isinstance(error, VerificationError | AgreementError):
                raise error
            raise VerificationError(f"scheduling {self.name!r} failed: {reason}") from error
        warn(f"overlap_sched leaves {self.name!r} as it was: {reason}")
        return Report(self.name, reason=reason)

    def record(self, report: Report) -> None:
        """Keep the report, now that nothing changes the order any more."""
        settings = self.settings
        record(GraphReport(report.name, settings.stage, report, settings.notes, settings.priced_for))
