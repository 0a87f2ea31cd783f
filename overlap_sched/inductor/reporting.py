"""What became of every compiled graph: kept, logged, traced.

- ``overlap_sched.reports()``: the last 256 in this process.
- One line on all of them on rank 0, at the end: :mod:`~overlap_sched.inductor.summary`.
- The logger ``overlap_sched``: one line per graph on rank 0 (INFO), the whole report (DEBUG). It is a name that torch's
  own logging takes: ``TORCH_LOGS="overlap_sched"`` or ``TORCH_LOGS="+overlap_sched"``.
- torch's structured trace (``TORCH_TRACE``, tlparse), where that is on: the artifact ``overlap_sched_report``.
"""

import json
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch._logging import trace_structured

from overlap_sched.fx.apply import Report
from overlap_sched.inductor import sessions
from overlap_sched.inductor.console import forget_warnings, log, rank, warn
from overlap_sched.inductor.summary import outcome_of, tally
from overlap_sched.problem import Kind
from overlap_sched.report.units import duration, from_to, size
from overlap_sched.report.words.graph import sizes_assumed
from overlap_sched.report.words.schedule import collectives_text
from overlap_sched.scheduler.driver import Figures

Stage = Literal["inductor", "post_grad", "backend", "titan", "deepspeed"]
"""Where a graph was scheduled: Inductor's scheduler nodes; the FX graph before lowering; the FX graph that runs, of
``backend="overlap_sched"``, of torchtitan or of DeepSpeed."""

KEPT = 256
_reports: "deque[GraphReport]" = deque(maxlen=KEPT)
_notes: "OrderedDict[str, dict[str, Any]]" = OrderedDict()
"""By the names of graphs, fields of their reports that are known before their order is: how they were rewritten."""


@dataclass(frozen=True)
class GraphReport:
    """What became of one compiled graph.

    Attributes:
        name: ``"backward 0/0 of Transformer"``: what it is, and torch's compile id.
        stage: Where it was scheduled.
        report: Figures, order, decisions; or why the graph is as it was.
        settings: What was switched for it: torch's own reorderers that are off, passes that run before ours.
        priced_for: For which device its times are predicted; ``""``: not known.
    """

    name: str
    stage: Stage
    report: Report
    settings: tuple[str, ...] = ()
    priced_for: str = ""

    @property
    def line(self) -> str:
        """One line for the log."""
        report, plan = self.report, self.report.schedule
        kept = "" if report.kept is None else f"; {report.kept}"
        if not report.changed or plan is None:
            gain = report.exposed_us
            became = report.became if gain is None else f"{report.became}; exposed {from_to(*map(duration, gain))}"
            return f"{self.name} ({self.stage}): {became}{kept}"
        kept += f"; {sizes_assumed(report.sizes)}" if report.sizes else ""
        before, after = plan.original, plan.scheduled
        exposed, step = (
            from_to(duration(a), duration(b))
            for a, b in ((before.exposed_us, after.exposed_us), (before.step_us, after.step_us))
        )
        return (
            f"{self.name} ({self.stage}): {collectives_text(plan.problem)}, exposed {exposed} of a "
            f"step of {step}, peak {from_to(size(before.peak_bytes), size(after.peak_bytes))} ({self._predicted}){kept}"
        )

    @property
    def _predicted(self) -> str:
        return f"predicted for {self.priced_for}" if self.priced_for else "predicted"

    def __str__(self) -> str:
        """All of it."""
        lines = [f"{self.stage}: {self.report}"]
        if self.report.schedule is not None:
            lines.append(f"  times are {self._predicted}")
        return "\n".join([*lines, *(f"  setting: {setting}" for setting in self.settings)])

    def to_json(self) -> dict[str, Any]:
        """For the structured trace: names instead of ids."""
        plan = self.report.schedule
        return {
            "name": self.name,
            "stage": self.stage,
            "changed": self.report.changed,
            "reason": self.report.reason,
            "launch_order_kept": self.report.kept,
            "not_rewritten": list(self.report.refused),
            "notes": dict(self.report.notes),
            "sizes": [one._asdict() for one in self.report.sizes],
            "settings": list(self.settings),
            "priced_for": self.priced_for,
            "original": _figures(plan.original if plan else None),
            "scheduled": _figures(plan.scheduled if plan else None),
            "order": [plan.problem.nodes[v].name for v in plan.order if plan.problem.nodes[v].kind is not Kind.INPUT]
            if plan
            else [],
        }


def _figures(figures: Figures | None) -> dict[str, float] | None:
    return None if figures is None else asdict(figures)


def reports() -> tuple[GraphReport, ...]:
    """Report what became of the graphs compiled in this process, oldest first; the last 256 are kept."""
    return tuple(_reports)


def clear_reports() -> None:
    """Forget them; what was warned of may be warned of again."""
    _reports.clear()
    _notes.clear()
    forget_warnings()


def note(name: str, **fields: Any) -> None:
    """Keep fields of a graph's :class:`~overlap_sched.fx.apply.Report` until the report on its order, which follows."""
    _notes.setdefault(name, {}).update(fields)
    while len(_notes) > KEPT:  # compilations that failed behind it
        _notes.popitem(last=False)


def record_cached(name: str, stage: Stage, kept: str | None = None) -> None:
    """Keep and log that torch has found the code of a graph in its caches."""
    _reports.append(GraphReport(name, stage, Report(name, kept=kept, cached=True)))
    if rank() == 0:
        log.info("%s", _reports[-1].line)


def record(report: GraphReport) -> None:
    """Keep, log and trace. To be called when the order is settled: nothing that fails here changes it any more."""
    try:
        report = replace(report, report=replace(report.report, **_notes.pop(report.name, {})))
        _reports.append(report)
        sessions.listen()
        tally.add(outcome_of(report.report, report.priced_for))
        if rank() == 0:
            if report.report.on_undeclared is not None:
                warn(f"overlap_sched: {report.report.on_undeclared}")
            log.info("%s", report.line)
        log.debug("%s", report)
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": "overlap_sched_report", "encoding": "json"},
            payload_fn=lambda: json.dumps(report.to_json()),
        )
    except Exception as error:  # a report that cannot be written must not stop a compilation
        warn(f"overlap_sched could not report on {report.name!r}", error)
