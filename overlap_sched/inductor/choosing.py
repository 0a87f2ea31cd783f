"""What a plug-in does to the collectives of a graph: what :mod:`overlap_sched.transform.plan` has found."""

from collections.abc import Mapping

from torch import fx

from overlap_sched.cost import Roofline
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.backends import forms_for
from overlap_sched.inductor.fx_stage import schedule_fx
from overlap_sched.inductor.reporting import log
from overlap_sched.inductor.rewriting import Choice, rewrite_fx
from overlap_sched.inductor.settings import Settings
from overlap_sched.transform.plan import plan
from overlap_sched.transform.prices import Prices


def planned(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> Choice:
    """Rewrites and an order, within the budget of the graph as it was.

    Times given by the user are of nodes that there are, and say nothing of those that rewrites make: where there are
    any, nothing is rewritten.
    """
    problem = lifted.problem
    if settings.cost is not None:
        log.info("%s: nothing is rewritten where times are given", problem.name)
        return Choice()
    forms = forms_for(lifted.nodes[v] for v in problem.collectives)
    made = plan(problem, Prices(settings.model or Roofline()), settings.options, alike, forms)
    if not made.rewrites:
        return Choice()
    return Choice(made.rewrites, made.schedule.problem.names(made.schedule.order))


def rewrite_and_schedule(gm: fx.GraphModule | fx.Graph, settings: Settings, kind: str | None = None) -> None:
    """Rewrite a graph's collectives where that is asked for, then reorder it; see :func:`schedule_fx`."""
    rewritten = bool(settings.options.rewrites and rewrite_fx(gm, settings, planned, kind))
    schedule_fx(gm, settings, kind, rewritten)
