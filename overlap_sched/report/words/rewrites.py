"""Rewrites in words: what each bought and costs, what else was tried, and the plans of a search for less memory."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from overlap_sched.fit.answer import Effect, Fit, FitPoint
from overlap_sched.problem import Node
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.records import Record
from overlap_sched.transform.rewrites import (
    Bucket,
    Fission,
    Keep,
    Offload,
    Recompute,
    Regather,
    Rewrite,
    Stream,
)
from overlap_sched.transform.search import Trial

_SHOWN = 12
"""So many rewrites are listed, those first that take most off their stream."""


def rewrites_text(made: Plan) -> str:
    """A few lines: the best order without rewrites, what was rewritten, what was tried and not taken."""
    without, step_us = made.without.scheduled, made.schedule.scheduled.step_us
    bound_us = made.without.lower_bound_us
    lines = [
        f"Without rewrites the best order found takes {duration(without.step_us)}, "
        f"{gap_percent(without.step_us, bound_us):.1f} % above its own bound of {duration(bound_us)}."
    ]
    if not made.rewrites:
        why = f": {made.fell_back}" if made.fell_back else ""
        shorter = any(trial.order and trial.step_us < without.step_us * (1 - SAME_STEP) for trial in made.trials)
        found = "No plan with rewrites is taken" if shorter else "No rewrite makes it shorter"
        lines.append(f"{found} within the memory budget{why}{': see why below' if shorter and not why else ''}.")
    else:
        lines.append(f"With {count(len(made.rewrites), 'rewrite')}: {duration(step_us)}.")
        first = sorted(made.records, key=lambda one: -one.stream_us)[:_SHOWN]
        lines += [f"  {record_text(one)}" for one in first]
        if len(made.records) > len(first):
            lines.append(f"  and {len(made.records) - len(first)} more (--json lists all)")
    lines += [f"Not rewritten: {why}" for why in made.refused]
    if made.trials:
        lines.append(f"Tried {count(len(made.trials), 'plan')}:")
        lines += [f"  {trial.what}: {outcome_text(trial)}" for trial in made.trials]
    return "\n".join(lines)


def outcome_text(trial: Trial) -> str:
    """Say what became of a plan that was tried: its step by live bytes, if it has any, and why it is not taken."""
    step = duration(trial.step_us) if trial.order else ""
    return ", ".join(filter(None, [step, f"not taken, {trial.why_not}" if trial.why_not else ""]))


def record_text(one: Record) -> str:
    """One rewrite in words: what it does, bought and costs."""
    what = what_text(one.rewrite)
    if isinstance(one.rewrite, Keep):
        return f"{what}: {duration(one.stream_us)} less on its stream, {size(one.held_bytes)} held until then"
    if isinstance(one.rewrite, Regather):
        return f"{what}: {duration(-one.stream_us)} more on its stream, {size(-one.held_bytes)} not held until then"
    if isinstance(one.rewrite, Recompute | Fission | Offload | Stream):
        return what + _for_memory(one)
    copies = f", {duration(one.compute_us)} of copies" if one.compute_us else ""
    return f"{what}: {duration(one.stream_us)} less on its stream{copies}, {size(one.held_bytes)} more at once"


def _for_memory(one: Record) -> str:
    """Say what a rewrite that is not of collectives frees and costs, as far as its record says."""
    told = (
        f"{size(-one.held_bytes)} not kept" if one.held_bytes < 0 else "",
        f"{duration(one.compute_us)} more compute" if one.compute_us > 0 else "",
        f"{duration(-one.stream_us)} of copies" if one.stream_us < 0 and isinstance(one.rewrite, Offload) else "",
    )
    words = ", ".join(filter(None, told))
    return f": {words}" if words else ""


def what_text(rewrite: Rewrite) -> str:
    """One rewrite in words: what it does."""
    match rewrite:
        case Bucket(members, form):
            return f"{len(members)} together from {members[0]} on, {form}"
        case Fission(nodes, parts):
            return f"{parts} parts of {len(nodes)} nodes from {nodes[0]}"
        case Keep(first, again):
            return f"{first} kept instead of {again}"
        case Recompute(nodes):
            others = f" and {count(len(nodes) - 1, 'node')} behind it" if len(nodes) > 1 else ""
            return f"{nodes[0]}{others} computed again"
        case Offload(node):
            return f"{node} to the host and back"
        case Regather(gather):
            return f"{gather} gathered again"
        case Stream(collective):
            return f"{collective} on a second communicator"


class Cost(NamedTuple):
    """What one rewrite costs, or several of one kind together.

    Attributes:
        kind, op: Of the rewrite; the operator of the node whose value it is about.
        number: How many rewrites.
        bytes: What they need not keep.
        compute_us: What they add to the compute stream. copy_us: to the streams of host copies.
    """

    kind: str
    op: str
    number: int
    bytes: int
    compute_us: float
    copy_us: float

    @property
    def us_per_gib(self) -> float:
        """Compute and, counted the same, copies, per GiB not kept; infinite where nothing is freed."""
        return (self.compute_us + self.copy_us) / (self.bytes / 2**30) if self.bytes > 0 else math.inf


def costs(found: Fit) -> list[Cost]:
    """Per rewrite of the best plan, in their order."""
    nodes = {node.name: node for node in found.best.problem.nodes}
    alone = {effect.rewrite: effect for effect in found.effects}
    return [_cost(found.best, nodes, one, alone.get(one)) for one in found.best.rewrites]


def _cost(found: FitPoint, nodes: dict[str, Node], one: Rewrite, alone: Effect | None) -> Cost:
    kind = type(one).__name__.lower()
    match one:
        case Recompute():
            copies = [nodes[one.new_name(name)] for name in one.nodes if one.new_name(name) in nodes]
            held = sum(found.problem.storages[s].bytes for node in copies for s in node.alloc)
            op = next((node.op for node in copies if node.alloc), "")
            return Cost(kind, op, 1, held, sum(node.time_us for node in copies), 0.0)
        case Offload():
            launches = [nodes[name] for name in (one.name, one.back) if name in nodes]
            op = nodes[one.node].op if one.node in nodes else ""
            held = launches[0].bytes if launches else 0
            return Cost(kind, op, 1, held, 0.0, sum(node.time_us for node in launches))
        case Fission() if alone is not None:  # before other rewrites: what the peak falls by, what smaller kernels cost
            what = f"{len(one.nodes):,} nodes in {one.parts} parts"
            return Cost(kind, what, 1, max(alone.bytes, 0), max(alone.compute_us, 0.0), 0.0)
    return Cost(kind, "", 1, 0, 0.0, 0.0)


def grouped(found: Sequence[Cost]) -> list[Cost]:
    """Those of one kind and operator together, the cheapest per byte first."""
    groups: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for one in found:
        groups[one.kind, one.op].append(one)
    together = [
        Cost(
            *key,
            number=len(ones),
            bytes=sum(one.bytes for one in ones),
            compute_us=sum(one.compute_us for one in ones),
            copy_us=sum(one.copy_us for one in ones),
        )
        for key, ones in groups.items()
    ]
    return sorted(together, key=lambda one: (one.us_per_gib, one.kind, one.op))


def rewrites_table(found: Fit) -> Table:
    """Rewrites by kind and operator, worst cost per byte last; for :mod:`rich` to print."""
    table = captioned_table(
        title=f"{printable(found.best.problem.name)}: what is not kept",
        caption="Copies run beside compute; what they cost shows in the step. Worst cost per byte last.",
        first="rewrite",
        numbers=("of", "how many", "bytes", "compute", "copies", "per GiB"),
    )
    for one in grouped(costs(found)):
        table.add_row(
            one.kind,
            printable(one.op),
            f"{one.number:,}",
            size(one.bytes),
            duration(one.compute_us),
            duration(one.copy_us),
            duration(one.us_per_gib) if one.bytes > 0 else "nothing freed",
        )
    return table


def points_table(found: Fit) -> Table:
    """The frontier by ascending peak; for :mod:`rich` to print."""
    table = captioned_table(
        title=f"{printable(found.best.problem.name)}: step against peak memory, with rewrites",
        caption=f"Simulated, in the runtime memory model. {count(found.tried, 'plan')} scheduled; there may be better "
        "ones.",
        numbers=("peak", "", "step", "", "host", "rewrites"),
    )
    table.add_column("", no_wrap=True)
    above = [point for point in (found.original, found.without) if point not in found.points]
    for point in [*above, *found.points]:
        names = (("original", found.original), ("best", found.without), ("picked", found.best))
        table.add_row(
            size(point.peak_bytes),
            change(found.original.peak_bytes, point.peak_bytes),
            duration(point.step_us),
            change(found.without.step_us, point.step_us),
            size(point.host_bytes),
            f"{len(point.rewrites):,}",
            ", ".join(name for name, named in names if named == point),
            style="bold" if point == found.best else None,
        )
    return table


def answer_line(found: Fit) -> str:
    """The answer in a sentence."""
    best, held = found.best, found.held
    peak = size(best.peak_bytes)
    host = f", with {size(best.host_bytes)} of pinned host memory" if best.host_bytes else ""
    said = [
        f"The lowest peak found: {peak}.",
        f"The step takes {duration(best.step_us)}, {100 * found.slowdown:+.2f} % against the best order without "
        f"rewrites ({duration(found.without.step_us)} at {size(found.without.peak_bytes)}){host}.",
    ]
    if found.limit_bytes is not None:
        limit = size(found.limit_bytes)
        said[0] = f"Fits into {limit}: a peak of {peak}."
        if not found.fits:
            said[0] = (
                f"Only live bytes fit into {limit}: {lacking_line(found)}. No plan was found that fits; expandable "
                "segments (PYTORCH_ALLOC_CONF) may need less."
            )
        if held is not None and held.faster is not None:
            said.append(
                f"The plan of {duration(held.faster.step_us)} is not picked: torch's allocator needs a device of "
                f"{size(found.limit_bytes + held.faster.lacks_bytes)} for it."
            )
    if held is not None:
        said.append(f"Without a limit torch's allocator reserves {size(held.reserved_bytes)}.")
    return " ".join(said)


def lacking_line(found: Fit) -> str:
    """Say what a device of the limit lacks for a plan whose live bytes fit."""
    assert found.limit_bytes is not None
    assert found.held is not None
    needed = size(found.limit_bytes + found.held.over_bytes)
    return (
        f"a peak of {size(found.best.peak_bytes)}, for which torch's allocator needs a device of {needed}, "
        f"{size(found.held.over_bytes)} more"
    )
