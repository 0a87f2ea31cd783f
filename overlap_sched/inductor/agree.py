"""What ranks agree on: the launch sequence of a graph, asking the other ranks, and the launch sequences in force.

A *launch sequence* says which collectives a graph starts, in which order, on which groups. It is read without lifting
the graph, so that a rank that cannot schedule it still has one to show. What communicates on the
compute stream is part of it, or may: it too must meet its partners in order. So are the launches in sub-graphs.

And the waits of a graph, by how many launches stand before each: with both it is seen, without anything that planned
it, whether an order is safe whatever the other ranks run (``docs/agreement.md``).

What Dynamo compiles again it may cut otherwise. So this notes what each function launches, and whether what is being
compiled was compiled otherwise before: then it may be a part of what other ranks run as a whole.
"""

import hashlib
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import fx
from torch._dynamo import convert_frame
from torch._guards import CompileContext
from torch._inductor.codecache import PyCodeCache
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from overlap_sched.distributed import Agreement, Digest, Verdict, agree, agreement
from overlap_sched.distributed.agreement import Membership, is_part_of_others, sequence_in_force
from overlap_sched.distributed.digest import launches_of, ranks_text
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import AgreementError, SequenceError, VerificationError
from overlap_sched.fx.calls import Launched, bodies_of, launched_by, live_ranks
from overlap_sched.fx.operators import Role, traits_of
from overlap_sched.inductor.reporting import describe_error, dynamo_frame, rank, several_ranks, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import ANY_GROUP

Launches = tuple[fx.Node, ...]
"""The FX nodes that communicate, waits apart, in the order in which they do."""


@dataclass(frozen=True)
class Traffic:
    """What a graph launches and waits for, in an order.

    Attributes:
        launching: The launches in their order; one of several kernels stands there for each of them.
        before: Per wait, how many of these stand before it.
    """

    launching: Launches
    before: Mapping[Any, int]

    @property
    def launches(self) -> Launches:
        """Each launch once."""
        return tuple(dict.fromkeys(self.launching))

    def keeps(self, original: "Traffic") -> bool:
        """Does it launch as another order does, and has no wait passed a launch that stood before it there?"""
        alike = self.launching == original.launching and self.before.keys() == original.before.keys()
        return alike and all(self.before[wait] >= count for wait, count in original.before.items())


def traffic_in(nodes: Iterable[fx.Node]) -> Traffic:
    """That of the nodes of an FX graph."""
    launches, before = list[fx.Node](), dict[Any, int]()
    for node in nodes:
        if waits(node):
            before[node] = len(launches)
        launches += [node] * bool(launched_by(node))
    return Traffic(tuple(launches), before)


def waits(node: fx.Node) -> bool:
    """Does a node wait for a launch, by itself or in what it runs?"""
    if node.op != "call_function":
        return False
    called = (node.target, *(argument for argument in node.args if isinstance(argument, OpOverload)))
    inside = (inner for body in bodies_of(node) if body is not None for inner in body.graph.nodes)
    return any(traits_of(one).role is Role.WAIT for one in called) or any(map(waits, inside))


def launches_in(nodes: Iterable[fx.Node]) -> Launches:
    """Those of an FX graph."""
    return tuple(node for node in nodes if launched_by(node))


def launch_digest(launches: Launches) -> str:
    """Return what ranks with equal launch sequences share, see :func:`overlap_sched.distributed.digest.launches_of`.

    Ranks of a mesh have other groups each, so a group is known by its size and the distances of its ranks.
    """
    sequence = [one for node in launches for one in launched_by(node)]
    return launches_of([(one.op, name, distances) for one in sequence for name, distances in _groups(one)])


def launch_texts(launches: Launches) -> tuple[Launch, ...]:
    """Return what launches are known by in all graphs of a job, see :mod:`overlap_sched.distributed.sequences`."""
    found = []
    for node in launches:
        parts = launched_by(node)
        distances = [[d for _, d in _groups(one)] for one in parts]
        groups = hashlib.sha256(repr(distances).encode()).hexdigest()[:12]
        found.append(f"{'+'.join(one.op for one in parts)} {groups} {_bytes_given(node)}")
    return tuple(found)


def _bytes_given(node: fx.Node) -> str:
    """The bytes of the tensors that a node is given; ``*``: not known before it runs."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    known = tensors and all(type(size) is int for tensor in tensors for size in tensor.shape)
    return str(sum(tensor.numel() * tensor.element_size() for tensor in tensors)) if known else "*"


def _groups(launched: Launched) -> Iterator[tuple[str, list[int] | None]]:
    """The names of process groups, and how far their ranks are from each other, where that is known."""
    for name, live in launched.groups or ((ANY_GROUP, None),):
        ranks = live_ranks(name if live is None else live)
        yield name, None if ranks is None else [b - a for a, b in pairwise(ranks)]


def membership(settings: Settings) -> Membership | None:
    """Return this rank among those that must agree; ``None``: it is alone."""
    return agreement.membership_of(settings.ranks)


def find_in_force(launches: Sequence[Launch], settings: Settings) -> Entry | None:
    """Return the launch sequence that all follow who launch these; ``None``: there is none yet."""
    return sequence_in_force(launches, membership(settings)) if launches else None


def put_in_force(entry: Entry, settings: Settings) -> Entry | None:
    """Return the launch sequence that all follow from now on who launch what an entry does; ``None``: none can be."""
    entry = replace(entry, again=compiled_otherwise(entry.launches))
    with suppress(Exception):  # other ranks go by what is in force: once more, else it goes to the caller
        return sequence_in_force(entry.launches, membership(settings), entry)
    return sequence_in_force(entry.launches, membership(settings), entry)


def may_be_a_part(entry: Entry, settings: Settings) -> bool:
    """Tell whether a graph may be a part of what other ranks run as a whole, and in another sequence."""
    return compiled_otherwise(entry.launches) and is_part_of_others(entry, membership(settings))


@dataclass
class _Compiled:
    """What this process knows of the functions that Dynamo has compiled, by Dynamo's numbers.

    Attributes:
        launches: Per function and the object whose method it is (0: none), what its graphs launch, per compilation.
        owners: Per compilation, that object: a backward is compiled when the function is no more on the stack.
        moved: Functions of which some graph launches in another order than the original.
        otherwise: Code made of a function that had been compiled before: what it calls is cut otherwise, too.
        ours: Code that was made while we were asked.
        earlier: Code that Dynamo made before we were switched on, and that launches: in the original order.
        frames: How many functions there were; fewer again after ``torch._dynamo.reset``, which counts anew.
    """

    launches: dict[tuple[int, int], dict[int, set[tuple[Launch, ...]]]] = field(default_factory=dict)
    owners: dict[tuple[int, int], int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    otherwise: dict[int, CodeType] = field(default_factory=dict)
    ours: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
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
            self.owners[number, again] = 0 if frame[1] is None else id(frame[1])
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


def note_earlier_code() -> None:
    """Note what has been compiled without us, where Inductor has lowered something that communicates."""
    _compiled.look_for_reset()
    codes = convert_frame.output_codes.seen_ids - _compiled.ours
    written = (Path(str(module.__file__)) for module in PyCodeCache.modules if codes and several_ranks())
    if any("c10d_functional" in path.read_text(encoding="utf-8") for path in written if path.is_file()):
        _compiled.earlier.update(codes)


def runs_earlier_code() -> bool:
    """Tell whether graphs may still run that were compiled without us: a new launch sequence would not be theirs."""
    _compiled.look_for_reset()
    return not _compiled.earlier.isdisjoint(convert_frame.output_codes.seen_ids)


def some_graph_moves() -> bool:
    """Tell whether some graph of this process launches in a new sequence."""
    _compiled.look_for_reset()
    return bool(_compiled.moved)


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


def watch_functions() -> None:
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
        made = result.guarded_code
        if made is None and number in _compiled.moved:
            why = f"torch has given up compiling it ({result.skip_reason or 'see TORCH_LOGS'})"
            refuse(frame.f_code.co_name, why)
        if made is not None:
            _compiled.ours.add(id(made.code))
            if earlier:
                _compiled.otherwise[id(made.code)] = made.code
        return result

    watched.watched = True  # type: ignore[attr-defined]
    convert_frame.ConvertFrame.__call__ = watched


LATE_S = 10.0
"""A rank that has waited so long for others says so."""


def ask(mine: Digest, settings: Settings) -> Agreement | None:
    """Ask what all ranks decide about a graph that communicates; ``None``: there is nobody to ask.

    Each rank asks for each such graph, whether or not a better order was found there, and even where the graph could
    not be lifted: the others then learn at once that this rank differs, and need not wait for it.

    Raises:
        AgreementError: With ``strict``, where the ranks differ and do not launch alike.
    """
    if not asks(settings):
        return None
    late_at = time.monotonic() + LATE_S

    def sleep(seconds: float) -> None:
        nonlocal late_at
        if time.monotonic() >= late_at:
            late_at = math.inf
            with suppress(Exception):  # the store: the agreement says so itself
                _say_who_is_late(settings)
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    return agree(mine, settings.timeout_s, ranks=settings.ranks, strict=settings.options.strict, clock=clock)


def _say_who_is_late(settings: Settings) -> None:
    mine = membership(settings)
    assert mine is not None
    store, at = mine.store, f"{mine.prefix}at/{mine.rank}"
    here = store.get(at).decode() if store.check([at]) else ""
    late = [r for r in mine.members if here and not store.check([f"{mine.prefix}{here}/{r}"])]
    if late and _speaks(settings, late):
        warn(
            f"overlap_sched: rank {mine.rank} has waited {LATE_S:g} s for {ranks_text(late)}. Call "
            "overlap_sched.enable() on every rank; nothing is wrong where compiling only takes longer. After "
            f"{settings.timeout_s:g} s at most it goes on without."
        )


def _speaks(settings: Settings, absent: Sequence[int] = ()) -> bool:
    """Tell whether this rank is the first that is there: it speaks for all."""
    return all(r in absent for r in settings.ranks or range(rank()) if r < rank())


def warn_of_ranks(what: str, verdict: Verdict, settings: Settings) -> None:
    """Warn of ranks that do not agree: once per job of what differs and can be repaired, and of ranks that are missing.

    ``what`` is done therefore (``keeps the launches of 'a graph'``).
    """
    if not (verdict.to_repair or verdict.missing):
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


def report_failure(error: Exception, settings: Settings, doing: str, left: str) -> str:
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
        raise VerificationError(f"{doing} failed: {describe_error(error)}") from error
    warn(f"overlap_sched {left}", error)
    return describe_error(error)


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
