"""Which node runs next: the rules of :mod:`overlap_sched.scheduler.run`, in the order in which they apply."""

import math
from operator import itemgetter

from overlap_sched.problem import Kind
from overlap_sched.scheduler.policies import Policy
from overlap_sched.scheduler.result import Reason
from overlap_sched.scheduler.state import State

_LOOK = 4
"""How many of the most urgent nodes, of each stream, are looked at in one step: refusals would be most of the work."""


class Choice:
    """Chooses for one run."""

    def __init__(self, state: State, policy: Policy) -> None:
        """By a policy, from where the run stands; never changes that but for nodes that are held."""
        self._state, self._memory, self._ready, self._keys = state, state.memory, state.ready, state.keys
        self._lead_us = policy.lead * state.keys.total_us
        self._slack_us = policy.slack * state.keys.total_us
        self._reach = policy.reach

    def next(self) -> tuple[int, Reason]:
        """The next node, by the first rule that finds one; of several, the most urgent that the budget admits."""
        # what costs nothing: views, and waits for what has finished (they let go of a collective's input)
        while self._ready.free:
            v = self._ready.free.popleft()
            if self._state.may_run(v):
                return v, "fits"
        step = self._next_compute()
        step_us = self._stall_us() if step is None else self._keys.compute_us[step]

        # 1. a collective (or what prepares it) whose latest start would pass while the next compute runs, or while
        #    there is none; nothing in flight either: the first
        state, keys = self._state, self._keys
        end_us = max(keys.longest_us, state.clock_us + keys.total_us - state.computed_us)
        due = self._launch((state.computed_us + step_us + self._lead_us,), end_us)
        if due is not None:
            return due, "fits" if step is None else "frees" if self._ready.frees[due] else "due"
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
            v = self._memory.order[min(due[0] for due in self._ready.due.values() if due)[-1]]
            if self._state.may_run(v):  # the first open node of the reference order always may
                return v, "fits"

    def _stall_us(self) -> float:
        """How long the compute stream would stand still now: until the first collective in flight is finished."""
        return self._ready.flying[0][0] - self._state.clock_us if self._ready.flying else math.inf

    def _launch(self, below: tuple[float], end_us: float) -> int | None:
        """The collective (or what prepares it) that is due first, with a key below the one given; see above.

        What memory refuses on one stream stands only in the way of that stream.
        """
        for due in sorted((due for due in self._ready.due.values() if due and due[0] < below), key=itemgetter(0)):
            k = 0
            for _ in range(_LOOK):
                if k == len(due) or due[k] >= below:
                    break
                v = self._memory.order[due[k][-1]]
                if self._in_the_way(v, end_us):
                    k += 1
                elif self._state.may_run(v):
                    return v
        return None

    def _in_the_way(self, v: int, end_us: float) -> bool:
        state = self._state
        return state.nodes[v].kind is Kind.COLLECTIVE and state.streams.in_the_way(v, state.clock_us, end_us)

    def _land_first(self) -> int | None:
        """Take out the wait, of those that would stall, whose collective finishes first and that the budget admits."""
        for key in self._ready.flying:
            v = self._memory.order[key[1]]
            if self._memory.admits(v):
                self._ready.flying.remove(key)
                return v
        return None

    def _late(self, step: int, end_us: float) -> int | None:
        """The most urgent node that would make the end later if ``step`` went first, and that ``step`` can wait for."""
        late, tail_us, compute_us = self._ready.late, self._keys.tail_us, self._keys.compute_us
        now_us = self._state.clock_us + self._slack_us
        k = 0
        for _ in range(_LOOK):
            if k == len(late):
                break
            v = self._memory.order[late[k][1]]
            if now_us + compute_us[step] + tail_us[v] <= end_us:
                break
            if v == step or (tail_us[v] <= tail_us[step] and now_us + compute_us[v] + tail_us[step] > end_us):
                k += 1
            elif self._state.may_run(v):
                return v
        return None

    def _next_compute(self) -> int | None:
        """The first compute in reference order, no further than the reach, that the budget admits; others are held."""
        work, below = self._ready.work, self._memory.first + self._reach
        while work and work[0] < below:
            v = self._memory.order[work[0]]
            if self._state.may_run(v):
                return v
        return None
