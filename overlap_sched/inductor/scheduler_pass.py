"""The pass after Inductor's fusion: its nodes in, the same nodes in our order out, or as they were.

    scheduler nodes -> torch's own passes -> problem -> schedule -> all ranks agree -> nodes in that order
            any failure before the ranks agree: the nodes as torch has them, and why

How that is kept: :mod:`overlap_sched.inductor.decision`. torch has passes behind the place where it calls ours
(``simple_overlap``, the one that joins partitions for CUDA graphs). They would undo our order. So ours is deferred
until they have run: what it starts from, what memory is counted from and what no step is longer than is what torch
alone makes. Nothing of torch has to be switched off for it.

What is reported is the order that the generated code has, compared when the code is written.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.apply import NO_COLLECTIVES, Report, stays
from overlap_sched.inductor.agree import asks, graph_key
from overlap_sched.inductor.caches import settings_key, watch_caches, with_rewrites
from overlap_sched.inductor.decision import GraphPlan, LaunchFacts, OrderDraft, PlanRequest, ScheduleCall, decide
from overlap_sched.inductor.reporting import log, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.judge.replay import replay
from overlap_sched.options import on_devices
from overlap_sched.problem.pins import pin_notes
from overlap_sched.report.units import duration
from overlap_sched.report.words.schedule import why_no_better
from overlap_sched.scheduler.driver import no_collection

if TYPE_CHECKING:
    from overlap_sched.inductor.lifting import LiftedKernels

SUPPORTED = ((2, 11), (2, 15))
"""First and last minor version of torch whose scheduler we have read and run."""


def knows_torch(version: str = torch.__version__) -> bool:
    """Tell whether the private names of a version of torch mean what we think."""
    first, last = SUPPORTED
    return first <= tuple(int(part) for part in version.split(".")[:2]) <= last


def explain_version(version: str = torch.__version__) -> str:
    """The message for a version that is not known."""
    first, last = (".".join(map(str, one)) for one in SUPPORTED)
    return (
        f"this is torch {version}, and overlap_sched supports the Inductor scheduler of torch {first} to {last}. "
        "Use one of these, or schedule FX graphs (backend='overlap_sched' or schedule_graph), which works with "
        "any version."
    )


def check_torch(version: str = torch.__version__) -> None:
    """Refuse versions of torch whose private names may mean something else.

    Raises:
        UnsupportedError: It is older or newer than those seen.
    """
    if not knows_torch(version):
        raise UnsupportedError(explain_version(version))


@dataclass(frozen=True)
class SchedulerPass:
    """A callable for ``torch._inductor.config.reorder_for_compute_comm_overlap_passes``.

    Attributes:
        settings: How to schedule.
    """

    settings: Settings

    def __call__(self, snodes: list[Any]) -> list[Any]:
        """The nodes as they are: they are put in order behind torch's own passes. Where that cannot be, in our order.

        Raises:
            VerificationError, AgreementError: As :meth:`order`.
        """
        try:
            from overlap_sched.inductor import private

            if private.at_the_end(snodes, partial(self.order, last=True)):
                return snodes
        except Exception as error:
            warn("overlap_sched runs in front of torch's last passes", error)
        return self.order(list(snodes))

    def order(self, snodes: list[Any], last: bool = False) -> list[Any]:
        """The nodes in our order, or as they were; ``last``: no pass of torch runs behind this one.

        Raises:
            VerificationError, AgreementError: With ``strict``, instead of a fallback.
        """
        original = kept = list(snodes)
        try:
            original = kept = _keep_effects(original)
            kept = _keep_launches(original) if asks(self.settings) else original
        except Exception as error:  # planning says why
            log.debug("the order of launches in the graph is not known: %s", error)
        graph = _KernelGraph(original, kept, last)
        draft = decide(graph, self.settings)
        steps = [
            (f"keeps {draft.facts.name!r} out of torch's cache", _annotate),
            ("could not tell torch the sizes of buffers", _tell_planner),
            (f"could not report on {draft.facts.name!r}", _report),
        ]
        for what, step in steps:
            try:
                step(draft, last)
            except Exception as error:  # the order is settled
                warn(f"overlap_sched {what}", error)
        return list(draft.plan.order) if draft.report.changed else kept if draft.how.keeps else original

    def __reduce__(self) -> tuple[Any, ...]:
        """How torch's caches see this pass: by its name, see :func:`overlap_sched.inductor.caches.settings_key`.

        Raises:
            TypeError: It has none; torch then compiles without its caches.
        """
        try:
            name = settings_key(self.settings) if watch_caches(self.settings) else None
        except Exception:  # torch goes on without its caches on a TypeError alone
            name = None
        if name is None:
            raise TypeError("this overlap_sched pass has no stable cache key: compile without caches")
        return (_unpickle, (name, self.settings))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SchedulerPass":
        """Itself: it never changes, and torch copies its settings often."""
        return self


def _unpickle(name: str, settings: Settings) -> SchedulerPass:
    """A pass back from its pickle; the name is there for the hash only."""
    return SchedulerPass(settings)


def _keep_effects(snodes: list[Any]) -> list[Any]:
    """The nodes with effects in the order of the FX graph, whatever becomes of our own order."""
    check_torch()
    from overlap_sched.inductor.graph_order import in_order_of_effects

    ordered = in_order_of_effects(snodes)
    if ordered is not snodes:
        warn("torch's scheduler runs operators against the order of their effects: overlap_sched has put them in order")
    return ordered


def _keep_launches(snodes: list[Any]) -> list[Any]:
    """List what runs where ranks that differ keep their launches; found before they are asked, so it cannot fail."""
    from overlap_sched.inductor.graph_order import in_graph_order

    return in_graph_order(snodes)


@dataclass
class _KernelGraph:
    """A :class:`~overlap_sched.inductor.decision.Graph` of Inductor's scheduler nodes.

    Attributes:
        snodes: In their original order.
        kept: With the launches that ranks keep where they differ.
        last: Whether the order comes last, behind all passes of torch.
    """

    snodes: list[Any]
    kept: list[Any]
    last: bool

    def read(self, how: PlanRequest) -> LaunchFacts:
        check_torch()
        from overlap_sched.inductor import private
        from overlap_sched.inductor.graph_order import kernel_traffic, launch_places

        snodes, name = self.kept if how.keeps else self.snodes, private.graph_name()
        if not asks(how.settings) or not private.communicates(snodes):
            return LaunchFacts(name)
        key, kept, here = (
            graph_key(private.lowered().graph, how.settings.stage),
            *map(kernel_traffic, (self.kept, snodes)),
        )
        launches, standing = (None if traffic is None else traffic.launches for traffic in (kept, here))
        places = launch_places(snodes, launches or ())
        return LaunchFacts(name, key, launches, here if self.last else None, standing, places)

    @no_collection()
    def plan(self, how: PlanRequest, facts: LaunchFacts, schedule: ScheduleCall) -> GraphPlan:
        from overlap_sched.inductor import private
        from overlap_sched.inductor.graph_order import in_order_of_effects, kernel_traffic
        from overlap_sched.inductor.lifting import lift_kernels

        snodes, options = self.kept if how.keeps else self.snodes, how.settings.options
        in_order_of_effects(snodes)  # or it cannot be had
        communicates = private.communicates(snodes)
        if not communicates and options.base == "original":
            return GraphPlan(Report(facts.name, reason=NO_COLLECTIVES), communicates=False)
        began = time.perf_counter()
        lifted = lift_kernels(snodes, name=facts.name, **how.settings.costs)
        lift_s, problem = time.perf_counter() - began, lifted.problem
        made = schedule(problem, on_devices(options, private.lowered().device_types))
        report = Report(
            problem.name,
            made,
            notes={**lifted.notes, **pin_notes(problem, options.pins)},
            undeclared=lifted.undeclared,
            sizes=lifted.sizes,
            lift_s=lift_s,
        )
        if stays(made):
            return GraphPlan(replace(report, reason=why_no_better(made)), problem=problem)
        ordered = KernelOrder(lifted.reordered(made.order), lifted)
        if len(ordered) != len(snodes) or {id(snode) for snode in ordered} != {id(snode) for snode in snodes}:
            raise UnsupportedError(
                f"the order has {len(ordered)} nodes and the graph has {len(snodes)}. It must hold the same nodes, "
                "each once."
            )
        before, after = private.cuda_graphs(snodes), private.cuda_graphs(ordered)
        if after > before and not how.in_force:
            reason = f"no better order was found: the one found cuts the graph into {after} parts for CUDA graphs"
            return GraphPlan(replace(report, reason=f"{reason}, not {before}"), problem=problem)
        traffic = None if facts.key is None else kernel_traffic(ordered)
        return GraphPlan(replace(report, changed=True), ordered, traffic, problem)


class KernelOrder(list[Any]):
    """Scheduler nodes in an order, and what they were lifted to."""

    def __init__(self, snodes: Sequence[Any], lifted: "LiftedKernels") -> None:
        super().__init__(snodes)
        self.lifted = lifted


def _annotate(draft: OrderDraft, last: bool) -> None:
    """Have the code carry its order into torch's cache; code that communicates and carries none is not cached."""
    if draft.cached is not None:
        from overlap_sched.inductor import private

        cached = with_rewrites(draft.cached, private.lowered().graph)
        if cached is not None:
            private.annotate(cached.line)


def _tell_planner(draft: OrderDraft, last: bool) -> None:
    """Tell Inductor's memory planner the sizes of buffers where the order is ours."""
    if draft.report.changed:
        from overlap_sched.inductor.kernels import tell_sizes

        assert isinstance(draft.plan.order, KernelOrder)
        tell_sizes(draft.plan.order, draft.plan.order.lifted.buffers)


def _report(draft: OrderDraft, last: bool) -> None:
    """Report when the code is written, on the order that it has; at once where nothing was reordered."""
    try:
        from overlap_sched.inductor import private

        if draft.report.changed and private.when_written(draft.plan.order, partial(read_back, draft, last)):
            return
    except Exception as error:  # the order is settled
        warn(f"overlap_sched could not read the order of {draft.facts.name!r} back", error)
    draft.record()


def read_back(draft: OrderDraft, last: bool, written: Sequence[Any]) -> None:
    """Record the report of a reordered graph, corrected where its code has another order. Never raises.

    ``written`` are the scheduler nodes in the order of their code; fewer where torch has failed on the way.
    """
    report = draft.report
    try:
        expected, found = _names(draft.plan.order), _names(written)
        known = set(expected)
        if len(found) >= len(expected) and [name for name in found if name in known] != expected:
            report = replace(report, changed=False, reason=_explain_undoing(draft.plan.order, last, written))
            warn(f"overlap_sched: {report.name!r} does not run in its new order: {report.reason}")
    except Exception as error:  # the code is written
        warn(f"overlap_sched could not read the order of {report.name!r} back", error)
    try:
        draft.record(report)
    except Exception as error:
        warn(f"overlap_sched could not report on {report.name!r}", error)


def _names(snodes: Sequence[Any]) -> list[str]:
    from overlap_sched.inductor import private

    return [member.get_name() for snode in snodes for member in private.members(snode)]


def _explain_undoing(order: Any, last: bool, written: Sequence[Any]) -> str:
    """Say who has undone an order, and what stays exposed in the one that was written, where that is known."""
    from overlap_sched.inductor import private

    theirs = [] if last else private.passes_behind()
    who = f"torch's {' or '.join(theirs)}" if theirs else "other code, behind torch's passes"
    try:
        exposed_us = replay(order.lifted.problem, order.lifted.order_of(written)).exposed_us
    except Exception:  # nodes that were not there before
        return f"its new order was undone by {who}"
    return f"its new order was undone by {who}; {duration(exposed_us)} stay exposed"
