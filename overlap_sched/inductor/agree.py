"""The one place where a plug-in asks the other ranks before it uses an order."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import fx
from torch._dynamo import convert_frame
from torch._guards import CompileContext
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from overlap_sched.distributed import Agreement, Digest, agree, digest_of
from overlap_sched.distributed.agreement import find_sequence, settle_sequence
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import AgreementError, SequenceError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.console import rank, said, several_ranks, warn
from overlap_sched.inductor.gathered import gathered_text
from overlap_sched.inductor.launches import Launches, launch_digest
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options
from overlap_sched.problem import Problem


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
    agreement = agree(mine, settings.timeout_s, ranks=settings.ranks, strict=settings.options.strict, rest=rest)
    if agreement.verdict.mixed and rank() == min(settings.ranks or (0,)):  # once per job, and not once per rank
        warn(f"overlap_sched: {agreement.verdict.mixed}")
    return agreement


def in_force(launches: Sequence[Launch], settings: Settings) -> Entry | None:
    """Return the launch sequence that all follow who launch these; ``None``: there is none yet."""
    return find_sequence(launches, ranks=settings.ranks) if launches else None


def put_in_force(entry: Entry, settings: Settings) -> Entry | None:
    """Return the launch sequence that all follow from now on who launch what an entry does; ``None``: none can be."""
    return settle_sequence(entry, ranks=settings.ranks)


def refuse(name: str, why: str) -> NoReturn:
    """Stop before anything of a graph is launched: beside ranks that launch otherwise it would mix values, or hang.

    Raises:
        SequenceError: Always.
    """
    torch._dynamo.config.suppress_errors = False  # torch would run the graph as it was, which is what must not be
    raise SequenceError(
        f"rank {rank()} cannot launch the collectives of {name!r} in the order in which other ranks launch them: {why}. "
        "Nothing of it was launched. Compile alike on all ranks, or keep launches in their original order on all ranks: "
        'overlap_sched.Options(preserve_collective_order="waits").'
    )


_moved_frames: set[int] = set()
"""Dynamo's numbers of functions of which some graph launches in another order than the original."""


def note_moved() -> None:
    """Note that the function which torch compiles launches in a new order: it must never run as plain Python.

    Where Dynamo gives up compiling it again (a graph break in a loop, the limit of recompilations), Python would
    launch in the original order, beside ranks that run the new one.
    """
    compiling = CompileContext.current_compile_id()
    if compiling is not None and compiling.frame_id is not None:
        _moved_frames.add(compiling.frame_id)
    convert = convert_frame.ConvertFrame.__call__
    if hasattr(convert, "watched"):
        return

    @wraps(convert)
    def watched(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *args: Any, **kw: Any) -> Any:
        result = convert(self, frame, cache_entry, hooks, frame_state, *args, **kw)
        if result.guarded_code is None and frame_state.get("_id") in _moved_frames:
            refuse(frame.f_code.co_name, f"torch has given up compiling it ({result.skip_reason or 'see TORCH_LOGS'})")
        return result

    watched.watched = True  # type: ignore[attr-defined]
    convert_frame.ConvertFrame.__call__ = watched


def asks(settings: Settings) -> bool:
    """Tell whether an order must be agreed on before it is used."""
    return settings.options.agreement != "none" and several_ranks()


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
    gathers = gathered_text(launches)
    if problem is None:
        return replace(Digest.of_failure(str(report.reason), key, sequence, report.name), gathers=gathers)
    order = _order(report, problem)
    return replace(digest_of(problem, options, order), key=key, launches=sequence, gathers=gathers)


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
