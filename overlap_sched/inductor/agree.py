"""The one place where a plug-in asks the other ranks before it uses an order."""

import hashlib
from dataclasses import replace
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from overlap_sched.distributed import Digest, agree, digest_of
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.reporting import several_ranks, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Problem


def settle(report: Report, problem: Problem | None, settings: Settings, key: str | None) -> Report:
    """The report after all ranks have agreed: ``changed`` only where every rank uses the same order.

    Each rank asks for each graph that communicates, whether or not a better order was found there, and even where the
    graph could not be lifted: the others then learn at once that this rank differs, and need not wait for it.

    Args:
        report: What this rank would do.
        problem: What was scheduled; ``None``: lifting failed.
        settings: How it was scheduled, and whom to ask.
        key: Which graph this is, see :func:`graph_key`; ``None``: it does not communicate.

    Raises:
        AgreementError: With ``strict``, where the ranks differ.
    """
    options = settings.options
    if key is None or options.agreement == "none" or not several_ranks():
        return report
    failed = Digest("failed", "failed", "failed", "failed", key, report.name)
    if problem is None:
        mine = failed
    else:
        try:
            plan = report.schedule
            order = plan.order if plan is not None and report.changed else problem.original_order
            mine = replace(digest_of(problem, options, order), key=key)
        except Exception as error:  # the others learn at once, instead of waiting for this rank
            report, mine = replace(report, changed=False, reason=f"{type(error).__name__}: {error}"), failed
    agreement = agree(mine, settings.timeout_s, ranks=settings.ranks, strict=options.strict)
    if agreement.agreed:  # from here on nothing may fail: the others use the order
        return report
    reason = agreement.reason
    if report.reason is not None and not report.changed:
        reason = f"{report.reason}; {reason}"
    warn(f"overlap_sched leaves {report.name!r} as it was: {reason}")
    return replace(report, changed=False, reason=reason)


def graph_key(graph: fx.Graph, stage: str) -> str:
    """A name under which ranks meet: which graph this is, by its operators, before anything of ours has run."""
    calls = [target_name(node.target) for node in graph.nodes if node.op == "call_function"]
    return hashlib.sha256("\n".join([stage, *calls]).encode()).hexdigest()


def target_name(target: Any) -> str:
    """What is called, by a name that is the same in every process: never by an address, as ``str`` of a function has.

    Operators have names of their own; functions and classes are named by where they are defined; any other callable by
    its class.
    """
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return str(target)
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"
