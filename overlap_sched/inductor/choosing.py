"""What a plug-in does to the collectives of a graph: what :mod:`overlap_sched.transform.plan` has found."""

from collections.abc import Mapping

from torch import fx

from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.planning import plan_rewrites, refused_in
from overlap_sched.inductor.fx_stage import schedule_fx
from overlap_sched.inductor.reporting import not_rewritten
from overlap_sched.inductor.rewriting import RewriteChoice, rewrite_fx
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import rewrites_wanted


def planned(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """Rewrites and an order, within the budget of the graph as it was."""
    not_rewritten(lifted.problem.name, refused_in(lifted, settings.options, alike))
    made = plan_rewrites(lifted, settings.options, alike)
    if made is None:
        return RewriteChoice()
    return RewriteChoice(made.rewrites, made.schedule.problem.names(made.schedule.order), made)


def wants_rewrites(settings: Settings) -> bool:
    """Tell whether anything may be rewritten."""
    return bool(rewrites_wanted(settings.options))


def rewrite_and_schedule(gm: fx.GraphModule | fx.Graph, settings: Settings, kind: str | None = None) -> None:
    """Rewrite a graph's collectives where that is asked for, then reorder it; see :func:`schedule_fx`."""
    wanted = settings.options.rewrites  # calling nothing that could fail here
    rewritten = bool(wanted) and bool(rewrite_fx(gm, settings, planned, kind))
    schedule_fx(gm, settings, kind, rewritten)
