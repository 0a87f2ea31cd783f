"""Orders in torch's caches: used again only after all ranks have agreed on them again.

torch calls no pass where it finds code in a cache. So code in an agreed order carries, as a comment, what this rank has
shown to the others; a rank that finds it shows the same again, at the moment when it would have compiled:

    torch finds code -> show what it carries -> all ranks agree -> the code is used
                                             -> they do not     -> torch compiles, with what they have decided

Ranks that find nothing compile and show what they have made, as always. Why that is sound: ``docs/agreement.md``.
"""

import json
import re
from dataclasses import dataclass, replace
from threading import local
from typing import Any

from overlap_sched.distributed import Agreement, Digest
from overlap_sched.errors import AgreementError
from overlap_sched.inductor.agree import ask, asks
from overlap_sched.inductor.reporting import log, warn
from overlap_sched.inductor.settings import Settings

_MARK = "overlap_sched order: "
_COMMUNICATES = re.compile("c10d_functional|symm_mem|_dtensor")
"""In generated code, the namespaces of :mod:`overlap_sched.fx.collectives`."""


@dataclass(frozen=True)
class CachedOrder:
    """What code carries of the order that it runs.

    Attributes:
        digest: What a rank shows that uses it. Never that of an order which the code does not have.
        agreed: All ranks had agreed on it when it was compiled; else it launches as the original order does.
    """

    digest: Digest
    agreed: bool

    @property
    def line(self) -> str:
        """As text, without line breaks."""
        return _MARK + json.dumps({"digest": self.digest.to_json(), "agreed": self.agreed})


def order_in(source: str) -> CachedOrder | None:
    """What generated code carries; ``None``: nothing, or more than one order."""
    lines = [line for line in source.splitlines() if _MARK in line]
    if len(lines) != 1:
        return None
    read = json.loads(lines[0].split(_MARK, 1)[1])
    return CachedOrder(Digest.from_json(read["digest"]), read["agreed"])


def order_of(mine: Digest, agreement: Agreement, kept_order: str) -> CachedOrder | None:
    """What code is to carry; ``None``: it must not be cached, since the ranks may decide otherwise next time.

    Args:
        mine: What this rank has shown.
        agreement: What all decided.
        kept_order: The digest of the order that the code has, where they have not agreed.
    """
    if agreement.agreed:
        return CachedOrder(mine, agreed=True)
    if not agreement.verdict.differs or mine.failure:  # a rank was late, the store failed
        return None
    return CachedOrder(replace(mine, order=f"launches kept: {kept_order}"), agreed=False)


class Decisions(local):
    """What the ranks have decided about code that was found and not used: for the compilation that follows."""

    def __init__(self) -> None:
        self._by_key: dict[str, Agreement] = {}

    def keep(self, key: str, agreement: Agreement) -> None:
        """Until it is taken."""
        self._by_key[key] = agreement

    def take(self, key: str) -> Agreement | None:
        """Once."""
        return self._by_key.pop(key, None)


decisions = Decisions()


def decided(mine: Digest, settings: Settings) -> Agreement | None:
    """What all ranks decide about a graph that is being compiled, see :func:`overlap_sched.inductor.agree.ask`."""
    earlier = decisions.take(mine.key)
    return ask(mine, settings) if earlier is None else earlier


def may_load(settings: Settings, source: str, traced: bool) -> tuple[bool, bool]:
    """Whether code from a cache may be used, and whether it is to be dropped from there.

    Args:
        settings: Those with which it was compiled, by its cache key.
        source: The code.
        traced: torch has traced the graph, so every rank is at this one. Else forward and backward are loaded at once,
            and a rank that finds nothing gets to its backward only after its forward has run on all ranks.

    Raises:
        AgreementError: With ``strict``, where the ranks differ.
    """
    if not asks(settings) or not _COMMUNICATES.search(source):
        return True, False
    cached = order_in(source)
    if cached is None or not traced:
        return False, False
    agreement = ask(cached.digest, settings)
    if agreement is None:
        return False, False
    use = agreement.agreed == cached.agreed
    if not use and not agreement.agreed:  # others have planned by now: they will not be asked a second time
        decisions.keep(cached.digest.key, agreement)
    _tell(cached.digest.name, use, agreement)
    return use, not use  # if all have agreed on an order that only keeps launches, they look for a better one together


def _tell(name: str, use: bool, agreement: Agreement) -> None:
    """What became of code in a cache; it is settled, whatever fails here."""
    try:
        if use:
            log.info("%s (inductor): order from torch's cache; %s", name, agreement.reason or "all ranks agree on it")
        elif not agreement.agreed:
            warn(f"overlap_sched has torch compile {name!r} again, which it found in a cache: {agreement.reason}")
    except Exception as error:
        warn(f"overlap_sched could not report on {name!r}: {type(error).__name__}: {error}")


def may_save(settings: Settings, source: str) -> bool:
    """Whether code may be cached: not where a rank that finds it could not say what it runs."""
    return not asks(settings) or not _COMMUNICATES.search(source) or order_in(source) is not None


def watched(settings: Settings) -> bool:
    """Whether torch asks :func:`may_load` and :func:`may_save`, or need not; it does so from now on."""
    if not asks(settings):
        return True
    from overlap_sched.inductor import private

    return private.watch_cache(_may_load, _may_save)


def _may_load(owner: Any, source: str, traced: bool) -> tuple[bool, bool]:
    try:
        return may_load(owner.settings, source, traced)
    except Exception as error:  # compiled instead: the pass asks the others
        if owner.settings.options.strict and isinstance(error, AgreementError):
            raise
        warn(f"overlap_sched leaves a graph in torch's cache: {type(error).__name__}: {error}")
        return False, False


def _may_save(owner: Any, source: str) -> bool:
    try:
        return may_save(owner.settings, source)
    except Exception as error:  # what is not cached is compiled again
        warn(f"overlap_sched keeps a graph out of torch's cache: {type(error).__name__}: {error}")
        return False
