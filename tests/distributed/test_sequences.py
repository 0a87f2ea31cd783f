"""Launch sequences in force: against brute force over streams, and over all interleavings of small programs."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import pytest

from overlap_sched.distributed import agreement
from overlap_sched.distributed.agreement import Membership, sequence_in_force
from overlap_sched.distributed.sequences import Entry, LaunchOrder, SequencesInForce
from tests.support.agreement_ranks import MemoryStore


def slow(seeds: Iterable[int]) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


def launches(text: str) -> tuple[str, ...]:
    return tuple(f"{letter} group 8" for letter in text)


def entry(text: str, sequence: str = "", *, together: bool = True, again: bool = False, rewritten: str = "") -> Entry:
    """Launches by their letters, and their places in a new sequence; none: the original one."""
    order = tuple(map(int, sequence)) or (() if rewritten else tuple(range(len(text))))
    return Entry(launches(text), order, together, rewritten, again)


ALONE = {"together": False}
AGAIN = {"again": True}


@pytest.mark.parametrize(
    ("log", "asked", "in_force"),
    [
        ([], entry("abc", "102"), "102"),
        ([entry("abc", "102")], entry("abc", "210"), "102"),  # the same launches again: the first sequence stays
        ([entry("abc")], entry("abc", "210"), "012"),
        ([entry("ab", "10"), entry("cd")], entry("abcd", "3210", **AGAIN), "1023"),  # a whole of known parts
        ([entry("abcd", "1032")], entry("cd", **ALONE), "10"),  # a part that no launch leaves
        ([entry("abcd", "1032")], entry("bc", **ALONE), None),  # others launch a behind b
        ([entry("abcd", "1032")], entry("cde", **ALONE), "012"),  # nobody launches e behind that
        ([entry("ab", "10")], entry("abab", **ALONE), "1032"),
        ([entry("ab", "10"), entry("cd", "10")], entry("abc", **ALONE), None),
        ([entry("abcd", "2013")], entry("ab"), "01"),  # another function: cd has never run by itself
        ([entry("abcd", "2013")], entry("ab", **AGAIN), None),
        ([entry("abcd", "2013"), entry("ab")], entry("cd", **AGAIN), None),  # now one stream could be cut in two ways
        ([entry("abcd", "2013"), entry("ab")], entry("cd", "10"), "01"),  # a new function, and on all ranks at once
        ([entry("abcd", rewritten="x")], entry("bc", **ALONE), None),
        ([entry("abcd", rewritten="x")], entry("ef", "10"), "10"),
        ([entry("ab", "10")], entry("xy", **ALONE), "01"),
        ([entry("ab"), entry("cde"), entry("e")], entry("abcd", "0132"), "0123"),  # abcde could be launched in two ways
        ([entry("abcd", "2013"), entry("ab")], entry("xy", "10", **AGAIN), "10"),  # others' streams are not its own
    ],
)
def test_what_is_in_force(log: list[Entry], asked: Entry, in_force: str | None) -> None:
    known = SequencesInForce()
    for one in log:
        assert known.decide(one) is not None
    found = known.decide(asked)
    assert len({one.launches for one in known.entries}) == len(known.entries)
    assert in_force == (None if found is None else "".join(map(str, found.sequence)))


def test_bytes_that_only_the_data_knows_may_be_any() -> None:
    known = SequencesInForce()
    moved = Entry(("sum group 8", "sum group 16"), (1, 0), True)
    known.decide(moved)
    assert known.find(("sum group *", "sum group 16")) == moved
    assert known.find(("max group *", "sum group 16")) is None
    assert known.find(("sum group 4", "sum group 16")) is None


def settle(one: Entry, membership: Membership | None) -> Entry | None:
    return sequence_in_force(one.launches, membership, one)


def test_a_store_that_fails_leaves_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_logs", {})
    store, moved = MemoryStore(), entry("ab", "10")
    here = Membership(store, 0, 2)
    assert settle(moved, here) == moved
    assert sequence_in_force(moved.launches, Membership(store, 1, 2)) == moved
    assert len(store.values) == 1
    monkeypatch.setattr(store, "check", None)
    monkeypatch.setattr(store, "compare_set", None)
    assert sequence_in_force(moved.launches, here) == moved
    assert sequence_in_force(launches("xy"), here) is None
    assert settle(entry("a", **ALONE), here) is None  # a part of what others may run
    assert settle(entry("xy"), here) == entry("xy")


def test_the_log_is_written_once_and_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first, second, behind = MemoryStore(), entry("abc", "210"), entry("abc", "102"), entry("xy", "10")
    for rank, asked, expected in ((0, first, first), (1, second, first), (2, first, first), (0, behind, behind)):
        monkeypatch.setattr(agreement, "_logs", {})  # another process
        assert settle(asked, Membership(store, rank, 3)) == expected
    assert sequence_in_force(first.launches, Membership(MemoryStore(), 0, 3)) is None  # another job
    assert settle(second, None) == second  # a rank alone


def outputs(text: str, entries: Sequence[Entry]) -> set[tuple[int, ...]]:
    """All launch sequences of a stream, by all ways to cut it into launches that are in force."""
    found: list[set[tuple[int, ...]]] = [{()}, *(set[tuple[int, ...]]() for _ in text)]
    for at in range(len(text)):
        for one in entries:
            end = at + len(one.launches)
            if found[at] and launches(text[at:end]) == one.launches:
                found[end] |= {(*before, *(at + k for k in one.sequence)) for before in found[at]}
    return found[-1]


def streams(most: int) -> Iterator[str]:
    return ("".join(one) for n in range(1, most + 1) for one in product("ab", repeat=n))


def drawn(dice: random.Random) -> Entry:
    text = "".join(dice.choice("ab") for _ in range(dice.randint(1, 4)))
    order = list(range(len(text)))
    if dice.random() < 0.6:
        dice.shuffle(order)
    return Entry(launches(text), tuple(order), dice.random() < 0.7, "", dice.random() < 0.3)


@pytest.mark.parametrize("seed", [*range(40), *slow(range(40, 150))])
def test_no_stream_is_launched_in_two_ways(seed: int) -> None:
    """And an entry is refused its own sequence only where some stream would be."""
    dice, known = random.Random(seed), SequencesInForce()
    for _ in range(dice.randint(2, 4)):
        asked, before = drawn(dice), list(known.entries)
        new = known.find(asked.launches) is None
        found = known.decide(asked)
        if asked.together and not asked.again and any(len(outputs(text, known.entries)) > 1 for text in streams(9)):
            assert new  # of a new function, on all ranks at once, all are taken: in the original sequence
            assert found == replace(asked, sequence=tuple(range(len(asked.launches))))
            return
        assert all(len(outputs(text, known.entries)) <= 1 for text in streams(9))
        if new and asked.together and not asked.again and (found is None or found.sequence != asked.sequence):
            assert any(len(outputs(text, [*before, asked])) > 1 for text in streams(12))


class Rank(NamedTuple):
    """A rank of the model.

    Attributes:
        at: Step and graph in it.
        asks: Waits for the others with the launches of that graph.
        knows: What it has compiled: launches of a variant, and the sequence in which it launches them.
        launched: Places in the stream, in turn.
        stopped: By an error.
    """

    at: tuple[int, int] = (0, 0)
    asks: bool = False
    knows: tuple[tuple[tuple[str, str, int], LaunchOrder], ...] = ()
    launched: tuple[int, ...] = ()
    stopped: bool = False


Log = tuple[str, ...]
"""Entries as they stand in the store."""
Cut = tuple[str, ...]
"""A step as one rank compiles it: its graphs, ``launches`` or ``launches/variant``."""


class Programs:
    """All interleavings of ranks that compile and run the steps of a program, each at its own pace.

    Args:
        steps: Per step, how each rank cuts it.
        fixed: Variants of which the dependencies allow no other sequence than the original one.
        follows: Whether ranks follow what is in force: the rule that is tested.
    """

    def __init__(self, steps: Sequence[Sequence[Cut]], fixed: str = "", follows: bool = True) -> None:
        self.steps, self.fixed, self.follows = steps, fixed, follows
        self.mixed, self.stuck, self.ends, self.states = 0, 0, 0, 0

    def explore(self) -> None:
        start: Any = (tuple(Rank() for _ in self.steps[0]), ())
        seen, open_ = {start}, [start]
        while open_:
            ranks, log = open_.pop()
            self.states += 1
            if any(a.launched[: len(b.launched)] != b.launched[: len(a.launched)] for a in ranks for b in ranks):
                self.mixed += 1
                continue
            moves = list(self._moves(ranks, log))
            if not moves:
                done = all(rank.at[0] == len(self.steps) for rank in ranks)
                self.ends += done
                self.stuck += not done and not any(rank.stopped for rank in ranks)
            for state in moves:
                if state not in seen:
                    seen.add(state)
                    open_.append(state)

    def _moves(self, ranks: tuple[Rank, ...], log: Log) -> Iterator[Any]:
        if any(rank.stopped for rank in ranks):
            return
        waiting = {self._graph(r, rank)[0] for r, rank in enumerate(ranks) if rank.asks}
        if len(waiting) == 1 and all(rank.asks for rank in ranks):
            yield self._agreed(ranks, log, *waiting)
            return
        for r, rank in enumerate(ranks):
            if rank.at[0] == len(self.steps):
                continue
            graph = self._graph(r, rank)
            if rank.asks:  # the time limit passes
                text, again = graph[0], self._otherwise(r, rank)
                yield self._decided(ranks, (*log, Entry(launches(text), original(text), False, "", again).to_json()), r)
            elif graph in dict(rank.knows):
                if len(rank.launched) == min(len(other.launched) for other in ranks):  # its collectives are done
                    begin, (step, at) = len(rank.launched), rank.at
                    launched = (*rank.launched, *(begin + k for k in dict(rank.knows)[graph]))
                    to = (step, at + 1) if at + 1 < len(self.steps[step][r]) else (step + 1, 0)
                    yield put(ranks, r, rank._replace(launched=launched, at=to)), log
            elif self.follows and in_force(log, graph[0])[0] is not None:
                yield self._decided(ranks, log, r)
            else:
                yield put(ranks, r, rank._replace(asks=True)), log

    def _agreed(self, ranks: tuple[Rank, ...], log: Log, text: str) -> Any:
        fixed = any(self._graph(r, rank)[1] in self.fixed for r, rank in enumerate(ranks))
        again = self._otherwise(0, ranks[0])  # the first one writes
        wanted = original(text) if fixed else original(text)[::-1]
        state: Any = (ranks, (*log, Entry(launches(text), wanted, True, "", again).to_json()))
        for r in range(len(ranks)):
            state = self._decided(*state, r)
        return state

    def _decided(self, ranks: tuple[Rank, ...], log: Log, r: int) -> Any:
        """A rank has compiled, with what is in force; or cannot have that, and stops."""
        text, variant, _ = graph = self._graph(r, ranks[r])
        known, elsewhere = in_force(log, text)
        if not self.follows:  # as it was: who is alone keeps its launches
            known = next(one for one in map(Entry.from_json, log[::-1]) if one.launches == launches(text))
        part = self.follows and self._otherwise(r, ranks[r]) and elsewhere
        if known is None or part or (variant in self.fixed and known.sequence != original(text)):
            return put(ranks, r, ranks[r]._replace(asks=False, stopped=True)), log
        return put(ranks, r, ranks[r]._replace(asks=False, knows=(*ranks[r].knows, (graph, known.sequence)))), log

    def _graph(self, r: int, rank: Rank) -> tuple[str, str, int]:
        """Its launches, its variant, and how much stands before it in the step: behind which graph break it is."""
        step, at = rank.at
        if step == len(self.steps):
            return "", "-", 0
        cut = [graph.partition("/") for graph in self.steps[step][r]]
        text, _, variant = cut[at]
        return text, variant or "-", sum(len(before) for before, _, _ in cut[:at])

    def _otherwise(self, r: int, rank: Rank) -> bool:
        """See :func:`overlap_sched.inductor.agree.compiled_otherwise`."""
        text, _, begin = self._graph(r, rank)
        here = [known for known, _, place in (graph for graph, _ in rank.knows) if place == begin]
        return text not in here and (bool(here) or rank.at[0] > 0)


@cache
def in_force(log: Log, text: str) -> tuple[Entry | None, bool]:
    """What is in force for launches, and whether they may be launched elsewhere in another sequence."""
    known = SequencesInForce()
    for one in log:
        known.decide(Entry.from_json(one))
    found = known.find(launches(text))
    return found, found is not None and known.launch_elsewhere(found)


def original(text: str) -> LaunchOrder:
    return tuple(range(len(text)))


def put(ranks: tuple[Rank, ...], r: int, rank: Rank) -> tuple[Rank, ...]:
    return (*ranks[:r], rank, *ranks[r + 1 :])


WHOLE: Cut = ("aaab",)
PROGRAMS = {
    "one rank compiles again": [[WHOLE] * 2, [("aaab/log",), WHOLE], [WHOLE] * 2],
    "three ranks, one at a time": [[WHOLE] * 3, [("aaab/log",), WHOLE, WHOLE], [WHOLE, ("aaab/log",), WHOLE]],
    "a graph breaks on one rank": [[WHOLE] * 2, [("aa", "ab"), WHOLE], [WHOLE] * 2],
    "it breaks on both, then on one": [[WHOLE] * 2, [("aa", "ab")] * 2, [("aa", "ab"), WHOLE]],
    "it breaks from the start, then on one": [[("aa", "ab")] * 2, [WHOLE] * 2, [WHOLE, ("aa", "ab")]],
    "at other places": [[("a", "aab"), ("aa", "ab")], [WHOLE] * 2, [("aaa", "b"), WHOLE]],
    "a second model launches the same": [[WHOLE] * 2, [("aaab/second",)] * 2, [("aaab/log",), ("aaab/second",)]],
    "one whose dependencies forbid it": [[WHOLE] * 2, [("aaab/fixed",)] * 2],
    "alone from the start": [[("aaab/log",), WHOLE], [WHOLE] * 2, [WHOLE, ("aaab/log",)]],
    "two graphs as one": [[("aa", "bb")] * 2, [("aabb",), ("aa", "bb")], [("aab", "b"), ("aa", "bb")]],
    "three ranks, three cuts": [[WHOLE] * 3, [("aa", "ab"), WHOLE, ("aaab/log",)]],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_that_compile_at_their_own_times_launch_one_sequence_or_stop(name: str) -> None:
    programs = Programs(PROGRAMS[name], fixed="fixed")
    programs.explore()
    assert (programs.mixed, programs.stuck) == (0, 0)
    assert programs.states > 10
    if name in ("one rank compiles again", "a second model launches the same"):  # what they launch is in force
        assert programs.ends > 0
    if name in ("one rank compiles again", "a graph breaks on one rank"):  # the model finds what was wrong before
        programs = Programs(PROGRAMS[name], follows=False)
        programs.explore()
        assert programs.mixed > 0


def cuts(text: str, dice: random.Random) -> Cut:
    at = sorted({0, len(text), *(dice.randrange(len(text)) for _ in range(dice.randrange(3)))})
    return tuple(text[a:b] + dice.choice(["", "", "/log"]) for a, b in pairwise(at))


@pytest.mark.parametrize("seed", [*range(40), *slow(range(40, 300))])
def test_random_programs_launch_one_sequence_or_stop(seed: int) -> None:
    dice = random.Random(seed)
    ranks, text = dice.choice([2, 2, 3]), "".join(dice.choice("ab") for _ in range(dice.randint(2, 4)))
    steps, now = [], [cuts(text, dice)] * ranks
    for _ in range(3):
        steps.append(now)
        odd = range(ranks) if dice.random() < 0.3 else [dice.randrange(ranks)]
        other = cuts(text, dice)
        now = [other if r in odd else one for r, one in enumerate(now)]
    programs = Programs(steps)
    programs.explore()
    assert (programs.mixed, programs.stuck) == (0, 0)
