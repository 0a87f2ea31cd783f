"""The one place where a plug-in asks the other ranks before it uses an order."""

from dataclasses import replace

from overlap_sched.errors import AgreementError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.reporting import several_ranks, warn
from overlap_sched.options import Options
from overlap_sched.problem import Problem


def settle(report: Report, problem: Problem | None, options: Options) -> Report:
    """The report after all ranks have agreed: ``changed`` only where every rank uses the same order.

    Each rank asks for each graph that it could lift, whether or not a better order was found there. A rank that could
    not lift its graph (``problem`` is ``None``) has nothing to show; the others then find it missing.

    Raises:
        AgreementError: With ``strict``, where the ranks differ.
    """
    if problem is None or options.agreement == "none" or not several_ranks():
        return report
    try:
        from overlap_sched.distributed import agree, digest_of

        planned = report.schedule is not None and report.changed
        order = report.schedule.order if report.schedule is not None and planned else problem.original_order
        agreement = agree(digest_of(problem, options, order), strict=options.strict)
        reason = agreement.reason
    except AgreementError:
        raise
    except Exception as error:  # before this rank has shown anything: the others will miss it
        reason = f"agreement failed: {type(error).__name__}: {error}"
    if reason is None:
        return report
    warn(f"overlap_sched leaves {report.name!r} as it was: {reason}")
    return replace(report, changed=False, reason=reason)
