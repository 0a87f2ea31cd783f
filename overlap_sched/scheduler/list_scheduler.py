"""THE main loop: a list scheduler in simulated time that never leaves the memory budget.

Contract: from a valid reference order within the budget comes a valid order within the budget, or ``None`` where its
step would be longer than one that is known already. ::

    until every node has run:
        v = the node that the first rule finds      ListScheduler.choose  which node, and why
        run v                                       ListScheduler.run  clock, streams and memory advance
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedList

from overlap_sched.problem import Kind, NodeId
from overlap_sched.problem.precedence import Pair, neighbours
from overlap_sched.scheduler.admission import CompletionProfile
from overlap_sched.scheduler.ready import ReadyList
from overlap_sched.scheduler.task import TUNING, Candidate, LaunchKey, Reason, Reference, Refusal, SchedulerRun, Work
from overlap_sched.simulate.clock import Clock


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


def list_schedule(
    reference: Reference,
    limit: npt.NDArray[np.int64],
    policy: Policy,
    pairs: Sequence[Pair] = (),
    beat_us: float = math.inf,
    clock: Clock | None = None,
) -> SchedulerRun:
    """Schedule once.

    Args:
        reference: A valid order within the budget: the fallback at every step.
        limit: Budget in bytes, a scalar or one value per position.
        policy: What this run tries.
        pairs: Extra pairs (before, after) that the order must keep, and that the reference keeps.
        beat_us: A step that has been reached already: a run that will be longer is given up.
        clock: When collectives are finished, where not as each in its turn: they may go together.

    Returns:
        What it made, within the budget by construction, and what that took.
    """
    run, given_up_us = ListScheduler(reference, limit, policy, pairs, clock), beat_us * (1 + 1e-12)  # for rounding
    while len(run.order) < len(reference.order):
        v, reason = run.choose()
        run.run(v, reason)
        if run.least_end_us() > given_up_us:
            return SchedulerRun(run.work())
    made = Candidate(
        order=tuple(run.order),
        step_us=run.clock.end_us(),
        peak_bytes=run.memory.peak_bytes,
        reasons=run.reasons,
        refusals=run.refusals,
        work=run.work(),
    )
    return SchedulerRun(made.work, made)


class ListScheduler:
    """Where a run stands: simulated time, memory, the nodes that could run now; and the rules that choose among these.

    Attributes:
        order: Nodes that have run.
        computed_us: Compute done so far: the clock without the stalls.
        clock, memory, ready, priorities: The parts, each with its own module.
        reasons, refusals: As in :class:`~overlap_sched.scheduler.task.Candidate`.
    """

    def __init__(
        self,
        reference: Reference,
        limit: npt.NDArray[np.int64],
        policy: Policy,
        pairs: Sequence[Pair],
        clock: Clock | None = None,
    ) -> None:
        """Nothing has run."""
        problem, self.policy, self.reference = reference.problem, policy, reference
        self.nodes, self.priorities = problem.nodes, reference.priorities(policy.prepares)
        self.clock: Clock = reference.times.begin(forecast=True) if clock is None else clock
        self.memory = CompletionProfile(reference, limit)
        self.ready = ReadyList(reference, self.priorities, self.memory)
        self.order = list[NodeId]()
        self.computed_us = self._streams_end_us = 0.0
        self.reasons, self.refusals = dict[NodeId, Reason](), dict[NodeId, Refusal]()
        self._one_by_one = clock is None and not problem.contention
        self._left_us = self.priorities.stream_us.copy()  # per group, the time of what has not been launched
        # per group, what has not been launched, by latest start; a linked list, so that its front is always near
        self._to_launch = {g: OrderedDict.fromkeys(ids) for g, ids in self.priorities.by_latest_start.items()}
        self._far_until = dict[NodeId, int]()  # per collective that is far from ready: until so many nodes have run
        slow = (v for v, factor in reference.times.slowdown.items() if factor > 1.0)  # compute, under contention
        self._slow_groups = dict.fromkeys(self.nodes[v].group or "" for v in slow)
        self._looked = 0
        before, self._after = neighbours(problem, pairs)
        self._open_before = [len(nodes) for nodes in before]
        for v in reference.order:
            if self._open_before[v] == 0:
                self._add(v)

    def run(self, v: NodeId, reason: Reason) -> None:
        """Run v now: advance time, memory, and the nodes that become ready."""
        node, ready = self.nodes[v], self.ready
        ready.remove(v)
        self.order.append(v)
        self.clock.run((v,))
        if node.kind is Kind.COLLECTIVE:
            group = node.group or ""
            self._left_us[group] -= node.time_us
            del self._to_launch[group][v]
            if self._one_by_one:
                end_us = self.clock.free_us(group) + self._left_us[group] + self.priorities.behind_us[group]
                self._streams_end_us = max(self._streams_end_us, end_us)
            self.reasons[v] = "reference" if self.memory.position[v] == self.memory.first else reason
        elif node.kind is not Kind.WAIT:
            self.computed_us += node.time_us
        lowered = self.memory.run(v)
        if ready.in_flight:
            for w in ready.completed(self.clock.clock_us):
                self._add(w)  # under contention some are still in flight
        if ready.blocked or ready.blocked_now:
            for w in ready.unblocked(lowered):
                self._add(w)
        for w in self._after[v]:
            self._open_before[w] -= 1
            if self._open_before[w] == 0:
                self._add(w)

    def _add(self, v: NodeId) -> None:
        collective = self.nodes[v].collective
        completed_us = 0.0 if collective is None else self.clock.completes_us(collective)
        if completed_us > self.clock.clock_us:
            self.ready.add_in_flight(v, completed_us)
        else:
            self.ready.add(v)

    def least_end_us(self) -> float:
        """The step ends no sooner: by compute, by streams, by the longest path from what is ready."""
        paths = self.ready.paths
        path_us = self.clock.clock_us - paths[0].minus_bottom_level_us if paths else 0.0
        return max(self._compute_end_us(), self._streams_end_us, path_us)

    def _compute_end_us(self) -> float:
        return self.clock.clock_us + self.priorities.total_us - self.computed_us

    def work(self) -> Work:
        """Return the work so far."""
        return Work(1, self.ready.rescored, self.memory.updates, self._looked)

    def choose(self) -> tuple[NodeId, Reason]:
        """The next node, by the first rule that finds one, and why."""
        # 0. what costs nothing: views, and waits for what has completed (they let go of a collective's input)
        v = self._costs_nothing()
        if v is not None:
            return v, "no stall"
        # under contention: a collective that slows compute no more, as one of another link is in flight anyway
        if self.policy.beside and (v := self._launch_beside()) is not None:
            return v, "beside another"
        compute, in_flight = self._next_compute(), self.ready.in_flight
        if compute is not None:
            until_us = self.reference.problem.compute_us[compute]
        else:  # compute stalls until the first collective in flight completes
            until_us = in_flight[0].completed_us - self.clock.clock_us if in_flight else math.inf
        end_us = max(self.priorities.critical_path_us, self._compute_end_us())
        # 1. a collective (or what prepares it) whose latest start would pass while the next compute runs, or while
        #    compute stalls
        v = self._launch_urgent(self.computed_us + until_us + self.policy.lead * self.priorities.total_us, end_us)
        if v is not None:
            return v, "no stall" if compute is None else "frees memory" if self.reference.frees[v] else "latest start"
        if compute is not None:
            # 2. a node of the critical path that would become late if the next compute went first
            v = self._becomes_late(compute, end_us)
            if v is not None:
                return v, "latest start"
            # 3. the next compute of the reference order: waits are deferred simply by running what does not need them
            return compute, "reference"
        # 4. all that is left would stall: the wait whose collective completes first
        for key in in_flight:
            if self.memory.admits(key.node):
                in_flight.remove(key)
                return key.node, "no stall"
        # 5. all that is left are launches that would delay each other: the first in the reference order
        while True:  # the first open node of the reference order is always admitted
            first: LaunchKey = min(queue[0] for queue in self.ready.launches.values() if queue)
            if self._admit_or_block(first.node):
                return first.node, "no stall"

    def _admit_or_block(self, v: NodeId) -> bool:
        """Say whether memory admits v; else v is out of all sets until what stands against it is gone."""
        obstacle = self.memory.obstacle_of(v)
        if obstacle is None:
            return True
        if self.nodes[v].kind is Kind.COLLECTIVE and v not in self.refusals:
            self.refusals[v] = self.memory.refusal(v, obstacle)
        self.ready.block(v, obstacle)
        return False

    def _costs_nothing(self) -> NodeId | None:
        while self.ready.free:
            v = self.ready.free.popleft()
            if self._admit_or_block(v):
                return v
        return None

    def _launch_beside(self) -> NodeId | None:
        """A collective (or what prepares it) most of whose time falls beside what is in flight on other links."""
        for group, queue in self.ready.launches.items():
            v = self._first_beside(queue, self._until_alone_us(group)) if queue else None
            if v is not None:
                return v
        return None

    def _first_beside(self, queue: SortedList[LaunchKey], until_us: float) -> NodeId | None:
        before_us = self.computed_us + self.policy.beside * self.priorities.total_us
        return self._first_admitted(
            queue,
            lambda key: until_us <= 0.0 or key.latest_start_us >= before_us,
            lambda v: self.nodes[v].time_us > 2 * until_us,
        )

    def _until_alone_us(self, group: str) -> float:
        """How much longer a collective that slows compute is in flight on other links than the group's.

        0 where the group's own stream is busy: what is launched on it now starts later.
        """
        contention, clock = self.reference.problem.contention, self.clock
        if clock.free_us(group) > clock.clock_us:
            return 0.0
        slow = [other for other in self._slow_groups if contention.link_of(other) != contention.link_of(group)]
        return max([clock.free_us(other) - clock.clock_us for other in slow], default=0.0)

    def _next_compute(self) -> NodeId | None:
        """The first compute in reference order, within the window, that the budget admits; others are blocked."""
        compute, below = self.ready.compute, self.memory.first + self.policy.window
        while compute and compute[0] < below:
            v = self.reference.order[compute[0]]
            if self._admit_or_block(v):
                return v
        return None

    def _first_admitted(
        self, keys: SortedList[Any], in_time: Callable[[Any], bool], passes: Callable[[NodeId], bool]
    ) -> NodeId | None:
        """The first of a few keys that memory admits: up to one that is in time, but for nodes that are passed over."""
        k = 0
        for _ in range(TUNING.look):
            if k == len(keys) or in_time(keys[k]):
                break
            v = keys[k].node
            if passes(v):
                k += 1
            elif self._admit_or_block(v):
                return v
        return None

    def _launch_urgent(self, before_us: float, end_us: float) -> NodeId | None:
        """The collective (or what prepares it) with the first latest start, if that is before the one given.

        What memory refuses on one stream stands only in the way of that stream.
        """
        urgent = [queue for queue in self.ready.launches.values() if queue and queue[0].latest_start_us < before_us]
        for queue in sorted(urgent, key=itemgetter(0)) if len(urgent) > 1 else urgent:
            v = self._first_admitted(
                queue,
                lambda key: key.latest_start_us >= before_us,
                lambda v: self.nodes[v].kind is Kind.COLLECTIVE and self._delays_more_urgent(v, end_us),
            )
            if v is not None:
                return v
        return None

    def _delays_more_urgent(self, v: NodeId, end_us: float) -> bool:
        """Would launching v now delay a more urgent u by more than launching u first would delay v?

        ``end_us``: when the step is expected to end; a node with a longer path than what is left is late. Where the
        policy keeps streams busy, the stream's own work counts as such a path: it is delayed while the stream is idle
        for u. Looks at no more than 4 collectives and 40 nodes before each.
        """
        nodes, level_us, group = self.nodes, self.priorities.bottom_level_us, self.nodes[v].group or ""
        start_us = max(self.clock.clock_us, self.clock.free_us(group))
        finish_us = start_us + nodes[v].time_us
        latest_us = end_us - level_us[v]
        stream_us = self._left_us[group] if self.policy.keeps_busy else 0.0
        for u in [u for u in islice(self._to_launch[group], TUNING.look) if level_us[u] > level_us[v]]:
            late_us = finish_us - (end_us - level_us[u])
            if late_us <= 0:
                continue
            ready_us = max(start_us, self._ready_us(u))
            if ready_us >= finish_us:
                continue
            behind = max(ready_us - (end_us - level_us[u]), ready_us + nodes[u].time_us - latest_us)
            idle_us, busy_us = ready_us + stream_us - end_us, start_us + stream_us - end_us
            if max(behind, idle_us) < max(start_us - latest_us, late_us, busy_us):
                return True
        return False

    def _ready_us(self, v: NodeId) -> float:
        """When v could be launched if all that it needs ran at once; infinite where that is far.

        Nodes come in the original order within each other's dependencies, so one sweep by id is a longest path.
        """
        nodes, has_run, steps = self.nodes, self.memory.has_run, len(self.order)
        before = self.reference.problem.predecessors
        if self._far_until.get(v, 0) > steps:
            return math.inf
        found, todo = {v}, [v]
        while todo and len(found) <= TUNING.far_nodes[1]:
            for u in before[todo.pop()]:
                if not has_run[u] and u not in found:
                    found.add(u)
                    todo.append(u)
        if len(found) > TUNING.far_nodes[0]:
            self._far_until[v] = steps + len(found) - TUNING.far_nodes[0]
            return math.inf
        self._looked += len(found)
        clock_us, done = self.clock.clock_us, dict[NodeId, float]()
        for u in sorted(found):
            node = nodes[u]
            at_us = max([done[w] for w in before[u] if w in done], default=clock_us)
            if node.kind is Kind.COLLECTIVE:
                done[u] = at_us
            elif node.kind is Kind.WAIT:
                done[u] = max(at_us, self._completed_us(node.collective, at_us))
            else:
                done[u] = at_us + node.time_us
        return done[v]

    def _completed_us(self, collective: NodeId | None, launched_us: float) -> float:
        """When a collective is finished, or would be if it were launched then."""
        if collective is None:
            return 0.0
        if collective in self.clock.finish_us:
            return self.clock.finish_us[collective]
        node = self.nodes[collective]
        return max(launched_us, self.clock.free_us(node.group or "")) + node.time_us

    def _becomes_late(self, compute: NodeId, end_us: float) -> NodeId | None:
        """The most urgent node that would make the end later if ``compute`` went first, and that this can wait for."""
        level_us, compute_us = self.priorities.bottom_level_us, self.reference.problem.compute_us
        now_us = self.clock.clock_us + self.policy.slack * self.priorities.total_us
        return self._first_admitted(
            self.ready.paths,
            lambda key: now_us + compute_us[compute] + level_us[key.node] <= end_us,
            lambda v: (
                v == compute
                or (level_us[v] <= level_us[compute] and now_us + compute_us[v] + level_us[compute] > end_us)
            ),
        )
