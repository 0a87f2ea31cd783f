"""Schedule an FX graph for a plug-in: in place, agreed with all ranks, kept in the reports."""

from torch import fx

from overlap_sched.errors import VerificationError
from overlap_sched.fx.apply import Report, schedule_graph
from overlap_sched.fx.reorder import reorder
from overlap_sched.inductor.agree import key_of, settle
from overlap_sched.inductor.identity import Settings
from overlap_sched.inductor.reporting import GraphReport, Stage, keep, no_collectives, warn


def schedule_fx(gm: fx.GraphModule | fx.Graph, name: str, stage: Stage, settings: Settings) -> None:
    """Reorder a graph in place, or leave it as it was.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    before, key = list(graph.nodes), key_of(graph, stage)
    try:
        report = schedule_graph(gm, settings.options, name=name, **settings.costs)
    except VerificationError:
        raise
    except Exception as error:  # schedule_graph falls back by itself; this is for what happens around it
        if settings.options.strict:
            raise VerificationError(f"scheduling {name!r} failed: {type(error).__name__}: {error}") from error
        report = Report(name, reason=f"{type(error).__name__}: {error}")
        warn(f"overlap_sched leaves {name!r} as it was: {report.reason}")
    plan = report.schedule
    if plan is None and report.reason == "the graph has no collectives":
        report = no_collectives(name)
    else:
        report = settle(report, None if plan is None else plan.problem, settings.options, key)
    if not report.changed and list(graph.nodes) != before:
        reorder(gm, before)
    keep(GraphReport(name, stage, report, settings.notes))
