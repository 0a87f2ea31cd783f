"""A small model checker: runs every interleaving of several ranks' steps on one store, time limits and deaths included.

A state is what is in the store and what each rank has received so far. The next step of a rank follows from what it
has received, so two ways to the same state are followed once. Time is free: a rank that pauses may find its limit
passed at any moment, however far the others are; it goes on without that only if there is something new to see.
A rank may die before anything that it writes: to the others, that is all the same as dying between reads. And a step
may fail on a rank, done or not: it is sent the fault, and goes on as the protocol says.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from overlap_sched.distributed.agreement import perform
from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.protocol import Step, agreement_steps
from overlap_sched.distributed.verdict import Verdict
from tests.support.agreement_examples import MemoryStore


class Fault(Exception):  # noqa: N818 - what a rank receives instead of a result
    """A step that failed."""


FAULT = Fault("injected")
LIMITS_S = (300.0, 30.0)
WRITES = ("set", "add", "compare_set")

Contents = tuple[tuple[str, bytes], ...]
"""What is in a store, sorted."""


class Rank(NamedTuple):
    """A rank at some point: what it has received so far, and what it does next (its verdicts, if done; or dead)."""

    received: tuple[Any, ...]
    next: Step | tuple[Verdict, ...] | None


State = tuple[int, tuple[int, ...]]
"""Numbers of the store's contents and, per rank, of what it has received: a million of them are quick."""


class End(NamedTuple):
    """No rank has a step left: the verdicts of each rank in the order of its graphs; ``None`` if it died."""

    verdicts: tuple[tuple[Verdict, ...] | None, ...]
    store: dict[str, bytes]


class StuckError(AssertionError):
    """Ranks that have not finished, and none can take a step."""


Agree = Callable[[Digest, int, Sequence[int], float, float], Generator[Step, Any, Verdict]]


@dataclass
class Checker:
    """Explores all states.

    Attributes:
        graphs: Per rank, the digests on which it agrees, one after the other.
        limit_passes: Whether a time limit can pass.
        deaths: How many ranks may die.
        faults: How many steps may fail on one rank.
        agree: The steps of one agreement.
        states: How many states there are; counted while exploring.
    """

    graphs: Sequence[Sequence[Digest]]
    limit_passes: bool = True
    deaths: int = 0
    faults: int = 0
    agree: Agree = agreement_steps
    states: int = 0
    _stores: list[Contents] = field(default_factory=list)
    _store_numbers: dict[Contents, int] = field(default_factory=dict)
    _ranks: list[Rank] = field(default_factory=list)
    _told: dict[tuple[int, int, Any], int] = field(default_factory=dict)
    _done: dict[tuple[int, Step], tuple[Any, int]] = field(default_factory=dict)

    def ends(self) -> Iterator[End]:
        """Every end that can be reached."""
        starts = []
        for r in range(len(self.graphs)):
            self._ranks.append(self._rank(r, ()))
            starts.append(r)
        self._dead = len(self._ranks)
        self._ranks.append(Rank((), None))
        start = (self._number(()), tuple(starts))
        seen, left = {start}, [start]
        while left:
            state = left.pop()
            self.states += 1
            steps = [self._ranks[i].next for i in state[1]]
            if not any(isinstance(step, Step) for step in steps):
                yield End(tuple(s for s in steps if not isinstance(s, Step)), dict(self._stores[state[0]]))
                continue
            after = [s for r, step in enumerate(steps) if isinstance(step, Step) for s in self._after(state, r, step)]
            if not after:
                raise StuckError(f"nobody can go on: {steps} with {self._stores[state[0]]}")
            new = [s for s in after if s not in seen]
            seen.update(new)
            left.extend(dict.fromkeys(new))

    def _after(self, state: State, rank: int, step: Step) -> Iterator[State]:
        store, ranks = state
        if step.call in WRITES and ranks.count(self._dead) < self.deaths:
            yield store, (*ranks[:rank], self._dead, *ranks[rank + 1 :])
        may_fail = self._ranks[ranks[rank]].received.count(FAULT) < self.faults
        for result, store_after in self._results(store, rank, step):
            yield store_after, (*ranks[:rank], self._tell(rank, ranks[rank], result), *ranks[rank + 1 :])
            if may_fail:
                failed = (*ranks[:rank], self._tell(rank, ranks[rank], FAULT), *ranks[rank + 1 :])
                yield from dict.fromkeys([(store, failed), (store_after, failed)])

    def _results(self, store: int, rank: int, step: Step) -> Iterator[tuple[Any, int]]:
        """What a step may return, and the store after it."""
        if step.call == "pause":
            values = dict(self._stores[store])
            if self.limit_passes:
                yield True, store
            if f"{values[f'at/{rank}'].decode()}/verdict" in values:
                yield False, store
            return
        known = (store, Step(step.call, (str(step.args[0]), *step.args[1:])))
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
            self._told[rank, before, result] = len(self._ranks)
            self._ranks.append(self._rank(rank, (*self._ranks[before].received, result)))
        return self._told[rank, before, result]

    def _rank(self, rank: int, received: tuple[Any, ...]) -> Rank:
        steps = self._program(rank)
        try:
            step: Step | tuple[Verdict, ...] = next(steps)
            for result in received:
                step = steps.throw(FAULT) if result is FAULT else steps.send(result)
        except StopIteration as done:
            step = done.value
        return Rank(received, step)

    def _program(self, rank: int) -> Generator[Step, Any, tuple[Verdict, ...]]:
        verdicts: list[Verdict] = []
        for mine in self.graphs[rank]:
            verdicts.append((yield from self.agree(mine, rank, range(len(self.graphs)), *LIMITS_S)))
        return tuple(verdicts)
