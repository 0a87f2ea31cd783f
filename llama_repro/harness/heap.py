"""The scheduler of the published regression: a heap whose keys are fixed when a node is pushed.

Kept apart from the product. Written from its description (the docstring of torch's overlap scheduler and the published
account of the regression on ``llama1d_bwd``), not from its code:

- Ready nodes wait in a heap, keyed *when they are pushed* by (index of the first heavy compute node that they
  dominate, an exposed wait is deferred, original index). Nodes that dominate none come last.
- When a heavy compute node runs, its time first hides what is in flight; with the time left, collectives that can be
  reached without heavy compute, other collectives or exposed waits are launched ahead of it: **prefetching**.
- A wait completes what was launched before it on its group.
- The later **fallback**: a node that is pushed while memory exceeds the original profile by more than 1 GB gets its
  original index for a key.

Nothing here is afraid of memory, which is the point.
"""

import heapq
import itertools
from dataclasses import dataclass, field

from overlap_sched.judge.validate import memory_profile
from overlap_sched.problem import Kind, Order, Problem

IN_FLIGHT_BYTES = 5 * 2**30
"""Most bytes of collectives in flight, as in torch (``max_in_flight_gb``)."""
PREFETCH_COMPUTE = 200
"""How many heavy compute nodes ahead a collective may be launched (``max_compute_pre_fetch``)."""
CANDIDATES = 200
"""How many collectives are considered for one compute node (``max_coll_distance``)."""
FALLBACK_BYTES = 2**30
"""The published fallback's headroom."""

_NEVER = 2**62


def heap_order(problem: Problem, *, prefetch: bool = True, fallback: bool = False) -> Order:
    """The order that the heap comes to; valid, and without any promise about memory.

    Args:
        problem: What to schedule; heavy compute nodes are those with floating-point operations to count.
        prefetch: Launch collectives ahead of time, to be hidden by the compute node that runs next.
        fallback: Push with original indices while memory is more than 1 GB above the original profile.
    """
    return _Heap(problem, prefetch, fallback).run()


def first_dominated(problem: Problem) -> list[int]:
    """Per node, which heavy compute node (counted in original order) needs it first; one counts as needing itself."""
    heavy = [v for v, node in enumerate(problem.nodes) if is_heavy(problem, v)]
    first = [_NEVER] * len(problem.nodes)
    for index, v in enumerate(heavy):
        first[v] = index
    for v in reversed(range(len(problem.nodes))):
        for u in problem.predecessors[v]:
            if not is_heavy(problem, u):
                first[u] = min(first[u], first[v])
    return first


def is_heavy(problem: Problem, v: int) -> bool:
    """Is v a compute node with floating-point operations to count (a matrix product, attention)?"""
    return problem.nodes[v].kind is Kind.COMPUTE and problem.nodes[v].flops > 0


def original_by_heavy(problem: Problem) -> list[int]:
    """The original profile as the fallback knows it: most bytes up to each heavy compute node since the one before, and
    after the last.
    """
    highest = [0]
    for v, live in enumerate(memory_profile(problem, problem.original_order)):
        highest[-1] = max(highest[-1], live)
        if is_heavy(problem, v):
            highest.append(live)
    return highest


@dataclass
class _Memory:
    """Bytes live, kept up to date step by step."""

    problem: Problem
    live: int = 0
    users_left: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.users_left = [0] * len(self.problem.storages)
        for node in self.problem.nodes:
            for s in node.use:
                self.users_left[s] += 1
            if node.kind is Kind.INPUT:
                self.live += sum(self.problem.storages[s].bytes for s in node.alloc)

    def step(self, v: int) -> None:
        """Count node v's allocations, then what dies with it."""
        node, storages = self.problem.nodes[v], self.problem.storages
        if node.kind is not Kind.INPUT:
            self.live += sum(storages[s].bytes for s in node.alloc)
        for s in node.use:
            self.users_left[s] -= 1
            if self.users_left[s] == 0 and not storages[s].pinned:
                self.live -= storages[s].bytes


class _Heap:
    """One run; the state that the description speaks of."""

    def __init__(self, problem: Problem, prefetch: bool, fallback: bool) -> None:
        self.problem, self.prefetch, self.fallback = problem, prefetch, fallback
        self.dominated = first_dominated(problem)
        self.memory = _Memory(problem)
        self.original_bytes = original_by_heavy(problem)
        self.missing = [len(before) for before in problem.predecessors]
        self.done = [False] * len(problem.nodes)
        self.order: list[int] = []
        self.heavy_done = 0
        self.exposed_us: dict[int, float] = {v: problem.nodes[v].time_us for v in problem.collectives}
        self.unlaunched: dict[int, None] = dict.fromkeys(problem.collectives)
        self.in_flight: dict[int, None] = {}
        self.ready: list[tuple[int, int, int]] = []

    def run(self) -> Order:
        for v, count in enumerate(self.missing):
            if count == 0:
                self.push(v)
        while self.ready:
            v = heapq.heappop(self.ready)[2]
            if not self.done[v]:
                self.handle(v)
        return tuple(self.order)

    def push(self, v: int) -> None:
        """The key is computed here, once; what happens to memory later does not change it."""
        if self.fallback and self.memory.live > self.original_bytes[self.heavy_done] + FALLBACK_BYTES:
            key = (0, 0, v)
        else:
            key = (self.dominated[v], int(self.is_exposed_wait(v)), v)
        heapq.heappush(self.ready, key)

    def is_exposed_wait(self, v: int) -> bool:
        launch = self.problem.nodes[v].collective
        return launch is not None and self.exposed_us[launch] > 0

    def handle(self, v: int) -> None:
        if not is_heavy(self.problem, v):
            self.run_light(v)
            return
        self.hide_under(v)
        self.heavy_done += 1
        self.place(v)

    def run_light(self, v: int) -> None:
        if self.problem.nodes[v].kind is Kind.WAIT:
            self.complete(v)
        if not self.done[v]:
            self.place(v)

    def place(self, v: int) -> None:
        self.done[v] = True
        self.order.append(v)
        self.memory.step(v)
        if v in self.unlaunched:
            del self.unlaunched[v]
            if v in self.problem.waits:
                self.in_flight[v] = None
        for w in self.problem.successors[v]:
            self.missing[w] -= 1
            if self.missing[w] == 0:
                self.push(w)

    def complete(self, wait: int) -> None:
        """Waiting for a collective completes what was launched before it on its group: those waits go first."""
        launch = self.problem.nodes[wait].collective
        if launch not in self.in_flight:
            return
        earlier = [u for u in self.in_flight if self.problem.nodes[u].group == self.problem.nodes[launch].group]
        for u in earlier[: earlier.index(launch) + 1]:
            del self.in_flight[u]
            first = self.problem.waits[u][0]
            if u != launch and self.missing[first] == 0 and not self.done[first]:
                self.place(first)

    def hide_under(self, v: int) -> None:
        """Node v's time hides what is in flight, then what can be launched ahead of it, group by group."""
        left = dict.fromkeys(self.problem.groups, self.problem.nodes[v].time_us)
        for u in self.in_flight:
            self.hide(u, left)
        if not self.prefetch:
            return
        for u in self.candidates():
            path = self.path_to(u, v) if left[self.group(u)] > 0 and self.fits(u) else None
            if path is not None:
                for w in (*path, u):
                    self.run_light(w)
                self.hide(u, left)

    def hide(self, u: int, left: dict[str, float]) -> None:
        hidden = min(self.exposed_us[u], left[self.group(u)])
        self.exposed_us[u] -= hidden
        left[self.group(u)] -= hidden

    def group(self, u: int) -> str:
        return self.problem.nodes[u].group or ""

    def fits(self, u: int) -> bool:
        return sum(self.problem.nodes[w].bytes for w in (*self.in_flight, u)) <= IN_FLIGHT_BYTES

    def candidates(self) -> list[int]:
        """Collectives not launched yet, near enough, in their original order."""
        near = self.heavy_done + PREFETCH_COMPUTE
        found = (u for u in self.unlaunched if self.dominated[u] <= near or self.dominated[u] == _NEVER)
        return list(itertools.islice(found, CANDIDATES))

    def path_to(self, u: int, v: int) -> list[int] | None:
        """What must run before u, in original order; ``None`` if v or anything not to be hurried is part of it."""
        path, stack = set(), [u]
        while stack:
            for w in self.problem.predecessors[stack.pop()]:
                if self.done[w] or w in path:
                    continue
                if w == v or is_heavy(self.problem, w) or w in self.unlaunched or self.is_exposed_wait(w):
                    return None
                path.add(w)
                stack.append(w)
        return sorted(path)
