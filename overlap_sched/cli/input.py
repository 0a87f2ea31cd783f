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

from overlap_sched.cli.contention import notes_on, said_contention, with_contention
from overlap_sched.errors import MissingExtraError, OptionsError, ProblemFileError
from overlap_sched.options import Options
from overlap_sched.problem import Group, Kind, MemoryModel, Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.file import read_problem

RANKS_PER_NODE = 8
"""Of the jobs that dumps come from."""
_DUMP_SUFFIXES = (".py", ".txt")
_GUESSES = {
    "unknown_op": "an operator that is not known: kept in its place, with everything around it",
    "no_val": "a node without shapes: thought to alias all that it takes",
    "undeclared_alias": "an operator that returns what it calls new: thought to write it",
    "no_storage": "a tensor without storage: counted as 0 bytes",
    "size_without_hint": "a size that depends on data: guessed",
    "flops_failed": "operations that could not be counted: taken as 0",
    "group_size_guessed": "a process group of unknown size: guessed; say it with --group NAME=SIZE",
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
        sizes: Of a dump, sizes that only the data knows, by symbol or node.
        packages: Of a dump, Python packages to import first: they register operators that the graph uses.
        device: Of a dump, the device that it is to run on (:data:`overlap_sched.cost.DEVICES`).
        contention: Replaces the file's, key by key.
    """

    path: str
    comm_scale: float = 1.0
    memory_model: MemoryModel | None = None
    groups: Mapping[str, int | Sequence[int]] | None = None
    sizes: Mapping[str, int] | None = None
    packages: Sequence[str] = ()
    device: str | None = None
    contention: Contention = NO_CONTENTION


@dataclass(frozen=True)
class Loaded:
    """A problem, and what a reader of its figures should know about how it was made."""

    problem: Problem
    notes: tuple[str, ...] = ()


def source_of(options: argparse.Namespace) -> Source:
    """What the options that all commands share say of the input.

    Raises:
        OptionsError: What they say of contention is not understood.
    """
    return Source(
        path=options.problem,
        comm_scale=options.comm_scale,
        memory_model=options.memory_model,
        groups=dict(options.group),
        sizes=dict(options.size),
        packages=tuple(options.packages),
        device=options.device,
        contention=said_contention(options.slowdown, options.link),
    )


def options_of(options: argparse.Namespace) -> Options:
    """What they say of scheduling; the memory model is the problem's, unless it is said."""
    return Options(
        headroom=options.headroom,
        budget=options.budget,
        preserve_collective_order=options.preserve_collective_order,
        base=options.base,
        effort=options.effort,
        strict=options.strict,
    )


def load(source: Source, tell: Callable[[str], None]) -> Loaded:
    """Read a problem, whatever it comes as; ``tell`` hears what is being done.

    Raises:
        OverlapSchedError: One of its subclasses: nothing to read, not understood, or options that do not fit.
    """
    if not math.isfinite(source.comm_scale) or source.comm_scale < 0:
        raise OptionsError(f"--comm-scale is {source.comm_scale}; it is a factor, 0 or more.")
    loaded = _load_dump(source, tell) if _is_dump(source.path) else _load_problem(source)
    problem = with_contention(loaded.problem, source.contention, source.path)
    return Loaded(problem, (*loaded.notes, *notes_on(problem, source.contention)))


def _load_problem(source: Source) -> Loaded:
    if source.groups or source.device or source.sizes or source.packages:
        raise OptionsError(
            f"{source.path} is a problem file: it has its own groups, sizes and times. "
            "Leave --group, --size, --import and --device out."
        )
    return Loaded(read_problem(source.path, comm_scale=source.comm_scale))


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
        if head[:2] != b"\x1f\x8b":
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
    except Exception as error:  # it may fail in any way, and none of them is ours
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
