"""Which node runs next, and why: of each rule the most urgent node that memory admits."""

import math
from operator import itemgetter

from overlap_sched.problem import Kind, NodeId
from overlap_sched.scheduler.policies import Policy
from overlap_sched.scheduler.priority import LaunchKey
from overlap_sched.scheduler.ready_list import InFlightKey
from overlap_sched.scheduler.result import Reason
from overlap_sched.scheduler.state import SchedulerState

_LOOK = 4
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
