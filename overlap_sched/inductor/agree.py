"""The one place where a plug-in asks the other ranks before it uses an order."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from overlap_sched.distributed import Agreement, Digest, Verdict, agree, agreement, digest_of
from overlap_sched.distributed.membership import members_of
from overlap_sched.distributed.verdict import ranks_text
from overlap_sched.errors import AgreementError, SequenceError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.console import log, rank, said, say_once, several_ranks, warn
from overlap_sched.inductor.in_force import watch_functions
from overlap_sched.inductor.launches import Launches, launch_digest
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options
from overlap_sched.problem import Problem

LATE_S = 10.0
"""A rank that has waited so long for others says so."""


def ask(mine: Digest, settings: Settings, rest: Sequence[Digest] = ()) -> Agreement | None:
    """Ask what all ranks decide about a graph that communicates; ``None``: there is nobody to ask.

    Each rank asks for each such graph, whether or not a better order was found there, and even where the graph could
    not be lifted: the others then learn at once that this rank differs, and need not wait for it. ``mine`` and ``rest``
    are as for :func:`~overlap_sched.distributed.agreement.agree`.

    Raises:
        AgreementError: With ``strict``, where the ranks differ and do not launch alike.
    """
    if not asks(settings):
        return None
    strict, sleep = settings.options.strict, _sleep_for(settings)
    return agree(mine, settings.timeout_s, ranks=settings.ranks, strict=strict, rest=rest, sleep=sleep)


def _sleep_for(settings: Settings) -> Callable[[float], None]:
    """Between two looks; once it has taken long, one line says who is waited for."""
    began, told = time.monotonic(), False

    def sleep(seconds: float) -> None:
        nonlocal told
        if not told and time.monotonic() - began >= LATE_S:
            told = True
            try:
                _say_who_is_late(settings)
            except Exception as error:  # the store: the agreement says so itself
                log.debug("who is late is not known: %s", said(error))
        time.sleep(seconds)

    return sleep


def _say_who_is_late(settings: Settings) -> None:
    membership = agreement.membership_of(None, None, None)
    assert membership is not None
    members, store = members_of(membership, settings.ranks), membership.store
    prefix = agreement.prefix_of(membership, members)
    at = f"{prefix}at/{membership.rank}"
    here = store.get(at).decode() if store.check([at]) else ""
    late = [r for r in members if here and not store.check([f"{prefix}{here}/{r}"])]
    if not late or not _speaks(settings, late):
        return
    silent = [r for r in late if not store.check([f"{prefix}at/{r}"])]
    waits = f"overlap_sched: rank {membership.rank} has waited {LATE_S:g} s for {ranks_text(silent or late)}"
    until = f"It goes on without {'it' if len(silent or late) == 1 else 'them'} after {settings.timeout_s:g} s at most."
    if silent:
        mend = "Call overlap_sched.enable() on every rank; nothing is wrong where compiling only takes longer."
        say_once(f"{waits}: nothing was compiled with overlap_sched there so far. {mend} {until}", logging.WARNING)
    else:
        say_once(f"{waits}: other graphs are compiled there, or more slowly. {until}")


def _speaks(settings: Settings, absent: Sequence[int] = ()) -> bool:
    """Tell whether this rank is the first that is there: it speaks for all."""
    return all(r in absent for r in settings.ranks or range(rank()) if r < rank())


def warn_of_ranks(what: str, verdict: Verdict, settings: Settings) -> None:
    """Warn of ranks that do not agree: once per job of what differs and can be mended, and of ranks that are missing.

    ``what`` is done therefore (``keeps the launches of 'a graph'``).
    """
    if not (verdict.to_mend or verdict.missing):
        warn(f"overlap_sched {what}: {verdict.reason}")
    elif _speaks(settings, verdict.missing):
        subject = f"missing: {verdict.missing}" if verdict.missing else f"differ in: {sorted(verdict.differs)}"
        warn(f"overlap_sched {what}: {verdict.reason}", subject=subject)


def asks(settings: Settings) -> bool:
    """Tell whether an order must be agreed on before it is used."""
    if settings.options.agreement == "none" or not several_ranks():
        return False
    watch_functions()
    return True


def given_up(error: Exception, settings: Settings, doing: str, left: str) -> str:
    """Warn of a failure that must not take the compilation with it; returns the reason.

    ``doing`` has failed (``scheduling 'a graph'``), and ``left`` is what comes of it (``leaves 'a graph' as it was``).

    Raises:
        VerificationError, AgreementError: With ``strict``.
    """
    if isinstance(error, SequenceError):
        raise error
    if settings.options.strict:
        if isinstance(error, VerificationError | AgreementError):
            raise error
        raise VerificationError(f"{doing} failed: {said(error)}") from error
    warn(f"overlap_sched {left}", error)
    return said(error)


def shown(report: Report, problem: Problem | None, options: Options, key: str, launches: Launches | None) -> Digest:
    """Return what a rank shows to the others that would do what a report says.

    Args:
        report: Says it.
        problem: What was scheduled; ``None``: lifting failed.
        options: As the user gave them, also where a part of them has been dealt with before.
        key: Which graph this is, see :func:`graph_key`.
        launches: The original ones; ``None``: not known.
    """
    sequence = "" if launches is None else launch_digest(launches)
    if problem is None:
        return Digest.of_failure(str(report.reason), key, sequence, report.name)
    order = _order(report, problem)
    return replace(digest_of(problem, options, order), key=key, launches=sequence)


def order_digest(report: Report, problem: Problem) -> str:
    """A digest of the order that a report leaves a graph in."""
    return hashlib.sha256(repr(tuple(map(int, _order(report, problem)))).encode()).hexdigest()


def _order(report: Report, problem: Problem) -> Sequence[int]:
    plan = report.schedule
    return plan.order if plan is not None and report.changed else problem.original_order


def graph_key(graph: fx.Graph, stage: str) -> str:
    """A name under which ranks meet: which graph this is, by its operators, before anything of ours has run."""
    calls = [target_name(node.target) for node in graph.nodes if node.op == "call_function"]
    return hashlib.sha256("\n".join([stage, *calls]).encode()).hexdigest()


def target_name(target: Any) -> str:
    """Name what is called, the same in every process: never by an address, as ``str`` of a function has.

    Operators have names of their own; functions and classes are named by where they are defined; any other callable by
    its class.
    """
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return str(target)
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{named.__module__}.{named.__qualname__}"
