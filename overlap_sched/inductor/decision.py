"""One graph of a plug-in: planned, agreed with the other ranks, or left as it was.

    plan
    launches with a sequence in force       -> plan with that sequence, or stop
    else ask: all ranks agree               -> use the plan
              they differ, but launch alike -> choose one of their launch sequences, plan with that, and agree on it
                                            -> else plan again with the launches kept
              anything else                 -> plan again with launches and waits kept
              any failure                   -> the graph as it was, and why
    what comes of it                        -> in force for these launches, on every rank and from now on

A new order of launches is used only where all ranks use the same: what fails after they have agreed on one must not
change the outcome, since a rank that fell back by itself would launch in another order than the others, which hangs.
Where the launches are kept, that order is the original one, and any rank may fall back by itself at any time. Where no
wait passes a launch that stood before it either, a rank may do so whatever the others run: ``docs/agreement.md``.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from overlap_sched.distributed import Agreement, Digest, Verdict, digest_of
from overlap_sched.distributed.digest import KEPT
from overlap_sched.distributed.negotiation import LaunchChoice, chosen_digest, negotiate
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import SequenceError, UnsupportedError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import agree
from overlap_sched.inductor.agree import Launches, Traffic
from overlap_sched.inductor.caches import CachedOrder, decided, order_to_cache, take_or_ask
from overlap_sched.inductor.reporting import GraphReport, communicates, describe_error, record, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve
from overlap_sched.report.units import size
from overlap_sched.report.words.schedule import short_text
from overlap_sched.scheduler.driver import Schedule, follow, follow_launches, schedule
from overlap_sched.scheduler.restrictions import Proposal

FOLLOWS = "launches as the ranks have agreed before"
PART_OF_OTHERS = (
    "its launches are only a part of those of graphs that run in a new sequence, or several of these in one"
)

UNKNOWN = "it is not known which operators of the graph its launches come from, so the ranks cannot compare them"

ScheduleCall = Callable[[Problem, Options], Schedule]


@dataclass(frozen=True)
class PlanRequest:
    """How to plan a graph.

    Attributes:
        settings: How to schedule.
        keeps: The ranks differ, but launch alike: nothing else than the original launch sequence may run.
        follows: The launch sequence in force, or another rank's order whose launches the ranks have chosen; ``None``:
            the best that is found.
    """

    settings: Settings
    keeps: bool = False
    follows: Entry | Proposal | None = None


@dataclass(frozen=True)
class LaunchFacts:
    """What is known of a graph before it is planned.

    Attributes:
        name: The graph's.
        key: Under which the ranks meet, see :func:`overlap_sched.inductor.agree.graph_key`; ``None``: there is nothing
            to agree on.
        launches: The original launch sequence; ``None``: not known.
        original: What runs without us launches and waits for; ``None``: not known, as other code may still move it.
        standing: What the graph launches in the order that is planned from; ``None``: not known.
        places: Per node of the problem that launches, by name, its place among ``launches``.
    """

    name: str = "a graph"
    key: str | None = None
    launches: Launches | None = None
    original: Traffic | None = None
    standing: Launches | None = None
    places: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def texts(self) -> tuple[Launch, ...]:
        """The launches as all ranks know them."""
        return agree.launch_texts(self.launches or self.standing or ())

    def places_of(self, launches: Launches) -> tuple[int, ...]:
        """Launches, each by its place in the original sequence."""
        place = {node: k for k, node in enumerate(self.launches or ())}
        return tuple(place[node] for node in launches)


class Graph(Protocol):
    """A graph of a plug-in. Any method may raise, on one rank alone; planning again starts from the same graph."""

    def read(self, how: PlanRequest) -> LaunchFacts:
        """Return what is known without planning."""

    def plan(self, how: PlanRequest, facts: LaunchFacts, schedule: ScheduleCall) -> tuple[Report, Sequence[Any]]:
        """Plan with the schedule that a call returns; the nodes come back in the order planned, if there is one."""

    def traffic(self, order: Sequence[Any]) -> Traffic | None:
        """Return what the nodes launch and wait for in an order; ``None``: not known."""


@dataclass(frozen=True)
class OrderDraft:
    """A graph as one plan leaves it, or would; the last one is what becomes of it.

    Attributes:
        how: How it was planned.
        facts: What is known of the graph.
        report: What it comes to.
        order: The nodes in the order planned; the front end puts the graph in it where the report says so.
        traffic: What is launched and waited for in that order; ``None``: not known, or nothing was reordered.
        cached: What the code carries into torch's cache; ``None``: it must not be cached, or need not be agreed on.
    """

    how: PlanRequest
    facts: LaunchFacts
    report: Report
    order: Sequence[Any] = ()
    traffic: Traffic | None = None
    cached: CachedOrder | None = None

    def keeps(self, waits: bool) -> bool:
        """Tell whether the launches are in their original order; ``waits``: and no wait passes one that it followed."""
        traffic, original = self.traffic, self.facts.original
        if traffic is None or not waits:
            return traffic is not None and traffic.launches == self.facts.launches
        return original is not None and traffic.keeps(original)

    def entry(self, mine: Digest, together: bool) -> Entry:
        """Return the launch sequence with which this rank would run it."""
        facts, launches = self.facts, self.facts.standing
        if self.report.changed:
            launches = None if self.traffic is None else self.traffic.launches
            if launches is None or facts.launches is None:  # it is not known what is launched when
                return Entry(facts.texts, (), together, mine.identity)
        elif launches is None or facts.launches is None or self.how.keeps:
            return Entry(facts.texts, tuple(range(len(facts.texts))), together)
        return Entry(facts.texts, facts.places_of(launches), together)

    def runs(self, mine: Digest, known: Entry) -> bool:
        """Tell whether it runs as an entry in force says."""
        if self.entry(mine, known.together) != known:
            return False
        return known.together or not self.report.changed or self.keeps(waits=True)

    def leave(self, reason: str | None = None) -> "OrderDraft":
        """Return the draft that leaves the graph as it was."""
        return replace(self, report=replace(self.report, changed=False, reason=reason or self.report.reason))

    def record(self, report: Report | None = None) -> None:
        """Keep the report, or a corrected one, now that nothing changes the order any more."""
        settings, report = self.how.settings, report or self.report
        if not settings.follows or report.changed:
            record(GraphReport(report.name, settings.stage, report, settings.notes, settings.priced_for))


def decide(graph: Graph, settings: Settings, options: Options | None = None) -> OrderDraft:
    """Plan, then ask the other ranks: launches move only where they move alike on every rank.

    ``options`` are those that the ranks compare, where a part of them has been dealt with before.

    Raises:
        SequenceError: Other ranks run a launch sequence that this graph cannot follow.
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """
    options, known, settled = options or settings.options, None, False
    draft = OrderDraft(PlanRequest(settings), LaunchFacts(), Report("a graph"))
    try:
        if agree.runs_earlier_code() and settings.options.preserve_collective_order != "all":
            settings = settings.preserving("waits")
            options = replace(options, preserve_collective_order="waits", rewrites=())
        draft = _draft(graph, PlanRequest(settings), LaunchFacts())
        if draft.facts.key is None or not communicates(draft.report):
            return draft
        if not draft.facts.texts:  # nothing is launched, or nobody can tell what
            return draft if draft.facts.standing is not None else draft.leave(UNKNOWN)
        draft, mine = _show(draft, options, draft.facts.key)
        # code of this graph was found in a cache and refused: what the ranks have decided then is known here
        known = None if mine.key in decided() else agree.find_in_force(draft.facts.texts, settings)
        if settings.follows and (known is None or not known.moves):  # off: torch's own order, asking nobody
            return draft.leave()
        if known is not None:
            if agree.may_be_a_part(known, settings):
                agree.refuse(draft.report.name, PART_OF_OTHERS)
            if known.together and draft.entry(mine, True) == known:
                draft = _cache(draft, mine, Agreement(True, Verdict(True)), known)
        elif (agreement := take_or_ask(mine, settings)) is None:
            known, settled = draft.entry(mine, True), True
        else:
            settled = agreement.agreed
            if not settled:
                if agreement.in_doubt:
                    agree.refuse(draft.report.name, str(agreement.reason))
                # from here on whatever fails may fail on one rank alone, which must keep its launches
                draft = replace(draft, how=replace(draft.how, keeps=agreement.verdict.launches_alike))
                draft = _settle_for_less(graph, draft, agreement, mine)
                settled = draft.how.follows is not None
            # on what was chosen all have agreed, whoever was late before
            entry = draft.entry(mine, agreement.verdict.meets or settled)
            known = agree.put_in_force(entry, settings)
            if known is None:
                agree.refuse(draft.report.name, PART_OF_OTHERS)
            if known == entry and draft.how.follows is None:
                draft = _cache(draft, mine, agreement, entry)
        if not draft.runs(mine, known):
            settled = False
            draft = _follow(graph, draft, mine, known)
        agree.note_launches(known)
        return draft
    except Exception as error:  # on this rank alone
        if settled and not isinstance(error, SequenceError):  # the others run this order
            warn(f"overlap_sched could not note the order of {draft.facts.name!r}", error)
            return draft
        if known is not None and (known.moves or known.rewritten) and not isinstance(error, SequenceError):
            agree.refuse(draft.facts.name, describe_error(error))
        keeps = draft.how.keeps or known is not None
        return _fail(replace(draft, how=replace(draft.how, keeps=keeps)), error)


def _draft(graph: Graph, how: PlanRequest, facts: LaunchFacts) -> OrderDraft:
    """Plan a graph; what fails is in the report. ``facts`` are those of an earlier plan, where reading fails."""
    try:
        facts = graph.read(how)
        return _plan(graph, how, facts)
    except Exception as error:  # a pass that fails must not take the compilation with it
        return _fail(OrderDraft(how, facts, Report(facts.name)), error)


def _plan(graph: Graph, how: PlanRequest, facts: LaunchFacts) -> OrderDraft:
    report, order = graph.plan(how, facts, lambda problem, options: _schedule(problem, options, how.follows, facts))
    traffic = graph.traffic(order) if report.changed and facts.key is not None else None
    return OrderDraft(how, facts, report, order, traffic)


def _schedule(problem: Problem, options: Options, follows: Entry | Proposal | None, facts: LaunchFacts) -> Schedule:
    if isinstance(follows, Entry):
        turn = {place: k for k, place in enumerate(follows.sequence)}
        launching = [v for v, node in enumerate(problem.nodes) if node.name in facts.places]
        launching.sort(key=lambda v: turn[facts.places[problem.nodes[v].name]])
        made = follow_launches(problem, launching, options)
        return made or agree.refuse(problem.name, "its dependencies do not allow that sequence")
    if follows is not None:
        made = follow(problem, follows, options)
        if made is None:
            raise UnsupportedError("the launch sequence of another rank cannot be followed")
        return made
    made = schedule(problem, options)
    if made.short_bytes:
        warn(f"overlap_sched, {problem.name!r}: {short_text(made)}")
    return made


def _fail(draft: OrderDraft, error: Exception) -> OrderDraft:
    name = draft.facts.name
    reason = agree.report_failure(error, draft.how.settings, f"scheduling {name!r}", f"leaves {name!r} as it was")
    return replace(draft, report=Report(name, reason=reason))


def _show(draft: OrderDraft, options: Options, key: str) -> tuple[OrderDraft, Digest]:
    """Return what the others are shown; where even that fails they learn so, and do not wait."""
    report, launches, sequence = draft.report, draft.facts.launches, ""
    try:
        sequence = "" if launches is None else agree.launch_digest(launches)
        if report.schedule is not None:
            digest = digest_of(report.schedule.problem, options, _order(report.schedule, report.changed))
            return draft, replace(digest, key=key, launches=sequence)
    except Exception as error:
        draft = draft.leave(describe_error(error))
    return draft, Digest(key=key, launches=sequence, failure=str(draft.report.reason), name=report.name)


def _order(made: Schedule, changed: bool) -> tuple[int, ...]:
    return made.order if changed else made.problem.original_order


def _settle_for_less(graph: Graph, draft: OrderDraft, agreement: Agreement, mine: Digest) -> OrderDraft:
    """Keep all launches in their original order, or in one that all ranks choose, where they have not agreed.

    Unless all launch alike, waits are kept behind their launches, too: then it does not matter what others run.
    """
    verdict, reason, settings = agreement.verdict, str(agreement.reason), draft.how.settings
    name, alike = draft.report.name, verdict.launches_alike
    kept = _keep(graph, draft, reason, waits=not alike)
    if alike and verdict.negotiable and settings.options.preserve_collective_order == "none":
        return _negotiate(graph, draft, kept, verdict, mine) or kept
    done = f"keeps the launch{' order' if alike else 'es and waits'} of {name!r}"
    if not (alike or kept.report.changed):
        reason = "; ".join(filter(None, (kept.report.reason, reason)))
        kept = replace(kept, report=replace(kept.report, reason=reason, kept=None))
        done, verdict = f"leaves {name!r} as it was", replace(verdict, reason=reason)
    if not alike or (verdict.to_repair and draft.report.schedule is not None):
        agree.warn_of_ranks(done, verdict, settings)
    return kept


def _negotiate(graph: Graph, own: OrderDraft, kept: OrderDraft, verdict: Verdict, mine: Digest) -> OrderDraft | None:
    """Plan with the launch sequence that all ranks have chosen; ``None``: they keep theirs.

    Whatever fails here, this rank shows it to the others, and all keep their launches.
    """
    draft = None
    try:
        choice, sequence = _choose(own, kept, verdict), tuple[int, ...]()
        if choice.proposal is not None and choice.proposer is not None:
            how = PlanRequest(own.how.settings.preserving("none"), keeps=True, follows=choice.proposal)
            draft = _plan(graph, how, graph.read(how))
            followed = str(verdict.reason).replace(KEPT, f"all launch as rank {choice.proposer} does")
            draft = replace(draft, report=replace(draft.report, kept=followed))
            if draft.facts.launches is None or draft.traffic is None:
                raise UnsupportedError(f"the launch sequence of another rank is not used: {draft.report.reason}")
            sequence = draft.facts.places_of(draft.traffic.launches)
        shows = chosen_digest(mine, verdict, choice, sequence)
    except Exception as error:
        shows = chosen_digest(mine, verdict, None, failure=describe_error(error))
    agreement = agree.ask(shows, own.how.settings)
    if draft is not None and not shows.failure and agreement is not None:
        if agreement.agreed:
            return draft
        if agreement.in_doubt:  # the others may run it
            agree.refuse(own.report.name, str(agreement.reason))
    return None


def _choose(own: OrderDraft, kept: OrderDraft, verdict: Verdict) -> LaunchChoice:
    """Choose a launch sequence with all other ranks."""
    mine, made, settings = own.report.schedule, kept.report.schedule, own.how.settings
    here = agree.membership(settings)
    if mine is None or made is None or here is None:
        raise UnsupportedError("there is no order to propose")
    problem, options = made.problem, replace(made.options, preserve_collective_order="none")

    def planned(proposals: Mapping[int, Proposal]) -> dict[int, float]:
        found = {rank: follow(problem, proposal, options) for rank, proposal in proposals.items()}
        return {rank: math.inf if one is None else one.scheduled.step_us for rank, one in found.items()}

    step_us = (made.scheduled if kept.report.changed else made.original).step_us
    proposal = Proposal.of(mine.problem, _order(mine, own.report.changed))
    return negotiate(verdict, proposal, step_us, planned, here, settings.timeout_s)


def _keep(graph: Graph, draft: OrderDraft, reason: str, waits: bool) -> OrderDraft:
    """Return this draft or a second one in which no launch moves, and no wait passes one that stood before it either.

    The second is only where ``waits`` says so. Checked, not assumed.
    """
    preserve: Preserve = "waits" if waits else "all"
    if draft.report.schedule is None:  # this rank has nothing to use, and nobody needs it to
        return draft
    if waits and draft.facts.original is None:
        return draft.leave()
    if draft.report.changed and not draft.keeps(waits):
        draft = _draft(graph, replace(draft.how, settings=draft.how.settings.preserving(preserve)), draft.facts)
        if draft.report.changed and not draft.keeps(waits):
            draft = _fail(draft, UnsupportedError(f"an order moves what preserve_collective_order={preserve!r} keeps"))
    return replace(draft, report=replace(draft.report, kept=reason))


def _follow(graph: Graph, draft: OrderDraft, mine: Digest, known: Entry) -> OrderDraft:
    """Plan with the launch sequence in force, whatever memory and time that takes."""
    name = draft.report.name
    if known.rewritten:
        agree.refuse(name, "they have rewritten its collectives")
    if known.moves:
        how = replace(draft.how, settings=draft.how.settings.preserving("none"), follows=known)
        draft = _draft(graph, how, draft.facts)
        draft = replace(draft, report=replace(draft.report, kept=FOLLOWS))
    else:
        draft = replace(draft, how=replace(draft.how, keeps=True, follows=None))
        draft = _keep(graph, draft, FOLLOWS, waits=not known.together)
        draft = _cache(draft, mine, Agreement(False, Verdict(False, None, known.together, {"order": ()})), known)
    if not draft.runs(mine, known):
        agree.refuse(name, draft.report.reason or PART_OF_OTHERS)
    made = draft.report.schedule
    if made is not None and draft.report.changed and made.scheduled.peak_bytes > made.budget_bytes:
        more = size(made.scheduled.peak_bytes - made.budget_bytes)
        warn(f"overlap_sched: {name!r} {FOLLOWS}, and takes {more} more than its budget for that")
    return draft


def _cache(draft: OrderDraft, mine: Digest, agreement: Agreement, entry: Entry) -> OrderDraft:
    """Note what the code is to carry into torch's cache; where that fails it is not cached."""
    try:
        made = draft.report.schedule
        order = "" if made is None else repr(tuple(map(int, _order(made, draft.report.changed))))
        kept_order = hashlib.sha256(order.encode()).hexdigest()
        return replace(draft, cached=order_to_cache(mine, agreement, kept_order, entry))
    except Exception as error:
        warn(f"overlap_sched keeps {draft.facts.name!r} out of torch's cache", error)
        return draft
