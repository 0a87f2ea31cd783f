"""Launch sequences in force: one for each list of launches, decided once and followed by whoever compiles it later.

Every rank reads the same log, entry by entry, and so comes to the same sequences. No torch, no store::

    log                                                  in force
    0  launches a b c, moved to  b a c, all ranks        a b c -> b a c
    1  launches c d,   moved to  d c,   all ranks        c d   -> d c
    2  launches a b c c d, as they are, one rank alone   a b c c d -> b a c d c      the same program, cut elsewhere

**Why more than a table.** Ranks that are right without us launch one stream of collectives, but each may cut it into
graphs in its own way and at its own time. So two ways to cut a stream must give one launch sequence. An entry that
would make them differ takes the sequence that the others leave it, and is refused where there is none.

The search for two ways to cut one stream that differ follows Sardinas and Patterson (1953), who so decide whether a
code can be read in one way only: what one way is ahead of the other is always the end of one entry.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlap_sched.distributed.digest import StoreText
from overlap_sched.distributed.protocol import StoreCall

Launch = str
"""One launch of a graph: its operator, the shape of its process group, its bytes. ``*`` ends one of unknown bytes."""

LaunchOrder = tuple[int, ...]
"""Launches in the order in which they run, each by its place in the original order."""


@dataclass(frozen=True)
class Entry(StoreText):
    """What one rank writes into the log.

    Attributes:
        launches: Those of a graph, in their original order.
        sequence: How they are to be launched; empty: the graph has other launches than the original (``rewritten``).
        together: All ranks have shown these launches at the same time, so waits may move. Else the others may be
            running anything, and no wait passes a launch that it followed.
        rewritten: What has become of a graph whose collectives were rewritten: the digest of that.
        again: The program has been compiled otherwise before: this may be a part of what others run as a whole.
    """

    launches: tuple[Launch, ...]
    sequence: LaunchOrder
    together: bool = False
    rewritten: str = ""
    again: bool = field(default=False, compare=False)

    @property
    def moves(self) -> bool:
        """Not the original sequence."""
        return self.sequence != tuple(range(len(self.launches)))

    def splits_at(self, place: int) -> bool:
        """Tell whether all launches before a place are launched before all others."""
        if place in (0, len(self.launches)):
            return True
        return not self.rewritten and max(self.sequence[:place]) < place

    def between(self, first: int, end: int) -> LaunchOrder | None:
        """The sequence of some neighbours alone; ``None``: they are rewritten."""
        return None if self.rewritten else tuple(k - first for k in self.sequence if first <= k < end)


@dataclass
class SequencesInForce:
    """What the log says, as far as it has been read.

    Attributes:
        entries: Those that count, with the sequences that are in force.
        read: How many entries of the log have been read.
    """

    entries: list[Entry] = field(default_factory=list)
    read: int = 0

    def find(self, launches: Sequence[Launch]) -> Entry | None:
        """Return what is in force for just these launches; ``None``: nothing yet."""
        return next((one for one in self.entries if _alike(one.launches, launches)), None)

    def decide(self, entry: Entry) -> Entry | None:
        """Read the next entry of the log; return what is in force for its launches, ``None``: nothing can be."""
        self.read += 1
        known = self.find(entry.launches)
        if known is not None:
            return known
        for one in self._candidates(entry):
            if (entry.together or not self.launch_elsewhere(one)) and not self._ambiguous_with(one, entry.again):
                break
        else:
            if entry.again or not entry.together:
                return None
            one = Entry(entry.launches, tuple(range(len(entry.launches))), True)  # a new function, on all ranks at once
        self.entries.append(one)
        return one

    def _candidates(self, entry: Entry) -> Iterator[Entry]:
        """An entry as it is, with a sequence that others leave it, with the original one."""
        yield entry
        left = [self._cover(entry.launches)]
        for one in self.entries:
            for first in range(len(one.launches) - len(entry.launches) + 1):
                end = first + len(entry.launches)
                if _alike(one.launches[first:end], entry.launches):
                    left.append(one.between(first, end) or ())
        yield from (Entry(entry.launches, sequence, True) for sequence in dict.fromkeys(left) if sequence)
        if entry.moves:
            yield Entry(entry.launches, tuple(range(len(entry.launches))), entry.together)

    def _cover(self, launches: Sequence[Launch]) -> LaunchOrder:
        """The sequence of launches that are those of several entries, one after the other; empty: they are not."""
        behind: dict[int, LaunchOrder] = {0: ()}
        for at in range(len(launches)):
            for one in self.entries if at in behind else ():
                end = at + len(one.launches)
                if not one.rewritten and end <= len(launches) and _alike(one.launches, launches[at:end]):
                    behind.setdefault(end, (*behind[at], *(at + k for k in one.sequence)))
        return behind.get(len(launches), ())

    def launch_elsewhere(self, one: Entry) -> bool:
        """Tell whether ranks that run entries may launch what these launches are part of in another sequence."""
        if not any(other.moves for other in (one, *self.entries)):
            return False
        total, seen = len(one.launches), set[tuple[int, bool]]()
        open_ = [(0, other, first, False) for other in self.entries for first in range(len(other.launches))]
        while open_:
            at, other, first, differs = open_.pop()
            size = min(total - at, len(other.launches) - first)
            if not _alike(one.launches[at : at + size], other.launches[first : first + size]):
                continue
            differs = differs or _differ(one, at, other, first, size)
            if at + size == total:
                if differs:
                    return True
            elif (at + size, differs) not in seen:
                seen.add((at + size, differs))
                open_ += [(at + size, following, 0, differs) for following in self.entries]
        return False

    def _ambiguous_with(self, new: Entry, again: bool) -> bool:
        """Tell whether some stream could be cut in two ways that launch differently, once an entry is in force.

        Both ways end where they are the same again; where the program has been cut in another way before (``again``),
        it is enough that they differ: by the time at which they end something would have been launched.
        """
        entries = [*self.entries, new]
        if not any(one.moves for one in entries):
            return False
        seen = set[tuple[int, int, bool, bool]]()
        open_ = [(k, 0, False, False) for k in range(len(entries))]
        while open_:
            k, at, uses_new, differs = open_.pop()  # one way is behind `at` launches of entry k, the other behind all
            ahead = entries[k]
            left = len(ahead.launches) - at
            for j, other in enumerate(entries):
                size = min(left, len(other.launches))
                if (at == 0 and j == k) or not _alike(ahead.launches[at : at + size], other.launches[:size]):
                    continue
                with_new = uses_new or new in (ahead, other)
                now = differs or _differ(ahead, at, other, 0, size)
                if now and with_new and (again or left == len(other.launches)):
                    return True
                state = (k, at + size, with_new, now) if size == len(other.launches) else (j, size, with_new, now)
                if left != len(other.launches) and state not in seen:
                    seen.add(state)
                    open_.append(state)
        return False


def log_steps(
    log: SequencesInForce, launches: tuple[Launch, ...], entry: Entry | None
) -> Generator[StoreCall, Any, Entry | None]:
    """Read the log until something is in force for the launches, or to its end.

    With an entry, that is written at the end. Returns what is in force; ``None``: nothing, or nothing can be.
    """
    while (found := log.find(launches)) is None:
        key = f"sequences/{log.read}"
        if entry is not None:
            text = yield StoreCall("compare_set", (key, "", entry.to_json()))
        elif (yield StoreCall("check", ([key],))):
            text = yield StoreCall("get", (key,))
        else:
            return None
        found = log.decide(Entry.from_json(text))
        if entry is not None and text == entry.to_json():
            return found
    return found


def _differ(one: Entry, at: int, other: Entry, first: int, size: int) -> bool:
    """Tell whether two entries launch what they share, so many from these places on, differently."""
    ends = (one, at), (one, at + size), (other, first), (other, first + size)
    whole = all(entry.splits_at(place) for entry, place in ends)
    return not whole or one.between(at, at + size) != other.between(first, first + size)


def _alike(some: Sequence[Launch], others: Sequence[Launch]) -> bool:
    """Tell whether launches may be the same: bytes that are not known may be any."""
    return len(some) == len(others) and all(
        a == b or ("*" in (a[-1:], b[-1:]) and a.rpartition(" ")[0] == b.rpartition(" ")[0])
        for a, b in zip(some, others, strict=True)
    )
