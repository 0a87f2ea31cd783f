"""One scheduling run: a list scheduler in simulated time that never leaves the memory budget.

The loop is ``list_schedule``; what it asks is in ``choose``; the keys are in :mod:`overlap_sched.priority`, the
sets in :mod:`overlap_sched.ready`, the admission rule in :mod:`overlap_sched.completion`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

from overlap_sched.completion import CompletionProfile
from overlap_sched.problem import Kind, Order
from overlap_sched.ready import Ready
from overlap_sched.reference import Reference
from overlap_sched.result import Reason, Work
from overlap_sched.streams import Streams

_LOOK = 4
"""How many of the most urgent nodes, of each stream, are looked at in one step: refusals would be most of the work."""


@dataclass(frozen=True)
class Policy:
    """What one run tries; times are parts of all compute time, so that they fit graphs of every size.

    Attributes:
        lead: How much earlier than its latest start a collective is launched; negative: later.
        slack: How much earlier than its latest start a node of the critical path is moved ahead; negative: later.
        reach: How many positions ahead of the first open node compute is looked for when there is none nearer.
    """

    lead: float
    slack: float
    reach: float = math.inf


@dataclass(frozen=True)
class Run:
    """What a run made.

    Attributes:
        order: The order, within the budget by construction.
        step_us: Its step time, as simulated.
        peak_bytes: Its peak, as tracked.
        longest_us: The longest path of the graph, communication included: no order is shorter.
        reasons: Per collective, why it was launched where it was.
        refusals: Per collective that the budget ever refused, the first time: (bytes above, node at whose step).
        work: What it took.
    """

    order: Order
    step_us: float
    peak_bytes: int
    longest_us: float
    reasons: dict[int, Reason]
    refusals: dict[int, tuple[int, int]]
    work: Work


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    chains: Sequence[tuple[int, int]] = (),
    beat_us: float = math.inf,
) -> Run | Work:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: See :class:`Policy`.
        chains: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.

    Returns:
        The run; of one that was given up only what it took.
    """
    state = _State(reference, limit, policy, chains)
    while len(state.done) < len(reference.order):
        v, reason = state.choose()
        state.run(v, reason)
        if state.clock_us + state.keys.total_us - state.computed_us > beat_us:
            return state.work()
    step_us = state.streams.end_us(state.clock_us)
    made = (tuple(state.done), step_us, state.memory.peak_bytes, state.keys.longest_us)
    return Run(*made, state.reasons, state.refusals, state.work())


class _State:
    """Where a run stands: simulated time, memory, and the nodes that could run now."""

    def __init__(
        self,
        reference: Reference,
        limit: npt.NDArray[np.int64],
        policy: Policy,
        chains: Sequence[tuple[int, int]],
    ) -> None:
        problem = reference.problem
        self.nodes = problem.nodes
        self.successors: list[tuple[int, ...]] | tuple[tuple[int, ...], ...] = problem.successors
        self.keys = reference.keys
        self.memory = CompletionProfile(reference, limit)
        self.ready = Ready(reference, self.memory)
        self.lead_us = policy.lead * self.keys.total_us
        self.slack_us = policy.slack * self.keys.total_us
        self.reach = policy.reach
        self.done: list[int] = []
        self.clock_us = 0.0
        self.computed_us = 0.0  # compute done so far: the clock without the stalls
        self.streams = Streams(reference, self.memory.has_run)
        self.reasons: dict[int, Reason] = {}
        self.refusals: dict[int, tuple[int, int]] = {}
        self.blockers = [len(before) for before in problem.predecessors]
        if chains:
            self.successors = list(self.successors)
            for u, v in chains:
                self.successors[u] = (*self.successors[u], v)
                self.blockers[v] += 1
        for v in reference.order:
            if self.blockers[v] == 0:
                self._add(v)

    def work(self) -> Work:
        """What it took so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self.streams.looked)

    def choose(self) -> tuple[int, Reason]:
        """The next node, by the first rule that finds one; of several, the most urgent that the budget admits."""
        # what costs nothing: views, and waits for what has finished (they let go of a collective's input)
        while self.ready.free:
            v = self.ready.free.popleft()
            if self._may_run(v):
                return v, "fits"
        step = self._admitted(self.ready.work, self.memory.first + self.reach)  # the next compute in reference order
        step_us = self._stall_us() if step is None else self.keys.compute_us[step]

        # 1. a collective (or what prepares it) whose latest start would pass while the next compute runs, or while
        #    there is none; nothing in flight either: the first
        end_us = max(self.keys.longest_us, self.clock_us + self.keys.total_us - self.computed_us)
        due = self._launch((self.computed_us + step_us + self.lead_us,), end_us)
        if due is not None:
            return due, "fits" if step is None else "frees" if self.ready.frees[due] else "due"
        # 2. a node of the critical path that would become late if the next compute went first
        if step is not None:
            late = self._late(step, end_us)
            if late is not None:
                return late, "due"
            # 3. waits are deferred simply by running what does not need them
            return step, "reference"
        # 4. all that is left would stall: the wait that ends first
        landed = self._land_first()
        if landed is not None:
            return landed, "fits"
        # 5. all that is left are launches in each other's way
        while True:
            v = self.memory.order[min(due[0] for due in self.ready.due.values() if due)[-1]]
            if self._may_run(v):  # the first open node of the reference order always may
                return v, "fits"

    def _stall_us(self) -> float:
        """How long the compute stream would stand still now: until the first collective in flight is finished."""
        return self.ready.flying[0][0] - self.clock_us if self.ready.flying else math.inf

    def _launch(self, below: tuple[float], end_us: float) -> int | None:
        """The collective (or what prepares it) that is due first, with a key below the one given; see above.

        What memory refuses on one stream stands only in the way of that stream.
        """
        for due in sorted((due for due in self.ready.due.values() if due and due[0] < below), key=itemgetter(0)):
            k = 0
            for _ in range(_LOOK):
                if k == len(due) or due[k] >= below:
                    break
                v = self.memory.order[due[k][-1]]
                if self.nodes[v].kind is Kind.COLLECTIVE and self.streams.in_the_way(v, self.clock_us, end_us):
                    k += 1
                elif self._may_run(v):
                    return v
        return None

    def _land_first(self) -> int | None:
        """Take out the wait, of those that would stall, whose collective finishes first and that the budget admits."""
        for key in self.ready.flying:
            v = self.memory.order[key[1]]
            if self.memory.admits(v):
                self.ready.flying.remove(key)
                return v
        return None

    def _late(self, step: int, end_us: float) -> int | None:
        """The most urgent node that would make the end later if ``step`` went first, and that ``step`` can wait for."""
        late, tail_us, compute_us = self.ready.late, self.keys.tail_us, self.keys.compute_us
        now_us = self.clock_us + self.slack_us
        k = 0
        for _ in range(_LOOK):
            if k == len(late):
                break
            v = self.memory.order[late[k][1]]
            if now_us + compute_us[step] + tail_us[v] <= end_us:
                break
            if v == step or (tail_us[v] <= tail_us[step] and now_us + compute_us[v] + tail_us[step] > end_us):
                k += 1
            elif self._may_run(v):
                return v
        return None

    def _may_run(self, v: int) -> bool:
        """Does the budget admit v? Else it is held."""
        memory = self.memory
        if memory.admits(v):
            return True
        if self.nodes[v].kind is Kind.COLLECTIVE and v not in self.refusals:
            self.refusals[v] = memory.refusal(v)
        self.ready.hold(v)
        return False

    def _admitted(self, candidates: SortedList, below: float = math.inf) -> int | None:
        """The first candidate, at a reference position below the one given, that the budget admits; others are held."""
        while candidates and candidates[0] < below:
            v = self.memory.order[candidates[0]]
            if self._may_run(v):
                return v
        return None

    def run(self, v: int, reason: Reason) -> None:
        """Run v now: advance time, memory, and the nodes that become ready."""
        node, ready, blockers = self.nodes[v], self.ready, self.blockers
        ready.remove(v)
        self.done.append(v)
        if node.kind is Kind.COLLECTIVE:
            self.streams.launch(v, self.clock_us)
            self.reasons[v] = "reference" if self.memory.position[v] == self.memory.first else reason
        elif node.kind is Kind.WAIT:
            self.clock_us = self.streams.wait(v, self.clock_us)
        else:
            self.clock_us = self.streams.compute(node.time_us, self.clock_us)
            self.computed_us += node.time_us
        lowered = self.memory.run(v)
        if ready.flying:
            for w in ready.landed(self.clock_us):
                self._add(w)  # under contention some fly on
        if ready.held or ready.held_now:
            for w in ready.freed(lowered):
                self._add(w)
        for w in self.successors[v]:
            blockers[w] -= 1
            if blockers[w] == 0:
                self._add(w)

    def _add(self, v: int) -> None:
        finish_us = self.streams.finished_us(v) if self.nodes[v].kind is Kind.WAIT else 0.0
        if finish_us > self.clock_us:
            self.ready.fly(v, finish_us)
        else:
            self.ready.add(v)
