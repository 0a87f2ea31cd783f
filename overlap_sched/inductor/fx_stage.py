"""Rewrite and schedule an FX graph for a plug-in: in place, agreed with all ranks, kept in the reports.

    lift -> choose rewrites -> prepare -> all ranks agree -> commit, which cannot fail
                  any failure before, or no agreement: undo, the graph as it was on every rank
    then plan an order, and agree on that: :mod:`~overlap_sched.inductor.decision`

Ranks show each other the graph, the options and the prices from which they have chosen rewrites, and what: under
``order`` of their digests stand the rewrites. What comes after (Inductor's lowering, the order behind fusion) meets a
rewritten graph as it would any other, and agrees on its order by itself.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import fx
from torch._inductor.utils import get_donated_idxs

from overlap_sched.distributed import Digest, digest_of
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.fx.apply import Report, schedule_graph
from overlap_sched.fx.costs import Fusion
from overlap_sched.fx.graphs import reorder
from overlap_sched.fx.lifting import STAYS, Lifted, lift
from overlap_sched.fx.rewrites import Pending, alike_of, prepare
from overlap_sched.fx.rewrites.apply import may_rewrite, plan_rewrites, refused_in
from overlap_sched.inductor import agree
from overlap_sched.inductor.agree import Traffic
from overlap_sched.inductor.caches import CachedOrder, note_rewrites, order_to_cache, take_or_ask
from overlap_sched.inductor.decision import LaunchFacts, PlanRequest, ScheduleCall, decide
from overlap_sched.inductor.reporting import describe_error, guard, log, name_graph, note
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options
from overlap_sched.report.units import count
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Rewrite, to_json

EARLIER_CODE = "graphs that were compiled without overlap_sched may still run"
_AS_THEY_ARE = ("backend", "titan")
"""Stages behind which nothing moves a wait: Inductor lowers the graphs of the others, and keeps launches only."""


def rewrite_and_schedule(gm: fx.GraphModule | fx.Graph, settings: Settings, kind: str | None = None) -> None:
    """Rewrite a graph's collectives where that is asked for, then reorder it; see :func:`schedule_fx`."""
    # calling nothing that could fail here
    done = bool(settings.options.rewrites) and bool(rewrite_fx(gm, settings, choose_rewrites, kind))
    schedule_fx(gm, settings, kind, done)


@dataclass
class _FXGraph:
    """A :class:`~overlap_sched.inductor.decision.Graph`: the nodes ``before`` are in their original order."""

    gm: fx.GraphModule | fx.Graph
    graph: fx.Graph
    before: list[fx.Node]
    kind: str | None

    def read(self, how: PlanRequest) -> LaunchFacts:
        self.put_in_order(self.before)  # planned already, in another way
        graph, settings = self.graph, how.settings
        name = graph_name(graph, self.kind)
        if not agree.asks(settings):
            return LaunchFacts(name)
        traffic = agree.traffic_in(self.before)
        runs_so = settings.stage in _AS_THEY_ARE and not any(map(_in_region, self.before))
        places = {node.name: k for k, node in enumerate(traffic.launches)}
        key = agree.graph_key(graph, f"{settings.stage} {settings.graph}".rstrip())
        return LaunchFacts(name, key, traffic.launches, traffic if runs_so else None, traffic.launches, places)

    def plan(self, how: PlanRequest, facts: LaunchFacts, schedule: ScheduleCall) -> tuple[Report, Sequence[fx.Node]]:
        settings, graph = how.settings, self.graph
        report = schedule_graph(
            self.gm,
            settings.options,
            name=facts.name,
            scheduler=schedule,
            fusion=_fusion(graph, settings),
            **settings.costs,
        )
        return report, list(graph.nodes)

    def traffic(self, order: Sequence[fx.Node]) -> Traffic:
        return agree.traffic_in(order)

    def put_in_order(self, order: Sequence[fx.Node]) -> None:
        if list(self.graph.nodes) != list(order):
            reorder(self.gm, list(order))


def _fusion(graph: fx.Graph, settings: Settings) -> Fusion:
    """How a graph is priced: by Inductor's kernels where that lowers it; then it is known what its inputs hold."""
    if settings.stage not in ("inductor", "post_grad"):
        return "none"
    note_held(graph)
    return "inductor"


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
    options = settings.options
    if options.rewrites:  # what was to be rewritten is
        headroom = 0 if rewritten else options.headroom
        settings = replace(settings, options=replace(options, rewrites=(), headroom=headroom))
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm  # calling nothing that could fail here
    nodes = _FXGraph(gm, graph, list(graph.nodes), kind)
    draft = decide(nodes, settings, options)
    nodes.put_in_order(draft.order if draft.report.changed else nodes.before)
    with guard(f"could not report on {draft.facts.name!r}"):  # the order is settled
        draft.record()


def graph_name(graph: fx.Graph, kind: str | None = None) -> str:
    """Return the name of what is being compiled: its kind, where it is not given, by the names of its inputs."""
    inputs = {node.name.partition("_")[0] for node in graph.find_nodes(op="placeholder")}
    found = "backward" if "tangents" in inputs else "forward" if "primals" in inputs else "inference"
    return name_graph(kind or found)


def note_held(graph: fx.Graph) -> None:
    """Mark the inputs of a backward graph that others hold on (:data:`~overlap_sched.fx.lifting.STAYS`).

    A weight may be saved as a view of itself, under the view's name; what forward has returned may be saved, too; and
    with ``retain_graph`` all that is saved stays. AOTAutograd knows: the others are *donated* to backward
    (``torch/_functorch/_aot_autograd/graph_compile.py:collect_bw_donated_buffer_idxs``), and Inductor may write over
    them.

    To be called while torch compiles the graph. Gradients of outputs (``tangents_*``) are not saved, and are not
    marked. Nothing is marked in other graphs, or where torch does not know.
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


class RewriteChoice(NamedTuple):
    """What is to be done to a graph.

    Attributes:
        rewrites: In their order; none: the graph stays.
        names: An order of the rewritten problem; ``None``: the graph's own.
        made: The plan that they are of, for the report; ``None``: they are of none.
    """

    rewrites: Sequence[Rewrite] = ()
    names: Sequence[str] | None = None
    made: Plan | None = None


Choose = Callable[[Lifted, Settings, Mapping[str, str]], RewriteChoice]
"""Chooses rewrites of a lifted graph. It must be the same function of the same graph on every rank; the mapping is what
members of a bucket must share, see :func:`overlap_sched.fx.rewrites.alike_of`."""


def choose_rewrites(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """Choose rewrites and an order, within the budget of the graph as it was."""
    note(lifted.problem.name, refused=refused_in(lifted, settings.options, alike))
    made = plan_rewrites(lifted, settings.options, alike)
    if made is None:
        return RewriteChoice()
    return RewriteChoice(made.rewrites, made.schedule.problem.names(made.schedule.order), made)


def rewrite_fx(
    gm: fx.GraphModule | fx.Graph,
    settings: Settings,
    choose: Choose,
    kind: str | None = None,
    always: bool = False,
) -> Sequence[Rewrite]:
    """Rewrite a graph in place, or leave it as it was; all ranks do the same. Returns what was done.

    Call it on every rank for every graph, before its order is planned. ``always``: look at it even where its launches
    leave nothing to rewrite; the same on all ranks. The rest is as for :func:`schedule_fx`.

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    graph, name = gm.graph if isinstance(gm, fx.GraphModule) else gm, "a graph"
    choice, pending, mine, failure = RewriteChoice(), None, None, None
    try:
        launches = agree.launches_in(graph.nodes)
        if not (always or may_rewrite(launches, settings.options)):
            return ()
        leave, key, sequence, texts = None, "", "", tuple[Launch, ...]()
        if agree.asks(settings):
            leave, key = note_rewrites(graph), agree.graph_key(graph, f"rewrites {settings.graph}".rstrip())
            sequence, texts = agree.launch_digest(launches), agree.launch_texts(launches)
        try:
            name = graph_name(graph, kind)
            lifted = lift(graph, name=name, fusion=_fusion(graph, settings), **settings.costs)
            choice = choose(lifted, settings, alike_of(graph))
            if leave is not None:
                mine = replace(_digest(lifted, choice, settings.options), key=key, launches=sequence)
            if choice.rewrites or choice.names is not None:
                pending = prepare(gm, choice.rewrites, choice.names)
                log.info("%s: %s, if all ranks agree", name, count(len(choice.rewrites), "rewrite"))
        except Exception as error:  # raised once the other ranks know of it
            failure = error
        agreed = True
        if leave is not None:
            if mine is None or failure is not None:
                mine = Digest(key=key, launches=sequence, failure=describe_error(failure), name=name)
            agreed, cached = _agree_on_rewrites(mine, texts, pending, settings)
            leave(cached)
        if failure is not None:
            raise failure
    except BaseException as error:
        if pending is not None:
            pending.undo()
        if not isinstance(error, Exception):
            raise
        agree.report_failure(error, settings, f"rewriting {name!r}", f"rewrites no collective of {name!r}")
        return ()
    if pending is None or not agreed:
        if pending is not None:
            pending.undo()
        return ()
    pending.commit()
    if choice.made is not None:
        note(name, made=choice.made)
    return choice.rewrites


def _digest(lifted: Lifted, choice: RewriteChoice, options: Options) -> Digest:
    names = None if choice.names is None else list(choice.names)
    order = hashlib.sha256(json.dumps([to_json(choice.rewrites), names], sort_keys=True).encode()).hexdigest()
    return replace(digest_of(lifted.problem, options, lifted.problem.original_order), order=f"rewrites: {order}")


def _agree_on_rewrites(
    mine: Digest, texts: tuple[Launch, ...], pending: Pending | None, settings: Settings
) -> tuple[bool, CachedOrder | None]:
    """Tell whether all ranks do the same, and what the code carries of it; nothing that could fail comes after it."""
    name, entry = mine.name, None
    if pending is not None and agree.launch_texts(agree.launches_in(pending.order)) != texts:
        entry = Entry(texts, (), True, mine.identity)  # what is launched instead of the original launches
    earlier = agree.find_in_force(texts, settings)
    if earlier is not None:
        if earlier.rewritten and earlier != entry:
            agree.refuse(name, "they have rewritten its collectives")
        return earlier == entry, None
    if entry is not None and agree.runs_earlier_code():
        mine = Digest(key=mine.key, launches=mine.launches, failure=EARLIER_CODE, name=name)
    agreement = take_or_ask(mine, settings)
    if agreement is None:
        return True, None
    if agreement.in_doubt and not agreement.agreed and entry is not None and not mine.failure:
        agree.refuse(name, str(agreement.reason))  # the others may run the rewritten graph
    cached = order_to_cache(mine, agreement, "nothing is rewritten", entry if agreement.agreed else None)
    if agreement.agreed:
        return entry is None or agree.put_in_force(entry, settings) == entry, cached
    if agreement.verdict.to_repair or not agreement.verdict.launches_alike:
        agree.warn_of_ranks(f"rewrites no collective of {name!r}", agreement.verdict, settings)
    return False, cached
