"""The pass behind Inductor's fusion: its nodes in, the same nodes in our order out, or as they were.

    scheduler nodes -> problem -> schedule -> all ranks agree -> nodes in that order
            any failure before the ranks agree: the nodes as they were, and why

What comes after the ranks have agreed (reports, logs) can no longer change the order: one rank that fell back by itself
would launch its collectives in another order than the others, which hangs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from overlap_sched.errors import NotUnderstoodError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.agree import key_of, settle
from overlap_sched.inductor.identity import Settings, uuid
from overlap_sched.inductor.reporting import GraphReport, keep, no_collectives, warn
from overlap_sched.inductor.versions import check_torch
from overlap_sched.schedule import schedule

if TYPE_CHECKING:
    from overlap_sched.inductor.lift import LiftedKernels


class _Planned(NamedTuple):
    """What this rank would do by itself: a report, the graph if it could be lifted, the nodes in order, their key."""

    report: Report
    lifted: "LiftedKernels | None"
    ordered: list[Any]
    key: str | None


@dataclass(frozen=True)
class SchedulerPass:
    """A callable for ``torch._inductor.config.reorder_for_compute_comm_overlap_passes``.

    Attributes:
        settings: How to schedule.
    """

    settings: Settings

    def __call__(self, snodes: list[Any]) -> list[Any]:
        """The nodes in our order, or as they were.

        Raises:
            VerificationError: With ``strict``, instead of a fallback.
            AgreementError: With ``strict``, where the ranks differ.
        """
        original = list(snodes)
        planned = self._planned(original)
        report = settle(
            planned.report, planned.lifted.problem if planned.lifted else None, self.settings.options, planned.key
        )
        keep(GraphReport(report.name, "inductor", report, self.settings.notes))
        if not report.changed or planned.lifted is None:
            return original
        _tell_planner(planned.ordered, planned.lifted)
        return planned.ordered

    def _planned(self, snodes: list[Any]) -> "_Planned":
        name, lifted, key = "a graph", None, None
        try:
            check_torch()
            from overlap_sched.inductor import private
            from overlap_sched.inductor.lift import lift_kernels

            name = private.graph_name()
            if not any(private.contains_collective(snode) for snode in snodes):
                return _Planned(no_collectives(name), None, snodes, None)
            key = key_of(private.V.graph.graph, "inductor")
            began = time.perf_counter()
            lifted = lift_kernels(snodes, name=name, **self.settings.costs)
            report, ordered = self._scheduled(snodes, lifted, time.perf_counter() - began)
            return _Planned(report, lifted, ordered, key)
        except Exception as error:  # a pass that fails must not take the compilation with it
            reason = f"{type(error).__name__}: {error}"
            if self.settings.options.strict:
                raise VerificationError(f"scheduling {name!r} failed: {reason}") from error
            warn(f"overlap_sched leaves {name!r} as it was: {reason}")
            return _Planned(Report(name, reason=reason), lifted, snodes, key)

    def _scheduled(self, snodes: list[Any], lifted: "LiftedKernels", lift_s: float) -> tuple[Report, list[Any]]:
        problem = lifted.problem
        plan = schedule(problem, self.settings.options)
        if plan.order == problem.original_order:
            reason = plan.fell_back or "no better order was found"
            report = Report(problem.name, plan, reason=reason, notes=lifted.notes, lift_s=lift_s)
            return report, snodes
        began = time.perf_counter()
        ordered = _put_in_order(snodes, lifted, plan.order)
        reorder_s = time.perf_counter() - began
        return Report(problem.name, plan, True, None, lifted.notes, lift_s, reorder_s), ordered

    def __reduce__(self) -> tuple[Any, ...]:
        """How torch's caches see this pass: by its name, see :func:`overlap_sched.inductor.identity.uuid`.

        Raises:
            TypeError: It has none; torch then compiles without its caches.
        """
        name = uuid(self.settings)
        if name is None:
            raise TypeError("this overlap_sched pass has no stable name: compile without caches")
        return (_named, (name, self.settings))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SchedulerPass":
        """Itself: it never changes, and torch copies its settings often."""
        return self


def _named(name: str, settings: Settings) -> SchedulerPass:
    """A pass back from its pickle; the name is there for the hash only."""
    return SchedulerPass(settings)


def _put_in_order(snodes: Sequence[Any], lifted: "LiftedKernels", order: Sequence[int]) -> list[Any]:
    """The nodes in an order, checked against what torch gave us: the same nodes, each once.

    Raises:
        NotUnderstoodError: Some node is missing or there twice.
    """
    ordered = lifted.reordered(order)
    if len(ordered) != len(snodes) or {id(snode) for snode in ordered} != {id(snode) for snode in snodes}:
        raise NotUnderstoodError(f"the order has {len(ordered)} nodes, the graph {len(snodes)}, or not the same ones.")
    return ordered


def _tell_planner(ordered: Sequence[Any], lifted: "LiftedKernels") -> None:
    try:
        from overlap_sched.inductor.planner import tell_sizes

        tell_sizes(ordered, lifted.buffers)
    except Exception as error:  # torch's estimate stays as it was
        warn(
            f"overlap_sched could not tell torch the sizes in {lifted.problem.name!r}: {type(error).__name__}: {error}"
        )
