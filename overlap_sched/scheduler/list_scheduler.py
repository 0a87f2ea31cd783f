"""THE main loop: a list scheduler in simulated time that never leaves the memory budget.

Contract: from a valid reference order within the budget comes a valid order within the budget, or ``None`` where its
step would be longer than one that is known already. ::

    until every node has run:
        v = the node that the first rule finds      LaunchRules.choose   which node, and why
        run v                                       SchedulerState.run  clock, streams and memory advance
        give up where the step can only become longer than the best so far

    rules, in this order; each proposes the most urgent node of its set:
        0. what costs nothing                       views, waits for what has completed
        1. a launch whose latest start would pass while the next compute ran, unless it delays a more urgent one
        2. compute of the critical path that would become late if the next compute went first
        3. the next compute of the reference order
        4. where all that is left would stall: the wait whose collective completes first
        5. the first launch of the reference order

Memory (:mod:`overlap_sched.scheduler.admission`) admits the node that a rule proposes, or blocks it until its obstacle
is gone. The first open node of the reference order is always admitted: the loop never gets stuck. The sets are in
:mod:`overlap_sched.scheduler.ready`, their keys in :mod:`overlap_sched.scheduler.task`.

**Launches that delay others.** A stream takes one collective at a time and never interrupts it. A launch that nobody
needs soon, one moment before the critical path has its own collective ready, makes the whole step longer::

    compute       |= chain =|===== other =====|......|= chain =|     u waits for v: the chain stalls
    group stream     |======= v =======|==== u ====|

    compute       |= chain =|= other =|= chain =|=== other ===|      v lets u go first
    group stream              |== u ==||======= v =======|

So before v is launched: is there a collective u of its group with a longer path to the end that will be ready
while v is on the stream, and would be late behind it, by more than v would be behind u?
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Protocol

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.admission import completion_profile
from overlap_sched.scheduler.ready import InFlightKey, ReadyList
from overlap_sched.scheduler.task import (
    Candidate,
    LaunchKey,
    Priorities,
    Reason,
    Reference,
    Refusal,
    SchedulerRun,
    Work,
)
from overlap_sched.simulate.clock import FifoStreams, SharedStreams


@dataclass(frozen=True)
class Policy:
    """What one run tries; times are parts of all compute time, so that they fit graphs of every size.

    Attributes:
        lead: How much earlier than its latest start a collective is launched; negative: later.
        slack: How much earlier than its latest start a node of the critical path is moved ahead; negative: later.
        window: How many positions ahead of the first open node compute is looked for.
        prepares: Is cheap compute moved to prepare launches? Else it fills stalls, and launches follow.
        keeps_busy: Does a launch never leave its stream idle for a more urgent one, where the stream has more to do
            than there is time for?
        beside: The lead, instead, of what can be in flight beside a collective of another link: under contention
            two at once slow compute no more than one. 0: nothing is launched for that.
        again: Does the run start from the best order so far?
    """

    lead: float
    slack: float
    window: float = math.inf
    prepares: bool = True
    keeps_busy: bool = False
    beside: float = 0.0
    again: bool = False


_ROUNDING = 1e-12
"""Relative: the same times, summed up in another order, differ by less."""


class StreamTimes(Protocol):
    """When collectives are finished: :class:`FifoStreams`, or :class:`SharedStreams` under contention.

    All that happens is told in the order in which it happens, each with the compute stream's clock then.

    Attributes:
        finish_us: Per collective launched, when it was finished, or is expected to be.
    """

    finish_us: dict[int, float]

    def free_us(self, group: str) -> float:
        """When the group's stream is expected to be free."""

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished; later than now unless it is by now."""

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""

    def compute(self, time_us: float, clock_us: float, share: float = 1.0) -> float:
        """The clock after compute that takes so long alone, and such a part of a slowdown (``Contention.shares``)."""

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock once collective v is finished."""

    def end_us(self, clock_us: float) -> float:
        """When the compute stream and all others are done, if nothing more is launched."""


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    pairs: Sequence[Pair] = (),
    beat_us: float = math.inf,
    times: StreamTimes | None = None,
) -> SchedulerRun:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: What this run tries.
        pairs: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.
        times: When collectives are finished, where not as each in its turn: they may go together.

    Returns:
        What it made, within the budget by construction, and what that took.
    """
    state = SchedulerState(reference, limit, reference.priorities(policy.prepares), pairs, times)
    rules, given_up_us = LaunchRules(state, policy), beat_us * (1 + _ROUNDING)
    while len(state.order) < len(reference.order):
        v, reason = rules.choose()
        state.run(v, reason)
        if state.least_end_us() > given_up_us:
            return SchedulerRun(state.work())
    made = Candidate(
        order=tuple(state.order),
        step_us=state.streams.end_us(state.clock_us),
        peak_bytes=state.memory.peak_bytes,
        reasons=state.reasons,
        refusals=state.refusals,
        work=state.work(),
    )
    return SchedulerRun(made.work, made)


class SchedulerState:
    """Where a run stands: simulated time, memory, and the nodes that could run now.

    Attributes:
        order: Nodes that have run.
        clock_us: Simulated time on the compute stream. computed_us: compute done so far, the clock without the stalls.
        memory, ready, streams, priorities: The parts, each with its own module.
        reasons, refusals: As in :class:`~overlap_sched.scheduler.task.Candidate`.
    """

    def __init__(
        self,
        reference: Reference,
        limit: npt.NDArray[np.int64],
        priorities: Priorities,
        pairs: Sequence[Pair],
        times: StreamTimes | None = None,
    ) -> None:
        """Nothing has run."""
        problem = reference.problem
        self.nodes, self.priorities = problem.nodes, priorities
        self.memory = completion_profile(reference, limit)
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
        """Return the work so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self.streams.looked)

    def _add(self, v: NodeId) -> None:
        completed_us = self.streams.completed_us(v) if self.nodes[v].kind is Kind.WAIT else 0.0
        if completed_us > self.clock_us:
            self.ready.add_in_flight(v, completed_us)
        else:
            self.ready.add(v)


_LOOK_AT = 4
"""How many of the most urgent nodes, of each stream, are looked at in one step: refusals would be most of the work."""
_MOST = 0.5
"""A collective is launched beside another if this part of its time falls beside it."""


class LaunchRules:
    """Which node runs next; of each rule the most urgent node that the budget admits."""

    def __init__(self, state: SchedulerState, policy: Policy) -> None:
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
            for _ in range(_LOOK_AT if until_us > 0.0 else 0):
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
            for _ in range(_LOOK_AT):
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
        for _ in range(_LOOK_AT):
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


_LOOK_AHEAD = 4
"""How many of the next collectives of its group are looked at before a launch."""
_FAR, _FARTHER = 40, 160
"""A collective with more open nodes before it than the first is far from ready; they are counted up to the second, as
it is far then until the difference has run."""


class Streams:
    """When each group's stream is free, and what is still to be launched on it.

    ``delays_more_urgent`` looks at no more than 4 collectives and 40 nodes before each; all else is O(1), under
    contention O(collectives in flight) per collective that completes.

    Attributes:
        contended: Do collectives slow compute, and are there several links?
        least_end_us: The step ends no sooner, by all of a stream and what comes behind it; 0 where collectives do not
            go one by one at their own times.
        looked: Nodes visited by :meth:`delays_more_urgent`: the work done, for tests and benchmarks.
    """

    def __init__(
        self, problem: Problem, priorities: Priorities, has_run: Sequence[bool], times: StreamTimes | None = None
    ) -> None:
        """Nothing launched; ``has_run``: per node id, kept up to date by its owner; ``times``: others than by FIFO."""
        self.looked, self.least_end_us = 0, 0.0
        self._one_by_one = times is None and not problem.contention
        self._nodes, self._before = problem.nodes, problem.predecessors
        self._level_us, self._has_run = priorities.bottom_level_us, has_run
        if times is None:
            times = SharedStreams(problem) if problem.contention else FifoStreams(problem)
        self._times: StreamTimes = times
        self._share_of = problem.contention.share_of
        self._elsewhere = _elsewhere(problem)
        self.contended = any(self._elsewhere.values())
        self._left_us = dict.fromkeys(problem.groups, 0.0)  # per group, the time of what has not been launched
        self._behind_us = dict.fromkeys(problem.groups, math.inf)  # per group, no less comes behind any of it
        for v in problem.collectives:
            group, behind = problem.nodes[v].group or "", [self._level_us[w] for w in problem.waits.get(v, ())]
            self._left_us[group] += problem.nodes[v].time_us
            self._behind_us[group] = min(self._behind_us[group], max(behind, default=0.0))
        # per group, what has not been launched, by latest start; a linked list, so that its front is always near
        self._far_until: dict[NodeId, int] = {}  # per collective that is far from ready: until so many nodes have run
        self._steps = 0
        self._to_launch = {group: OrderedDict.fromkeys(ids) for group, ids in priorities.by_latest_start.items()}

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""
        group = self._nodes[v].group or ""
        self._steps += 1
        self._times.launch(v, clock_us)
        self._left_us[group] -= self._nodes[v].time_us
        del self._to_launch[self._nodes[v].group][v]
        if self._one_by_one:
            end_us = self._times.free_us(group) + self._left_us[group] + self._behind_us[group]
            self.least_end_us = max(self.least_end_us, end_us)

    def start_us(self, v: NodeId, clock_us: float) -> float:
        """When v would start if it were launched now."""
        return max(clock_us, self._times.free_us(self._nodes[v].group or ""))

    def beside_us(self, group: str, clock_us: float) -> float:
        """How much longer a collective that slows compute is in flight on other links than the group's.

        0 where the group's own stream is busy: what is launched on it now starts later.
        """
        if self._times.free_us(group) > clock_us:
            return 0.0
        return max([self._times.free_us(other) - clock_us for other in self._elsewhere[group]], default=0.0)

    def compute(self, v: NodeId, clock_us: float) -> float:
        """The clock after compute node v."""
        self._steps += 1
        node = self._nodes[v]
        return self._times.compute(node.time_us, clock_us, self._share_of(node.flops, node.bytes))

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock after wait v."""
        collective = self._nodes[v].collective
        self._steps += 1
        return clock_us if collective is None else self._times.wait(collective, clock_us)

    def end_us(self, clock_us: float) -> float:
        """When the compute stream and all others are done, if nothing more is launched."""
        return self._times.end_us(clock_us)

    def completed_us(self, wait: int) -> float:
        """When the collective that a wait is for completes; 0 for one launched before this graph.

        Under contention later launches may delay it.
        """
        collective = self._nodes[wait].collective
        return 0.0 if collective is None else self._times.completes_us(collective)

    def delays_more_urgent(self, v: NodeId, clock_us: float, end_us: float, keeps_busy: bool = False) -> bool:
        """Would launching v now delay a more urgent u by more than launching u first would delay v?

        Args:
            v: A collective that could be launched.
            clock_us: Now.
            end_us: When the step is expected to end: a node with a longer path than what is left is late.
            keeps_busy: Does the stream's own work count as such a path? It is delayed while the stream is idle for u.
        """
        start_us = self.start_us(v, clock_us)
        finish_us = start_us + self._nodes[v].time_us
        latest_us = end_us - self._level_us[v]
        stream_us = self._left_us[self._nodes[v].group or ""] if keeps_busy else 0.0
        for u in self._more_urgent(v):
            late_us = finish_us - (end_us - self._level_us[u])
            if late_us <= 0:
                continue
            ready_us = max(start_us, self._ready_us(u, clock_us))
            if ready_us >= finish_us:
                continue
            behind = max(ready_us - (end_us - self._level_us[u]), ready_us + self._nodes[u].time_us - latest_us)
            idle_us, busy_us = ready_us + stream_us - end_us, start_us + stream_us - end_us
            if max(behind, idle_us) < max(start_us - latest_us, late_us, busy_us):
                return True
        return False

    def _more_urgent(self, v: NodeId) -> list[int]:
        """Those of the next few collectives of v's group, by latest start, with a longer path to the end than v's."""
        following = islice(self._to_launch[self._nodes[v].group], _LOOK_AHEAD)
        return [u for u in following if self._level_us[u] > self._level_us[v]]

    def _ready_us(self, v: NodeId, clock_us: float) -> float:
        """When v could be launched if all that it needs ran at once; infinite where that is far.

        Nodes come in the original order within each other's dependencies, so one sweep by id is a longest path.
        """
        nodes, has_run = self._nodes, self._has_run
        if self._far_until.get(v, 0) > self._steps:
            return math.inf
        found, todo = {v}, [v]
        while todo and len(found) <= _FARTHER:
            for u in self._before[todo.pop()]:
                if not has_run[u] and u not in found:
                    found.add(u)
                    todo.append(u)
        if len(found) > _FAR:
            self._far_until[v] = self._steps + len(found) - _FAR
            return math.inf
        self.looked += len(found)
        done: dict[int, float] = {}
        for u in sorted(found):
            node = nodes[u]
            at_us = max([done[w] for w in self._before[u] if w in done], default=clock_us)
            if node.kind is Kind.COLLECTIVE:
                done[u] = at_us
            elif node.kind is Kind.WAIT:
                done[u] = max(at_us, self._completed_us(node.collective, at_us))
            else:
                done[u] = at_us + node.time_us
        return done[v]

    def _completed_us(self, collective: int | None, launched_us: float) -> float:
        """When a collective is finished, or would be if it were launched then."""
        if collective is None:
            return 0.0
        if collective in self._times.finish_us:
            return self._times.finish_us[collective]
        return self.start_us(collective, launched_us) + self._nodes[collective].time_us


def _elsewhere(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Per group those on other links whose collectives slow compute."""
    contention, nodes = problem.contention, problem.nodes
    slow = dict.fromkeys(nodes[v].group or "" for v in problem.collectives if contention.slowdown_of(nodes[v].op) > 1.0)
    link = {group: contention.link_of(group) for group in problem.groups}
    return {group: tuple(other for other in slow if link[other] != link[group]) for group in problem.groups}
