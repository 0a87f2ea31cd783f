"""The one place where a plug-in asks the other ranks before it uses an order."""

import hashlib
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from types import CodeType
from typing import Any, NoReturn

import torch
from torch import fx
from torch._dynamo import convert_frame
from torch._guards import CompileContext
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from overlap_sched.distributed import Agreement, Digest, agree, digest_of
from overlap_sched.distributed.agreement import find_sequence, is_part_of_others, settle_sequence
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import AgreementError, SequenceError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.console import rank, said, several_ranks, warn
from overlap_sched.inductor.gathered import gathered_text
from overlap_sched.inductor.launches import Launches, launch_digest
from overlap_sched.inductor.names import dynamo_frame
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


def may_be_a_part(entry: Entry, settings: Settings) -> bool:
    """Tell whether a graph may be a part of what other ranks run as a whole, and in another sequence."""
    return compiled_otherwise(entry.launches) and is_part_of_others(entry, settings.ranks)


@dataclass
class _Compiled:
    """What this process knows of the functions that Dynamo has compiled, by Dynamo's numbers.

    Attributes:
        launches: Per function and the object whose method it is (0: none), what its graphs launch, per compilation.
        owners: Per compilation, that object: a backward is compiled when the function is no more on the stack.
        moved: Functions of which some graph launches in another order than the original.
        otherwise: Code made of a function that had been compiled before: what it calls is cut otherwise, too.
        frames: How many functions there were; fewer again after ``torch._dynamo.reset``, which counts anew.
    """

    launches: dict[tuple[int, int], dict[int, set[tuple[Launch, ...]]]] = field(default_factory=dict)
    owners: dict[tuple[int, int], int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    otherwise: dict[int, CodeType] = field(default_factory=dict)
    frames: int = 0

    def look_for_reset(self) -> None:
        """Forget all of it where Dynamo has."""
        if self.frames > convert_frame.FRAME_COUNTER:
            vars(self).update(vars(_Compiled()))
        self.frames = convert_frame.FRAME_COUNTER

    def now(self) -> tuple[int, int, int] | None:
        """The function, its owner and the compilation of the graph that torch compiles; ``None``: none of Dynamo's."""
        self.look_for_reset()
        compiling, frame = CompileContext.current_compile_id(), dynamo_frame()
        if compiling is None or compiling.frame_id is None or compiling.frame_compile_id is None:
            return None
        number, again = compiling.frame_id, compiling.frame_compile_id
        if frame is not None:
            self.owners[number, again] = 0 if frame.owner is None else id(frame.owner)
        return number, self.owners.get((number, again), 0), again


_compiled = _Compiled()


def compiled_otherwise(launches: tuple[Launch, ...]) -> bool:
    """Tell whether what launches these was compiled before with others: this may be a part of those, or more."""
    now = _compiled.now()
    if now is None:
        return False
    earlier = [made for again, made in _compiled.launches.get(now[:2], {}).items() if again < now[2]]
    if any(launches in made for made in earlier):
        return False
    callers = (frame for frame, _ in traceback.walk_stack(None))
    return bool(earlier) or any(id(one.f_code) in _compiled.otherwise for one in callers)


def note_launches(entry: Entry) -> None:
    """Note what the function launches that torch compiles.

    Where that is a new sequence, the function must never run as plain Python: where Dynamo gives up compiling it again
    (a graph break in a loop, the limit of recompilations), Python would launch the original one beside ranks that run
    the new one.
    """
    now = _compiled.now()
    if now is not None:
        _compiled.launches.setdefault(now[:2], {}).setdefault(now[2], set()).add(entry.launches)
        if entry.moves:
            _compiled.moved.add(now[0])


def refuse(name: str, why: str) -> NoReturn:
    """Stop before anything of a graph is launched: beside ranks that launch otherwise it would mix values, or hang.

    Raises:
        SequenceError: Always.
    """
    torch._dynamo.config.suppress_errors = False  # torch would run the graph as it was, which is what must not be
    raise SequenceError(
        f"rank {rank()} cannot launch the collectives of {name!r} in the order in which other ranks launch them: "
        f"{why}. Nothing of it was launched. Compile alike on all ranks, or keep the original order on all of them: "
        'overlap_sched.Options(preserve_collective_order="waits").'
    )


def _watch_frames() -> None:
    """See what Dynamo makes of each function: compiled code, or none, so that it runs as plain Python."""
    convert = convert_frame.ConvertFrame.__call__
    if hasattr(convert, "watched"):
        return

    @wraps(convert)
    def watched(self: Any, frame: Any, cache_entry: Any, hooks: Any, frame_state: Any, *args: Any, **kw: Any) -> Any:
        _compiled.look_for_reset()
        number, owner = frame_state.get("_id", -1), frame.f_locals.get("self")
        earlier = (number, 0 if owner is None else id(owner)) in _compiled.launches
        result = convert(self, frame, cache_entry, hooks, frame_state, *args, **kw)
        if result.guarded_code is None and number in _compiled.moved:
            why = f"torch has given up compiling it ({result.skip_reason or 'see TORCH_LOGS'})"
            refuse(frame.f_code.co_name, why)
        if result.guarded_code is not None and earlier:
            _compiled.otherwise[id(result.guarded_code.code)] = result.guarded_code.code
        return result

    watched.watched = True  # type: ignore[attr-defined]
    convert_frame.ConvertFrame.__call__ = watched


def asks(settings: Settings) -> bool:
    """Tell whether an order must be agreed on before it is used."""
    if settings.options.agreement == "none" or not several_ranks():
        return False
    _watch_frames()
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
