"""What became of every compiled graph: kept, logged, traced.

- ``overlap_sched.reports()``: the last 256 in this process.
- The logger ``overlap_sched``: one line per graph on rank 0 (INFO), the whole report (DEBUG). It is a name that torch's
  own logging takes: ``TORCH_LOGS="overlap_sched"`` or ``TORCH_LOGS="+overlap_sched"``.
- torch's structured trace (``TORCH_TRACE``, tlparse), where that is on: the artifact ``overlap_sched_report``.
"""

import json
import logging
import warnings
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch._logging import trace_structured

from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.problem import Kind
from overlap_sched.scheduler.result import Figures

log = logging.getLogger("overlap_sched")

Stage = Literal["inductor", "post_grad", "backend"]
"""Where a graph was scheduled: Inductor's scheduler nodes; the FX graph before lowering; the FX graph that runs."""

KEPT = 256
_reports: "deque[GraphReport]" = deque(maxlen=KEPT)


@dataclass(frozen=True)
class GraphReport:
    """What became of one compiled graph.

    Attributes:
        name: ``"backward 0/0"``: what it is, and torch's compile id.
        stage: Where it was scheduled.
        report: Figures, order, decisions; or why the graph is as it was.
        settings: What was switched for it: torch's own reorderers that are off, passes that run before ours.
    """

    name: str
    stage: Stage
    report: Report
    settings: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line for the log."""
        report, plan = self.report, self.report.schedule
        kept = "" if report.kept is None else f"; {report.kept}"
        if not report.changed or plan is None:
            return f"{self.name} ({self.stage}): left as it was: {report.reason}{kept}"
        before, after = plan.original, plan.scheduled
        return (
            f"{self.name} ({self.stage}): {len(plan.problem.collectives)} collectives, "
            f"exposed {before.exposed_us / 1e3:.3f} -> {after.exposed_us / 1e3:.3f} ms of a step of "
            f"{before.step_us / 1e3:.3f} -> {after.step_us / 1e3:.3f} ms, "
            f"peak {before.peak_bytes / 2**20:.1f} -> {after.peak_bytes / 2**20:.1f} MiB (predicted){kept}"
        )

    def __str__(self) -> str:
        """All of it."""
        return "\n".join([f"{self.stage}: {self.report}", *(f"  setting: {setting}" for setting in self.settings)])

    def to_json(self) -> dict[str, Any]:
        """For the structured trace: names instead of ids."""
        plan = self.report.schedule
        return {
            "name": self.name,
            "stage": self.stage,
            "changed": self.report.changed,
            "reason": self.report.reason,
            "launch_order_kept": self.report.kept,
            "notes": dict(self.report.notes),
            "settings": list(self.settings),
            "original": _figures(plan.original if plan else None),
            "scheduled": _figures(plan.scheduled if plan else None),
            "order": [plan.problem.nodes[v].name for v in plan.order if plan.problem.nodes[v].kind is not Kind.INPUT]
            if plan
            else [],
        }


def _figures(figures: Figures | None) -> dict[str, float] | None:
    return None if figures is None else asdict(figures)


def reports() -> tuple[GraphReport, ...]:
    """What became of the graphs compiled in this process, oldest first; the last 256 are kept."""
    return tuple(_reports)


def clear_reports() -> None:
    """Forget them."""
    _reports.clear()


def record(report: GraphReport) -> None:
    """Keep, log and trace. To be called when the order is settled: nothing that fails here changes it any more."""
    try:
        _reports.append(report)
        if rank() == 0:
            log.info("%s", report.line)
        log.debug("%s", report)
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": "overlap_sched_report", "encoding": "json"},
            payload_fn=lambda: json.dumps(report.to_json()),
        )
    except Exception as error:  # a report that cannot be written must not stop a compilation
        warn(f"overlap_sched could not report on {report.name!r}: {type(error).__name__}: {error}")


def warn(message: str) -> None:
    """Warn, and never raise: where warnings are errors it is logged instead, since a job is running."""
    try:
        warnings.warn(message, OverlapSchedWarning, stacklevel=3)
    except OverlapSchedWarning:
        log.warning("%s", message)


def rank() -> int:
    """This process's rank; 0 where nothing is distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def several_ranks() -> bool:
    """Whether more than one rank compiles (with torch's ``fake`` process group one process stands for all)."""
    up = dist.is_available() and dist.is_initialized()
    return up and dist.get_world_size() > 1 and dist.get_backend() != "fake"


def no_collectives(name: str) -> Report:
    """The report of a graph without communication."""
    hint = (
        ". fully_shard (FSDP2), DDP and other hooks launch theirs outside of the graph, where they cannot be moved. "
        "Shard with functional collectives or DTensor instead"
        if several_ranks()
        else ""
    )
    return Report(name, reason=f"{NO_COLLECTIVES}{hint}")
