"""Rewrites in words: what each bought and costs, what else was tried, and the plans of a search for less memory."""

import math
from collections import defaultdict

from rich.table import Table

from overlap_sched.fit.answer import Effect, Fit, FitPoint
from overlap_sched.problem import Node
from overlap_sched.report.terminal import captioned_table
from overlap_sched.report.units import change, count, duration, printable, size
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.transform.plan import Plan, Record
from overlap_sched.transform.rewrites import Bucket, Fission, Keep, Offload, Recompute, Regather, Rewrite, Stream
from overlap_sched.transform.search import Trial

_SHOWN = 12
"""So many rewrites are listed, those first that take most off their stream."""


def rewrites_text(made: Plan) -> str:
    """Say what the best order without rewrites is, what was rewritten, what was tried and not taken."""
    without, bound_us = made.without.scheduled, made.without.lower_bound_us
    refused = f"No plan with rewrites is taken: {made.fell_back or 'none is shorter within the memory budget'}."
    taken = f"With {count(len(made.rewrites), 'rewrite')}: {duration(made.schedule.scheduled.step_us)}."
    lines = [
        f"Without rewrites the best order found takes {duration(without.step_us)}, "
        f"{gap_percent(without.step_us, bound_us):.1f} % above its own bound of {duration(bound_us)}.",
        taken if made.rewrites else refused,
        *(f"  {record_text(one)}" for one in sorted(made.records, key=lambda one: -one.stream_us)[:_SHOWN]),
    ]
    if len(made.records) > _SHOWN:
        lines.append(f"  and {len(made.records) - _SHOWN} more (--json lists all)")
    lines += [f"Not rewritten: {why}" for why in made.refused]
    tried = [f"Tried {count(len(made.trials), 'plan')}:"] if made.trials else []
    return "\n".join([*lines, *tried, *(f"  {trial.what}: {outcome_text(trial)}" for trial in made.trials)])


def outcome_text(trial: Trial) -> str:
    """Say what became of a plan that was tried: its step by live bytes, if it has any, and why it is not taken."""
    step = duration(trial.step_us) if trial.order else ""
    return ", ".join(filter(None, [step, f"not taken, {trial.why_not}" if trial.why_not else ""]))


def record_text(one: Record) -> str:
    """Say what one rewrite does, bought and costs."""
    parts = []
    if one.stream_us:
        parts.append(f"{duration(abs(one.stream_us))} {'less' if one.stream_us > 0 else 'more'} on its stream")
    if one.held_bytes:
        parts.append(f"{size(abs(one.held_bytes))} {'more held' if one.held_bytes > 0 else 'not kept'}")
    if one.compute_us > 0:
        parts.append(f"{duration(one.compute_us)} more compute")
    return ": ".join(filter(None, [what_text(one.rewrite), ", ".join(parts)]))


def what_text(rewrite: Rewrite) -> str:
    """Say what one rewrite does."""
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


def costs(found: Fit) -> list[tuple[Record, str]]:
    """Return what each rewrite of the best plan costs (copies take their stream longer), and of which operator."""
    nodes = {node.name: node for node in found.best.problem.nodes}
    alone = {effect.rewrite: effect for effect in found.effects}
    return [_cost(found.best, nodes, one, alone.get(one)) for one in found.best.rewrites]


def _cost(found: FitPoint, nodes: dict[str, Node], one: Rewrite, alone: Effect | None) -> tuple[Record, str]:
    op, freed, compute_us, copy_us = "", 0, 0.0, 0.0
    match one:
        case Recompute():
            copies = [nodes[one.new_name(name)] for name in one.nodes if one.new_name(name) in nodes]
            freed = sum(found.problem.storages[s].bytes for node in copies for s in node.alloc)
            op = next((node.op for node in copies if node.alloc), "")
            compute_us = sum(node.time_us for node in copies)
        case Offload():
            launches = [nodes[name] for name in (one.name, one.new_name(one.node)) if name in nodes]
            op = nodes[one.node].op if one.node in nodes else ""
            freed, copy_us = sum(node.bytes for node in launches[:1]), sum(node.time_us for node in launches)
        case Fission() if alone is not None:  # before other rewrites: what the peak falls by, what smaller kernels cost
            op = f"{len(one.nodes):,} nodes in {one.parts} parts"
            freed, compute_us = max(alone.bytes, 0), max(alone.compute_us, 0.0)
    return Record(one, -copy_us, compute_us, -freed), op


def rewrites_table(found: Fit) -> Table:
    """List rewrites by kind and operator, worst cost per byte last; for :mod:`rich` to print."""
    groups, rows = defaultdict[tuple[str, str], list[Record]](list), list[tuple[float, str, *tuple[str, ...]]]()
    for one, op in costs(found):
        groups[type(one.rewrite).__name__.lower(), op].append(one)
    for (kind, op), ones in groups.items():
        freed, copy_us = sum(-one.held_bytes for one in ones), sum(-one.stream_us for one in ones)
        compute_us = sum(one.compute_us for one in ones)
        per_gib_us = (compute_us + copy_us) / freed * 2**30 if freed > 0 else math.inf
        last = duration(per_gib_us) if freed > 0 else "nothing freed"
        cells = (printable(op), f"{len(ones):,}", size(freed), duration(compute_us), duration(copy_us), last)
        rows.append((per_gib_us, kind, *cells))
    caption = "Copies run beside compute; what they cost shows in the step. Worst cost per byte last."
    heads, title = ("of", "how many", "bytes", "compute", "copies", "per GiB"), printable(found.best.problem.name)
    return captioned_table(f"{title}: what is not kept", caption, heads, "rewrite", [row[1:] for row in sorted(rows)])


def points_table(found: Fit) -> Table:
    """List the frontier by ascending peak; for :mod:`rich` to print."""
    above, rows = [point for point in (found.original, found.without) if point not in found.points], []
    named = (("original", found.original), ("best", found.without), ("picked", found.best))
    for point in [*above, *found.points]:
        peak, step = change(found.original.peak_bytes, point.peak_bytes), change(found.without.step_us, point.step_us)
        cells = [size(point.peak_bytes), peak, duration(point.step_us), step, size(point.host_bytes)]
        rows.append([", ".join(name for name, of in named if of == point), *cells, f"{len(point.rewrites):,}"])
    return captioned_table(
        f"{printable(found.best.problem.name)}: step against peak memory, with rewrites",
        f"Simulated, in the runtime memory model. {count(found.tried, 'plan')} scheduled; there may be better ones.",
        ("peak", "change", "step", "change", "host", "rewrites"),
        "plan",
        rows,
    )


def answer_line(found: Fit) -> str:
    """Say the answer in a sentence."""
    best, held, limit = found.best, found.held, size(found.limit_bytes or 0)
    fitting = f"The lowest peak found: {size(best.peak_bytes)}."
    if found.limit_bytes is not None:
        fitting = f"Fits into {limit}: a peak of {size(best.peak_bytes)}."
        if not found.fits:
            more = "No plan was found that fits; expandable segments (PYTORCH_ALLOC_CONF) may need less."
            fitting = f"Only live bytes fit into {limit}: {lacking_line(found)}. {more}"
    host = f", with {size(best.host_bytes)} of pinned host memory" if best.host_bytes else ""
    said = [
        fitting,
        f"The step takes {duration(best.step_us)}, {100 * found.slowdown:+.2f} % against the best order without "
        f"rewrites ({duration(found.without.step_us)} at {size(found.without.peak_bytes)}){host}.",
    ]
    if held is not None and held.faster is not None and found.limit_bytes is not None:
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
    peak, over = size(found.best.peak_bytes), size(found.held.over_bytes)
    needed = size(found.limit_bytes + found.held.over_bytes)
    return f"a peak of {peak}, for which torch's allocator needs a device of {needed}, {over} more"
