"""Schedule an FX graph for a plug-in: in place, agreed with all ranks, kept in the reports."""

from dataclasses import replace

from torch import fx
from torch._inductor.utils import get_donated_idxs

from overlap_sched.fx.apply import NO_COLLECTIVES, Report, schedule_graph
from overlap_sched.fx.costs import Fusion
from overlap_sched.fx.graphs import reorder
from overlap_sched.fx.lifting import STAYS
from overlap_sched.inductor import names
from overlap_sched.inductor.agree import asks, graph_key
from overlap_sched.inductor.attempt import Attempt
from overlap_sched.inductor.console import warn
from overlap_sched.inductor.launches import traffic_in
from overlap_sched.inductor.settings import Settings

_AS_THEY_ARE = ("backend", "titan")
"""Stages behind which nothing moves a wait: Inductor lowers the graphs of the others, and keeps launches only."""


def schedule_fx(
    gm: fx.GraphModule | fx.Graph, settings: Settings, kind: str | None = None, rewritten: bool = False
) -> None:
    """Reorder a graph in place, or leave it as it was.

    Args:
        gm: The graph, or its module, which is recompiled.
        settings: How.
        kind: ``"forward"``, ``"backward"`` or ``"inference"``; ``None``: by the names of its inputs.
        rewritten: Its collectives have been rewritten, and stand in the order of that plan, which has used the
            headroom: from there on the graph may not grow.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    before, attempt = list(graph.nodes), Attempt(settings)
    try:
        report = attempt.decided(lambda known: _plan(gm, before, known, kind, rewritten))
    except Exception as error:  # on this rank alone, before it could agree
        report = attempt.failed(error)
    if not report.changed and list(graph.nodes) != before:
        reorder(gm, before)
    try:
        attempt.record(report)
    except Exception as error:  # the order is settled
        warn(f"overlap_sched could not report on {attempt.name!r}", error)


def graph_name(graph: fx.Graph, kind: str | None = None) -> str:
    """Return the name of what is being compiled, see :func:`overlap_sched.inductor.names.graph_name`."""
    return names.graph_name(kind or _kind_of(graph))


def note_held(graph: fx.Graph) -> None:
    """Mark the inputs of a backward graph that others hold on (:data:`~overlap_sched.fx.lifting.STAYS`).

    A weight may be saved as a view of itself, under the view's name; what forward has returned may be saved, too; and
    with ``retain_graph`` all that is saved stays. AOTAutograd knows: the others are *donated* to backward
    (``torch/_functorch/_aot_autograd/graph_compile.py:collect_bw_donated_buffer_idxs``), and Inductor may write over
    them.

    To be called while torch compiles the graph. Gradients of outputs (``tangents_*``) are not saved: of them nothing
    is said. Nothing is marked in other graphs, or where torch does not know.
    """
    inputs = list(graph.find_nodes(op="placeholder"))
    donated = get_donated_idxs()
    if donated is None or not any(node.name.startswith("tangents") for node in inputs):
        return
    for i, node in enumerate(inputs):
        if i not in donated and not node.name.startswith("tangents"):
            node.meta[STAYS] = True


def _in_region(node: fx.Node) -> bool:
    """Tell whether Inductor will compile a part of the graph around a node.

    ``torch/fx/passes/regional_inductor.py`` fuses what is tagged and sorts the graph: a wait may pass a launch.
    """
    return "compile_with_inductor" in (node.meta.get("custom") or ())


def _plan(
    gm: fx.GraphModule | fx.Graph, before: list[fx.Node], attempt: Attempt, kind: str | None, rewritten: bool
) -> Report:
    """Plan what this rank would do by itself."""
    attempt.given = attempt.given or attempt.settings.options
    settings = attempt.settings = _without_rewrites(attempt.settings, rewritten)
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    if list(graph.nodes) != before:  # planned already, in another way
        reorder(gm, before)
    name = attempt.name = graph_name(graph, kind)
    if asks(settings):
        traffic = traffic_in(before)
        attempt.key, attempt.launches = graph_key(graph, settings.met_under), traffic.launches
        runs_so = settings.stage in _AS_THEY_ARE and not any(map(_in_region, before))
        attempt.original, attempt.standing = traffic if runs_so else None, traffic.launches
        attempt.places = {node.name: k for k, node in enumerate(traffic.launches)}
    compiled = settings.stage == "post_grad"  # by Inductor, and not run as FX
    if compiled:
        note_held(graph)
    fusion: Fusion = "inductor" if compiled else "none"
    report = schedule_graph(
        gm, settings.options, name=name, fusion=fusion, scheduler=attempt.scheduled, **settings.costs
    )
    if report.schedule is None and (report.reason or "").startswith(NO_COLLECTIVES):
        attempt.key = None
        return Report(name, reason=report.reason)
    attempt.problem = None if report.schedule is None else report.schedule.problem
    if attempt.problem is None and not attempt.launches:  # it fails here, but no other rank will ask
        attempt.key = None
    if attempt.problem is not None and not attempt.problem.collectives:  # other ranks may have no such graph
        attempt.key = None
    if attempt.key is not None:
        attempt.planned = traffic_in(graph.nodes)
    return report


def _without_rewrites(settings: Settings, rewritten: bool) -> Settings:
    """The settings for the order alone: what was to be rewritten is."""
    options = settings.options
    if not options.rewrites:
        return settings
    return replace(settings, options=replace(options, rewrites=(), headroom=0 if rewritten else options.headroom))


def _kind_of(graph: fx.Graph) -> str:
    """Tell by the names of its inputs whether a graph is a forward, a backward, or for inference."""
    inputs = [node.name for node in graph.nodes if node.op == "placeholder"]
    if any(name.startswith("tangents") for name in inputs):
        return "backward"
    return "forward" if any(name.startswith("primals") for name in inputs) else "inference"
