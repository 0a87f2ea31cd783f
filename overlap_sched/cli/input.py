"""What the command line is given: a problem file, or a graph dump that torch has written; and how it is priced.

Only a dump imports torch, and only when there is one.
"""

import gzip
import importlib
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

from msgspec import structs

from overlap_sched.cli.flags import Flag, refuse, whole_number
from overlap_sched.cost import FREE, H100, CostModel, Price, Roofline, device_named
from overlap_sched.cost.cluster import ASSUMED, Cluster, MeshDimension, read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import ranks_along
from overlap_sched.cost.plausible import question_step
from overlap_sched.cost.profile import Profile, RankTrace, apply_profile, read_traces
from overlap_sched.errors import MissingExtraError, OptionsError, ProblemError
from overlap_sched.options import Options
from overlap_sched.problem import Kind, MemoryModel, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import (
    DEFAULT_LIMITS,
    GZIP,
    Limits,
    nameable,
    problem_bytes,
    read_problem,
    redact_problem,
)
from overlap_sched.problem.pins import pinned
from overlap_sched.problem.sizes import size_bytes
from overlap_sched.report.files import write_file
from overlap_sched.report.table import complain, shown
from overlap_sched.report.words.graph import profile_notes, profile_table
from overlap_sched.scheduler.driver import no_collection
from overlap_sched.transform.rewrites import Fission
from overlap_sched.transform.search import Refuses, refuse_nothing

_DUMP_SUFFIXES = (".py", ".txt", ".log")
_GUESSES = {
    "unknown_op": "an operator that is not known: kept in its place, with everything around it",
    "unknown_communication": "an operator that takes a process group: taken for communication that blocks",
    "custom_op": "an operator of which nothing says whether it communicates: kept among the launches where those are",
    "no_val": "a node without shapes: assumed to alias all of its inputs",
    "undeclared_alias": "an operator that returns one of its inputs as a new tensor: assumed to write it",
    "no_storage": "a tensor without storage: counted as 0 bytes",
    "size_without_hint": "a data-dependent size: guessed",
    "flops_failed": "operations that could not be counted: taken as 0",
    "group_size_guessed": "a process group of unknown size: guessed; give it with --group NAME=SIZE",
}
"""Notes of :class:`overlap_sched.fx.Lifted` that tell of guesses, in words."""


EVERY_KIND = ""
"""The kind of a factor without one: every operator begins with it."""
_NAMED = 8
"""So many modules are named in an error."""
_MAX_RANKS = 2**31 - 1
_GROUP = "NAME=SIZE or NAME=RANK,RANK,..."


def _group(text: str) -> tuple[str, int | tuple[int, ...] | str]:
    """``fsdp=64``, with its ranks ``fsdp=0,8,16,24``, or with its dimension ``513=ep``."""
    name, _, given = text.rpartition("=")
    if not name or not given:
        raise ValueError(text)
    if not given[0].isdigit() and "," not in given:
        return name, given
    ranks = tuple(whole_number(number, 0, _MAX_RANKS) for number in given.split(","))
    return name, ranks[0] if len(ranks) == 1 else ranks


def _mesh(text: str) -> tuple[MeshDimension, ...]:
    """``fsdp=8,tp=8``."""
    found = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name or name in found:
            raise ValueError(text)
        found[name] = MeshDimension(name, whole_number(size, 1, _MAX_RANKS))
    return tuple(found.values())


def _size(text: str) -> tuple[str, int]:
    """``u0=4096``."""
    name, _, number = text.rpartition("=")
    if not name:
        raise ValueError(text)
    return name, whole_number(number, 0)


def _bytes(text: str) -> int:
    return size_bytes(text.replace("%", "?"), 0) or whole_number("")


def _slowdown(text: str) -> tuple[str, float]:
    """``all_gather=1.1``, or ``1.1`` for every kind."""
    kind, equals, number = (part.strip() for part in text.rpartition("="))
    if (equals and not kind) or not 1.0 <= float(number) < math.inf:
        raise ValueError(text)
    return kind, float(number)


def _link(text: str) -> tuple[tuple[str, str], ...]:
    """``rail=fsdp,ep``: of each group its link."""
    link, _, named = (part.strip() for part in text.partition("="))
    groups = [group.strip() for group in named.split(",")]
    if not link or not all(groups):
        raise ValueError(text)
    return tuple((group, link) for group in groups)


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """Limits of the input."""

    max_input_bytes: Annotated[int, Flag(_bytes, "a size: write 500MB or 2GiB")] = DEFAULT_LIMITS.input_bytes
    """SIZE: refuse a file that is larger once decompressed"""
    max_nodes: Annotated[int, Flag(whole_number, "a whole number of 1 or more")] = DEFAULT_LIMITS.nodes
    """N: refuse a graph with more nodes; each part of a split or an unbind counts as one"""

    @property
    def limits(self) -> Limits:
        """Both."""
        return Limits(self.max_input_bytes, self.max_nodes)


@dataclass(frozen=True, kw_only=True)
class Input(InputLimits):
    """Input and its prices.

    Raises:
        OptionsError: A value is wrong by itself, or beside another one.
    """

    problem: Annotated[str, Flag(positional=True, file="in")]
    """PROBLEM_OR_DUMP: a problem file (.json, .json.gz) or a torch graph dump (.py, .txt, .log, plain or .gz)"""
    comm_scale: float = 1.0
    """X: multiply the time of every collective by X"""
    slowdown: Annotated[tuple[tuple[str, float], ...], Flag(_slowdown, "KIND=FACTOR nor FACTOR (from 1 on)")] = ()
    """KIND=FACTOR: compute takes FACTOR times as long while a collective is in flight whose operator begins with KIND
    (all_gather=1.1); FACTOR alone applies to every kind; can be repeated"""
    link: Annotated[tuple[tuple[tuple[str, str], ...], ...], Flag(_link, "LINK=GROUP,GROUP")] = ()
    """LINK=GROUP,GROUP: these process groups share a network link: while collectives of k of them are in flight, each
    takes k times as long (rail=0,513); can be repeated"""
    profile: Annotated[tuple[str, ...], Flag(many=True, file="in")] = ()
    """TRACE.json: take the times of nodes from these traces of torch.profiler (.json, .json.gz; record_shapes=True),
    one per rank, of the same steps; with several ranks, waiting for late ones is taken out of collectives"""
    memory_model: MemoryModel | None = None
    """how memory is counted: as NCCL and torch's allocator hold it (runtime, the default), or as torch's MemoryTracker
    counts it; a problem file names its own, and asking for the other is an error"""
    group: Annotated[tuple[tuple[str, int | tuple[int, ...] | str], ...], Flag(_group, _GROUP)] = ()
    """NAME=SIZE: of a dump, the number of ranks of a process group, its ranks (NAME=0,8,16,24), or the dimension of the
    mesh that it is (NAME=tp, or neighbours: NAME=fsdp+tp); can be repeated"""
    size: Annotated[tuple[tuple[str, int], ...], Flag(_size, "NAME=N")] = ()
    """NAME=N: of a dump, the value of a data-dependent size, by its symbol (u0=4096) or by the node that reads it;
    can be repeated"""
    graph: Annotated[int | None, Flag(whole_number, "a whole number of 1 or more")] = None
    """N: of a dump, read the N-th of several graphs in the file, as logs of TORCH_LOGS hold them (default: the first
    that calls ATen's operators; a note lists all)"""
    packages: Annotated[tuple[str, ...], Flag(name="--import")] = ()
    """PACKAGE: import this Python package first, because it registers operators of a dump; can be repeated"""
    device: str | None = None
    """NAME: of a dump, the device whose speed gives the times (default: H100)"""
    fusion: Literal["none", "inductor"] | None = None
    """price nodes of a dump by the kernels that TorchInductor would make of them (inductor, the default), or one by
    one, for a graph that runs without it (none)"""
    cluster: str | None = None
    """FILE_OR_NAME: price a dump for this cluster: a cluster file (TOML), or the name of one that is shipped (default:
    that of the device, dgx-h100; none with --profile)"""
    mesh: Annotated[tuple[MeshDimension, ...] | None, Flag(_mesh, "NAME=SIZE,NAME=SIZE,...")] = None
    """NAME=SIZE,...: the dimensions of its device mesh, outermost first (fsdp=8,tp=8): where groups are whose ranks are
    not known"""
    no_contention: bool = False
    """compute and communication do not slow each other down, whatever the cluster file says"""
    save_problem: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: write the graph that was read as a problem file (.json, or .json.gz), with the times that were used"""
    redact: bool = False
    """with --save-problem: replace the names of the graph, its nodes, groups and compute operators by neutral ones; the
    order found is the same"""

    backward: str | None = None  # of a dump of a forward graph, that of its backward graph: both are read as one step

    def __post_init__(self) -> None:
        refuse(
            (not 0 <= self.comm_scale < math.inf, f"--comm-scale is {self.comm_scale}; it is a factor, 0 or more."),
            (self.cluster is not None and self.device is not None,
             f"--device {self.device}: cluster {self.cluster} has its own device. Leave one of the two out, or write a "
             "cluster file with another device."),
            (self.redact and self.save_problem is None,
             "--redact changes what --save-problem writes: give --save-problem OUT.json, too."),
        )  # fmt: skip
        _ = self.contention

    @property
    def contention(self) -> Contention:
        """The contention of ``--slowdown`` and ``--link``: it replaces the file's, key by key."""
        links = tuple(pair for pairs in self.link for pair in pairs)
        for option, pairs in (("--slowdown", self.slowdown), ("--link", links)):
            if twice := [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]:
                raise OptionsError(f"{option}: {twice[0] or 'every kind'!r} is given twice. Give it once.")
        return Contention(dict(self.slowdown), dict(links))

    def cluster_or(self, otherwise: str) -> Cluster:
        """Return the cluster named, or else the shipped one of that name, with the mesh given."""
        cluster = read_cluster(self.cluster or otherwise)
        return structs.replace(cluster, mesh=self.mesh) if self.mesh else cluster


class Wants(NamedTuple):
    """What a command needs of a graph beyond its nodes.

    Attributes:
        rewrites: Prices of new nodes, and what a dump says of rewrites.
        fissions: Of a dump, sub-graphs that may run in parts.
        batches: Of a dump, the graph in parts along its batch, and along experts' tokens.
    """

    rewrites: bool = False
    fissions: bool = False
    batches: bool = False


NOTHING = Wants()


@dataclass(frozen=True)
class Loaded:
    """A problem, and what a reader of its figures should know about how it was made.

    Attributes:
        problem: What was read.
        prices: Per node, its time and where that comes from.
        notes: What was guessed, and what looks wrong.
        profile: What traces say of it, where there are any.
        priced_for: Of a dump, by name the device, the cluster (``None``: a formula prices collectives) and the fusion;
            ``None``: a problem file, which has its own times.
        model: Of a dump, what priced it; ``None``: the times are a file's.
        alike: Of a dump, what collectives must share to be bucketed (:func:`overlap_sched.fx.rewrites.alike_of`);
            ``None``: it is not known.
        refuses: Of a dump, why rewrites are not legal in its graph.
        rerun: Of a dump, nodes that may run again (:func:`overlap_sched.fx.rewrites.rerunnable`); ``None``: not known.
        fissions: Sub-graphs that can run in parts, the most promising first, where they were looked for.
        batches: The graph in parts along its batch, and along its experts' tokens, where that was looked for.
        device_bytes: Of a dump, what the device has that it is priced for, for reports; 0: not known.
    """

    problem: Problem
    prices: tuple[Price, ...]
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    priced_for: Mapping[str, str | None] | None = None
    model: CostModel | None = None
    alike: Mapping[str, str] | None = None
    refuses: Refuses = refuse_nothing
    rerun: frozenset[str] | None = None
    fissions: tuple[Fission, ...] = ()
    batches: tuple[Fission, ...] = ()
    device_bytes: int = 0


def options_for(source: Input, options: Options, problem: Problem) -> Options:
    """How to schedule a problem, in its memory model unless one is given."""
    asked = replace(options, memory_model=source.memory_model or problem.memory_model)
    for one in pinned(problem, asked.pins)[: len(asked.pins)]:  # others are of nodes, and perhaps for another graph
        nothing_there = one.pin.rule.startswith("not ") and not one.anchors
        if not one.nodes or nothing_there:
            what = f"nothing computes in {one.pin.of}" if nothing_there else "it is about no node"
            operators = sorted({problem.nodes[v].op for v in problem.collectives})
            modules = sorted({node.module for node in problem.nodes if node.module})
            named = f"{', '.join(modules[:_NAMED])}{', ...' * (len(modules) > _NAMED)}" or "none"
            raise OptionsError(
                f"--pins {one.pin.text!r}: {what} of {problem.name}. Its collectives are "
                f"{', '.join(operators) or 'none'}. Its modules are {named}."
            )
    return asked


def read_input(source: Input, tell: Callable[[str], None], wants: Wants = NOTHING, *, saves: bool = True) -> Loaded:
    """Read the input, and save it if ``saves``; notes on how it was read go to standard error."""
    tell(f"reading {source.problem}")
    loaded = load(source, tell, wants)
    for note in loaded.notes:
        complain(f"note: {note}")
    if loaded.profile is not None:
        print(shown(profile_table(loaded.profile)), file=sys.stderr)
    if saves:
        save(source, loaded.problem, tell)
    return loaded


def save(source: Input, problem: Problem, tell: Callable[[str], None]) -> None:
    """Write what ``--save-problem`` asks for; gzipped where the name ends in ``.gz``."""
    if source.save_problem:
        tell(f"writing {source.save_problem}")
        made = redact_problem(problem) if source.redact else problem
        write_file(source.save_problem, problem_bytes(made, gzipped=source.save_problem.endswith(".gz")))


def load(source: Input, tell: Callable[[str], None], wants: Wants = NOTHING) -> Loaded:
    """Read a problem, whatever it comes as; ``tell`` hears what is being done."""
    loaded = (_load_dump if is_dump(source.problem) else _load_problem)(source, tell, wants)
    scale = {Kind.COLLECTIVE: source.comm_scale}
    nodes = [node._replace(time_us=node.time_us * scale.get(node.kind, 1.0)) for node in loaded.problem.nodes]
    problem = loaded.problem if source.comm_scale == 1.0 else replace(loaded.problem, nodes=tuple(nodes))
    problem = _with_contention(problem, source.contention, source.problem)
    prices = tuple(price._replace(time_us=v.time_us) for price, v in zip(loaded.prices, problem.nodes, strict=True))
    asked = question_step(problem)
    notes = (*loaded.notes, *_notes_on(problem, source.contention), *([] if asked is None else [asked]))
    return replace(loaded, problem=problem, prices=prices, notes=notes)


def _load_problem(source: Input, tell: Callable[[str], None], wants: Wants) -> Loaded:
    of_dumps = {"group": "--group", "size": "--size", "graph": "--graph", "packages": "--import", "device": "--device",
                "fusion": "--fusion", "backward": "the backward graph"}  # fmt: skip
    if not wants.rewrites:
        of_dumps |= {"cluster": "--cluster", "mesh": "--mesh", "no_contention": "--no-contention"}
    if given := [name for field, name in of_dumps.items() if getattr(source, field)]:
        raise OptionsError(
            f"{source.problem} is a problem file: it is whole, and has its own groups, sizes and times. Leave "
            f"{', '.join(given)} out. `overlap-sched sweep --vary network=...` prices its collectives anew."
        )
    problem = read_problem(source.problem, limits=source.limits)
    prices = [Price(node.time_us, "file") if node.time_us else FREE for node in problem.nodes]
    if not source.profile:
        return Loaded(problem, tuple(prices))
    found = apply_profile(problem, _traces(source, tell))
    for v in found.measured:
        prices[v] = Price(found.problem.nodes[v].time_us, "profile")
    return Loaded(found.problem, tuple(prices), tuple(profile_notes(found.profile)), found.profile)


def _traces(source: Input, tell: Callable[[str], None]) -> list[RankTrace]:
    tell(f"reading {' '.join(source.profile)}")
    return read_traces(source.profile, source.limits)


def is_dump(path: str) -> bool:
    """Tell whether a path is a dump: by name where that is clear, else by content.

    A problem starts with ``{``, compressed or not.
    """
    name = path.lower().removesuffix(".gz")
    if name.endswith(".json") or _head(path).lstrip().startswith(b"{"):
        return False
    if name.endswith(_DUMP_SUFFIXES):
        return True
    raise ProblemError(
        f"{path}: is neither a problem file (JSON, plain or gzipped) nor named like a graph dump "
        f"({', '.join(_DUMP_SUFFIXES)}). Check the path or rename it."
    )


def _head(path: str) -> bytes:
    """The first bytes, uncompressed; empty where a gzip stream is broken (its reader will say how)."""
    try:
        with open(nameable(path), "rb") as plain:
            if plain.peek(2)[:2] != GZIP:
                return plain.read(64)
            return gzip.GzipFile(fileobj=plain).read(64)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return b""
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None


@contextmanager
def torch_for(message: str) -> Iterator[None]:
    """Say what needs torch where an import within fails for want of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        raise MissingExtraError(message) from None


@no_collection()
def _load_dump(source: Input, tell: Callable[[str], None], wants: Wants) -> Loaded:
    with torch_for(f"{source.problem} is a graph dump, and reading it needs torch: pip install 'overlap_sched[torch]'"):
        from overlap_sched.dump import load_dump, sizes_to_give
        from overlap_sched.fx import lift
        from overlap_sched.fx.dimensions.candidates import expert_fissions, fission_candidates
        from overlap_sched.fx.fitting import batch_fissions
        from overlap_sched.fx.profile import lifted_with_profile
        from overlap_sched.fx.rewrites import alike_of, rerunnable
        from overlap_sched.fx.rewrites.apply import refusals_in
    device = device_named(source.device or H100.name)
    # of traces none is assumed: what they measured is slower by contention already, and is not to be slowed again
    named = ASSUMED.get(device.name) if source.cluster is None and not source.profile else source.cluster
    cluster = None if named is None else read_cluster(named)
    for package in source.packages:
        try:
            importlib.import_module(package)
        except (Exception, SystemExit) as error:  # it may fail in any way, and none of them is ours
            ends = isinstance(error, SystemExit)
            why = "it ends the program (sys.exit)" if ends else " ".join(str(error).split()) or type(error).__name__
            raise OptionsError(
                f"--import {package}: it cannot be imported ({why}). Name the module that registers the operators, "
                "and install it here."
            ) from None
    mesh = source.mesh or (() if cluster is None else cluster.mesh)
    groups = {name: ranks_along(mesh, value) if isinstance(value, str) else value for name, value in source.group}
    dump = load_dump(
        source.problem,
        groups=groups,
        sizes=dict(source.size),
        graph=source.graph,
        limits=source.limits,
        backward=source.backward,
        progress=lambda done, total: tell(f"reading {source.problem}: {done:,} of {total:,} nodes"),
    )
    tell("lifting the graph")
    fusion, model = source.fusion or "inductor", Roofline(device) if cluster is None else model_of(cluster)
    lifted = lift(
        dump.gm,
        name=dump.name,
        memory_model=source.memory_model or "runtime",
        model=model if cluster is None else None,
        cluster=cluster,
        mesh=source.mesh or (),
        contention=not source.no_contention,
        fusion=fusion,
    )
    lifted, profile = lifted_with_profile(lifted, _traces(source, tell)) if source.profile else (lifted, None)
    notes = [*filter(None, [dump.choice]), *dump.notes, *sizes_to_give(dump.guessed)]
    notes += [f"{lifted.notes[key]} x {what}" for key, what in _GUESSES.items() if lifted.notes.get(key)]
    notes += [placement.assumed for placement in lifted.placements.values() if placement.assumed]
    notes += [] if profile is None else profile_notes(profile)
    if cluster is not None and source.cluster is None and lifted.problem.collectives:
        slowed = "" if source.no_contention else ", compute slower beside collectives (--no-contention: not slower)"
        notes.append(
            f"collectives are priced for {cluster.name}, as nothing says where the graph runs: "
            f"{cluster.ranks_per_node} ranks per node{slowed}; say otherwise with --cluster FILE_OR_NAME"
        )
    on = device if cluster is None else cluster.device
    loaded = Loaded(
        lifted.problem,
        lifted.prices,
        tuple(notes),
        profile,
        {"device": on.name, "cluster": None if cluster is None else cluster.name, "fusion": fusion},
        model,
        fissions=tuple(fission_candidates(lifted)) if wants.fissions else (),
        batches=(*batch_fissions(lifted), *expert_fissions(lifted)) if wants.batches else (),
        device_bytes=on.memory_bytes,
    )
    if not wants.rewrites:
        return loaded
    return replace(loaded, alike=alike_of(dump.gm), refuses=refusals_in(lifted), rerun=rerunnable(dump.gm))


def _with_contention(problem: Problem, given: Contention, path: str) -> Problem:
    """The problem, read from ``path``, with the contention given in place of its own."""
    for group, link in given.links.items():
        if group not in problem.groups:
            groups = ", ".join(map(repr, sorted(problem.groups))) or "none"
            raise OptionsError(
                f"--link {link}={group}: {path} has no process group {group!r}; its groups are {groups}."
            )
    own = problem.contention
    slowdown, links = {**own.slowdown, **given.slowdown}, {**own.links, **given.links}
    return replace(problem, contention=replace(own, slowdown=slowdown, links=links)) if given != own else problem


def _notes_on(problem: Problem, given: Contention) -> Iterator[str]:
    """Kinds given of which the problem has no collective: perhaps misspelt."""
    ops = sorted({problem.nodes[v].op for v in problem.collectives} - {""})
    for kind in given.slowdown:
        if not any(op.startswith(kind) for op in ops or [""]):
            yield f"--slowdown {kind}: no collective begins with {kind!r}; there are {', '.join(ops) or 'none'}"
