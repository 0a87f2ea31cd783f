"""Where the network binds: an order of a fission in which no part's collectives wait behind another part's kernels.

Stage by stage, a short stage (a norm between a reduce_scatter and the next all_gather) stands behind a long one of
another part (an MLP), and the network stands still meanwhile. Here the parts are merged in simulated time, like jobs
of a batch system with backfilling (EASY, Lifka 1995): the part that can launch its next collective soonest goes first;
while it would stand still, others run what fits. So kernels may stand still that the network may not::

    stages     compute | C2 of 0     | norm 1 | C2 of 1     |        network |AG 1|    |RS 1 ..
    staggered  compute | C2 of 0 |  | norm 1 | C2 of 0 | C2 of 1     network |RS 1|    |AG 1|

Collectives from outside (weights) are launched a lead ahead of their first use; several leads are tried.
The order is one to start from: the scheduler takes it as the original one
(:func:`overlap_sched.analysis.relabel.relabelled`) and gives back no longer a step.
"""

from bisect import bisect_right
from collections.abc import Sequence

from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Order, Problem
from overlap_sched.simulate.ledger import LiveRanges
from overlap_sched.transform.fission import Fission

LEADS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Of what comes from outside, in times of the longest such collective."""


def staggered(problem: Problem, fission: Fission, budget_bytes: int) -> Order | None:
    """The shortest of the staggered orders within a budget; ``None``: there is none.

    Args:
        problem: With the fission done.
        fission: It.
        budget_bytes: What the peak may be.
    """
    parts = _parts(problem, fission)
    others = [v for v in problem.collectives if not any(v in part for part in map(set, parts))]
    merged = _Merge(problem, parts, set(others)).run()
    live_ranges = LiveRanges(problem)
    longest = max((problem.nodes[v].time_us for v in others), default=0.0)
    best: tuple[float, Order] | None = None
    for lead in LEADS:
        order = _ahead(problem, merged, others, lead * longest)
        if int(live_ranges.profile(order).max()) > budget_bytes:
            continue
        step_us = replay(problem, order).step_us
        if best is None or step_us < best[0]:
            best = step_us, order
    return None if best is None else best[1]


def _parts(problem: Problem, fission: Fission) -> list[list[NodeId]]:
    """Nodes of each part, in the problem's order."""
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    of = [[ids.get(fission.part(name, p)) for name in fission.nodes] for p in range(fission.parts)]
    return [sorted(v for v in part if v is not None) for part in of]


class _Merge:
    """Parts merged in simulated time; what comes from outside takes no time here."""

    def __init__(self, problem: Problem, parts: Sequence[Sequence[NodeId]], free: set[NodeId]) -> None:
        self.problem, self.parts, self.free = problem, parts, free
        self.at = [0] * len(parts)
        self.left_us = [_until_launch(problem, part) for part in parts]
        self.clock = 0.0
        self.done = bytearray(len(problem.nodes))
        self.finish_us: dict[NodeId, float] = {}
        self.stream_us: dict[str | None, float] = {}
        self.order: list[NodeId] = []
        self.start_us: list[float] = []

    def run(self) -> tuple[list[NodeId], list[float]]:
        """The order, and when each of its nodes starts."""
        while open_ := [p for p in range(len(self.parts)) if self.at[p] < len(self.parts[p])]:
            p = self._next(open_)
            self._with_needed(self.parts[p][self.at[p]])
            self.at[p] += 1
        for v in self.problem.original_order:
            self._with_needed(v)
        return self.order, self.start_us

    def _next(self, open_: Sequence[int]) -> int:
        """The part that launches soonest; while it stands still, one with a node that fits in before."""
        first, *others = sorted(open_, key=lambda p: (self._ready_us(p) + self.left_us[p][self.at[p]], p))
        stands_until = self._ready_us(first)
        if stands_until > self.clock:
            for p in others:
                node, ready = self.problem.nodes[self.parts[p][self.at[p]]], self._ready_us(p)
                us = node.time_us if node.kind is Kind.COMPUTE else 0.0
                if ready < stands_until and max(ready, self.clock) + us <= stands_until:
                    return p
        return first

    def _ready_us(self, p: int) -> float:
        node = self.problem.nodes[self.parts[p][self.at[p]]]
        if node.kind is not Kind.WAIT or node.collective is None:
            return self.clock
        return max(self.clock, self.finish_us.get(node.collective, 0.0))

    def _with_needed(self, v: NodeId) -> None:
        """Run a node, and before it what it needs and has not run."""
        stack = [v]
        while stack:
            u = stack[-1]
            missing = [w for w in self.problem.predecessors[u] if not self.done[w]]
            if self.done[u] or not missing:
                stack.pop()
                if not self.done[u]:
                    self._run(u)
            else:
                stack.extend(reversed(missing))

    def _run(self, v: NodeId) -> None:
        node = self.problem.nodes[v]
        self.done[v] = 1
        self.order.append(v)
        if node.kind is Kind.WAIT and node.collective is not None:
            self.clock = max(self.clock, self.finish_us.get(node.collective, 0.0))
        self.start_us.append(self.clock)
        if node.kind is Kind.COLLECTIVE:
            us = 0.0 if v in self.free else node.time_us
            self.finish_us[v] = max(self.clock, self.stream_us.get(node.group, 0.0)) + us
            self.stream_us[node.group] = self.finish_us[v]
        elif node.kind is not Kind.WAIT:
            self.clock += node.time_us


def _until_launch(problem: Problem, part: Sequence[NodeId]) -> list[float]:
    """Per node of a part, the compute from it to the part's next launch."""
    left, us = [0.0] * len(part), 0.0
    for i in range(len(part) - 1, -1, -1):
        node = problem.nodes[part[i]]
        us = 0.0 if node.kind is Kind.COLLECTIVE else us + (node.time_us if node.kind is Kind.COMPUTE else 0.0)
        left[i] = us
    return left


def _ahead(
    problem: Problem, merged: tuple[Sequence[NodeId], Sequence[float]], others: Sequence[NodeId], lead_us: float
) -> Order:
    """The order with each collective from outside, and what it alone needs, a lead before its first use."""
    order, starts = merged
    place = {v: at for at, v in enumerate(order)}
    used = {v: min((_first_use(problem, w, place) for w in problem.waits.get(v, ())), default=place[v]) for v in others}
    key = {v: float(at) for v, at in place.items()}
    for rank, v in enumerate(sorted(others, key=lambda v: (used[v], place[v]))):
        target = bisect_right(starts, starts[used[v]] - lead_us) - 0.5 + rank / (2 * len(others))
        todo = [v]
        while todo:
            u = todo.pop()
            if target < key[u]:
                key[u] = target
                todo += problem.predecessors[u]
    return _sorted(problem, key)


def _first_use(problem: Problem, wait: NodeId, place: dict[NodeId, int]) -> int:
    """The first place at which something that takes time needs a wait."""
    todo, first, seen = [wait], len(place) - 1, {wait}
    while todo:
        for w in problem.successors[todo.pop()]:
            if problem.compute_us[w] or problem.nodes[w].kind is not Kind.COMPUTE:
                first = min(first, place[w])
            elif w not in seen:
                seen.add(w)
                todo.append(w)
    return first


def _sorted(problem: Problem, key: dict[NodeId, float]) -> Order:
    """Ascending by key; nodes of one key in a valid order (what a node needs has no larger key)."""
    rank = {v: at for at, v in enumerate(problem.original_order)}
    return tuple(sorted(key, key=lambda v: (key[v], rank[v])))
