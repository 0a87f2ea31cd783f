"""A small model checker: runs every interleaving of several ranks' steps on one store, time limits and deaths included.

A state is what is in the store and what each rank has received so far. The next step of a rank follows from what it
has received, so two ways to the same state are followed once. Time is free: a rank that pauses may find its limit
passed at any moment, however far the others are; it goes on without that only if there is something new to see.
A rank may die before anything that it writes: to the others, that is all the same as dying between reads. And a step
may fail on a rank, done or not: it is sent the fault, and goes on as the protocol says.

What is written once for all (all but ``MUTABLE``) and is there cannot change: reading it now or after what others do is
the same, so it is read at once, and the other orders are not followed (a persistent set of one step; Godefroid,
"Partial-Order Methods for the Verification of Concurrent Systems", 1996).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from overlap_sched.distributed.agreement import perform
from overlap_sched.distributed.digest import Digest, Verdict
from overlap_sched.distributed.protocol import StoreCall, agreement_steps
from tests.support.agreement_ranks import MemoryStore


class Fault(Exception):  # noqa: N818 - what a rank receives instead of a result
    """A step that failed."""


FAULT = Fault("injected")
LIMIT_S = 300.0
WRITES = ("set", "add", "compare_set")
MUTABLE = ("at/", "waiting", "absent")
"""Keys that are written again and again, by how they begin."""

Contents = tuple[tuple[str, bytes], ...]
"""What is in a store, sorted."""


class Known(NamedTuple):
    """What a rank knows at some point: its verdicts so far (JSON), what it received since, how many steps failed."""

    verdicts: tuple[str, ...] = ()
    received: tuple[Any, ...] = ()
    faults: int = 0


class Rank(NamedTuple):
    """A rank at some point, and what it does next (its verdicts, if done; ``None``: dead)."""

    known: Known
    next: StoreCall | tuple[Verdict, ...] | None


State = tuple[int, ...]
"""Numbers of the store's contents and, per rank, of what it has received: a million of them are quick."""


class Moves(NamedTuple):
    """What a rank may do next: it does one thing for good, see above, or any of these.

    Attributes:
        for_good: It reads what nobody can change.
        lives: The store and the rank's number behind it. to: the same, and where it dies before it writes.
    """

    for_good: bool
    lives: tuple[tuple[int, int], ...]
    to: tuple[tuple[int, int], ...]


class End(NamedTuple):
    """No rank has a step left: the verdicts of each rank in the order of its graphs; ``None`` if it died."""

    verdicts: tuple[tuple[Verdict, ...] | None, ...]
    store: dict[str, bytes]


class StuckError(AssertionError):
    """Ranks that have not finished, and none can take a step."""


Agree = Callable[[Digest, str, int, Sequence[int], float], Generator[StoreCall, Any, Verdict]]


@dataclass
class Checker:
    """Explores all states.

    Attributes:
        graphs: Per rank, the digests on which it agrees, one after the other.
        limit_passes: Whether a time limit can pass.
        deaths: How many ranks may die.
        faults: How many steps may fail on one rank.
        agree: The steps of one agreement.
        written_once: Whether they write once what is not ``MUTABLE``, see above.
        states: How many states there are; counted while exploring.
    """

    graphs: Sequence[Sequence[Digest]]
    limit_passes: bool = True
    deaths: int = 0
    faults: int = 0
    agree: Agree = agreement_steps
    written_once: bool = True
    states: int = 0
    _stores: list[Contents] = field(default_factory=list)
    _store_numbers: dict[Contents, int] = field(default_factory=dict)
    _ranks: list[Rank] = field(default_factory=list)
    _rank_numbers: dict[tuple[int, Known], int] = field(default_factory=dict)
    _told: dict[tuple[int, int, Any], int] = field(default_factory=dict)
    _done: dict[tuple[int, StoreCall], tuple[Any, int]] = field(default_factory=dict)
    _read: dict[int, dict[str, bytes]] = field(default_factory=dict)
    _moves: dict[tuple[int, int], Moves | None] = field(default_factory=dict)

    def ends(self) -> Iterator[End]:
        """Every end that can be reached."""
        starts = [self._number_of(r, Known()) for r in range(len(self.graphs))]
        self._dead = len(self._ranks)
        self._ranks.append(Rank(Known(), None))
        start = (self._number(()), *starts)
        seen, left = {start}, [start]
        while left:
            state = left.pop()
            self.states += 1
            store, *ranks = state
            moves = [self._moves_of(store, r, known) for r, known in enumerate(ranks)]
            if not any(moves):
                ended = (self._ranks[known].next for known in ranks)
                yield End(tuple(e for e in ended if not isinstance(e, StoreCall)), dict(self._stores[store]))
                continue
            alone = next((r for r, one in enumerate(moves) if one and one.for_good), None)
            may_die = ranks.count(self._dead) < self.deaths
            stuck = True
            for r, one in enumerate(moves):
                if one and (alone is None or alone == r):
                    before, behind = state[1 : r + 1], state[r + 2 :]
                    for there, known in one.to if may_die else one.lives:
                        stuck, after = False, (there, *before, known, *behind)
                        if after not in seen:
                            seen.add(after)
                            left.append(after)
            if stuck:
                steps = [self._ranks[known].next for known in ranks]
                raise StuckError(f"nobody can go on: {steps} with {self._stores[store]}")

    def _moves_of(self, store: int, rank: int, known: int) -> Moves | None:
        """What a rank may do next: found once for a store and what the rank knows, whatever the others know."""
        if (store, known) not in self._moves:
            step = self._ranks[known].next
            self._moves[store, known] = self._found(store, rank, known, step) if isinstance(step, StoreCall) else None
        return self._moves[store, known]

    def _found(self, store: int, rank: int, known: int, step: StoreCall) -> Moves:
        lives = dict[tuple[int, int], None]()
        for result, there in self._results(store, rank, step):
            lives[there, self._tell(rank, known, result)] = None
            if self._ranks[known].known.faults < self.faults:
                failed = self._tell(rank, known, FAULT)
                lives |= {(store, failed): None, (there, failed): None}
        dies = [(store, self._dead)] if step.call in WRITES else []
        return Moves(self._reads_for_good(store, step), tuple(lives), (*dies, *lives))

    def _reads_for_good(self, store: int, step: StoreCall) -> bool:
        """Whether a step writes nothing, and gives the same whenever it is done from here on."""
        if not self.written_once or step.call == "pause":
            return False
        keys = step.args[0] if isinstance(step.args[0], list) else [step.args[0]]
        if any(key.startswith(MUTABLE) for key in keys):
            return False
        assert step.call in ("check", "get", "compare_set"), f"{step} writes again what is written once"
        return self._contents(store).keys() >= set(keys)

    def _contents(self, store: int) -> dict[str, bytes]:
        if store not in self._read:
            self._read[store] = dict(self._stores[store])
        return self._read[store]

    def _results(self, store: int, rank: int, step: StoreCall) -> Iterator[tuple[Any, int]]:
        """What a step may return, and the store after it."""
        if step.call == "pause":
            values = self._contents(store)
            if self.limit_passes:
                yield True, store
            if step.args[1:]:
                if set(step.args[1]) <= values.keys():
                    yield False, store
            elif f"{values[f'at/{rank}'].decode()}/verdict" in values:
                yield False, store
            return
        known = (store, StoreCall(step.call, (str(step.args[0]), *step.args[1:])))
        if known not in self._done:
            memory = MemoryStore()
            memory.values = dict(self._stores[store])
            result = perform(step, memory, "")
            self._done[known] = result, self._number(tuple(sorted(memory.values.items())))
        yield self._done[known]

    def _number(self, contents: Contents) -> int:
        if contents not in self._store_numbers:
            self._store_numbers[contents] = len(self._stores)
            self._stores.append(contents)
        return self._store_numbers[contents]

    def _tell(self, rank: int, before: int, result: Any) -> int:
        if (rank, before, result) not in self._told:
            verdicts, received, faults = self._ranks[before].known
            known = Known(verdicts, (*received, result), faults + (result is FAULT))
            self._told[rank, before, result] = self._number_of(rank, known)
        return self._told[rank, before, result]

    def _number_of(self, rank: int, known: Known) -> int:
        """The number of what a rank knows; once it has a verdict, how it came to that is forgotten."""
        if (rank, known) not in self._rank_numbers:
            number = self._advance(rank, known)
            self._rank_numbers[rank, known] = number
        return self._rank_numbers[rank, known]

    def _advance(self, rank: int, known: Known) -> int:
        graphs, done = self.graphs[rank], len(known.verdicts)
        if done == len(graphs):
            self._ranks.append(Rank(known, tuple(map(Verdict.from_json, known.verdicts))))
            return len(self._ranks) - 1
        steps = self.agree(graphs[done], f"call{done}", rank, range(len(self.graphs)), LIMIT_S)
        try:
            step = next(steps)
            for result in known.received:
                step = steps.throw(FAULT) if result is FAULT else steps.send(result)
        except StopIteration as end:
            return self._number_of(rank, Known((*known.verdicts, end.value.to_json()), (), known.faults))
        self._ranks.append(Rank(known, step))
        return len(self._ranks) - 1
