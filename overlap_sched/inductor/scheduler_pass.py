"""The pass after Inductor's fusion: its nodes in, the same nodes in our order out, or as they were.

    scheduler nodes -> torch's own passes -> problem -> schedule -> all ranks agree -> nodes in that order
            any failure before the ranks agree: the nodes as torch has them, and why

How that is kept: :mod:`overlap_sched.inductor.attempt`. torch has passes behind the place where it calls ours
(``simple_overlap``, the one that joins partitions for CUDA graphs). They would undo our order. So ours is put off until
they have run: what it starts from, what memory is counted from and what no step is longer than is what torch alone
makes. Nothing of torch has to be switched off for it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.apply import NO_COLLECTIVES, Report, stays
from overlap_sched.inductor.agree import asks, graph_key
from overlap_sched.inductor.attempt import Attempt
from overlap_sched.inductor.cache_key import settings_key
from overlap_sched.inductor.cached_orders import watched, with_rewrites
from overlap_sched.inductor.console import log, warn
from overlap_sched.inductor.read_back import Planned, read_back
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.versions import check_torch
from overlap_sched.options import on_devices
from overlap_sched.problem.pins import pin_notes
from overlap_sched.report.words.schedule import why_no_better
from overlap_sched.scheduler.driver import no_collection

if TYPE_CHECKING:
    from overlap_sched.inductor.lift.lifting import LiftedKernels


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
        original, attempt, planned = _effects_kept(list(snodes)), Attempt(self.settings), Planned(last)
        kept = _kept(original, attempt)
        try:
            report = attempt.decided(lambda known: _plan(kept if known.keeps else original, kept, known, planned))
        except Exception as error:  # on this rank alone, before it could agree
            report = attempt.failed(error)
        ordered = planned.ordered if report.changed else kept if attempt.keeps else original
        steps = [
            (f"keeps {attempt.name!r} out of torch's cache", partial(_annotate, attempt)),
            ("could not tell torch the sizes of buffers", partial(_tell_planner, report, planned)),
            (f"could not report on {attempt.name!r}", partial(_report, attempt, report, planned)),
        ]
        for what, step in steps:
            try:
                step()
            except Exception as error:  # the order is settled
                warn(f"overlap_sched {what}", error)
        return ordered

    def __reduce__(self) -> tuple[Any, ...]:
        """How torch's caches see this pass: by its name, see :func:`overlap_sched.inductor.cache_key.settings_key`.

        Raises:
            TypeError: It has none; torch then compiles without its caches.
        """
        try:
            name = settings_key(self.settings) if watched(self.settings) else None
        except Exception:  # torch goes on without its caches on a TypeError alone
            name = None
        if name is None:
            raise TypeError("this overlap_sched pass has no stable cache key: compile without caches")
        return (_named, (name, self.settings))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SchedulerPass":
        """Itself: it never changes, and torch copies its settings often."""
        return self


def _effects_kept(snodes: list[Any]) -> list[Any]:
    """The nodes with effects in the order of the FX graph, whatever becomes of our own order."""
    try:
        check_torch()
        from overlap_sched.inductor.lift.graph_order import in_order_of_effects

        ordered = in_order_of_effects(snodes)
    except Exception:  # planning, which asks again, says why
        return snodes
    if ordered is not snodes:
        warn("torch's scheduler runs operators against the order of their effects: overlap_sched has put them in order")
    return ordered


def _named(name: str, settings: Settings) -> SchedulerPass:
    """A pass back from its pickle; the name is there for the hash only."""
    return SchedulerPass(settings)


def _kept(snodes: list[Any], attempt: Attempt) -> list[Any]:
    """List what runs where ranks that differ keep their launches; found before they are asked, so it cannot fail."""
    try:
        if not asks(attempt.settings):
            return snodes
        check_torch()
        from overlap_sched.inductor.lift.graph_order import in_graph_order

        return in_graph_order(snodes)
    except Exception as error:  # as torch has them
        log.debug("the order of launches in the graph is not known: %s", error)
        return snodes


@no_collection()
def _plan(snodes: list[Any], kept: list[Any], attempt: Attempt, planned: Planned) -> Report:
    """Plan what this rank would do by itself; more is noted in ``attempt`` and ``planned``.

    The nodes are in their original order; ``kept``: with the launches that ranks keep where they differ.
    """
    check_torch()
    from overlap_sched.inductor import private
    from overlap_sched.inductor.lift.graph_order import in_order_of_effects, kernel_traffic, launch_places
    from overlap_sched.inductor.lift.lifting import lift_kernels

    in_order_of_effects(snodes)  # or it cannot be had
    settings = attempt.settings
    attempt.name = private.graph_name()
    communicates = any(private.contains_collective(snode) for snode in snodes)
    if not communicates and settings.options.base == "original":
        return Report(attempt.name, reason=NO_COLLECTIVES)
    if communicates and asks(settings):
        attempt.key, traffic = graph_key(private.V.graph.graph, settings.stage), kernel_traffic(kept)
        attempt.launches = None if traffic is None else traffic.launches
        here = kernel_traffic(snodes)
        attempt.original, attempt.standing = here if planned.last else None, None if here is None else here.launches
        attempt.places = launch_places(snodes, attempt.launches or ())
    began = time.perf_counter()
    lifted = planned.lifted = lift_kernels(snodes, name=attempt.name, **settings.costs)
    known: dict[str, Any] = {
        "notes": {**lifted.notes, **pin_notes(lifted.problem, settings.options.pins)},
        "undeclared": lifted.undeclared,
        "sizes": lifted.sizes,
    }
    known["lift_s"] = time.perf_counter() - began
    problem = attempt.problem = lifted.problem
    plan = attempt.scheduled(problem, on_devices(settings.options, private.V.graph.device_types))
    if stays(plan):
        return Report(problem.name, plan, reason=why_no_better(plan), **known)
    began = time.perf_counter()
    planned.ordered = _put_in_order(snodes, lifted, plan.order)
    before, after = private.cuda_graphs(snodes), private.cuda_graphs(planned.ordered)
    if after > before and attempt.in_force is None:
        reason = f"no better order was found: the one found cuts the graph into {after} parts for CUDA graphs"
        return Report(problem.name, plan, reason=f"{reason}, not {before}", **known)
    if attempt.key is not None:
        attempt.planned = kernel_traffic(planned.ordered)
    return Report(problem.name, plan, True, reorder_s=time.perf_counter() - began, **known)


def _put_in_order(snodes: Sequence[Any], lifted: "LiftedKernels", order: Sequence[int]) -> list[Any]:
    """The nodes in an order, checked against what torch gave us: the same nodes, each once.

    Raises:
        UnsupportedError: Some node is missing or there twice.
    """
    ordered = lifted.reordered(order)
    if len(ordered) != len(snodes) or {id(snode) for snode in ordered} != {id(snode) for snode in snodes}:
        raise UnsupportedError(
            f"the order has {len(ordered)} nodes and the graph has {len(snodes)}. "
            "It must hold the same nodes, each once."
        )
    return ordered


def _annotate(attempt: Attempt) -> None:
    """Have the code carry its order into torch's cache; code that communicates and carries none is not cached."""
    if attempt.cached is not None:
        from overlap_sched.inductor import private

        cached = with_rewrites(attempt.cached, private.V.graph.graph)
        if cached is not None:
            private.annotate(cached.line)


def _tell_planner(report: Report, planned: Planned) -> None:
    """Where the order is ours; else torch's estimate stays as it was."""
    if report.changed:
        from overlap_sched.inductor.lift.buffers import tell_sizes

        assert planned.lifted is not None
        tell_sizes(planned.ordered, planned.lifted.buffers)


def _report(attempt: Attempt, report: Report, planned: Planned) -> None:
    """Report when the code is written, on the order that it has; at once where nothing was reordered."""
    try:
        from overlap_sched.inductor import private

        if report.changed and private.when_written(
            planned.ordered, lambda written: read_back(attempt, report, planned, written)
        ):
            return
    except Exception as error:  # the order is settled
        warn(f"overlap_sched could not read the order of {attempt.name!r} back", error)
    attempt.record(report)
