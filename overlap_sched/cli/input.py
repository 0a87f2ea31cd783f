"""What the command line is given: a problem file, or a graph dump that torch has written.

Only a dump imports torch, and only when there is one.
"""

import gzip
import importlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from overlap_sched.cli.contention import notes_on, with_contention
from overlap_sched.cli.source import Loaded, Source
from overlap_sched.cost import FREE, H100, Device, Price, Roofline, device_named
from overlap_sched.cost.cluster import ASSUMED, Cluster, read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import ranks_along
from overlap_sched.cost.plausible import doubt
from overlap_sched.cost.profile import RankTrace, profiled, read_traces
from overlap_sched.errors import MissingExtraError, OptionsError, ProblemError
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.file import GZIP, nameable, problem_bytes, read_problem, redacted
from overlap_sched.report.files import write_file
from overlap_sched.report.words.profile import profile_notes
from overlap_sched.transform.search import refuse_nothing

_DUMP_SUFFIXES = (".py", ".txt", ".log")
_PARTS, _REGIONS, _FISSIONS = (2,), 4, 2
"""Sub-graphs of a dump that run in parts: in how many, how many are looked at, and how many of those are tried."""
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


def save(problem: Problem, path: str, *, redact: bool) -> None:
    """Write a problem file; gzipped where the name ends in ``.gz``."""
    made = redacted(problem) if redact else problem
    write_file(path, problem_bytes(made, gzipped=path.endswith(".gz")))


def load(source: Source, tell: Callable[[str], None]) -> Loaded:
    """Read a problem, whatever it comes as; ``tell`` hears what is being done."""
    loaded = _load_dump(source, tell) if is_dump(source.path) else _load_problem(source, tell)
    problem = with_contention(_scaled(loaded.problem, source.comm_scale), source.contention, source.path)
    asked = doubt(problem)
    prices = [price._replace(time_us=v.time_us) for price, v in zip(loaded.prices, problem.nodes, strict=True)]
    notes = (*loaded.notes, *notes_on(problem, source.contention), *([] if asked is None else [asked]))
    return replace(loaded, problem=problem, prices=tuple(prices), notes=notes)


def _load_problem(source: Source, tell: Callable[[str], None]) -> Loaded:
    if source.backward is not None:
        raise OptionsError(
            f"{source.path} is a problem file: only dumps are joined. Give one problem file, or the dumps of a forward "
            "graph and of its backward graph."
        )
    if (source.cluster is not None or source.mesh or not source.cluster_contention) and not source.prices_anew:
        raise OptionsError(
            f"{source.path} is a problem file: it has its own times. Leave --cluster, --mesh and --no-contention out, "
            "or vary one: `overlap-sched sweep --vary network=...` prices its collectives anew."
        )
    if source.groups or source.device or source.fusion or source.sizes or source.packages or source.graph:
        raise OptionsError(
            f"{source.path} is a problem file: it has its own groups, sizes and times. "
            "Leave --group, --size, --graph, --import, --device and --fusion out."
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


def is_dump(path: str) -> bool:
    """Tell whether a path is a dump: by name where that is clear, else by content.

    A problem starts with ``{``, compressed or not.
    """
    name = path.lower().removesuffix(".gz")
    if name.endswith(".json"):
        return False
    head = _head(path)
    if head.lstrip().startswith(b"{"):
        return False
    if name.endswith(_DUMP_SUFFIXES):
        return True
    raise ProblemError(
        f"{path}: is neither a problem file (JSON, plain or gzipped) nor named like a graph dump "
        f"({', '.join(_DUMP_SUFFIXES[:-1])} or {_DUMP_SUFFIXES[-1]}). Check the path or rename it."
    )


def _head(path: str) -> bytes:
    """The first bytes, uncompressed; empty where a gzip stream is broken (its reader will say how)."""
    try:
        with open(nameable(path), "rb") as plain:
            head = plain.read(64)
        if head[:2] != GZIP:
            return head
        with gzip.open(path) as unpacked:
            return unpacked.read(64)
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


def _load_dump(source: Source, tell: Callable[[str], None]) -> Loaded:
    with torch_for(f"{source.path} is a graph dump, and reading it needs torch: pip install 'overlap_sched[torch]'"):
        from overlap_sched.dump import load_dump, sizes_to_give
        from overlap_sched.fx import lift
        from overlap_sched.fx.dimensions.candidates import expert_fissions, fission_candidates
        from overlap_sched.fx.profile import lifted_with_profile
        from overlap_sched.fx.rewrites import alike_of, rerunnable
        from overlap_sched.fx.rewrites.apply import refusals_in
        from overlap_sched.fx.rewrites.batches import batch_fissions
    device = device_named(source.device or H100.name)
    cluster = _cluster(source, device)
    for package in source.packages:
        _import(package)
    dump = load_dump(
        source.path,
        groups=_ranks(source, cluster),
        sizes=source.sizes,
        graph=source.graph,
        limits=source.limits,
        backward=source.backward,
        progress=lambda done, total: tell(f"reading {source.path}: {done:,} of {total:,} nodes"),
    )
    tell("lifting the graph")
    fusion = source.fusion or "inductor"
    lifted = lift(
        dump.gm,
        name=dump.name,
        memory_model=source.memory_model or "runtime",
        model=Roofline(device) if cluster is None else None,
        cluster=cluster,
        mesh=source.mesh,
        contention=source.cluster_contention,
        fusion=fusion,
    )
    profile = None
    if source.traces:
        lifted, profile = lifted_with_profile(lifted, _traces(source, tell))
    notes = [*filter(None, [dump.choice]), *dump.notes, *sizes_to_give(dump.guessed)]
    notes += [f"{lifted.notes[key]} x {what}" for key, what in _GUESSES.items() if lifted.notes.get(key)]
    notes += [placement.assumed for placement in lifted.placements.values() if placement.assumed]
    notes += [] if profile is None else profile_notes(profile)
    notes += _assumed(cluster, source) if cluster is not None and lifted.problem.collectives else []
    on = device if cluster is None else cluster.device
    priced_for = {"device": on.name, "cluster": None if cluster is None else cluster.name, "fusion": fusion}
    model = Roofline(device) if cluster is None else model_of(cluster)
    alike = alike_of(dump.gm) if source.prices_anew else None
    rerun = rerunnable(dump.gm) if source.prices_anew else None
    fissions = tuple(fission_candidates(lifted, parts=_PARTS, effort=_REGIONS)[:_FISSIONS]) if source.fissions else ()
    batches = (*batch_fissions(lifted), *expert_fissions(lifted)) if source.batches else ()
    return Loaded(
        lifted.problem,
        lifted.prices,
        tuple(notes),
        profile,
        priced_for,
        model,
        alike,
        refusals_in(lifted) if source.prices_anew else refuse_nothing,
        rerun,
        fissions,
        batches,
        on.memory_bytes,
    )


def _cluster(source: Source, device: Device) -> Cluster | None:
    """The cluster given, else the one assumed; none of a device without one, and none beside traces.

    What traces measured is slower by contention already, and is not to be slowed again.
    """
    name = ASSUMED.get(device.name) if source.cluster is None and not source.traces else source.cluster
    return None if name is None else read_cluster(name)


def _assumed(cluster: Cluster, source: Source) -> list[str]:
    if source.cluster is not None:
        return []
    slowed = ", compute slower beside collectives (--no-contention: not slower)" if source.cluster_contention else ""
    return [
        f"collectives are priced for {cluster.name}, as nothing says where the graph runs: {cluster.ranks_per_node} "
        f"ranks per node{slowed}; say otherwise with --cluster FILE_OR_NAME"
    ]


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


def _ranks(source: Source, cluster: Cluster | None) -> dict[str, int | Sequence[int]]:
    """Sizes or ranks of the groups given; of a dimension of the mesh, its ranks."""
    mesh = source.mesh or (() if cluster is None else cluster.mesh)
    return {
        name: ranks_along(mesh, value) if isinstance(value, str) else value
        for name, value in (source.groups or {}).items()
    }


def _scaled(problem: Problem, comm_scale: float) -> Problem:
    if comm_scale == 1.0:
        return problem
    nodes = (
        node._replace(time_us=node.time_us * comm_scale) if node.kind is Kind.COLLECTIVE else node
        for node in problem.nodes
    )
    return replace(problem, nodes=tuple(nodes))
