"""The one line on all graphs of a job: where the plug-in is switched off, or at the end of the process."""

import atexit
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.inductor.console import rank, say, several_ranks
from overlap_sched.report.units import count, duration, from_to
from overlap_sched.report.words.graph import AssumedSize, sizes_assumed

DETAILS = "Details: overlap_sched.reports()"
HOOKS = (
    "fully_shard, DDP and other hooks launch collectives outside of the graph. Use overlap_sched.distributed.shard, "
    'or with DDP torch._dynamo.config.optimize_ddp = "python_reducer"'
)
LONGEST_LINE = 300
"""Characters. Where the line would be longer, fewer reasons are named, and less of each."""
_FINE = ("no better order was found", "no other order was looked for")


@dataclass(frozen=True)
class Outcome:
    """What the line says of one graph.

    Attributes:
        communicates: Whether it has collectives, as far as is known.
        reordered: Whether it has another order now.
        rewritten: Whether it has not, but its collectives were rewritten.
        reason: Why neither; ``""`` where it was.
        before_us, after_us: Predicted exposed time.
        priced_for: For which device.
        kept: Why its launches are in their original order, see :class:`~overlap_sched.fx.apply.Report`; ``""``: they
            need not be.
        sizes: On which sizes that only the data knows its peak rests.
    """

    communicates: bool
    reordered: bool = False
    reason: str = ""
    before_us: float = 0.0
    after_us: float = 0.0
    priced_for: str = ""
    kept: str = ""
    sizes: tuple[AssumedSize, ...] = ()
    rewritten: bool = False

    @property
    def fine(self) -> bool:
        """Is there nothing to mend?"""
        return self.reordered or self.rewritten or not self.communicates or self.reason.startswith(_FINE)


def outcome_of(report: Report, priced_for: str) -> Outcome:
    """The part of a report that the line needs: a report itself holds the whole graph's schedule."""
    plan, reason, exposed = report.schedule, report.reason or "", report.exposed_us
    communicates = not reason.startswith(NO_COLLECTIVES) if plan is None else bool(plan.problem.collectives)
    if exposed is None:
        return Outcome(communicates, False, reason)
    kept, rewritten = report.kept or "", not report.changed
    return Outcome(communicates, report.changed, "", *exposed, priced_for, kept, report.sizes, rewritten)


class Room(NamedTuple):
    """How many kinds of reasons are named, and how long each may be (characters)."""

    reasons: int
    longest: int


_ROOMS = (Room(3, 200), Room(3, 100), Room(2, 80), Room(1, 80), Room(1, 40))
"""From the most words to the fewest."""


class Line(NamedTuple):
    """What to say, and how loudly (a level of :mod:`logging`)."""

    text: str
    level: int


def summary(
    outcomes: Sequence[Outcome],
    passed_by: Sequence[str] = (),
    cached: int = 0,
    loaded: Sequence[bool] = (),
    *,
    ranks: bool,
) -> Line:
    """One line on some graphs, at least one.

    Args:
        outcomes: Of the graphs that came to us.
        passed_by: Per graph that was compiled without us, why.
        cached: Graphs that torch found in its caches.
        loaded: Of the code that it found there, as far as it is known, whether it has collectives.
        ranks: Are there several? Then graphs without any collective are no good sign.
    """
    mend = [outcome for outcome in outcomes if not outcome.fine]
    communicate = any(outcome.communicates for outcome in outcomes) or any(loaded)
    hooked = ranks and bool(outcomes or loaded) and not communicate and (not cached or bool(loaded))
    level = logging.WARNING if mend or hooked or (passed_by and not outcomes) else logging.INFO
    texts = [_text(outcomes, passed_by, cached, loaded, hooked, room) for room in _ROOMS]
    return Line(next((text for text in texts if len(text) <= LONGEST_LINE), texts[-1]), level)


def _text(
    outcomes: Sequence[Outcome],
    passed_by: Sequence[str],
    cached: int,
    loaded: Sequence[bool],
    hooked: bool,
    room: Room,
) -> str:
    parts = [_counted(outcomes, room)] if outcomes else [] if cached else ["no graph reached it"]
    if cached:
        cached = max(cached, len(loaded))  # forward and backward are found one by one
        order = ", none with collectives" if loaded and not any(loaded) else ", in the order that was cached"
        parts.append(f"{count(cached, 'graph')} out of torch's caches{order}")
    parts += [f"{count(n, 'graph')} compiled without it, as {why}" for why, n in Counter(passed_by).items()]
    if hooked:
        parts.append(f"nothing to reorder. {HOOKS}")
    return f"overlap_sched: {'; '.join(parts)}{f'. {DETAILS}' if outcomes else ''}"


def _counted(outcomes: Sequence[Outcome], room: Room) -> str:
    """``5 graphs, 3 with collectives, 2 reordered (exposed ...), 1 not: ...; 2 without collectives``."""
    head = count(len(outcomes), "graph")
    have = [outcome for outcome in outcomes if outcome.communicates]
    without = len(outcomes) - len(have)
    lowered = sum(outcome.reordered and not outcome.communicates for outcome in outcomes)
    by_peak = f", {lowered:,} ordered for a lower peak" if lowered else ""
    if not have:
        return f"{head}, none with collectives{by_peak}"
    done = [outcome for outcome in have if outcome.reordered or outcome.rewritten]
    left = [outcome.reason for outcome in have if not (outcome.reordered or outcome.rewritten)]
    reordered, rewritten = ([one for one in done if one.rewritten is which] for which in (False, True))
    text = f"{head}, {len(have):,} with collectives, {len(reordered) or 'none'} reordered"
    text += f" ({_gained(reordered, room)})" if reordered else ""
    text += f", {len(rewritten):,} rewritten ({_gained(rewritten, room)})" if rewritten else ""
    if left:
        text += f", {len(left):,} not: {_reasons(left, room)}" if done else f": {_reasons(left, room)}"
    return f"{text}; {without:,} without collectives{by_peak}" if without else text


def _gained(done: Sequence[Outcome], room: Room) -> str:
    """``exposed 14.10 -> 0.80 ms predicted for H100``, and which launches could not move."""
    before_us, after_us = sum(outcome.before_us for outcome in done), sum(outcome.after_us for outcome in done)
    devices = " and ".join(dict.fromkeys(outcome.priced_for for outcome in done if outcome.priced_for))
    kept = [outcome.kept for outcome in done if outcome.kept]
    assumed = sizes_assumed(list(dict.fromkeys(one for outcome in done for one in outcome.sizes)))
    return (
        f"exposed {from_to(duration(before_us), duration(after_us))} predicted{f' for {devices}' if devices else ''}"
        f"{f'; {len(kept):,} of them: {_reasons(kept, room)}' if kept else ''}{f'; {assumed}' if assumed else ''}"
    )


def _reasons(reasons: Iterable[str], room: Room) -> str:
    """Each kind of reason once, the most frequent first: whole where one graph has it, else its head and how many."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(_sentence(reason, room).split(":")[0], []).append(reason)
    ranked = sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    words = [_sentence(alike[0], room) if len(set(alike)) == 1 else head for head, alike in ranked[: room.reasons]]
    if len(ranked) > 1:
        words = [f"{word} ({len(alike):,})" for word, (_, alike) in zip(words, ranked, strict=False)]
    more = sum(len(alike) for _, alike in ranked[room.reasons :])
    return "; ".join([*words, *([f"other reasons ({more:,})"] if more else [])])


def _sentence(reason: str, room: Room) -> str:
    """The first sentence, not too long: what follows is how to mend it, and in the report."""
    first = " ".join(reason.split()).partition(". ")[0].rstrip(".")
    return first if len(first) <= room.longest else f"{first[: room.longest].rsplit(' ', 1)[0]} ..."


class Tally:
    """What became of the graphs of this process since the last line. Rank 0 speaks for all."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As if nothing had been compiled: in a process that was forked."""
        self.seen = 0
        """Graphs of which something is known."""
        self._ranks = False
        self._start_anew()

    def _start_anew(self) -> None:
        self._outcomes: list[Outcome] = []
        self._passed_by: list[str] = []
        self._cached = 0
        self._loaded: list[bool] = []

    def add(self, outcome: Outcome) -> None:
        """Count a graph that came to us, and what became of it."""
        if self._speaks(1):
            self._outcomes.append(outcome)

    def pass_by(self, why: str, graphs: int = 1) -> None:
        """Count graphs that were compiled without us."""
        if self._speaks(graphs):
            self._passed_by += [why] * graphs

    def from_cache(self, graphs: int) -> None:
        """Count graphs that torch found in its caches, where they have our order."""
        if self._speaks(graphs):
            self._cached += graphs

    def loaded(self, communicates: bool) -> None:
        """Note that code from torch's caches is used, and whether it has collectives. Not known of all such code."""
        self._loaded.append(communicates)

    def say(self) -> None:
        """Say the line, if there is anything to say. Never raises."""
        try:
            outcomes, passed_by, cached, loaded = self._outcomes, self._passed_by, self._cached, self._loaded
            self._start_anew()
            if outcomes or passed_by or cached:
                line = summary(outcomes, passed_by, cached, loaded, ranks=self._ranks)
                say(line.text, line.level)
        except Exception:  # words for people must not end a job
            return

    def _speaks(self, graphs: int) -> bool:
        """Tell whether this is rank 0, while torch compiles: the process group may be gone when the line is said."""
        self.seen += graphs
        self._ranks = self._ranks or several_ranks()
        return rank() == 0


tally = Tally()
"""Of this process."""
atexit.register(tally.say)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tally.forget)
