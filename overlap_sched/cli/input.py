"""What the command line is given: a problem file, or a graph dump that torch has written; and how it is priced.

Only a dump imports torch, and only when there is one.
"""

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from msgspec import structs
from rich.console import RenderableType

from overlap_sched.cli.arguments import Input
from overlap_sched.cost import FREE, H100, CostModel, Price, Roofline, device_named
from overlap_sched.cost.cluster import ASSUMED, Cluster, MeshDimension, read_cluster
from overlap_sched.cost.placement import ranks_along
from overlap_sched.cost.plausible import question_step
from overlap_sched.cost.profile import Profile, apply_profile, read_traces
from overlap_sched.errors import OptionsError
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.file import problem_bytes, read_problem, redact_problem
from overlap_sched.problem.pins import BINDS_NOTHING, binds_nothing, pinned
from overlap_sched.report.files import write_file
from overlap_sched.report.terminal import shown
from overlap_sched.report.units import complain
from overlap_sched.report.words.graph import profile_notes, profile_table
from overlap_sched.scheduler.driver import no_collection
from overlap_sched.transform.rewrites import Fission
from overlap_sched.transform.search import Refuses, refuse_nothing

Tell = Callable[[str], None]
"""Hears what is being done."""
Printed = tuple[str | tuple[RenderableType, ...], int]
"""What a command prints, JSON or tables and text, and its exit code."""
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


Want = Literal["rewrites", "fissions", "batches"]
"""What a command needs of a graph beyond its nodes: prices of new nodes and what a dump says of rewrites; of a dump,
sub-graphs that may run in parts; of a dump, the graph in parts along its batch, and along experts' tokens."""


class Loaded(NamedTuple):
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


def cluster_of(source: Input, otherwise: str) -> Cluster:
    """Return the cluster named, or else the shipped one of that name, with the mesh given."""
    cluster = read_cluster(source.cluster or otherwise)
    return structs.replace(cluster, mesh=mesh_of(source)) if source.mesh else cluster


def mesh_of(source: Input) -> tuple[MeshDimension, ...]:
    """Return the mesh given, if any is."""
    return tuple(MeshDimension(*pair) for pair in source.mesh or ())


def options_for(source: Input, options: Options, problem: Problem) -> Options:
    """Return how to schedule a problem, in its memory model unless one is given."""
    asked = replace(options, memory_model=source.memory_model or problem.memory_model)
    for one in pinned(problem, asked.pins)[: len(asked.pins)]:  # others are of nodes, and perhaps for another graph
        if (why := binds_nothing(problem, one)) in ("pins_about_nothing", "pins_about_waits"):
            operators = ", ".join(sorted({problem.nodes[v].op for v in problem.collectives})) or "none"
            there = f"The collectives of {problem.name} are {operators}."
            raise OptionsError(f"--pins {one.pin.text!r}: {BINDS_NOTHING[why]}. {there}")
    return asked


def read_input(source: Input, tell: Tell, wants: Collection[Want] = (), *, saves: bool = True) -> Loaded:
    """Read the input, and save it if ``saves``; notes on how it was read go to standard error."""
    tell(f"reading {source.problem}")
    loaded = load(source, tell, wants)
    for note in loaded.notes:
        complain(f"note: {note}")
    if loaded.profile is not None:
        print(shown(profile_table(loaded.profile)), file=sys.stderr)
    if saves:
        save(source, loaded.problem)
    return loaded


def save(source: Input, problem: Problem) -> None:
    """Write what ``--save-problem`` asks for; gzipped where the name ends in ``.gz``."""
    if source.save_problem:
        made = redact_problem(problem) if source.redact else problem
        write_file(source.save_problem, problem_bytes(made, gzipped=source.save_problem.endswith(".gz")))


def load(source: Input, tell: Tell, wants: Collection[Want] = ()) -> Loaded:
    """Read a problem, whatever it comes as; ``tell`` hears what is being done."""
    loaded = (_load_dump if is_dump(source.problem) else _load_problem)(source, tell, wants)
    problem, given, own = loaded.problem, source.contention, loaded.problem.contention
    for group, link in given.links.items():
        if group not in problem.groups:
            groups = ", ".join(map(repr, sorted(problem.groups))) or "none"
            raise OptionsError(
                f"--link {link}={group}: {source.problem} has no process group {group!r}; its groups are {groups}."
            )
    if given != own:
        slowdown, links = {**own.slowdown, **given.slowdown}, {**own.links, **given.links}
        problem = replace(problem, contention=replace(own, slowdown=slowdown, links=links))
    problem = problem if source.comm_scale == 1.0 else problem.with_comm_scale(source.comm_scale)
    ops = sorted({problem.nodes[v].op for v in problem.collectives} - {""})
    misspelt = [
        f"--slowdown {kind}: no collective begins with {kind!r}; there are {', '.join(ops) or 'none'}"
        for kind in given.slowdown
        if not any(op.startswith(kind) for op in ops or [""])
    ]
    prices = tuple(price._replace(time_us=v.time_us) for price, v in zip(loaded.prices, problem.nodes, strict=True))
    notes = (*loaded.notes, *misspelt, *filter(None, [question_step(problem)]))
    return loaded._replace(problem=problem, prices=prices, notes=notes)


def _load_problem(source: Input, tell: Tell, wants: Collection[Want]) -> Loaded:
    of_dumps = {"group": "--group", "size": "--size", "graph": "--graph", "packages": "--import", "device": "--device",
                "fusion": "--fusion", "backward": "the backward graph"}  # fmt: skip
    if "rewrites" not in wants:
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
    problem, measured, profile = apply_profile(problem, prices, read_traces(source.profile, source.limits))
    return Loaded(problem, measured, tuple(profile_notes(profile)), profile)


def is_dump(path: str) -> bool:
    """Tell whether a path is named like a dump; else it is a problem file."""
    name = path.lower().removesuffix(".gz")
    if not name.endswith((".json", *_DUMP_SUFFIXES)):
        complain(f"note: {path} is read as a problem file; graph dumps are named {', '.join(_DUMP_SUFFIXES)}")
    return name.endswith(_DUMP_SUFFIXES)


@no_collection()
def _load_dump(source: Input, tell: Tell, wants: Collection[Want]) -> Loaded:
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
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            hint = "Name the module that registers the operators, and install it here."
            raise OptionsError(f"--import {package}: it cannot be imported ({why}). {hint}") from None
    mesh = mesh_of(source) or (() if cluster is None else cluster.mesh)
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
    fusion = source.fusion or "inductor"
    lifted = lift(
        dump.gm,
        name=dump.name,
        memory_model=source.memory_model or "runtime",
        model=Roofline(device) if cluster is None else None,
        cluster=cluster,
        mesh=mesh_of(source),
        contention=not source.no_contention,
        fusion=fusion,
    )
    traces = read_traces(source.profile, source.limits) if source.profile else []
    lifted, profile = lifted_with_profile(lifted, traces) if traces else (lifted, None)
    notes = [*filter(None, [dump.choice]), *dump.notes, *sizes_to_give(dump.guessed)]
    notes += [f"{lifted.notes[key]} x {what}" for key, what in _GUESSES.items() if lifted.notes.get(key)]
    notes += [placement.assumed for placement in lifted.placements.values() if placement.assumed]
    notes += [] if profile is None else profile_notes(profile)
    if cluster is not None and source.cluster is None and lifted.problem.collectives:
        where = f"{cluster.name} with {cluster.ranks_per_node} ranks per node"
        notes.append(f"collectives are priced for {where}, which is a guess: say otherwise with --cluster FILE_OR_NAME")
    on, rewriting = device if cluster is None else cluster.device, "rewrites" in wants
    return Loaded(
        lifted.problem,
        lifted.prices,
        tuple(notes),
        profile,
        {"device": on.name, "cluster": None if cluster is None else cluster.name, "fusion": fusion},
        lifted.model,
        alike=alike_of(dump.gm) if rewriting else None,
        refuses=refusals_in(lifted) if rewriting else refuse_nothing,
        rerun=rerunnable(dump.gm) if rewriting else None,
        fissions=tuple(fission_candidates(lifted)) if "fissions" in wants else (),
        batches=(*batch_fissions(lifted), *expert_fissions(lifted)) if "batches" in wants else (),
        device_bytes=on.memory_bytes,
    )
