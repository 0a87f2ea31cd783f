"""THE main loop: a list scheduler in simulated time that never leaves the memory budget.

::

    until every node has run:
        v = the node that the first rule finds      Rules.choose   which node, and why
        run v                                       State.run      clock, streams and memory advance

A rule proposes the most urgent node of its set; memory (:mod:`overlap_sched.scheduler.admission`) admits it, or blocks
it until its obstacle is gone. The first open node of the reference order is always admitted: the loop never gets stuck.
The sets are in :mod:`overlap_sched.scheduler.ready_list`, their keys in :mod:`overlap_sched.scheduler.priority`.
"""

import math
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.admission import CompletionProfile, Refusal
from overlap_sched.scheduler.allocator_gate import AllocatorGate
from overlap_sched.scheduler.candidate import Candidate, Run
from overlap_sched.scheduler.policies import Policy
from overlap_sched.scheduler.priority import LaunchKey, Priorities
from overlap_sched.scheduler.ready_list import InFlightKey, ReadyList
from overlap_sched.scheduler.reference import Reference
from overlap_sched.scheduler.result import Reason, Work
from overlap_sched.scheduler.streams import Streams, StreamTimes

_LOOK = 4
"""How many of the most urgent nodes, of each stream, are looked at in one step: refusals would be most of the work."""
_MOST = 0.5
"""A collective is launched beside another if this part of its time falls beside it."""

_ROUNDING = 1e-12
"""Relative: the same times, summed up in another order, differ by less."""


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    pairs: Sequence[Pair] = (),
    beat_us: float = math.inf,
    gate: AllocatorGate | None = None,
    times: StreamTimes | None = None,
) -> Run:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: What this run tries.
        pairs: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.
        gate: The allocator beside the run: what would make it reserve more than it may is not moved ahead.
        times: When collectives are finished, where not as each in its turn: they may go together.

    Returns:
        What it made, within the budget by construction, and what that took.
    """
    state = State(reference, limit, reference.priorities(policy.prepares), pairs, gate, times)
    rules, given_up_us = Rules(state, policy), beat_us * (1 + _ROUNDING)
    while len(state.order) < len(reference.order):
        v, reason = rules.choose()
        state.run(v, reason)
        if state.least_end_us() > given_up_us:
            return Run(state.work())
    made = Candidate(
        order=tuple(state.order),
        step_us=state.streams.end_us(state.clock_us),
        peak_bytes=state.memory.peak_bytes,
        reasons=state.reasons,
        refusals=state.refusals,
        work=state.work(),
    )
    return Run(made.work, made)


class State:
    """Where a run stands: simulated time, memory, and the nodes that could run now.

    Attributes:
        order: Nodes that have run.
        clock_us: Simulated time on the compute stream. computed_us: compute done so far, the clock without the stalls.
        memory, ready, streams, priorities: The parts, each with its own module.
        reasons, refusals: As in :class:`~overlap_sched.scheduler.candidate.Candidate`.
    """

    def __init__(
        self,
        reference: Reference,
        limit: npt.NDArray[np.int64],
        priorities: Priorities,
        pairs: Sequence[Pair],
        gate: AllocatorGate | None,
        times: StreamTimes | None = None,
    ) -> None:
        """Nothing has run."""
        self._gate = gate
        problem = reference.problem
        self.nodes, self.priorities = problem.nodes, priorities
        self.memory = CompletionProfile(reference, limit)
        self.ready = ReadyList(reference, priorities, self.memory)
        self.streams = Streams(problem, priorities, self.memory.has_run, times)
        self.order: list[int] = []
        self.clock_us = self.computed_us = 0.0
        self.reasons: dict[int, Reason] = {}
        self.refusals: dict[int, Refusal] = {}
        before, self._after = neighbours(problem, pairs)
        self._open_before = [len(nodes) for nodes in before]
        for v in reference.order:
            if self._open_before[v] == 0:
                self._add(v)

    def admit_or_block(self, v: NodeId) -> bool:
        """Say whether memory admits v; else v is out of all sets until what stands against it is gone."""
        ahead = self.memory.position[v] != self.memory.first
        if self._gate is not None and ahead and not self._gate.admits(v):
            self._gate.keep_waiting(v)
            self.ready.remove(v)
            return False
        obstacle = self.memory.obstacle_of(v)
        if obstacle is None:
            return True
        if self.nodes[v].kind is Kind.COLLECTIVE and v not in self.refusals:
            self.refusals[v] = self.memory.refusal(v, obstacle)
        self.ready.block(v, obstacle)
        return False

    def run(self, v: NodeId, reason: Reason) -> None:
        """Run v now: advance time, memory, and the nodes that become ready."""
        node, ready = self.nodes[v], self.ready
        ready.remove(v)
        self.order.append(v)
        if node.kind is Kind.COLLECTIVE:
            self.streams.launch(v, self.clock_us)
            self.reasons[v] = "reference" if self.memory.position[v] == self.memory.first else reason
        elif node.kind is Kind.WAIT:
            self.clock_us = self.streams.wait(v, self.clock_us)
        else:
            self.clock_us = self.streams.compute(v, self.clock_us)
            self.computed_us += node.time_us
        lowered = self.memory.run(v)
        if ready.in_flight:
            for w in ready.completed(self.clock_us):
                self._add(w)  # under contention some are still in flight
        if ready.blocked or ready.blocked_now:
            for w in ready.unblocked(lowered):
                self._add(w)
        if self._gate is not None:
            for w in self._gate.run(v, self.memory):
                self._add(w)
        for w in self._after[v]:
            self._open_before[w] -= 1
            if self._open_before[w] == 0:
                self._add(w)

    def earliest_end_us(self) -> float:
        """When the step ends at the earliest: the clock, and the compute that is left."""
        return self.clock_us + self.priorities.total_us - self.computed_us

    def least_end_us(self) -> float:
        """No sooner: by compute, by streams, by the longest path from what is ready."""
        paths = self.ready.paths
        path_us = self.clock_us - paths[0].minus_bottom_level_us if paths else 0.0
        return max(self.earliest_end_us(), self.streams.least_end_us, path_us)

    def work(self) -> Work:
        """What it took so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self.streams.looked)

    def _add(self, v: NodeId) -> None:
        completed_us = self.streams.completed_us(v) if self.nodes[v].kind is Kind.WAIT else 0.0
        if completed_us > self.clock_us:
            self.ready.add_in_flight(v, completed_us)
        else:
            self.ready.add(v)


class Rules:
    """Which node runs next; of each rule the most urgent node that the budget admits."""

    def __init__(self, state: State, policy: Policy) -> None:
        """By a policy, from where the run stands; never changes that but for nodes that are blocked."""
        self._state, self._memory, self._ready = state, state.memory, state.ready
        self._compute_us, self._bottom_level_us = state.priorities.compute_us, state.priorities.bottom_level_us
        self._frees, self._reference_order = state.memory.reference.frees, state.memory.order
        self._lead_us = policy.lead * state.priorities.total_us
        self._slack_us = policy.slack * state.priorities.total_us
        self._beside_us = policy.beside * state.priorities.total_us if state.streams.contended else 0.0
        self._window, self._keeps_busy = policy.window, policy.keeps_busy

    def choose(self) -> tuple[int, Reason]:
        """The next node, by the first rule that finds one, and why."""
        # 0. what costs nothing: views, and waits for what has completed (they let go of a collective's input)
        v = self._costs_nothing()
        if v is not None:
            return v, "no stall"
        # under contention: a collective that slows compute no more, as one of another link is in flight anyway
        if self._beside_us > 0.0:
            v = self._launch_beside()
            if v is not None:
                return v, "beside another"
        compute = self._next_compute()
        until_us = self._stall_us() if compute is None else self._compute_us[compute]
        end_us = max(self._state.priorities.critical_path_us, self._state.earliest_end_us())
        # 1. a collective (or what prepares it) whose latest start would pass while the next compute runs, or while
        #    compute stalls
        v = self._launch_due(self._state.computed_us + until_us + self._lead_us, end_us)
        if v is not None:
            return v, "no stall" if compute is None else "frees memory" if self._frees[v] else "latest start"
        if compute is not None:
            # 2. a node of the critical path that would become late if the next compute went first
            v = self._becomes_late(compute, end_us)
            if v is not None:
                return v, "latest start"
            # 3. the next compute of the reference order: waits are deferred simply by running what does not need them
            return compute, "reference"
        # 4. all that is left would stall: the wait whose collective completes first
        key = self._completes_first()
        if key is not None:
            self._ready.in_flight.remove(key)
            return key.node, "no stall"
        # 5. all that is left are launches that would delay each other: the first in the reference order
        return self._first_launch(), "no stall"

    def _costs_nothing(self) -> NodeId | None:
        while self._ready.free:
            v = self._ready.free.popleft()
            if self._state.admit_or_block(v):
                return v
        return None

    def _launch_beside(self) -> NodeId | None:
        """A collective (or what prepares it) most of whose time falls beside what is in flight on other links."""
        before_us = self._state.computed_us + self._beside_us
        for group, queue in self._ready.launches.items():
            until_us = self._state.streams.beside_us(group, self._state.clock_us) if queue else 0.0
            k = 0
            for _ in range(_LOOK if until_us > 0.0 else 0):
                if k == len(queue) or queue[k].latest_start_us >= before_us:
                    break
                v = queue[k].node
                if _MOST * self._state.nodes[v].time_us > until_us:
                    k += 1
                elif self._state.admit_or_block(v):
                    return v
        return None

    def _next_compute(self) -> NodeId | None:
        """The first compute in reference order, within the window, that the budget admits; others are blocked."""
        compute, below = self._ready.compute, self._memory.first + self._window
        while compute and compute[0] < below:
            v = self._reference_order[compute[0]]
            if self._state.admit_or_block(v):
                return v
        return None

    def _stall_us(self) -> float:
        """How long the compute stream would stall now: until the first collective in flight completes."""
        in_flight = self._ready.in_flight
        return in_flight[0].completed_us - self._state.clock_us if in_flight else math.inf

    def _launch_due(self, before_us: float, end_us: float) -> NodeId | None:
        """The collective (or what prepares it) with the first latest start, if that is before the one given.

        What memory refuses on one stream stands only in the way of that stream.
        """
        due = [queue for queue in self._ready.launches.values() if queue and queue[0].latest_start_us < before_us]
        for queue in sorted(due, key=itemgetter(0)) if len(due) > 1 else due:
            k = 0
            for _ in range(_LOOK):
                if k == len(queue) or queue[k].latest_start_us >= before_us:
                    break
                v = queue[k].node
                if self._delays_more_urgent(v, end_us):
                    k += 1
                elif self._state.admit_or_block(v):
                    return v
        return None

    def _delays_more_urgent(self, v: NodeId, end_us: float) -> bool:
        state = self._state
        return state.nodes[v].kind is Kind.COLLECTIVE and state.streams.delays_more_urgent(
            v, state.clock_us, end_us, self._keeps_busy
        )

    def _becomes_late(self, compute: int, end_us: float) -> NodeId | None:
        """The most urgent node that would make the end later if ``compute`` went first, and that this can wait for."""
        paths, level_us, compute_us = self._ready.paths, self._bottom_level_us, self._compute_us
        now_us = self._state.clock_us + self._slack_us
        k = 0
        for _ in range(_LOOK):
            if k == len(paths):
                break
            v = paths[k].node
            if now_us + compute_us[compute] + level_us[v] <= end_us:
                break
            if v == compute or (
                level_us[v] <= level_us[compute] and now_us + compute_us[v] + level_us[compute] > end_us
            ):
                k += 1
            elif self._state.admit_or_block(v):
                return v
        return None

    def _completes_first(self) -> InFlightKey | None:
        """The wait, of those that would stall, whose collective completes first and that the budget admits."""
        for key in self._ready.in_flight:
            if self._memory.admits(key.node):
                return key
        return None

    def _first_launch(self) -> NodeId:
        while True:
            first: LaunchKey = min(queue[0] for queue in self._ready.launches.values() if queue)
            if self._state.admit_or_block(first.node):  # the first open node of the reference order is always admitted
                return first.node
