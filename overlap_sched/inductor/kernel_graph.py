"""Inductor's scheduler nodes as a graph to decide on, and what follows when their order is settled.

What must stand as in the FX graph that Inductor lowers, where torch reorders it: effects and launches.

torch says of its scheduler that it may change at any time. So nothing else of this package imports from it but this,
:mod:`~overlap_sched.inductor.kernels` and :mod:`~overlap_sched.inductor.lifting`, and all of these are imported only
when a pass runs that was switched on behind :func:`overlap_sched.inductor.switch.knows_torch`.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from torch import fx
from torch._inductor import config, ir
from torch._inductor.scheduler import GroupedSchedulerNode, Scheduler
from torch._inductor.utils import contains_collective, is_collective, is_wait
from torch._inductor.virtualized import V

from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.apply import NO_COLLECTIVES, Report, report_on, stays
from overlap_sched.fx.calls import launched_by
from overlap_sched.fx.operators import Ordering, is_higher_order, traits_of
from overlap_sched.inductor.agree import Traffic, asks, graph_key, waits
from overlap_sched.inductor.caches import with_rewrites
from overlap_sched.inductor.decision import LaunchFacts, OrderDraft, PlanRequest, ScheduleCall, decide
from overlap_sched.inductor.kernels import Buffers, members, runs, tell_sizes
from overlap_sched.inductor.lifting import lift_kernels
from overlap_sched.inductor.reporting import guard, log, name_graph, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import on_devices
from overlap_sched.problem import Order
from overlap_sched.problem.precedence import smallest_first
from overlap_sched.report.words.schedule import why_no_better
from overlap_sched.scheduler.driver import no_collection


def order_kernels(settings: Settings, last: bool, snodes: list[Any]) -> list[Any]:
    """Return the nodes in our order, or as they were; ``last``: no pass of torch runs behind this one.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    original = kept = list(snodes)
    try:
        original = kept = in_order_of_effects(original)
        kept = in_graph_order(original) if asks(settings) else original
    except Exception as error:  # planning says why
        log.debug("the order of launches in the graph is not known: %s", error)
    graph = _KernelGraph(original, kept, last)
    draft = decide(graph, settings)
    with guard(f"keeps {draft.facts.name!r} out of torch's cache"):
        cached = with_rewrites(draft.cached, V.graph.graph)
        if cached is not None:
            V.graph.wrapper_code.header.writeline(f"{'//' if V.graph.cpp_wrapper else '#'} {cached.line}")
    with guard("could not tell torch the sizes of buffers"):
        if graph.buffers is not None and draft.report.changed:
            tell_sizes(draft.order, graph.buffers)
    with guard(f"could not report on {draft.facts.name!r}"):
        if not (draft.report.changed and when_written(draft.order, partial(_read_back, draft, last))):
            draft.record()
    return list(draft.order) if draft.report.changed else kept if draft.how.keeps else original


@dataclass
class _KernelGraph:
    """A :class:`~overlap_sched.inductor.decision.Graph` of Inductor's scheduler nodes.

    Attributes:
        snodes: In their original order.
        kept: With the launches that ranks keep where they differ; found before they are asked, so it cannot fail.
        last: Whether the order comes last, behind all passes of torch.
        buffers: Known once it has been planned.
    """

    snodes: list[Any]
    kept: list[Any]
    last: bool
    buffers: Buffers | None = None

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
        lift_s, problem, self.buffers = time.perf_counter() - began, lifted.problem, lifted.buffers
        made = schedule(problem, on_devices(options, V.graph.device_types))
        report = replace(report_on(lifted, options, lift_s), schedule=made)
        if stays(made):
            return replace(report, reason=why_no_better(made)), ()
        ordered = lifted.reordered(made.order)
        if sorted(map(id, ordered)) != sorted(map(id, snodes)):
            raise UnsupportedError(f"the order has other nodes ({len(ordered)}) than the graph ({len(snodes)})")
        before, after = cuda_graphs(snodes), cuda_graphs(ordered)
        if after > before and not isinstance(how.follows, Entry):  # which must be followed, whatever that takes
            reason = f"no better order was found: the one found cuts the graph into {after} parts for CUDA graphs"
            return replace(report, reason=f"{reason}, not {before}"), ()
        return replace(report, changed=True), ordered

    def traffic(self, order: Sequence[Any]) -> Traffic | None:
        return kernel_traffic(order)


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
            report = replace(report, changed=False, reason=f"its new order was undone by {who}")
            warn(f"overlap_sched: {report.name!r} does not run in its new order: {report.reason}")
    with guard(f"could not report on {report.name!r}"):
        draft.record(report)


def kernel_traffic(snodes: Sequence[Any]) -> Traffic | None:
    """That of Inductor's scheduler nodes: the FX nodes that their launches came from, their waits by name.

    ``None``: a launch comes from no single FX node.
    """
    found, before = list[fx.Node](), dict[str, int]()
    for member in (one for snode in snodes for one in members(snode)):
        launches = _launches_of(member)
        if launches is None:
            return None
        if is_wait(member.node) or (runs(member) and any(map(waits, _origins(member)))):
            before[member.get_name()] = len(found)
        found += launches
    return Traffic(tuple(found), before)


def launch_places(snodes: Sequence[Any], launches: Sequence[fx.Node]) -> dict[str, int]:
    """Per scheduler node that launches, by name, its place among some launches."""
    place = {node: k for k, node in enumerate(launches)}
    found = ((snode.get_name(), _launches_of(snode) or ()) for snode in snodes)
    return {name: min(place[node] for node in nodes) for name, nodes in found if nodes and set(nodes) <= place.keys()}


def _launches_of(snode: Any) -> list[fx.Node] | None:
    """Those of one scheduler node; ``None``: one of them comes from no single FX node."""
    found: list[fx.Node] = []
    for member in members(snode):
        if not runs(member):
            continue
        origins = [node for node in _origins(member) if launched_by(node)]
        if len(origins) > 1 or (is_collective(member.node) and not origins):
            return None
        found += origins
    return found


def _origins(member: Any) -> Iterable[fx.Node]:
    return getattr(member.node, "origins", None) or ()


def in_graph_order(snodes: Sequence[Any]) -> list[Any]:
    """The nodes with all that launches, or may, in the order of the FX graph, each else as near to its place as can be.

    Inductor keeps collectives in the order of the graph, but it does not know what communicates inside an operator, and
    moves that past them, for memory. On ranks with equal graphs it does so alike; where graphs differ, it may not. So
    ranks that keep their launches keep those of the FX graph that Inductor lowers.

    As they were where that is their order, where it is not known what they launch, or where their dependencies do not
    allow another order. Torch's dependencies are kept, and the order of what has effects or draws random numbers.
    """
    place = {node: at for at, node in enumerate(V.graph.graph.nodes)}
    launches = [_launches_of(snode) for snode in snodes]
    if None in launches:
        return list(snodes)
    first = {at: min(place[node] for node in nodes) for at, nodes in enumerate(launches) if nodes}
    wanted = sorted(first, key=lambda at: first[at])
    if wanted == sorted(wanted):
        return list(snodes)
    apart = [at for at, snode in enumerate(snodes) if at not in first and _impure(snode)]
    order = _nearest(snodes, (*pairwise(wanted), *pairwise(apart)))
    return list(snodes) if order is None else [snodes[at] for at in order]


def _impure(snode: Any) -> bool:
    """Tell whether a node runs an operator that has effects or draws random numbers, or may."""
    running = (member for member in members(snode) if runs(member))
    origins = (node for member in running for node in _origins(member))
    called = (node.target for node in origins if node.op == "call_function")
    return snode.has_side_effects() or any(traits_of(one).ordering is not Ordering.NONE for one in called)


def in_order_of_effects(snodes: list[Any]) -> list[Any]:
    """The nodes; where some stand against the order of effects, as near to their order as keeps that.

    What the FX graph chains by tokens (``with_effects``) must run in that order. torch 2.13 chains effects among
    kernels that it calls as they are, and collectives among themselves; of a collective and another kernel either may
    come first (https://github.com/pytorch/pytorch/issues/188301). A send and its receive may then meet the wrong
    partner.

    Args:
        snodes: In an order that keeps torch's dependencies.

    Raises:
        UnsupportedError: torch's dependencies are against the order of effects.
    """
    chain = _chain(snodes)
    if all(before < at for before, at in pairwise(chain)):
        return snodes
    order = _nearest(snodes, pairwise(chain))
    if order is None:
        first, then = next((u, w) for u, w in pairwise(chain) if w < u)
        raise UnsupportedError(
            f"{snodes[then].get_name()!r} runs before {snodes[first].get_name()!r}, whose effects come before its own, "
            "and other kernels in between keep them so."
        )
    warn("torch's scheduler runs operators against the order of their effects: overlap_sched has put them in order")
    return [snodes[at] for at in order]


def _chain(snodes: Sequence[Any]) -> list[int]:
    """Positions of the nodes that have effects, in the order that the FX graph gives to those."""
    effects = [node for node in V.graph.graph.nodes if is_higher_order(node.target, "with_effects")]
    if not effects:
        return []
    number = {node: k for k, node in enumerate(effects)}
    found: list[tuple[int, int]] = []
    for at, snode in enumerate(snodes):
        for member in members(snode):
            called = member.node is not None and member.is_extern() and not isinstance(member.node, ir.MultiOutput)
            found += [(number[node], at) for node in (_origins(member) if called else ()) if node in number]
    return list(dict.fromkeys(at for _, at in sorted(found)))


def _nearest(snodes: Sequence[Any], pairs: Iterable[tuple[int, int]]) -> Order | None:
    """Positions in the nearest order that keeps torch's dependencies and some pairs: always the smallest that may come.

    The nodes are in an order that keeps the dependencies; a pair of positions says which comes first. ``None``: the
    pairs are against the dependencies.
    """
    producer = {name: at for at, snode in enumerate(snodes) for name in snode.get_buffer_names()}
    before = [{producer.get(dep.name, at) for dep in snode.unmet_dependencies} for at, snode in enumerate(snodes)]
    for first, then in pairs:
        before[then].add(first)
    after: list[list[int]] = [[] for _ in snodes]
    for at, needed in enumerate(before):
        needed.discard(at)
        for u in needed:
            after[u].append(at)
    return smallest_first(before, after, range(len(snodes)))


def _scheduler(snodes: Sequence[Any]) -> Scheduler | None:
    """Whose nodes these are."""
    owner = getattr(snodes[0], "scheduler", None) if snodes else None
    return owner if isinstance(owner, Scheduler) else None


def at_the_end(snodes: Sequence[Any], order: Callable[[list[Any]], list[Any]]) -> bool:
    """Have the nodes put in order when all passes of torch's scheduler have run, last of all; nothing global changes.

    ``False``: that cannot be, as torch unpacks nodes in groups on the way, or this is no scheduler of torch's.
    """
    scheduler = _scheduler(snodes)
    if scheduler is None or any(isinstance(snode, GroupedSchedulerNode) for snode in snodes):
        return False
    finish = scheduler.compute_last_usage  # what torch calls first behind its passes, and once

    def ordered_and_finished() -> None:
        vars(scheduler).pop("compute_last_usage", None)
        scheduler.nodes = order(list(scheduler.nodes))
        finish()

    scheduler.compute_last_usage = ordered_and_finished
    return True


def when_written(snodes: Sequence[Any], tell: Callable[[list[Any]], None]) -> bool:
    """Tell once of the nodes in the order in which their code was written; ``False``: nobody will be told.

    Args:
        snodes: Those of a scheduler that has not written its code.
        tell: Must not raise. It is told also where torch fails on the way, of as many as there are by then.
    """
    scheduler = _scheduler(snodes)
    if scheduler is None:
        return False
    write, write_part = scheduler.codegen, scheduler._codegen
    written: list[Any] = []

    def noted(nodes: list[Any]) -> None:
        written.extend(nodes)
        write_part(nodes)

    def told() -> None:
        vars(scheduler).pop("codegen", None)
        scheduler._codegen = noted
        try:
            write()
        finally:
            vars(scheduler).pop("_codegen", None)
            tell(written)

    scheduler.codegen = told
    return True


def cuda_graphs(snodes: Sequence[Any]) -> int:
    """Into how many parts torch cuts the graph for CUDA graphs, which are replayed one by one; 1: it does not."""
    scheduler = _scheduler(snodes)
    if scheduler is None or not (config.graph_partition and config.triton.cudagraphs):
        return 1
    apart = [bool(scheduler.should_partition(snode)) for snode in snodes]
    return 1 + sum(one != other for one, other in pairwise(apart))
