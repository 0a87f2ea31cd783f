"""What the command line is given: a problem file, or a graph dump that torch has written.

Only a dump imports torch, and only when there is one.
"""

import gzip
import importlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from overlap_sched.cli.contention import notes_on, with_contention
from overlap_sched.cli.source import Loaded, Source
from overlap_sched.cost import FREE, Price
from overlap_sched.cost.kineto import RankTrace
from overlap_sched.cost.plausible import doubt
from overlap_sched.cost.profiled import profiled, read_traces
from overlap_sched.errors import MissingExtraError, OptionsError, ProblemFileError
from overlap_sched.problem import Group, Kind, Problem
from overlap_sched.problem.file import problem_bytes, read_problem
from overlap_sched.problem.redact import redacted
from overlap_sched.problem.unpack import MAGIC
from overlap_sched.report.files import write_file
from overlap_sched.report.profile_text import profile_notes

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
    loaded = _load_dump(source, tell) if _is_dump(source.path) else _load_problem(source, tell)
    problem = with_contention(_scaled(loaded.problem, source.comm_scale), source.contention, source.path)
    asked = doubt(problem)
    return Loaded(
        problem,
        tuple([price._replace(time_us=v.time_us) for price, v in zip(loaded.prices, problem.nodes, strict=True)]),
        (*loaded.notes, *notes_on(problem, source.contention), *([] if asked is None else [asked])),
        loaded.profile,
    )


def _load_problem(source: Source, tell: Callable[[str], None]) -> Loaded:
    if source.groups or source.device or source.fusion or source.sizes or source.packages:
        raise OptionsError(
            f"{source.path} is a problem file: it has its own groups, sizes and times. "
            "Leave --group, --size, --import, --device and --fusion out."
        )
    problem = read_problem(source.path, limits=source.limits)
    prices = [Price(node.time_us, "file") if node.time_us else FREE for node in problem.nodes]
    if not source.traces:
        return Loaded(problem, tuple(prices))
    found = profiled(problem, _traces(source, tell))
    for v in found.measured:
        prices[v] = Price(found.problem.nodes[v].time_us, "profile")
    return Loaded(found.problem, tuple(prices), tuple(profile_notes(found.profile)), found.profile)


def _traces(source: Source, tell: Callable[[str], None]) -> list[RankTrace]:
    traces = []
    for path in source.traces:
        tell(f"reading {path}")
        traces += read_traces([path], source.limits)
    return traces


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
        from overlap_sched.dump import load_dump, sizes_to_give
        from overlap_sched.fx import lift
        from overlap_sched.fx.profile import lifted_with_profile
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
        fusion=source.fusion or "inductor",
    )
    profile = None
    if source.traces:
        lifted, profile = lifted_with_profile(lifted, _traces(source, tell))
    notes = [f"{count} x {what}" for what, count in dump.notes.items()]
    notes += sizes_to_give(dump.guessed)
    notes += [f"{lifted.notes[key]} x {what}" for key, what in _GUESSES.items() if lifted.notes.get(key)]
    notes += [] if profile is None else profile_notes(profile)
    return Loaded(lifted.problem, lifted.prices, tuple(notes), profile)


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
