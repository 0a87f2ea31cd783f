"""What the command line is given: a problem file, or a graph dump that torch has written.

Only a dump imports torch, and only when there is one.
"""

import argparse
import gzip
import importlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from overlap_sched.cli.contention import contention_given, notes_on, with_contention
from overlap_sched.errors import MissingExtraError, OptionsError, ProblemFileError
from overlap_sched.options import Options
from overlap_sched.problem import Group, Kind, MemoryModel, Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.file import problem_bytes, read_problem
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits
from overlap_sched.problem.redact import redacted
from overlap_sched.problem.unpack import MAGIC
from overlap_sched.report.files import write_file

RANKS_PER_NODE = 8
"""Of the jobs that dumps come from."""
_DUMP_SUFFIXES = (".py", ".txt")
_GUESSES = {
    "unknown_op": "an operator that is not known: kept in its place, with everything around it",
    "no_val": "a node without shapes: assumed to alias all of its inputs",
    "undeclared_alias": "an operator that returns one of its inputs as a new tensor: assumed to write it",
    "no_storage": "a tensor without storage: counted as 0 bytes",
    "size_without_hint": "a data-dependent size: guessed",
    "flops_failed": "operations that could not be counted: taken as 0",
    "group_size_guessed": "a process group of unknown size: guessed; give it with --group NAME=SIZE",
}
"""Notes of :class:`overlap_sched.fx.Lifted` that tell of guesses, in words."""


@dataclass(frozen=True)
class Source:
    """An input and how to read it; ``None`` and empty: as the file says.

    Attributes:
        path: A problem file (JSON, plain or gzipped) or a graph dump (``.py`` or ``.txt``, plain or gzipped).
        comm_scale: Every collective takes so many times as long.
        memory_model: Dumps are lifted in it (default ``runtime``); a problem file is in one model already.
        groups: Of a dump, per process group its size or its ranks.
        sizes: Of a dump, the values of data-dependent sizes, by symbol or node.
        packages: Of a dump, Python packages to import first: they register operators that the graph uses.
        device: Of a dump, the device that it is to run on (:data:`overlap_sched.cost.DEVICES`).
        contention: Replaces the file's, key by key.
        limits: How large the input may be.
    """

    path: str
    comm_scale: float = 1.0
    memory_model: MemoryModel | None = None
    groups: Mapping[str, int | Sequence[int]] | None = None
    sizes: Mapping[str, int] | None = None
    packages: Sequence[str] = ()
    device: str | None = None
    contention: Contention = NO_CONTENTION
    limits: Limits = DEFAULT_LIMITS


@dataclass(frozen=True)
class Loaded:
    """A problem, and what a reader of its figures should know about how it was made."""

    problem: Problem
    notes: tuple[str, ...] = ()


def source_of(options: argparse.Namespace) -> Source:
    """What the options say of the input.

    Raises:
        OptionsError: ``--slowdown`` or ``--link`` is not understood.
    """
    return Source(
        path=options.problem,
        comm_scale=options.comm_scale,
        memory_model=options.memory_model,
        groups=dict(options.group),
        sizes=dict(options.size),
        packages=tuple(options.packages),
        device=options.device,
        contention=contention_given(options.slowdown, options.link),
        limits=Limits(options.max_input_bytes, options.max_nodes),
    )


def options_of(options: argparse.Namespace) -> Options:
    """What they say of scheduling, without the memory model: that is the problem's, unless one is given."""
    return Options(
        headroom=options.headroom,
        budget=options.budget,
        preserve_collective_order=options.preserve_collective_order,
        base=options.base,
        effort=options.effort,
        strict=options.strict,
    )


def check_input(options: argparse.Namespace) -> None:
    """Refuse what can be told to be wrong before anything is read.

    Raises:
        OptionsError: A value is out of its range, or an option lacks another one.
    """
    source = source_of(options)
    if not math.isfinite(source.comm_scale) or source.comm_scale < 0:
        raise OptionsError(f"--comm-scale is {source.comm_scale}; it is a factor, 0 or more.")
    if options.redact and options.save_problem is None:
        raise OptionsError("--redact changes what --save-problem writes: give --save-problem OUT.json, too.")


def save(problem: Problem, path: str, *, redact: bool) -> None:
    """Write a problem file; gzipped where the name ends in ``.gz``.

    Raises:
        OutputError: It cannot be written.
    """
    made = redacted(problem) if redact else problem
    write_file(path, problem_bytes(made, gzipped=path.endswith(".gz")))


def load(source: Source, tell: Callable[[str], None]) -> Loaded:
    """Read a problem, whatever it comes as; ``tell`` hears what is being done.

    Raises:
        OverlapSchedError: One of its subclasses: nothing to read, not understood, or options that do not fit.
    """
    loaded = _load_dump(source, tell) if _is_dump(source.path) else _load_problem(source)
    problem = with_contention(loaded.problem, source.contention, source.path)
    return Loaded(problem, (*loaded.notes, *notes_on(problem, source.contention)))


def _load_problem(source: Source) -> Loaded:
    if source.groups or source.device or source.sizes or source.packages:
        raise OptionsError(
            f"{source.path} is a problem file: it has its own groups, sizes and times. "
            "Leave --group, --size, --import and --device out."
        )
    return Loaded(read_problem(source.path, source.comm_scale, source.limits))


def _is_dump(path: str) -> bool:
    """By name where that is clear, else by content: a problem starts with ``{``, compressed or not."""
    name = path.lower().removesuffix(".gz")
    if name.endswith(".json"):
        return False
    head = _head(path)
    if head.lstrip().startswith(b"{"):
        return False
    if name.endswith(_DUMP_SUFFIXES):
        return True
    raise ProblemFileError(
        f"{path}: is neither a problem file (JSON, plain or gzipped) nor named like a graph dump "
        f"({' or '.join(_DUMP_SUFFIXES)}). Check the path or rename it."
    )


def _head(path: str) -> bytes:
    """The first bytes, uncompressed; empty where a gzip stream is broken (its reader will say how)."""
    try:
        with open(path, "rb") as plain:
            head = plain.read(64)
        if head[:2] != MAGIC:
            return head
        with gzip.open(path) as unpacked:
            return unpacked.read(64)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""
    except OSError as error:
        raise ProblemFileError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None


def _load_dump(source: Source, tell: Callable[[str], None]) -> Loaded:
    try:
        from overlap_sched.dump import load_dump
        from overlap_sched.fx import lift
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        raise MissingExtraError(
            f"{source.path} is a graph dump, and reading it needs torch: pip install 'overlap_sched[torch]'"
        ) from None
    from overlap_sched.cost import Roofline, device_named

    for package in source.packages:
        _import(package)
    dump = load_dump(
        source.path,
        groups=source.groups,
        sizes=source.sizes,
        limits=source.limits,
        progress=lambda done, total: tell(f"reading {source.path}: {done:,} of {total:,} nodes"),
    )
    tell("lifting the graph")
    lifted = lift(
        dump.gm,
        name=dump.name,
        memory_model=source.memory_model or "runtime",
        model=Roofline() if source.device is None else Roofline(device_named(source.device)),
        groups={name: _placed(group.size, group.ranks) for name, group in dump.groups.items()},
    )
    notes = [f"{count} x {what}" for what, count in dump.notes.items()]
    notes += [f"{lifted.notes[key]} x {what}" for key, what in _GUESSES.items() if lifted.notes.get(key)]
    return Loaded(_scaled(lifted.problem, source.comm_scale), tuple(notes))


def _import(package: str) -> None:
    try:
        importlib.import_module(package)
    except (Exception, SystemExit) as error:  # it may fail in any way, and none of them is ours
        if isinstance(error, SystemExit):
            raise OptionsError(
                f"--import {package}: importing it ends the program (sys.exit). "
                "Name the module that registers the operators."
            ) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OptionsError(
            f"--import {package}: it cannot be imported ({reason}). Install it here, or correct its name."
        ) from None


def _placed(size: int, ranks: Sequence[int] | None) -> Group:
    """A group of a dump is inside one node if its ranks are; without ranks, if it is no larger than a node."""
    if ranks is None:
        return Group(size, size <= RANKS_PER_NODE)
    return Group(size, len({rank // RANKS_PER_NODE for rank in ranks}) == 1)


def _scaled(problem: Problem, comm_scale: float) -> Problem:
    if comm_scale == 1.0:
        return problem
    nodes = (
        node._replace(time_us=node.time_us * comm_scale) if node.kind is Kind.COLLECTIVE else node
        for node in problem.nodes
    )
    return replace(problem, nodes=tuple(nodes))
