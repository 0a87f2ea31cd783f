"""Rewrite the collectives of a graph for a plug-in: chosen, prepared, agreed with all ranks, and only then done.

    lift -> choose -> prepare -> all ranks agree -> commit, which cannot fail
                any failure before, or no agreement: undo, the graph as it was on every rank

Ranks show each other the graph, the options and the prices from which they have chosen, and what: under ``order`` of
their digests stand the rewrites. What comes after (Inductor's lowering, the order behind fusion) meets a rewritten
graph as it would any other, and agrees on its order by itself.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import fx

from overlap_sched.distributed import Digest, digest_of
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.fx.rewrites import Pending, alike_of, prepare
from overlap_sched.fx.rewrites.apply import may_rewrite, plan_rewrites, refused_in
from overlap_sched.inductor.agree import asks, given_up, graph_key, warn_of_ranks
from overlap_sched.inductor.cached_orders import CachedOrder, decided, note_rewrites, order_of
from overlap_sched.inductor.console import log, said
from overlap_sched.inductor.fx_stage import graph_name, note_held, schedule_fx
from overlap_sched.inductor.in_force import in_force, put_in_force, refuse
from overlap_sched.inductor.launches import launch_digest, launch_texts, launches_in
from overlap_sched.inductor.reporting import note
from overlap_sched.inductor.settings import Settings
from overlap_sched.report.units import count
from overlap_sched.transform.plan import Plan
from overlap_sched.transform.rewrites import Rewrite, to_json


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


@dataclass
class _Known:
    """What is known of a graph so far: as much as a failure leaves.

    Attributes:
        name: The graph's.
        key: Under which the ranks meet; ``""``: not yet known.
        launches: The digest of its launches; ``""``: not known.
        mine: What the others are shown.
        texts: What its launches are known by on all ranks.
        pending: The rewritten graph, not committed.
        choice: What it was made by.
        cached: As of :class:`~overlap_sched.inductor.attempt.Attempt`.
    """

    name: str = "a graph"
    key: str = ""
    launches: str = ""
    mine: Digest | None = None
    texts: tuple[Launch, ...] = ()
    pending: Pending | None = None
    choice: RewriteChoice = field(default_factory=RewriteChoice)
    cached: CachedOrder | None = None


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
    graph, known, failure = gm.graph if isinstance(gm, fx.GraphModule) else gm, _Known(), None
    try:
        if not (always or may_rewrite(launches_in(graph.nodes), settings.options)):
            return ()
        leave = note_rewrites(graph) if asks(settings) else None
        try:
            _prepare(gm, settings, choose, known, kind)
        except Exception as error:  # raised once the other ranks know of it
            failure = error
        agreed = _agreed(known, settings, failure)
        if leave is not None:
            leave(known.cached)
        if failure is not None:
            raise failure
    except BaseException as error:
        if known.pending is not None:
            known.pending.undo()
        if not isinstance(error, Exception):
            raise
        given_up(error, settings, f"rewriting {known.name!r}", f"rewrites no collective of {known.name!r}")
        return ()
    if known.pending is None:
        return ()
    if not agreed:
        known.pending.undo()
        return ()
    known.pending.commit()
    if known.choice.made is not None:
        note(known.name, made=known.choice.made)
    return known.choice.rewrites


def _prepare(
    gm: fx.GraphModule | fx.Graph, settings: Settings, choose: Choose, known: _Known, kind: str | None
) -> None:
    """Plan what this rank would do by itself."""
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    if asks(settings):
        launches = launches_in(graph.nodes)
        known.key = graph_key(graph, f"rewrites {settings.graph}".rstrip())
        known.launches, known.texts = launch_digest(launches), launch_texts(launches)
    known.name = graph_name(graph, kind)
    compiled = settings.stage in ("inductor", "post_grad")
    if compiled:
        note_held(graph)
    lifted = lift(graph, name=known.name, fusion="inductor" if compiled else "none", **settings.costs)
    choice = known.choice = choose(lifted, settings, alike_of(graph))
    if known.key:
        problem = lifted.problem
        digest = digest_of(problem, settings.options, problem.original_order)
        known.mine = replace(digest, key=known.key, launches=known.launches, order=_digest(choice))
    if choice.rewrites or choice.names is not None:
        known.pending = prepare(gm, choice.rewrites, choice.names)
        log.info("%s: %s, if all ranks agree", known.name, count(len(choice.rewrites), "rewrite"))


def _digest(choice: RewriteChoice) -> str:
    """Return the digest of the rewrites, and of the order where there is one."""
    names = None if choice.names is None else list(choice.names)
    rewrites = json.dumps([to_json(choice.rewrites), names], sort_keys=True)
    return f"rewrites: {hashlib.sha256(rewrites.encode()).hexdigest()}"


def _agreed(known: _Known, settings: Settings, failure: Exception | None) -> bool:
    """Tell whether all ranks do the same; nothing that could fail comes after it."""
    if not known.key:
        return True
    mine = known.mine
    if mine is None or failure is not None:
        mine = Digest.of_failure(said(failure), known.key, known.launches, known.name)
    entry = _entry(known, mine)
    earlier = in_force(known.texts, settings)
    if earlier is not None:
        if earlier.rewritten and earlier != entry:
            refuse(known.name, "they have rewritten its collectives")
        return earlier == entry
    agreement = decided(mine, settings)
    if agreement is None:
        return True
    known.cached = order_of(mine, agreement, "nothing is rewritten", entry if agreement.agreed else None)
    if agreement.agreed:
        return entry is None or put_in_force(entry, settings) == entry
    if agreement.verdict.to_mend or not agreement.verdict.launches_alike:
        warn_of_ranks(f"rewrites no collective of {known.name!r}", agreement.verdict, settings)
    return False


def _entry(known: _Known, mine: Digest) -> Entry | None:
    """Return what is launched instead of the original launches; ``None``: those."""
    if known.pending is None or launch_texts(launches_in(known.pending.order)) == known.texts:
        return None
    return Entry(known.texts, (), True, mine.identity)


def planned(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """Rewrites and an order, within the budget of the graph as it was."""
    note(lifted.problem.name, refused=refused_in(lifted, settings.options, alike))
    made = plan_rewrites(lifted, settings.options, alike)
    if made is None:
        return RewriteChoice()
    return RewriteChoice(made.rewrites, made.schedule.problem.names(made.schedule.order), made)


def rewrite_and_schedule(gm: fx.GraphModule | fx.Graph, settings: Settings, kind: str | None = None) -> None:
    """Rewrite a graph's collectives where that is asked for, then reorder it; see :func:`schedule_fx`."""
    wanted = settings.options.rewrites  # calling nothing that could fail here
    done = bool(wanted) and bool(rewrite_fx(gm, settings, planned, kind))
    schedule_fx(gm, settings, kind, done)
