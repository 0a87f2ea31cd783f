"""What all bounds are made of: times, what has finished before what, and sets of nodes as rows.

Bounds add up times of collectives. Where a collective goes faster beside compute than alone
(``Contention.stretch`` below 1) it may take less than its time, but never less than time * stretch::

    alone             |====== 40 ======|
    beside compute    |=== 20 ===|            stretch 0.5: a bound counts 20

With these times a bound holds whatever runs beside: it never counts on a collective going faster than alone.

What contention adds to a bound: compute and communication that have to take turns, and what both lose beside others.

A bound without contention is a chain: compute, and between it collectives during which none of that compute can run::

    compute       |=== 30 ===|........|=== 20 ===|          counted: 50 of all compute, and collectives of 10
    tp                       |== 10 ==|
    fsdp          |========== 40 ==========|                takes from compute wherever it is not beside the 10

Outside of the chain's collectives the step has room for its compute and for what others take from it. Of collectives of
one link those in flight get its full rate together, so beside the chain's collectives they do at most as much as these
take; all else of theirs falls beside compute, which loses 1 - 1 / factor of it, or beside a stall, which is worse.
And compute that is not counted can run beside the chain's collectives, at 1 / factor of its rate::

    step >= chain's collectives + all compute - min(compute not counted, sum of collective / factor)
            + max over links of (what its collectives take from compute - the most of it during the chain's)

The lower bound of graphs too large for all pairs of collectives: exact within windows, chained by checkpoints.

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

A step time that no order can beat, whatever memory it is given.

For collectives u, v let c(u -> v) be the compute that must run after u has finished and before v is launched.

    start(v) >= max( all compute that v needs,  max over u that must have finished before v of
                                                start(u) + time(u) + c(u -> v) )

    step >= (a) all compute
            (b) start(v) + time(v) + all compute that needs v finished
            (c) per group: its earliest start + all its time + the least compute after any of it
            (d) all compute + what the collectives of one group take from it (0 without contention)
            (e) under contention: more than (b), by :mod:`overlap_sched.judge.lower_bound`

Where a group has several lanes (:mod:`overlap_sched.problem.contention`), (c) counts crowding / lanes of all its time,
and (d) and (e) are left out: they know of one collective at a time.

"Finished" means that a wait of u lies between: a node that merely needs u launched does not wait for it.
Groups that share a link do its work at its rate at most, like one group: (c) and (d) then hold per link. While a
collective of a factor s is in flight, compute does at most 1 / s of its work, so it takes at least 1 - 1/s of that time
from compute; start(v) and what is behind are those without contention, which only makes them later. The chain of (e) is
what (b) adds up: compute, and the collectives on the way to v. Of a collective that goes faster beside compute the
shorter time counts (:mod:`overlap_sched.judge.lower_bound`).

One reachability bit set per side (Python integers, one bit per collective) and one matrix product over the
nodes that take time: well under a second for ten thousand nodes. Above ``EXACT_NODES`` nodes the bound is the
approximation of :mod:`overlap_sched.judge.lower_bound`: true as well, but it may be smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import Kind, NodeId, Problem


def with_least_times(problem: Problem) -> Problem:
    """The same problem with the least time of each collective; itself where none goes faster beside compute."""
    contention = problem.contention
    if all(factor >= 1.0 for factor in contention.stretch.values()):
        return problem
    nodes = tuple(
        node._replace(time_us=node.time_us * min(contention.stretch_of(node.op), 1.0))
        if node.kind is Kind.COLLECTIVE
        else node
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes, contention=replace(contention, stretch={}))


def compute_us(problem: Problem) -> list[float]:
    """Per node, microseconds on the compute stream: 0 for collectives and waits."""
    return [0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us for node in problem.nodes]


def unpack(bits: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    """Sets of numbers below ``count`` as rows of 0.0 and 1.0; time and space: their number times ``count``."""
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(b.to_bytes(width, "little") for b in bits), dtype=np.uint8)
    rows = np.unpackbits(packed.reshape(len(bits), width), axis=1, bitorder="little")[:, :count]
    return rows.astype(np.float64)


def reachability(
    problem: Problem, events: Sequence[NodeId], low: int = 0, high: int | None = None
) -> tuple[list[int], list[int]]:
    """Per node two bit sets over events: which have finished before it, which need it to run.

    Args:
        problem: Whose nodes.
        events: Collectives (finished at a wait) and other nodes (when they have run).
        low: Of a window of nodes: the first.
        high: The one behind its last; ``None``: all that follow.
    """
    nodes, before, high = problem.nodes, problem.predecessors, len(problem.nodes) if high is None else high
    bit = {v: 1 << k for k, v in enumerate(events)}
    finished, needed_by = [0] * (high - low), [0] * (high - low)
    for v in range(low, high):
        launch = nodes[v].collective
        done = bit.get(launch, 0) if launch is not None else 0
        for u in before[v]:
            if u >= low:
                done |= finished[u - low]
                if u in bit and nodes[u].kind is not Kind.COLLECTIVE:
                    done |= bit[u]
        finished[v - low] = done
    for v in range(high - 1, low - 1, -1):
        needs = needed_by[v - low] | bit.get(v, 0)
        for u in before[v]:
            if u >= low:
                needed_by[u - low] |= needs
    return finished, needed_by


class Chain(NamedTuple):
    """What a bound counts, in microseconds: no two parts of it can run at the same time.

    Attributes:
        compute_us: Compute.
        sent_us: Collectives.
        beside_us: The most compute that can run beside these, each divided by its factor.
    """

    compute_us: float
    sent_us: float
    beside_us: float


@dataclass(frozen=True)
class Losses:
    """What collectives take from compute.

    Attributes:
        total_us: All compute.
        links: Per link, what its collectives take from compute, and the largest part of their time that one takes.
    """

    total_us: float
    links: tuple[tuple[float, float], ...]

    def step_us(self, chain: Chain) -> float:
        """The bound of a chain, see the module."""
        others_us = min(self.total_us - chain.compute_us, chain.beside_us)
        lost_us = max((lost - chain.sent_us * most for lost, most in self.links), default=0.0)
        return chain.sent_us + self.total_us - others_us + max(lost_us, 0.0)


def losses(problem: Problem) -> Losses:
    """Return the losses of a whole problem."""
    links: dict[str, list[tuple[float, float]]] = {}
    for v in problem.collectives:
        node = problem.nodes[v]
        links.setdefault(problem.contention.link_of(node.group), []).append((part_lost(problem, v), node.time_us))
    lost = [(sum(part * us for part, us in mine), max(part for part, _ in mine)) for mine in links.values()]
    return Losses(sum(compute_us(problem)), tuple(lost))


def part_lost(problem: Problem, v: NodeId) -> float:
    """The part of a collective's time that it takes from compute, at the least."""
    return 1 - 1 / problem.contention.least_slowdown_of(problem.nodes[v].op)


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


EXACT_NODES = 16_384
"""Graphs of at most this many nodes have the exact bound."""

_ROWS = 2048  # nodes per block of the matrix product: bounds its memory at 2 * _ROWS * collectives doubles


def lower_bound_us(problem: Problem) -> float:
    """The bound on the step, in microseconds; approximate above :data:`EXACT_NODES` nodes."""
    problem = with_least_times(problem)
    nodes, collectives = problem.nodes, problem.collectives
    if len(nodes) > EXACT_NODES:
        return windowed_bound_us(problem)
    us = compute_us(problem)
    busy = [v for v, time_us in enumerate(us) if time_us > 0]
    busy_us = np.array([us[v] for v in busy])
    bounds = [float(busy_us.sum())]
    if not collectives:
        return bounds[0]

    finished, needed_by = reachability(problem, collectives)
    count = len(collectives)
    comm_us = np.array([nodes[v].time_us for v in collectives])
    slowdown = np.array([problem.contention.least_slowdown_of(nodes[v].op) for v in collectives])
    ahead_us, behind_us = np.zeros(count), np.zeros(count)
    between = np.zeros((count, count))  # [u, v]: c(u -> v)
    for low in range(0, len(busy), _ROWS):
        rows, rows_us = busy[low : low + _ROWS], busy_us[low : low + _ROWS]
        after = unpack([finished[v] for v in rows], count) * rows_us[:, None]
        before = unpack([needed_by[v] for v in rows], count)
        ahead_us += rows_us @ before
        behind_us += after.sum(axis=0)
        between += after.T @ before

    start = ahead_us
    sent_us, beside_us = comm_us.copy(), comm_us / slowdown  # of v and of what start(v) adds up
    for k, v in enumerate(collectives):
        earlier = np.flatnonzero(unpack([finished[v]], count)[0])
        if len(earlier):
            reached = start[earlier] + comm_us[earlier] + between[earlier, k]
            u = earlier[reached.argmax()]
            if reached.max() > start[k]:
                start[k] = float(reached.max())
                sent_us[k] += sent_us[u]
                beside_us[k] += beside_us[u]
    ends = start + comm_us + behind_us
    bounds.append(float(ends.max()))
    contention = problem.contention
    if contention and contention.lanes == 1:
        lost = losses(problem)
        chains = zip(ends - sent_us, sent_us, beside_us, strict=True)
        bounds.append(max(lost.step_us(Chain(*map(float, chain))) for chain in chains))
    lost_us = (1 - 1 / slowdown) * comm_us
    link = [contention.link_of(nodes[v].group) for v in collectives]
    for name in sorted(set(link)):
        mine = np.array([other == name for other in link])
        together_us = comm_us[mine].sum() * contention.crowding / contention.lanes
        bounds.append(float(start[mine].min() + together_us + behind_us[mine].min()))
        if contention.lanes == 1:
            bounds.append(bounds[0] + float(lost_us[mine].sum()))
    return max(bounds)
