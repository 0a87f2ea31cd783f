"""The options about the input and about scheduling, as data; checked before anything is read."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from overlap_sched.cli.contention import contention_given
from overlap_sched.cli.parser import in_flags
from overlap_sched.cost import CostModel, Price
from overlap_sched.cost.cluster import Cluster, MeshDimension, read_cluster
from overlap_sched.cost.profile import Profile
from overlap_sched.cost.repricing import MACHINE
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options, RewriteKind, close_to
from overlap_sched.problem import MemoryModel, Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.problem.pins import pinned
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.search import Refuses, refuse_nothing

FISSION = "fission"
"""A kind of ``fit --kinds``, of dumps alone: a problem file has no shapes."""
BATCH = "batch"
"""Another one: fission of all that can be cut along the batch, where sums over it are split: rounded otherwise."""

_NAMED = 8
"""So many modules are named in an error."""


@dataclass(frozen=True)
class Source:
    """An input and how to read it; ``None`` and empty: as the file says. Most fields are the options of that name.

    Attributes:
        path: A problem file (JSON, plain or gzipped) or a graph dump (``.py`` or ``.txt``, plain or gzipped).
        backward: Of a dump of a forward graph, that of its backward graph: both are read as one step.
        groups: Of a dump, per process group its size, its ranks, or the dimension of the mesh that it is.
        cluster_contention: Whether the cluster's own contention counts.
        prices_anew: Of a problem file, too: the command prices its collectives for the cluster.
        fissions: Whether to look for sub-graphs of a dump that can run in parts.
        batches: Whether to look how much of a dump can run in parts along its batch, or along experts' tokens.
        contention: Replaces the file's, key by key.
        traces: Of the torch profiler, one per rank: times that replace the predicted ones where they have them.
    """

    path: str
    backward: str | None = None
    comm_scale: float = 1.0
    memory_model: MemoryModel | None = None
    groups: Mapping[str, int | Sequence[int] | str] | None = None
    sizes: Mapping[str, int] | None = None
    graph: int | None = None
    packages: Sequence[str] = ()
    device: str | None = None
    fusion: Literal["none", "inductor"] | None = None
    cluster: str | None = None
    mesh: Sequence[MeshDimension] = ()
    cluster_contention: bool = True
    prices_anew: bool = False
    fissions: bool = False
    batches: bool = False
    contention: Contention = NO_CONTENTION
    limits: Limits = DEFAULT_LIMITS
    traces: Sequence[str] = ()


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


def source_of(options: argparse.Namespace) -> Source:
    """The input and how to read it, from the options."""
    return Source(
        path=options.problem,
        backward=getattr(options, "backward", None),
        comm_scale=options.comm_scale,
        memory_model=options.memory_model,
        groups=dict(options.group),
        sizes=dict(options.size),
        graph=options.graph,
        packages=tuple(options.packages),
        device=options.device,
        fusion=options.fusion,
        cluster=options.cluster,
        mesh=tuple(options.mesh or ()),
        cluster_contention=not options.no_contention,
        prices_anew=options.command == "fit"
        or bool(rewrites_of(options))
        or any(text.partition("=")[0].strip() in MACHINE for text in getattr(options, "vary", ())),
        fissions=options.command == "fit" and FISSION in options.kinds,
        batches=options.command == "fit" and BATCH in options.kinds,
        contention=contention_given(options.slowdown, options.link),
        limits=Limits(options.max_input_bytes, options.max_nodes),
        traces=tuple(options.profile),
    )


def options_for(options: argparse.Namespace, problem: Problem) -> Options:
    """How to schedule a problem, in its memory model unless one is given."""
    asked = replace(options_of(options), memory_model=options.memory_model or problem.memory_model)
    for one in pinned(problem, asked.pins)[: len(asked.pins)]:  # others are of nodes, and perhaps for another graph
        nothing_there = one.pin.rule.startswith("not ") and not one.anchors
        if not one.nodes or nothing_there:
            what = f"nothing computes in {one.pin.of}" if nothing_there else "it is about no node"
            raise OptionsError(f"--pins {one.pin.text!r}: {what} of {problem.name}. {_to_pin(problem)}")
    return asked


def _to_pin(problem: Problem) -> str:
    """Say what pins can name in a graph."""
    operators = sorted({problem.nodes[v].op for v in problem.collectives})
    modules = sorted({node.module for node in problem.nodes if node.module})
    named = f"Its modules are {', '.join(modules[:_NAMED])}" if modules else "Its nodes have no modules"
    more = f" and {len(modules) - _NAMED:,} more" if len(modules) > _NAMED else ""
    return f"Its collectives are {', '.join(operators) or 'none'}. {named}{more}."


def options_of(options: argparse.Namespace) -> Options:
    """How to schedule; the memory model is left out, because it is the problem's unless one is given."""
    rewrites = rewrites_of(options)
    unknown = next((name for name in rewrites if name not in get_args(RewriteKind)), None)
    if unknown is not None:
        known = get_args(RewriteKind)
        raise OptionsError(f"--rewrites has {unknown!r}; known are {', '.join(known)}.{close_to(unknown, known)}")
    try:
        return Options(
            headroom=options.headroom,
            budget=options.budget,
            preserve_collective_order=options.preserve_collective_order,
            base=options.base,
            effort=options.effort,
            allocator=options.allocator,
            memory_limit=options.memory_limit,
            rewrites=rewrites,
            concurrent_groups=options.concurrent_groups,
            strict=options.strict,
            pins=tuple(options.pins),
        )
    except OptionsError as error:
        raise OptionsError(in_flags(str(error))) from None


def cluster_named(options: argparse.Namespace, otherwise: str) -> Cluster:
    """The cluster of ``--cluster``, or else the shipped one of that name, with the mesh of ``--mesh``."""
    cluster = read_cluster(options.cluster or otherwise)
    return replace(cluster, mesh=options.mesh) if options.mesh else cluster


def rewrites_of(options: argparse.Namespace) -> tuple[RewriteKind, ...]:
    """Return what ``--rewrites`` names; nothing for commands that do not have it. :class:`Options` checks the names."""
    text: str = getattr(options, "rewrites", "")
    return tuple(cast(RewriteKind, name.strip()) for name in text.split(",")) if text else ()


def check_input(options: argparse.Namespace) -> None:
    """Refuse options that are wrong by themselves, before anything is read."""
    source = source_of(options)
    if hasattr(options, "headroom"):
        options_of(options)
    if not math.isfinite(source.comm_scale) or source.comm_scale < 0:
        raise OptionsError(f"--comm-scale is {source.comm_scale}; it is a factor, 0 or more.")
    if source.cluster is not None and source.device is not None:
        raise OptionsError(
            f"--device {source.device}: cluster {source.cluster} has its own device. Leave one of the two out, or "
            "write a cluster file with another device."
        )
    if rewrites_of(options) and options.profile:
        raise OptionsError(
            "--rewrites: merged collectives are in no trace, so that measured and predicted times do not compare. "
            "Leave --profile out."
        )
    if options.redact and options.save_problem is None:
        raise OptionsError("--redact changes what --save-problem writes: give --save-problem OUT.json, too.")
