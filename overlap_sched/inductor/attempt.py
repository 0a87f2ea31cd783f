"""One graph on its way through a plug-in: planned, agreed with the other ranks, or left as it was.

    launches with a sequence in force       -> plan with that sequence, or stop
    plan -> all ranks agree                 -> use it
         -> they differ, but launch alike   -> choose one of their launch sequences, plan with that, and agree on it
                                            -> else plan again with the launches kept, use that
         -> anything else                   -> plan again with launches and waits kept, use that
         any failure                        -> the graph as it was, and why
    what comes of it                        -> in force for these launches, on every rank and from now on

A new order of launches is used only where all ranks use the same: what fails after they have agreed on one must not
change the outcome, since a rank that fell back by itself would launch in another order than the others, which hangs.
Where the launches are kept, that order is the original one, and any rank may fall back by itself at any time. Where no
wait passes a launch that stood before it either, a rank may do so whatever the others run: ``docs/agreement.md``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.distributed.negotiation import LaunchChoice, chosen_digest, negotiate
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor.agree import ask, given_up, order_digest, shown, warn_of_ranks
from overlap_sched.inductor.cached_orders import CachedOrder, decided, decisions, order_of
from overlap_sched.inductor.console import said, warn
from overlap_sched.inductor.in_force import (
    compiled_otherwise,
    in_force,
    may_be_a_part,
    note_launches,
    put_in_force,
    refuse,
    runs_earlier_code,
)
from overlap_sched.inductor.launches import Launches, Traffic, launch_texts
from overlap_sched.inductor.reporting import GraphReport, record
from overlap_sched.inductor.settings import Settings
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve
from overlap_sched.report.units import size
from overlap_sched.report.words.schedule import short_text
from overlap_sched.scheduler.driver import Schedule, follow, follow_launches, schedule
from overlap_sched.scheduler.restrictions import Proposal

Plan = Callable[["Attempt"], Report]
"""Plans a graph as an attempt says, and puts it in that order."""
FOLLOWS = "launches as the ranks have agreed before"
OTHERWISE = "its launches are only a part of those of graphs that run in a new sequence, or several of these in one"


@dataclass
class Attempt:
    """What is known so far of a graph that is being scheduled: as much as a failure leaves.

    Attributes:
        settings: How to schedule.
        given: The options as they were given, which ranks compare, where a part of them has been dealt with before;
            ``None``: those of ``settings`` are.
        name: The graph's.
        key: Under which the ranks meet, see :func:`overlap_sched.inductor.agree.graph_key`; ``None``: not yet known, or
            there is nothing to agree on.
        problem: What was scheduled.
        launches: The original launch sequence; ``None``: not known.
        original: What runs without us launches and waits for; ``None``: not known, as other code may still move it.
        planned: The same of the order that was planned; ``None``: there is no such order.
        keeps: The ranks differ, but launch alike: nothing else than ``launches`` may run.
        following: Whose order gives the launch sequence, as the ranks that differ have chosen; ``None``: nobody's.
        asked: The options of the last plan.
        followed: What was made so, by the proposal.
        standing: What the graph launches in the order that is planned from; ``None``: not known.
        places: Per node of the problem that launches, by name, its place among ``launches``.
        in_force: The launch sequence that must be followed; ``None``: none has to be.
        cached: What the code carries into torch's cache; ``None``: it must not be cached, or need not be agreed on.
    """

    settings: Settings
    given: Options | None = None
    name: str = "a graph"
    key: str | None = None
    problem: Problem | None = None
    launches: Launches | None = None
    original: Traffic | None = None
    planned: Traffic | None = None
    keeps: bool = False
    following: Proposal | None = None
    asked: Options | None = None
    followed: dict[Proposal, Schedule] = field(default_factory=dict)
    standing: Launches | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    in_force: Entry | None = None
    cached: CachedOrder | None = None

    def decided(self, plan: Plan) -> Report:
        """Plan, then ask the other ranks: launches move only where they move alike on every rank.

        Raises:
            SequenceError: Other ranks run a launch sequence that this graph cannot follow.
            VerificationError, AgreementError: With ``strict``, instead of a fallback.
        """
        if runs_earlier_code() and self.settings.options.preserve_collective_order != "all":
            options = replace(self.settings.options, preserve_collective_order="waits", rewrites=())
            self.settings = replace(self.settings, options=options)
        report = self._report_of(plan)
        if self.key is None or not self.texts:
            return report
        report, mine = self._shown(report, self.key)
        # code of this graph was found in a cache and refused: what the ranks have decided then is known here
        known = None if decisions.holds(mine.key) else in_force(self.texts, self.settings)
        if self.settings.follows and (known is None or not known.moves):  # off: torch's own order, asking nobody
            self.keeps = False
            return replace(report, changed=False)
        if known is None:
            report, known = self._settled(report, plan, mine)
        elif may_be_a_part(known, self.settings):
            refuse(report.name, OTHERWISE)
        elif known.together and self._entry(report, mine, True) == known:
            self._cache(mine, Agreement(True, Verdict(True)), report, known)
        if not self._runs(report, mine, known):
            report = self._followed(report, plan, mine, known)
        note_launches(known)
        return report

    def _settled(self, report: Report, plan: Plan, mine: Digest) -> tuple[Report, Entry]:
        """Ask the ranks about launches of which nothing is in force yet; return what is from now on, too."""
        agreement = decided(mine, self.settings)
        if agreement is None:
            return report, self._entry(report, mine, True)
        if agreement.in_doubt and not agreement.agreed:
            refuse(report.name, str(agreement.reason))
        if not agreement.agreed:
            report = self._not_agreed(report, plan, agreement, mine)
        verdict = agreement.verdict
        entry = self._entry(report, mine, (verdict.agreed or verdict.launches_alike) and not verdict.missing)
        again = compiled_otherwise(entry.launches)
        known = put_in_force(replace(entry, again=again), self.settings)
        if known is None:
            refuse(report.name, OTHERWISE)
        if known == entry and self.following is None:
            self._cache(mine, agreement, report, entry)  # does not fail: the others use the order
        return report, known

    def _entry(self, report: Report, mine: Digest, together: bool) -> Entry:
        """Return what this rank would run."""
        launches = self.standing
        if report.changed:
            launches = None if self.planned is None else self.planned.launches
        if report.changed and (launches is None or self.launches is None):  # it is not known what is launched when
            return Entry(self.texts, (), together, mine.identity)
        if launches is None or self.launches is None or (self.keeps and not report.changed):
            return Entry(self.texts, tuple(range(len(self.texts))), together)
        place = {node: k for k, node in enumerate(self.launches)}
        return Entry(self.texts, tuple(place[node] for node in launches), together)

    def _runs(self, report: Report, mine: Digest, known: Entry) -> bool:
        """Tell whether a report leaves the graph as it must run."""
        if self._entry(report, mine, known.together) != known:
            return False
        return known.together or not report.changed or self._keeps_waits()

    def _followed(self, report: Report, plan: Plan, mine: Digest, known: Entry) -> Report:
        """The report of an order with the launch sequence in force, whatever memory and time that takes."""
        if known.rewritten:
            refuse(report.name, "they have rewritten its collectives")
        if not known.moves:
            self.keeps = True
            report = (self._launches_kept if known.together else self._waits_kept)(report, plan, FOLLOWS)
            kept = Verdict(False, FOLLOWS, known.together, {"order": ()})
            self._cache(mine, Agreement(False, kept), report, known)
        else:
            options = replace(self.settings.options, rewrites=(), preserve_collective_order="none")
            self.settings, self.in_force, self.planned = replace(self.settings, options=options), known, None
            report = replace(self._report_of(plan), kept=FOLLOWS)
        if not self._runs(report, mine, known):
            refuse(report.name, report.reason or OTHERWISE)
        schedule = report.schedule
        if schedule is not None and report.changed and schedule.scheduled.peak_bytes > schedule.budget_bytes:
            more = schedule.scheduled.peak_bytes - schedule.budget_bytes
            warn(f"overlap_sched: {report.name!r} {FOLLOWS}, and takes {size(more)} more than its budget for that")
        return report

    @property
    def texts(self) -> tuple[Launch, ...]:
        """The launches as all ranks know them."""
        return launch_texts(self.launches or self.standing or ())

    def scheduled(self, problem: Problem, options: Options) -> Schedule:
        """Schedule, as the ranks have decided by then.

        Raises:
            UnsupportedError: The launch sequence that was chosen cannot be had after all.
        """
        self.asked = options
        if self.in_force is not None:
            turn = {place: k for k, place in enumerate(self.in_force.sequence)}
            launching = [v for v, node in enumerate(problem.nodes) if node.name in self.places]
            launching.sort(key=lambda v: turn[self.places[problem.nodes[v].name]])
            made = follow_launches(problem, launching, options)
            return made or refuse(problem.name, "its dependencies do not allow that sequence")
        if self.following is None:
            made = schedule(problem, options)
            if made.short_bytes:
                warn(f"overlap_sched, {problem.name!r}: {short_text(made)}")
            return made
        found = self._following(problem, self.following, options)
        if found is None:
            raise UnsupportedError("the launch sequence of another rank cannot be followed")
        return found

    def _following(self, problem: Problem, proposal: Proposal, options: Options) -> Schedule | None:
        """As another rank proposes; what was made of the same problem is not made again."""
        known = self.followed.get(proposal)
        if known is not None and known.problem == problem:
            return known
        found = follow(problem, proposal, options)
        if found is not None:
            self.followed[proposal] = found
        return found

    def _not_agreed(self, report: Report, plan: Plan, agreement: Agreement, mine: Digest) -> Report:
        """The report with all launches in their original order: whatever fails from here on may fail on one rank.

        Unless all launch alike, waits are kept behind their launches, too: then it does not matter what others run.
        """
        reason = str(agreement.reason)
        if agreement.verdict.launches_alike:
            self.keeps = True
            if agreement.verdict.negotiable and self.settings.options.preserve_collective_order == "none":
                return self._negotiated(report, plan, agreement.verdict, mine)
            if agreement.verdict.to_mend and report.schedule is not None:
                warn_of_ranks(f"keeps the launch order of {report.name!r}", agreement.verdict, self.settings)
            return self._launches_kept(report, plan, reason)
        found = self._waits_kept(report, plan, reason)
        if found.changed:
            warn_of_ranks(f"keeps the launches and waits of {report.name!r}", agreement.verdict, self.settings)
            return found
        if found.reason is not None:
            reason = f"{found.reason}; {reason}"
        warn_of_ranks(f"leaves {report.name!r} as it was", replace(agreement.verdict, reason=reason), self.settings)
        return replace(found, changed=False, reason=reason, kept=None)

    def _negotiated(self, own: Report, plan: Plan, verdict: Verdict, mine: Digest) -> Report:
        """The report of an order with the launch sequence that all ranks have chosen; else of one that keeps its own.

        Whatever fails here, this rank shows it to the others, and all keep their launches.
        """
        alone = self.settings
        report = kept = self._launches_kept(own, plan, str(verdict.reason))
        try:
            choice = self._choice(own, kept, verdict)
            sequence: tuple[int, ...] = ()
            if choice.proposal is not None and choice.proposer is not None:
                self.settings = replace(alone, options=replace(alone.options, rewrites=()))
                self.following, self.planned = choice.proposal, None
                report = replace(plan(self), kept=verdict.followed(choice.proposer))
                sequence = self._sequence(report)
            shows = chosen_digest(mine, verdict, choice, sequence)
        except Exception as error:
            shows = chosen_digest(mine, verdict, None, failure=said(error))
        agreement = ask(shows, self.settings)
        if agreement is not None and agreement.agreed:  # nothing that could fail comes after this
            return report
        if self.following is not None:
            self.settings, self.following, self.planned = alone, None, None
            return self._launches_kept(own, plan, str(verdict.reason))
        return kept

    def _choice(self, own: Report, kept: Report, verdict: Verdict) -> LaunchChoice:
        """Which launch sequence this rank and all others have chosen."""
        problem, asked = self.problem, self.asked
        if own.schedule is None or kept.schedule is None or problem is None or asked is None:
            raise UnsupportedError("there is no order to propose")
        options = replace(asked, preserve_collective_order="none")

        def planned(proposals: Mapping[int, Proposal]) -> dict[int, float]:
            made = {rank: self._following(problem, proposal, options) for rank, proposal in proposals.items()}
            return {rank: math.inf if one is None else one.scheduled.step_us for rank, one in made.items()}

        figures = kept.schedule.scheduled if kept.changed else kept.schedule.original
        order = own.schedule.order if own.changed else own.schedule.problem.original_order
        proposal = Proposal.of(own.schedule.problem, order)
        settings = self.settings
        return negotiate(verdict, proposal, figures.step_us, planned, settings.timeout_s, ranks=settings.ranks)

    def _sequence(self, report: Report) -> tuple[int, ...]:
        """The launches that were planned, each by its place in the original sequence."""
        if not report.changed or self.launches is None or self.planned is None:
            raise UnsupportedError(f"the launch sequence of another rank is not used: {report.reason}")
        place = {node: k for k, node in enumerate(self.launches)}
        return tuple(place[node] for node in self.planned.launches)

    def _report_of(self, plan: Plan) -> Report:
        try:
            return plan(self)
        except Exception as error:  # a pass that fails must not take the compilation with it
            return self.failed(error)

    def _shown(self, report: Report, key: str) -> tuple[Report, Digest]:
        """Return what the others are shown of a report; where even that fails they learn so, and do not wait."""
        try:
            return report, shown(report, self.problem, self.given or self.settings.options, key, self.launches)
        except Exception as error:
            failure = said(error)
            return replace(report, changed=False, reason=failure), Digest.of_failure(failure, key, name=report.name)

    def _launches_kept(self, report: Report, plan: Plan, reason: str) -> Report:
        """The report of an order that moves no launch."""

        def kept() -> bool:
            return self.planned is not None and self.planned.launches == self.launches

        return self._kept(report, plan, reason, "all", kept, "moves a launch though all are to be kept")

    def _waits_kept(self, report: Report, plan: Plan, reason: str) -> Report:
        """The report of an order in which no wait passes a launch that stood before it either."""
        if self.original is None:
            return replace(report, changed=False)
        broken = "moves a launch, or a wait before one that it followed"
        return self._kept(report, plan, reason, "waits", self._keeps_waits, broken)

    def _keeps_waits(self) -> bool:
        return self.planned is not None and self.original is not None and self.planned.keeps(self.original)

    def _kept(
        self,
        report: Report,
        plan: Plan,
        reason: str,
        preserve: Preserve,
        kept: Callable[[], bool],
        broken: str,
    ) -> Report:
        """The report of an order that keeps what it must: this one, else one of a second plan; checked, not assumed."""
        if report.schedule is None:  # this rank has nothing to use, and nobody needs it to
            return report
        if report.changed and not kept():
            options = replace(self.settings.options, rewrites=(), preserve_collective_order=preserve)
            self.settings, self.planned = replace(self.settings, options=options), None
            report = self._report_of(plan)
            if report.changed and not kept():
                report = self.failed(UnsupportedError(f"the order {broken}"))
        return replace(report, kept=reason)

    def _cache(self, mine: Digest, agreement: Agreement, report: Report, entry: Entry) -> None:
        """Note what the code is to carry into torch's cache; where that fails it is not cached."""
        try:
            kept_order = "" if self.problem is None else order_digest(report, self.problem)
            self.cached = order_of(mine, agreement, kept_order, entry)
        except Exception as error:
            warn(f"overlap_sched keeps {self.name!r} out of torch's cache", error)

    def failed(self, error: Exception) -> Report:
        """The report of a failure, with a warning.

        Raises:
            VerificationError, AgreementError: With ``strict``.
        """
        scheduled, left = f"scheduling {self.name!r}", f"leaves {self.name!r} as it was"
        return Report(self.name, reason=given_up(error, self.settings, scheduled, left))

    def record(self, report: Report) -> None:
        """Keep the report, now that nothing changes the order any more."""
        settings = self.settings
        if settings.follows and not report.changed:
            return
        record(GraphReport(report.name, settings.stage, report, settings.notes, settings.priced_for))
