"""Settle orders that nearly fit: others like them, of which what lacks least is looked at in turn.

Where an order's results land is chance (:mod:`overlap_sched.scheduler.landing`), so orders that differ in little differ
in what they lack, by hundreds of MiB. Per order that is looked at: its launches and waits shifted less far or further,
and of each of these what lands badly held back. Each costs a walk and a replay; all are compared by one figure
(:mod:`overlap_sched.peak_memory.allocator.shortage`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from overlap_sched.judge.replay import replay
from overlap_sched.peak_memory.allocator.reserved import requests_of
from overlap_sched.peak_memory.allocator.shortage import Device, shortage_bytes
from overlap_sched.problem import NodeId, Order
from overlap_sched.problem.allocator_settings import NO_LIMIT, PLAIN, AllocatorSettings
from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.landing import held_back
from overlap_sched.scheduler.shift import shifted

SHIFTS = (0, 12, 150)
"""Positions that launches and waits are shifted at most; 0: not at all."""
HELD_BACK = ((1.01, 1.0), (6.0, 1.0), (2.0, 0.004))
"""Badness of what need not wait, and compute that may run meanwhile, of a step."""


Lacking = TypeVar("Lacking")


class Settling:
    """One search, among the orders of a task.

    Attributes:
        looked: Orders compared so far.
    """

    def __init__(self, task: Task, devices: tuple[Device, ...], settings: AllocatorSettings, most_us: float) -> None:
        """For orders that must run on some devices, in a step that is no longer than this."""
        self.looked = 0
        self._task, self._devices, self._settings, self._most_us = task, devices, settings, most_us

    def settled(self, found: Iterable[Candidate], rounds: int, width: int) -> list[tuple[int, Candidate]]:
        """All orders with what they lack, in bytes, least first; in each round so many are looked at, of the best."""
        pool = [(self.lacking(candidate.order), candidate) for candidate in found]
        seen, varied = {candidate.order for _, candidate in pool}, set[Order]()
        for _ in range(rounds):
            pool.sort(key=_lacking_then_step)
            if not pool or pool[0][0] == 0:
                break
            for _, candidate in distinct([pair for pair in pool if pair[1].order not in varied])[:width]:
                varied.add(candidate.order)
                for order in self._variants(candidate):
                    if order not in seen:
                        seen.add(order)
                        pool += self._kept(candidate, order)
        return sorted(pool, key=_lacking_then_step)

    def _variants(self, candidate: Candidate) -> Iterator[Order]:
        """Held back on the device on which the candidate lacks most."""
        task, limit = self._task, self._task.limit_after(candidate)
        requests = requests_of(task.live_ranges, candidate.order)
        worst = max(self._devices, key=lambda device: shortage_bytes(requests, [device], self._settings))
        for farthest in SHIFTS:
            order = candidate.order
            if farthest:
                order = shifted(task.live_ranges, order, limit, task.pairs, farthest)
                yield order
            for most_badness, part in HELD_BACK:
                yield held_back(task, order, worst.allocator(PLAIN, NO_LIMIT), most_badness, part * candidate.step_us)

    def _kept(self, candidate: Candidate, order: Order) -> Iterator[tuple[int, Candidate]]:
        """The order, where its step is short enough and the budget admits it."""
        step_us = replay(self._task.problem, order).step_us
        if step_us <= self._most_us and self._task.within_budget(order):
            moved = self._task.remeasured(candidate, order)
            yield self.lacking(order), replace(moved, unshifted=None)

    def lacking(self, order: Sequence[NodeId], most_bytes: int = NO_LIMIT) -> int:
        """What an order lacks, in bytes; above ``most_bytes`` some figure above it."""
        self.looked += 1
        return shortage_bytes(requests_of(self._task.live_ranges, order), self._devices, self._settings, most_bytes)


def distinct(pool: Sequence[tuple[Lacking, Candidate]]) -> list[tuple[Lacking, Candidate]]:
    """The first of all that lack as much: most of them fail for the same reason."""
    return list({lacking: (lacking, candidate) for lacking, candidate in reversed(pool)}.values())[::-1]


def _lacking_then_step(pair: tuple[int, Candidate]) -> tuple[int, float]:
    return pair[0], pair[1].step_us
