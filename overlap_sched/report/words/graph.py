"""A graph in words: prices, peak, purposes of process groups, and what a profile or a calibration says."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, get_args

from rich.table import Table

from overlap_sched.cost.profile import Profile
from overlap_sched.cost.table import Tables, describe_table
from overlap_sched.peak_memory.peak import Peak
from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.report.terminal import align_rows, captioned_table
from overlap_sched.report.units import count, duration, listed, printable, size
from overlap_sched.transform.apply import OFFLOAD, RELOAD
from overlap_sched.transform.rewrites import second_group

_SHOWN = 4


class AssumedSize(NamedTuple):
    """What a data-dependent size was taken as, for memory.

    Attributes:
        name: Its symbol.
        node: The first node whose value shows it; ``""``: none does, or it is the name.
        taken: The number: figures hold for sizes up to it.
        limited: Whether the graph's asserts admit no larger one; else it is a guess.
    """

    name: str
    node: str
    taken: int
    limited: bool


def sizes_assumed(sizes: Sequence[AssumedSize]) -> str:
    """``peak rests on guessed sizes: u1 (nonzero) = 8,192, u0 (item) <= 4,096 as asserted``; ``""`` for none.

    Those that no assert limits come first.
    """
    shown = [
        f"{one.name}{f' ({one.node})' * bool(one.node)} "
        + (f"<= {one.taken:,} as asserted" if one.limited else f"= {one.taken:,}")
        for one in sorted(sizes, key=lambda one: one.limited)
    ]
    return f"peak rests on guessed sizes: {listed(shown, _SHOWN)}" if sizes else ""


Purpose = Literal["FSDP", "data", "tensor", "expert", "host", "other"]

FEW = 6
"""So many nodes with a time may lie between a collective and what the graph is given, or gives: casts, copies, sums."""
MOST_SEEN = 60
"""So many nodes are looked at; what has more before or behind it is an activation."""


def group_purposes(problem: Problem) -> dict[str, Purpose]:
    """Return, per process group on which something runs, what it is for, by most of its bytes."""
    sums = defaultdict[str, Counter[Purpose]](Counter)
    for v in problem.collectives:
        sums[problem.nodes[v].group or ""][_what(problem, v)] += max(problem.nodes[v].bytes, 1)
    return {name: max(of, key=lambda what: of[what]) for name, of in sums.items()}


def group_names(purposes: Mapping[str, Purpose]) -> dict[str, str]:
    """Return, per process group, its name with what it is for: ``"FSDP 0"``, ``"tensor 137"``, ``"other 7"``.

    A name of more than digits says what it is for itself.
    """
    unnamed = {name for name in purposes if name.removesuffix(second_group("")).isdecimal()}
    return {name: f"{what} {name}" if name in unnamed else printable(name) for name, what in purposes.items()}


def by_purpose(names: Iterable[str], purposes: Mapping[str, Purpose]) -> list[str]:
    """Order groups by what they are for; those of one purpose stay in their order."""
    return sorted(names, key=lambda name: get_args(Purpose).index(purposes[name]))


def _what(problem: Problem, v: NodeId) -> Purpose:
    op = problem.nodes[v].op
    if op.startswith("all_to_all"):
        return "expert"
    if op in (OFFLOAD, RELOAD):
        return "host"
    if op.startswith("all_gather"):
        return "FSDP" if _ends(problem, v, problem.predecessors, Kind.INPUT) else "tensor"
    if not op.startswith(("reduce_scatter", "all_reduce")):
        return "other"
    if _ends(problem, v, problem.successors, Kind.OUTPUT):
        return "data" if op.startswith("all_reduce") else "FSDP"
    return "tensor"


def _ends(problem: Problem, v: NodeId, following: Sequence[Sequence[NodeId]], end: Kind) -> bool:
    """Tell whether there is little between a node and where the graph begins, or ends."""
    seen, look, timed = {v}, [v], 0
    while look:
        for u in following[look.pop()]:
            node = problem.nodes[u]
            if u in seen or node.kind is end:
                continue
            seen.add(u)
            look.append(u)
            timed += node.time_us > 0
            if len(seen) > MOST_SEEN or timed > FEW or node.kind is Kind.COLLECTIVE:
                return False
    return True


LARGEST = 10
"""Storages that are shown one by one."""


def peak_text(peak: Peak) -> str:
    """Say where the peak is, what it is made of, who made the largest and who still needs them."""
    problem, kinds = peak.problem, Counter(storage.kind for storage in peak.storages)
    names, whole = [printable(node.name) for node in problem.nodes], max(peak.bytes, 1)
    by_kind = [
        (kind, size(total), f"{100 * total / whole:.1f} %", f"in {kinds[kind]:,}")
        for kind, total in peak.by_kind().items()
        if total
    ]
    rows = []
    for one in peak.storages[:LARGEST]:
        needed = listed([names[v] for v in one.needed_by], 3) or "nobody"
        needed += ": never freed" if not one.needed_by and problem.storages[one.storage].pinned else ""
        if one.bytes:
            what = f"made by {names[one.maker]}, needed by {needed}"
            rows.append((" " if one.forced else "*", size(one.bytes), one.kind, what))
    lines = [
        f"{printable(problem.name)}: peak {size(peak.bytes)}, first at {names[peak.node]}, "
        f"step {peak.position + 1:,} of {peak.steps:,} ({problem.memory_model} memory model, simulated)",
        *align_rows(by_kind),
        f"  live at this node in every order: {size(peak.forced_bytes)} ({100 * peak.forced_bytes / whole:.1f} %); "
        "in some orders, storages marked * are not live here",
    ]
    return "\n".join([*lines, *(["largest:", *align_rows(rows)] if rows else [])])


_ROWS = 8


def profile_notes(profile: Profile) -> Iterator[str]:
    """Say what was matched and how, what was not, and what of skew."""
    pairs = zip(profile.sought, profile.measured, strict=True)
    timed = [(node, m) for node, m in pairs if m is not None or node.us > 0.0]
    how = Counter(m.how for _, m in timed if m is not None)
    ways = {"order": "by shapes and order", "shapes": "by shapes alone", "names": "by names of fused kernels"}
    yield (
        f"profile: {sum(how.values()):,} of {count(len(timed), 'node')} that take time were found in it, "
        f"{profile.share():.1%} of the predicted time"
        + "".join(f", {how[key]:,} {what}" for key, what in ways.items() if how[key])  # type: ignore[index]
        + f" ({count(profile.runs, 'run')} on {count(profile.ranks, 'rank')})"
    )
    late = f"{duration(profile.skew_us or 0.0)} of waiting for late ranks taken out of the collectives of a run"
    alone = "one rank: its collectives still hold waiting for others; give the traces of more ranks"
    yield f"profile: {alone if profile.skew_us is None else late}"
    missing = Counter(node.name for node, m in timed if m is None).most_common()
    if missing:
        names = [f"{n} x {printable(name)}" for name, n in missing]
        yield f"profile: not found, so as predicted: {listed(names, _SHOWN)}"


def profile_table(profile: Profile) -> Table:
    """List the operators whose predicted and measured times differ most."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for node, measured in zip(profile.sought, profile.measured, strict=True):
        if measured is not None:
            shapes = [str(list(shape)) for shape in node.shapes or ()]
            shapes[2:] = ["..."] * (len(shapes) > 2)
            name = " ".join([node.name.removeprefix("_c10d_functional::"), *shapes])
            found["in fused kernels" if measured.how == "names" else printable(name)].append((node.us, measured.us))
    totals = [(label, len(us), sum(one for one, _ in us), sum(two for _, two in us)) for label, us in found.items()]
    totals.sort(key=lambda row: (-abs(row[3] - row[2]), row[0]))
    rows = [
        (label, f"{nodes:,}", duration(predicted), duration(us), f"{us / predicted:,.2f}" if predicted else "-")
        for label, nodes, predicted, us in totals[:_ROWS]
    ]
    heads = ("nodes", "predicted", "measured", "measured / predicted")
    return captioned_table("where prediction and profile differ most", "", heads, "operator", rows)


def calibration_text(tables: Tables, failed: Sequence[str], path: str) -> str:
    """Write a line per table: how much was measured, and the largest of it; then what failed."""
    lines = [f"{printable(path)}: {len(tables.collectives):,} collectives, {len(tables.kernels):,} kernels measured"]
    collectives = sorted(tables.collectives, key=lambda one: (one.kind, one.ranks, one.nodes, one.bytes))
    for key, ones in groupby(collectives, key=lambda one: (one.kind, one.ranks, one.nodes)):
        *_, most = of_one = list(ones)
        rate = f"{size(most.bytes)} {duration(most.time_us)} ({most.bytes / most.time_us / 1e3:.2f} GB/s)"
        lines.append(f"  {describe_table(*key)}: {count(len(of_one), 'size')}, {rate}")
    for op, of in groupby(sorted(tables.kernels, key=lambda one: one.op), key=lambda one: one.op):
        kernels = list(of)
        flops = max(one.flops / one.time_us / 1e6 for one in kernels)
        rate = f"{flops:.3g} TFLOP/s" if flops else f"{max(one.bytes / one.time_us / 1e3 for one in kernels):.3g} GB/s"
        lines.append(f"  {printable(op)}: {len(kernels)} shapes, {rate} at best")
    return "\n".join([*lines, *(f"  not measured: {printable(what)}" for what in failed)])
