"""The launch sequences in force, as a plug-in meets them: for which graphs they hold, and what must not run beside.

What Dynamo compiles again it may cut otherwise. So this notes what each function launches, and whether what is being
compiled was compiled otherwise before: then it may be a part of what other ranks run as a whole.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import torch
from torch._dynamo import convert_frame
from torch._guards import CompileContext
from torch._inductor.codecache import PyCodeCache

from overlap_sched.distributed.agreement import find_sequence, is_part_of_others, settle_sequence
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import SequenceError
from overlap_sched.inductor.console import rank, several_ranks
from overlap_sched.inductor.names import dynamo_frame
from overlap_sched.inductor.settings import Settings


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
        ours: Code that was made while we were asked.
        frames: How many functions there were; fewer again after ``torch._dynamo.reset``, which counts anew.
    """

    launches: dict[tuple[int, int], dict[int, set[tuple[Launch, ...]]]] = field(default_factory=dict)
    owners: dict[tuple[int, int], int] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    otherwise: dict[int, CodeType] = field(default_factory=dict)
    ours: set[int] = field(default_factory=set)
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


_earlier: set[int] = set()
"""Code that Dynamo made before we were switched on, and that launches: in the original order."""


def note_earlier_code() -> None:
    """Note what has been compiled without us, where Inductor has lowered something that communicates."""
    codes = convert_frame.output_codes.seen_ids - _compiled.ours
    if codes and several_ranks() and any(_communicates(module) for module in PyCodeCache.modules):
        _earlier.update(codes)


def _communicates(module: ModuleType) -> bool:
    try:
        return "c10d_functional" in Path(str(module.__file__)).read_text(encoding="utf-8")
    except OSError:
        return False


def runs_earlier_code() -> bool:
    """Tell whether graphs may still run that were compiled without us: a new launch sequence would not be theirs."""
    return not _earlier.isdisjoint(convert_frame.output_codes.seen_ids)


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
        if result.guarded_code is None and number in _compiled.moved:
            why = f"torch has given up compiling it ({result.skip_reason or 'see TORCH_LOGS'})"
            refuse(frame.f_code.co_name, why)
        if result.guarded_code is not None:
            _compiled.ours.add(id(result.guarded_code.code))
        if result.guarded_code is not None and earlier:
            _compiled.otherwise[id(result.guarded_code.code)] = result.guarded_code.code
        return result

    watched.watched = True  # type: ignore[attr-defined]
    convert_frame.ConvertFrame.__call__ = watched
