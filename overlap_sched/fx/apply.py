"""Schedule an FX graph in place: lift, schedule, put the order back; the graph as it was where anything fails."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from overlap_sched.cost.model import check_model
from overlap_sched.errors import OverlapSchedWarning, RewriteError, SequenceError, VerificationError
from overlap_sched.fx.graphs import graph_of, reorder
from overlap_sched.fx.lifting import LIFTING, LiftedNodes, lift
from overlap_sched.fx.operators import undeclared_text
from overlap_sched.fx.rewrites import alike_of, prepare
from overlap_sched.fx.rewrites.apply import may_rewrite, plan_lifted
from overlap_sched.options import Options, check_names, on_devices, options_given
from overlap_sched.problem import Problem
from overlap_sched.problem.pins import pin_notes
from overlap_sched.report.units import count, duration, size
from overlap_sched.report.words.graph import AssumedSize, sizes_assumed
from overlap_sched.report.words.schedule import (
    collectives_text,
    figures_text,
    reserved_of,
    reserved_rows,
    short_text,
    together_text,
    why_no_better,
)
from overlap_sched.scheduler.driver import Figures, Schedule, schedule
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Rewrite

NO_COLLECTIVES = "the graph has no collectives"
"""The reason of a report on a graph in which there is nothing to move: memory alone is asked for by ``base``."""
CLEARLY = 0.02
"""A graph without collectives is reordered where its peak falls by at least this part: buffers are reused otherwise
in another order, which the prediction does not know."""


@dataclass(frozen=True)
class Report:
    """What became of a graph.

    Attributes:
        name: The problem's name; the graph's class where lifting failed.
        schedule: Figures before and after, the order, the decisions; ``None`` where nothing was scheduled.
        changed: Whether the graph has another order now.
        reason: Why it has not; ``None`` where it has.
        notes: See :class:`overlap_sched.fx.lifting.Lifted`.
        lift_s: Seconds to lift the graph.
        rewrites: What was done to collectives, first to last; ``schedule`` is then of the rewritten graph.
        made: The plan by which collectives were rewritten, with all that was tried. Its schedule is ``schedule``, but
            in plug-ins: there the rewritten graph is lifted and ordered anew. ``None``: nothing was rewritten.
        refused: Why collectives were not rewritten where that was asked for, a sentence each.
        kept: What the ranks differ in, so that the launch order was kept though the options do not ask for it; ``None``
            where they do not differ, or the graph had to stay as it was.
        sizes: Data-dependent sizes on which memory figures rest, and with them the budget.
        undeclared: Operators of other libraries of which nothing was said (:func:`overlap_sched.declare_operator`), and
            whether they are taken for communication.
        cached: Torch has found its code in a cache, so nothing else is known of it.
    """

    name: str
    schedule: Schedule | None = None
    changed: bool = False
    reason: str | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    lift_s: float = 0.0
    kept: str | None = None
    rewrites: tuple[Rewrite, ...] = ()
    made: Plan | None = None
    sizes: tuple[AssumedSize, ...] = ()
    refused: tuple[str, ...] = ()
    undeclared: Mapping[str, bool] = field(default_factory=dict)
    cached: bool = False

    @property
    def on_undeclared(self) -> str | None:
        """One sentence on them; ``None``: they make no difference here."""
        options = Options() if self.schedule is None else self.schedule.options
        keeps = self.kept is not None or (self.schedule is not None and options.preserve_collective_order != "none")
        apart = self.schedule is not None and options.concurrent_groups != "any"
        return undeclared_text(self.undeclared, keeps, apart)

    @property
    def became(self) -> str:
        """``reordered``, ``3 rewrites, not reordered: ...``, ``left as it was: ...``."""
        if self.cached:
            return "out of torch's caches, in the order that was cached"
        if self.changed:
            return "reordered"
        if self.made is None or not self.made.rewrites:
            return f"left as it was: {self.reason}"
        return f"{count(len(self.made.rewrites), 'rewrite')}, not reordered: {self.reason}"

    @property
    def exposed_us(self) -> tuple[float, float] | None:
        """Predicted exposed time before and after; ``None``: the graph is as it was."""
        if self.schedule is None or (self.made is None and not self.changed):
            return None
        before, after = self.schedule.original.exposed_us, self.schedule.scheduled.exposed_us
        if self.changed or self.made is None:
            return before, after
        return self.made.schedule.original.exposed_us, before  # the rewritten graph stands as it was scheduled

    def __str__(self) -> str:
        """A few lines for people."""
        lines = [f"{self.name}: {self.became}", *([f"  {self.kept}"] if self.kept is not None else [])]
        plan, rewritten = self.schedule, len(self.rewrites)
        if plan is not None:
            lines.append(f"  before  {_figures(plan.original)}")
            if self.changed:
                lines.append(f"  after   {_figures(plan.scheduled)}")
                lines += [f"  {count(rewritten, 'rewrite')} of collectives"] if rewritten else []
            lines.append(f"  peak budget {size(plan.budget_bytes)} ({plan.options.memory_model} memory model)")
            was = self.made.without.problem if self.made is not None and self.made.schedule is plan else None
            said = [
                sizes_assumed(self.sizes),
                *(figures_text(reserved_rows(reserved_of(plan, was))) if self.changed else ()),
            ]
            lines += [f"  {line}" for line in (*said, short_text(plan), together_text(plan)) if line]
            lines.append(
                f"  {count(len(plan.problem.nodes), 'node')}, {collectives_text(plan.problem)}; "
                f"lifted in {self.lift_s:.2f} s, scheduled in {plan.schedule_s:.2f} s"
            )
        lines += [f"  not rewritten: {why}" for why in self.refused]
        lines += [f"  {self.on_undeclared}"] if self.on_undeclared is not None else []
        if self.notes:
            lines.append("  notes: " + ", ".join(f"{name} {count}" for name, count in self.notes.items()))
        return "\n".join(lines)


def _figures(figures: Figures) -> str:
    return f"step {duration(figures.step_us)}, {duration(figures.exposed_us)} exposed, peak {size(figures.peak_bytes)}"


Scheduler = Callable[[Problem, Options], Schedule]
"""Makes the order of a lifted graph: :func:`overlap_sched.schedule`, or what ranks have decided by then."""


def schedule_graph(
    gm: fx.GraphModule | fx.Graph,
    options: Options | None = None,
    *,
    scheduler: Scheduler | None = None,
    **lift_arguments: Any,
) -> Report:
    """Reorder a graph in place so that its communication hides behind its compute, within the memory budget.

    Args:
        gm: A graph whose nodes have ``meta["val"]``, after AOTAutograd. A module is recompiled.
        options: How; ``None``: the defaults (zero headroom).
        scheduler: Makes the order; ``None``: :func:`~overlap_sched.schedule`.
        **lift_arguments: What :func:`overlap_sched.fx.lift` takes, but for ``memory_model``, which is in ``options``:
            ``cost``, ``model``, ``parameters``, ``donated``, ``name``, ``groups``, ``ranks_per_node``,
            ``cluster`` and ``fusion``.

    Returns:
        A report. Where anything fails the graph is as it was, the report says why, and so does a warning.

    Raises:
        VerificationError: With ``options.strict``, instead of that warning.
        OptionsError: An argument is one that it does not take, or no cost model.
    """
    options = options_given(options)
    check_names("schedule_graph", "gm, ", lift_arguments, LIFTING)
    check_model(lift_arguments.get("model"))
    before = list(graph_of(gm).nodes)
    try:
        report = _schedule_graph(gm, options, lift_arguments, scheduler or schedule)
    except (VerificationError, SequenceError):
        raise
    except Exception as error:  # a pass that fails must not take the compilation with it
        name = str(lift_arguments.get("name") or type(gm).__name__)
        reason = f"{type(error).__name__}: {error}"
        if list(graph_of(gm).nodes) != before:
            reorder(gm, before)
        if options.strict:
            raise VerificationError(f"scheduling {name!r} failed: {reason}") from error
        warnings.warn(f"overlap_sched leaves {name!r} as it was: {reason}", OverlapSchedWarning, stacklevel=2)
        return Report(name, reason=reason)
    if scheduler is None and report.schedule is not None and report.schedule.short_bytes:
        message = f"overlap_sched, {report.name!r}: {short_text(report.schedule)}"
        warnings.warn(message, OverlapSchedWarning, stacklevel=2)
    return report


def _schedule_graph(
    gm: fx.GraphModule | fx.Graph, options: Options, lift_arguments: Mapping[str, Any], scheduler: Scheduler
) -> Report:
    began = time.perf_counter()
    lifted = lift(gm, memory_model=options.memory_model, **lift_arguments)
    lift_s = time.perf_counter() - began
    name, report = lifted.problem.name, report_on(lifted, options, lift_s)
    if not lifted.problem.collectives and options.base == "original":
        said = collectives_text(lifted.problem)
        return replace(report, reason=NO_COLLECTIVES if said.startswith("0") else f"{NO_COLLECTIVES} to move: {said}")
    if may_rewrite([lifted.nodes[v] for v in lifted.problem.collectives], options):
        made = plan_lifted(lifted, options, alike_of(gm))
        report = replace(report, schedule=made.schedule, refused=made.refused)
        if made.rewrites:
            try:
                pending = prepare(gm, made.rewrites, made.schedule.problem.names(made.schedule.order))
            except RewriteError as error:  # the order without rewrites can still be had
                if options.strict:
                    raise
                warnings.warn(f"overlap_sched rewrites nothing in {name!r}: {error}", OverlapSchedWarning, stacklevel=3)
                report = replace(report, schedule=None, refused=(*made.refused, str(error)))
            else:
                pending.commit()
                return replace(report, changed=True, rewrites=made.rewrites, made=made)
    plan = report.schedule or scheduler(lifted.problem, on_devices(options, lifted.devices))
    if stays(plan):
        missing = lifted.notes.get("no_val", 0)
        rests = (
            f"; {count(missing, 'node')} without meta['val'] count as 0 bytes and next to no time" if missing else ""
        )
        return replace(report, schedule=plan, reason=why_no_better(plan) + rests)
    reorder(gm, lifted.reordered(plan.order))
    return replace(report, schedule=plan, changed=True)


def report_on(lifted: LiftedNodes[Any], options: Options, lift_s: float) -> Report:
    """Return the report on a graph before it is scheduled."""
    notes = {**lifted.notes, **pin_notes(lifted.problem, options.pins)}
    return Report(lifted.problem.name, notes=notes, lift_s=lift_s, sizes=lifted.sizes, undeclared=lifted.undeclared)


def stays(plan: Schedule) -> bool:
    """Tell whether a graph keeps its order: there is no other one, or nothing to hide and no clearly lower peak."""
    if plan.order == plan.problem.original_order:
        return True
    falls = plan.scheduled.peak_bytes <= (1 - CLEARLY) * plan.original.peak_bytes
    return not plan.problem.collectives and not falls
