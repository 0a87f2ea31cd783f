"""Inductor's scheduler nodes as a graph to decide on, and what follows when their order is settled."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch._inductor.utils import contains_collective
from torch._inductor.virtualized import V

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.apply import NO_COLLECTIVES, Report, stays
from overlap_sched.inductor.agree import Traffic, asks, graph_key
from overlap_sched.inductor.caches import with_rewrites
from overlap_sched.inductor.decision import LaunchFacts, OrderDraft, PlanRequest, ScheduleCall, decide
from overlap_sched.inductor.graph_order import in_graph_order, in_order_of_effects, kernel_traffic, launch_places
from overlap_sched.inductor.kernels import tell_sizes
from overlap_sched.inductor.lifting import LiftedKernels, lift_kernels
from overlap_sched.inductor.private import cuda_graphs, members, when_written
from overlap_sched.inductor.reporting import guard, log, name_graph, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.judge.replay import replay
from overlap_sched.options import on_devices
from overlap_sched.problem.pins import pin_notes
from overlap_sched.report.units import duration
from overlap_sched.report.words.schedule import why_no_better
from overlap_sched.scheduler.driver import no_collection


def order_kernels(snodes: list[Any], settings: Settings, last: bool) -> list[Any]:
    """The nodes in our order, or as they were, see :class:`~overlap_sched.inductor.scheduler_pass.SchedulerPass`."""
    original = kept = list(snodes)
    try:
        original = kept = in_order_of_effects(original)
        kept = in_graph_order(original) if asks(settings) else original
    except Exception as error:  # planning says why
        log.debug("the order of launches in the graph is not known: %s", error)
    draft = decide(_KernelGraph(original, kept, last), settings)
    with guard(f"keeps {draft.facts.name!r} out of torch's cache"):
        cached = with_rewrites(draft.cached, V.graph.graph)
        if cached is not None:
            V.graph.wrapper_code.header.writeline(f"{'//' if V.graph.cpp_wrapper else '#'} {cached.line}")
    if not draft.report.changed:
        draft.record()
        return kept if draft.how.keeps else original
    with guard("could not tell torch the sizes of buffers"):
        tell_sizes(draft.order, _lifted(draft).buffers)
    told = False
    with guard(f"could not read the order of {draft.facts.name!r} back"):
        told = when_written(draft.order, partial(_read_back, draft, last))
    if not told:
        draft.record()
    return list(draft.order)


@dataclass
class _KernelGraph:
    """A :class:`~overlap_sched.inductor.decision.Graph` of Inductor's scheduler nodes.

    Attributes:
        snodes: In their original order.
        kept: With the launches that ranks keep where they differ; found before they are asked, so it cannot fail.
        last: Whether the order comes last, behind all passes of torch.
    """

    snodes: list[Any]
    kept: list[Any]
    last: bool

    def read(self, how: PlanRequest) -> LaunchFacts:
        graph, snodes = V.graph, self.kept if how.keeps else self.snodes
        kind = "inference" if graph.is_inference else "backward" if graph.is_backward else "forward"
        name = name_graph(kind, graph.name or "", graph.graph_id)
        if not asks(how.settings) or not any(map(contains_collective, snodes)):
            return LaunchFacts(name)
        kept, here = kernel_traffic(self.kept), kernel_traffic(snodes)
        launches, standing = (None if traffic is None else traffic.launches for traffic in (kept, here))
        key, places = graph_key(graph.graph, how.settings.stage), launch_places(snodes, launches or ())
        return LaunchFacts(name, key, launches, here if self.last else None, standing, places)

    @no_collection()
    def plan(self, how: PlanRequest, facts: LaunchFacts, schedule: ScheduleCall) -> tuple[Report, Sequence[Any]]:
        snodes, options = self.kept if how.keeps else self.snodes, how.settings.options
        in_order_of_effects(snodes)  # or it cannot be had
        if not any(map(contains_collective, snodes)) and options.base == "original":
            return Report(facts.name, reason=NO_COLLECTIVES), ()
        began = time.perf_counter()
        lifted = lift_kernels(snodes, name=facts.name, **how.settings.costs)
        lift_s, problem = time.perf_counter() - began, lifted.problem
        made = schedule(problem, on_devices(options, V.graph.device_types))
        report = Report(
            problem.name,
            made,
            notes={**lifted.notes, **pin_notes(problem, options.pins)},
            undeclared=lifted.undeclared,
            sizes=lifted.sizes,
            lift_s=lift_s,
        )
        if stays(made):
            return replace(report, reason=why_no_better(made)), ()
        began = time.perf_counter()
        ordered = _KernelOrder(lifted.reordered(made.order))
        ordered.lifted = lifted
        if len(ordered) != len(snodes) or {id(snode) for snode in ordered} != {id(snode) for snode in snodes}:
            raise UnsupportedError(
                f"the order has {len(ordered)} nodes and the graph has {len(snodes)}. It must hold the same nodes, "
                "each once."
            )
        before, after = cuda_graphs(snodes), cuda_graphs(ordered)
        if after > before and not how.in_force:
            reason = f"no better order was found: the one found cuts the graph into {after} parts for CUDA graphs"
            return replace(report, reason=f"{reason}, not {before}"), ()
        return replace(report, changed=True, reorder_s=time.perf_counter() - began), ordered

    def traffic(self, order: Sequence[Any]) -> Traffic | None:
        return kernel_traffic(order)


class _KernelOrder(list[Any]):
    """Scheduler nodes in an order, and what they were lifted to."""

    lifted: LiftedKernels


def _lifted(draft: OrderDraft) -> LiftedKernels:
    assert isinstance(draft.order, _KernelOrder)
    return draft.order.lifted


def _read_back(draft: OrderDraft, last: bool, written: Sequence[Any]) -> None:
    """Record the report of a reordered graph, corrected where its code has another order. Never raises.

    ``written`` are the scheduler nodes in the order of their code; fewer where torch has failed on the way.
    """
    report = draft.report
    with guard(f"could not read the order of {report.name!r} back"):
        expected, found = (
            [one.get_name() for snode in some for one in members(snode)] for some in (draft.order, written)
        )
        known = set(expected)
        if len(found) >= len(expected) and [name for name in found if name in known] != expected:
            who = "other code, behind torch's passes" if last else "torch's own passes behind it, or other code"
            reason = f"its new order was undone by {who}"
            report = replace(report, changed=False, reason=f"{reason}{_exposed_text(_lifted(draft), written)}")
            warn(f"overlap_sched: {report.name!r} does not run in its new order: {report.reason}")
    draft.record(report)


def _exposed_text(lifted: LiftedKernels, written: Sequence[Any]) -> str:
    try:
        return f"; {duration(replay(lifted.problem, lifted.order_of(written)).exposed_us)} stay exposed"
    except Exception:  # nodes that were not there before
        return ""
