"""Orders in torch's caches: used again only after all ranks have agreed on them again.

torch calls no pass where it finds code in a cache. So code in an agreed order carries, as a comment, what this rank has
shown to the others; a rank that finds it shows the same again, at the moment when it would have compiled. Where ranks
were asked twice, about rewrites and then about the order of the rewritten graph, they are asked twice again:

    torch finds code -> show what it carries -> they decide as when it was made -> the code is used
                                             -> they do not    -> torch compiles, with what they have decided

Ranks that find nothing compile and show what they have made, as always. AOTAutograd's cache loads forward and backward
at once: all ranks take both, or all trace and are asked about each. Why that is sound: ``docs/agreement.md``.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from threading import local
from typing import Any

from torch import fx

from overlap_sched.distributed import Agreement, Digest
from overlap_sched.distributed.digest import LAUNCHES_KEPT, WAITS_KEPT
from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import AgreementError, SequenceError
from overlap_sched.inductor.agree import ask, asks, warn_of_ranks
from overlap_sched.inductor.console import warn
from overlap_sched.inductor.in_force import compiled_otherwise, in_force, may_be_a_part, note_launches, put_in_force
from overlap_sched.inductor.names import graph_name
from overlap_sched.inductor.reporting import record_cached
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.summary import tally

_MARK = "overlap_sched order: "
_REWRITES = "overlap_sched rewrites"
_COMMUNICATES = re.compile("c10d_functional|symm_mem|_dtensor")
"""In generated code, the namespaces of :mod:`overlap_sched.fx.operators`."""


@dataclass(frozen=True)
class CachedOrder:
    """What code carries of the order that it runs.

    Attributes:
        digest: What a rank shows that uses it. Never that of an order which the code does not have.
        agreed: All ranks had agreed on it when it was compiled; else it launches as the original order does.
        rewrites: The same of the rewrites, on which ranks were asked before; not agreed: the code has none. ``None``:
            nobody was asked, as there was nothing to rewrite.
        entry: How it launches; ``None``: as another entry says, or nothing was to be rewritten.
    """

    digest: Digest
    agreed: bool
    rewrites: "CachedOrder | None" = None
    entry: Entry | None = None

    @property
    def questions(self) -> tuple["CachedOrder", ...]:
        """The orders that the ranks are asked about, in turn."""
        return (self,) if self.rewrites is None else (self.rewrites, self)

    def fits(self, agreement: Agreement) -> bool:
        """Does it run what ranks run that decide so? Code that keeps launches alone is for ranks that launch alike."""
        if self.agreed or agreement.agreed:
            return self.agreed and agreement.agreed
        return self.digest.order.startswith(WAITS_KEPT) != agreement.verdict.launches_alike

    @property
    def line(self) -> str:
        """As text, without line breaks."""
        return _MARK + json.dumps(self._data())

    def _data(self) -> dict[str, Any]:
        rewrites = None if self.rewrites is None else self.rewrites._data()
        entry = None if self.entry is None else self.entry.to_json()
        return {"digest": self.digest.to_json(), "agreed": self.agreed, "rewrites": rewrites, "entry": entry}

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> "CachedOrder":
        """Read what :attr:`line` wrote."""
        rewrites = None if data["rewrites"] is None else cls.of_data(data["rewrites"])
        entry = None if data["entry"] is None else Entry.from_json(data["entry"])
        return cls(Digest.from_json(data["digest"]), data["agreed"], rewrites, entry)

    def settled(self, settings: Settings) -> bool | None:
        """Tell whether it launches as is in force for its launches; ``None``: nothing is yet."""
        known = None if self.entry is None else in_force(self.entry.launches, settings)
        if known is None:
            return None
        if known != self.entry or may_be_a_part(known, settings):
            return False
        note_launches(known)
        return True

    def put_in_force(self, settings: Settings, agreement: Agreement) -> bool:
        """Tell whether it launches as is in force from now on, as all ranks use it."""
        if self.entry is None:
            return True
        verdict = agreement.verdict
        together = (verdict.agreed or verdict.launches_alike) and not verdict.missing
        again = compiled_otherwise(self.entry.launches)
        known = put_in_force(replace(self.entry, together=together, again=again), settings)
        if known is not None:
            note_launches(known)
        return known is not None and replace(known, together=self.entry.together) == self.entry


def order_in(source: str) -> CachedOrder | None:
    """Read what generated code carries; ``None``: nothing, or more than one order."""
    lines = [line for line in source.splitlines() if _MARK in line]
    if len(lines) != 1:
        return None
    return CachedOrder.of_data(json.loads(lines[0].split(_MARK, 1)[1]))


def order_of(mine: Digest, agreement: Agreement, kept_order: str, entry: Entry | None = None) -> CachedOrder | None:
    """Return the order that code carries; ``None``: it must not be cached, as the ranks may decide otherwise next time.

    ``mine`` is what this rank has shown; ``kept_order`` is the digest of the order that the code has where they have
    not agreed; ``entry``: how it launches.
    """
    if agreement.agreed:
        return CachedOrder(mine, agreed=True, entry=entry)
    if not agreement.verdict.differs or mine.failure:  # a rank was late, the store failed
        return None
    kept = LAUNCHES_KEPT if agreement.verdict.launches_alike else WAITS_KEPT
    return CachedOrder(replace(mine, order=f"{kept}{kept_order}"), agreed=False, entry=entry)


def note_rewrites(graph: fx.Graph) -> Callable[[CachedOrder | None], None]:
    """Leaves with a graph what the ranks were asked about its rewrites; ``None``: code of it must not be cached.

    It is ``None`` from now on. To change it cannot fail, nor does it need the graph in one piece.
    """
    meta = graph.output_node().meta
    meta[_REWRITES] = None
    return partial(meta.__setitem__, _REWRITES)


def with_rewrites(order: CachedOrder | None, graph: fx.Graph) -> CachedOrder | None:
    """Return the order that the code of a graph is to carry, with what :func:`note_rewrites` has left there."""
    meta = graph.output_node().meta
    if order is None or _REWRITES not in meta:
        return order
    asked: CachedOrder | None = meta[_REWRITES]
    return None if asked is None else replace(order, rewrites=asked)


class Decisions(local):
    """What the ranks have decided about code that was found and not used: for the compilation that follows."""

    def __init__(self) -> None:
        self._by_key: dict[str, Agreement] = {}

    def keep(self, key: str, agreement: Agreement) -> None:
        """Until it is taken."""
        self._by_key[key] = agreement

    def holds(self, key: str) -> bool:
        """Tell whether there is something to take."""
        return key in self._by_key

    def take(self, key: str) -> Agreement | None:
        """Once."""
        return self._by_key.pop(key, None)


decisions = Decisions()


def decided(mine: Digest, settings: Settings) -> Agreement | None:
    """Ask what all ranks decide about a graph that is being compiled, see :func:`overlap_sched.inductor.agree.ask`."""
    earlier = decisions.take(mine.key)
    return ask(mine, settings) if earlier is None else earlier


def may_load(settings: Settings, source: str) -> tuple[bool, bool]:
    """Tell whether code of a graph that torch has traced may be used, and whether it is to be dropped from the cache.

    The settings are those with which it was compiled, by its cache key.

    Raises:
        AgreementError: With ``strict``, where the ranks differ.
    """
    if not asks(settings) or not _COMMUNICATES.search(source):
        return True, False
    cached = order_in(source)
    if cached is None:
        return False, False
    refused: dict[str, Agreement] = {}
    for one in cached.questions:
        settled = one.settled(settings)  # where that is known, nobody has to be asked
        if settled is not None:
            if not settled:
                return False, True
            continue
        agreement = ask(one.digest, settings)
        if agreement is None:
            return False, False
        if not agreement.agreed:
            refused[one.digest.key] = agreement
        use = one.fits(agreement) if one is cached else agreement.agreed == one.agreed
        if not use:  # if all have agreed on an order that only keeps launches, they look for a better one together
            for key, no in refused.items():  # others have planned by now: they will not be asked a second time
                decisions.keep(key, no)
        use = use and one.put_in_force(settings, agreement)
        if not use or one is cached:
            _tell(one.digest.name, use, agreement, settings)
        if not use:
            return False, True
    return True, False


def may_load_both(settings: Settings, sources: Sequence[str]) -> tuple[bool, bool]:
    """Tell whether a forward from AOTAutograd's cache, and its backward if it has one, may be used: both or none.

    Ranks that find nothing trace, and get to their backward only after the forward has run on all ranks. So there is
    one question, at the forward, and the digest of the rest is in it. It is left to Inductor's cache, graph by graph,
    where the forward does not communicate, where an order is one that only keeps launches, where torch's partitioner
    asks the ranks first, and with ``strict``, whose error AOTAutograd would take for a reason to trace.

    Returns:
        As :func:`may_load`: only the first of the sources is to be dropped, where others have gone on without it.
    """
    communicates = [bool(_COMMUNICATES.search(source)) for source in sources]
    if not asks(settings) or not any(communicates):
        return True, False
    if not communicates[0] or settings.fits or settings.options.strict:
        return False, False
    asked: list[CachedOrder] = []
    for source in compress(sources, communicates):
        cached = order_in(source)
        if cached is None:
            return False, False
        asked += cached.questions
    if not all(one.agreed for one in asked):
        return False, False
    settled = {one.settled(settings) for one in asked}
    if settled != {None}:  # each by itself, where some are in force and others not
        return settled == {True}, False
    first, *rest = (one.digest for one in asked)
    agreement = ask(first, settings, rest)
    if agreement is None or agreement.verdict.again:
        return False, False
    if not agreement.agreed:
        decisions.keep(first.key, agreement)
    held = [one.put_in_force(settings, agreement) for one in asked] if agreement.agreed else []
    for name in dict.fromkeys(one.digest.name for one in asked) if agreement.agreed and all(held) else [first.name]:
        _tell(name, agreement.agreed, agreement, settings)
    if not all(held):
        return False, False
    return agreement.agreed, not agreement.agreed


def _tell(name: str, use: bool, agreement: Agreement, settings: Settings) -> None:
    """Report what became of code in a cache; it is settled, whatever fails here."""
    try:
        if use:
            record_cached(name, settings.stage, agreement.reason)
        elif not agreement.agreed:
            warn_of_ranks(f"has torch compile {name!r} again, which it found in a cache", agreement.verdict, settings)
    except Exception as error:
        warn(f"overlap_sched could not report on {name!r}", error)


def may_save(settings: Settings, source: str) -> bool:
    """Tell whether code may be cached: not where a rank that finds it could not say what it runs."""
    return not asks(settings) or not _COMMUNICATES.search(source) or order_in(source) is not None


def watched(settings: Settings) -> bool:
    """Make torch ask :func:`may_load` and :func:`may_save` from now on; tell whether it does, or need not."""
    if not asks(settings):
        return True
    from overlap_sched.inductor import torch_caches

    return torch_caches.watch_cache(_may_load, _may_save)


def _may_load(owner: Any, sources: Sequence[str], traced: bool) -> tuple[bool, bool]:
    try:
        use, drop = may_load(owner.settings, *sources) if traced else may_load_both(owner.settings, sources)
        for source in filter(None, sources) if use else ():
            communicates = bool(_COMMUNICATES.search(source))
            tally.loaded(communicates)
            if not communicates and asks(owner.settings):
                record_cached(graph_name("graph"), owner.settings.stage)
        return use, drop
    except Exception as error:  # compiled instead: the pass asks the others
        if isinstance(error, SequenceError) or (owner.settings.options.strict and isinstance(error, AgreementError)):
            raise
        warn("overlap_sched leaves a graph in torch's cache", error)
        return False, False


def _may_save(owner: Any, source: str) -> bool:
    try:
        return may_save(owner.settings, source)
    except Exception as error:  # what is not cached is compiled again
        warn("overlap_sched keeps a graph out of torch's cache", error)
        return False
