"""A plan with rewrites in words: what was rewritten, what each bought and costs, what else was tried."""

from collections.abc import Sequence
from typing import Any

from overlap_sched.report.units import count, duration, size
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.left_out import Left
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.records import Record, records_json
from overlap_sched.transform.rewrites import Bucket, Keep, Offload, Recompute, Regather, Rewrite, Stream
from overlap_sched.transform.search import Trial

_SHOWN = 12
"""So many rewrites are listed, those first that take most off their stream."""


def rewrites_figures(made: Plan) -> dict[str, Any]:
    """For ``--json``: microseconds, bytes."""
    return {
        "rewrites": records_json(made.records),
        "step_without_rewrites_us": made.without.scheduled.step_us,
        "bound_without_rewrites_us": made.without.lower_bound_us,
        "tried": [
            {"what": trial.what, "step_us": trial.step_us if trial.order else None, "why_not": trial.why_not}
            for trial in made.trials
        ],
        "not_rewritten": list(made.refused),
    }


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


def left_text(left: Sequence[Left]) -> str:
    """Say what the step becomes without each rewrite; ``""`` where none was left out."""
    if not left:
        return ""
    return "\n".join([f"{left_title(left)}:", *(f"  {what}: {worth}" for what, worth in left_rows(left))])


def left_title(left: Sequence[Left]) -> str:
    """Say what the rows of :func:`left_rows` are."""
    return f"Scheduled again without one of them, against {duration(left[0].with_us)} with all by the same run"


def left_rows(left: Sequence[Left]) -> list[tuple[str, str]]:
    """Each rewrite left out, and what the step becomes."""
    rows = []
    for one in left:
        worth = f"{duration(abs(one.bought_us))} {'longer' if one.bought_us >= 0 else 'shorter'}"
        rows.append((what_text(one.rewrite), f"no step, {one.why_not}" if one.why_not else worth))
    return rows


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
