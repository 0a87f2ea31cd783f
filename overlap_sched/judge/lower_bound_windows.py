"""The lower bound of graphs too large for all pairs of collectives: exact within windows, chained by checkpoints.

:mod:`overlap_sched.judge.lower_bound` is quadratic in collectives. Here the nodes are cut into windows that overlap by
half. What a window does not see is left out, which only makes the bound smaller: it stays true, and is an
**approximation** of the other one. Windows are joined at checkpoints S1, S2, ...: nodes on a
longest path, each an ancestor of the next::

    window k      |------------------------|
    window k + 1              |------------------------|
    nodes           S1 . . .  |  S2  . v . . | S3 . . .       v is seen from window k + 1, with S2 as its base

Let S be the last checkpoint in the window that v needs, T the first one that needs v finished.

    compute that v needs  >= compute that S needs + S + what in the window v needs and S does not
    start(v)              >= that, and finish(u) + c(u -> v) for every collective or checkpoint u in the window
    compute that needs v  >= compute that needs T + what in the window needs v and does not need T

Linear in nodes for a given window.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.judge.bound_terms import compute_us, reachability, unpack, with_least_times
from overlap_sched.problem import Kind, Problem

WINDOW = 4096
"""Nodes per window."""

_NEVER = 2**62
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Chain:
    """Checkpoints, and where each node stands to them.

    Attributes:
        at: Ids of the checkpoints, ascending; each is an ancestor of the next.
        level: Per node, how many checkpoints it needs. needed_at: per node, the first that needs it (itself included).
        path_us: Per node, the longest path that must be done before it, communication included.
    """

    at: list[int]
    level: list[int]
    needed_at: list[int]
    path_us: list[float]


def windowed_bound_us(problem: Problem, window: int = WINDOW) -> float:
    """A bound on the step, in microseconds: never above that of :mod:`overlap_sched.judge.lower_bound`."""
    problem = with_least_times(problem)
    nodes = problem.nodes
    total_us = sum(compute_us(problem))
    if not problem.collectives:
        return total_us
    sweep = _WindowedBound(problem, _chain(problem, max(window // 8, 1)))
    half = max(window // 2, 1)
    lows = range(0, max(len(nodes) - half, 1), half)
    for low in lows:
        sweep.see(low, min(low + 2 * half, len(nodes)), first=low == 0, last=low == lows[-1])
    return max(total_us, *sweep.bounds_us(total_us))


def _chain(problem: Problem, apart: int) -> _Chain:
    """Compute nodes on one longest path, at least so many ids apart."""
    nodes, before, n, us = problem.nodes, problem.predecessors, len(problem.nodes), compute_us(problem)
    path, longest = [0.0] * n, [-1] * n
    for v, node in enumerate(nodes):
        for u in before[v]:
            done = path[u] + us[u]
            if u == node.collective:
                done = path[u] + nodes[u].time_us
            if done > path[v] or longest[v] < 0:
                path[v], longest[v] = done, u
    v = max(range(n), key=lambda v: path[v] + nodes[v].time_us)
    at: list[int] = []
    while v >= 0:
        if nodes[v].kind is Kind.COMPUTE and (not at or at[-1] - v >= apart):
            at.append(v)
        v = longest[v]
    at.reverse()
    index = {v: k for k, v in enumerate(at)}
    level, needed_at = [0] * n, [_NEVER] * n
    for v in range(n):
        for u in before[v]:
            level[v] = max(level[v], index[u] + 1 if u in index else level[u])
    for v in range(n - 1, -1, -1):
        needed_at[v] = min(needed_at[v], index.get(v, _NEVER))
        for u in before[v]:
            needed_at[u] = min(needed_at[u], needed_at[v])
    return _Chain(at, level, needed_at, path)


class _WindowedBound:
    """What is known of each event, a collective or a checkpoint, by id, after the windows so far.

    Time, with w nodes and e events in a window, c collectives in all and k checkpoints: ``see`` O(w e^2) in matrix
    products, ``bounds_us`` O(c + k). Space: O(w e) for the window at hand, O(c + k) for what is kept.
    """

    def __init__(self, problem: Problem, chain: _Chain) -> None:
        self.problem, self.chain, self.us = problem, chain, compute_us(problem)
        self.head_us: dict[int, float] = {}  # compute that it needs
        self.start_us: dict[int, float] = {}
        self.later: dict[int, tuple[float, int]] = {}  # compute that needs it, up to the checkpoint named
        checkpoints = set(chain.at)
        self.is_event = [node.kind is Kind.COLLECTIVE or v in checkpoints for v, node in enumerate(problem.nodes)]
        self.first_use = {
            v: min((chain.needed_at[w] for w in waits), default=_NEVER) for v, waits in problem.waits.items()
        }

    def see(self, low: int, high: int, first: bool, last: bool) -> None:
        """The window of nodes from ``low`` to ``high``."""
        chain = self.chain
        events = [v for v in range(low, high) if self.is_event[v]]
        busy = [v for v in range(low, high) if self.us[v] > 0]
        if not events:
            return
        finished, needed_by = reachability(self.problem, events, low, high)
        us = np.array([self.us[v] for v in busy])
        after = unpack([finished[v - low] for v in busy], len(events))
        before = unpack([needed_by[v - low] for v in busy], len(events))
        between = (after * us[:, None]).T @ before
        middle = low + (high - low) // 2
        ahead = [k for k, v in enumerate(events) if first or v >= middle or v not in self.start_us]
        self._ahead(low, events, ahead, before, us, np.array([chain.needed_at[v] for v in busy]))
        self._starts(low, events, ahead, finished, between)
        behind = [k for k, v in enumerate(events) if last or v < middle or v not in self.later]
        self._behind(high, events, behind, after, us, np.array([chain.level[v] for v in busy]))

    def _ahead(
        self,
        low: int,
        events: list[int],
        which: list[int],
        before: Floats,
        us: Floats,
        needed_at: Ints,
    ) -> None:
        """Compute that events need, by their base."""
        chain = self.chain
        base = [chain.level[events[k]] - 1 for k in which]
        for j in sorted(set(base)):
            mine = [k for k, b in zip(which, base, strict=True) if b == j]
            known = j >= 0 and chain.at[j] >= low
            before_base = self.head_us[chain.at[j]] + self.problem.nodes[chain.at[j]].time_us if known else 0.0
            sums = (us * (needed_at > j) if known else us) @ before[:, mine]
            for k, more in zip(mine, sums, strict=True):
                self.head_us[events[k]] = before_base + float(more)

    def _starts(self, low: int, events: list[int], which: list[int], finished: list[int], between: Floats) -> None:
        end_us = np.array([self._finish_us(v) for v in events])
        for k in which:
            v = events[k]
            start = max(self.head_us[v], self.chain.path_us[v])
            earlier = np.flatnonzero(unpack([finished[v - low]], len(events))[0])
            if len(earlier):
                start = max(start, float((end_us[earlier] + between[earlier, k]).max()))
            self.start_us[v] = start
            end_us[k] = self._finish_us(v)

    def _finish_us(self, v: int) -> float:
        return self.start_us.get(v, 0.0) + self.problem.nodes[v].time_us

    def _behind(self, high: int, events: list[int], which: list[int], after: Floats, us: Floats, level: Ints) -> None:
        """Compute that needs events finished, up to the first checkpoint that does."""
        chain, nodes = self.chain, self.problem.nodes
        up_to = []
        for k in which:
            v = events[k]
            j = self.first_use.get(v, _NEVER) if nodes[v].kind is Kind.COLLECTIVE else chain.needed_at[v] + 1
            up_to.append(j if j < len(chain.at) and chain.at[j] < high else _NEVER)
        for j in sorted(set(up_to)):
            mine = [k for k, b in zip(which, up_to, strict=True) if b == j]
            sums = (us * (level <= j)) @ after[:, mine]
            for k, more in zip(mine, sums, strict=True):
                self.later[events[k]] = float(more), j

    def bounds_us(self, total_us: float) -> list[float]:
        """All that can be said of the step."""
        nodes, collectives, contention = self.problem.nodes, self.problem.collectives, self.problem.contention
        after = self._after_us()
        bounds = [self._finish_us(v) + after[v] for v in collectives]
        links: dict[str, list[int]] = {}
        for v in collectives:
            links.setdefault(contention.link_of(nodes[v].group), []).append(v)
        for mine in links.values():
            busy_us = sum(nodes[v].time_us for v in mine)
            together_us = busy_us * contention.crowding / contention.lanes
            bounds.append(min(self.start_us[v] for v in mine) + together_us + min(after[v] for v in mine))
            if contention.lanes > 1:
                continue
            lost = [(1 - 1 / contention.least_slowdown_of(nodes[v].op)) * nodes[v].time_us for v in mine]
            bounds.append(total_us + sum(lost))
        return bounds

    def _after_us(self) -> dict[int, float]:
        """Compute that needs each event finished; from the last checkpoint to the first."""
        chain = self.chain
        after: dict[int, float] = {}
        for v in [*reversed(chain.at), *self.problem.collectives]:
            more, j = self.later[v]
            after[v] = more + (after[chain.at[j]] if j != _NEVER else 0.0)
        return after
