"""Dynamic tensor rematerialization, simulated: recompute on demand, evict by cost, size and staleness.

Kirisame et al., ICLR 2021, arXiv 2006.09616. While steps run in their original order within a budget, the storage with
the lowest ``h`` is evicted until the next step fits::

    h = (cost of its maker + cost of its evicted neighbourhood) / (bytes * staleness)

The neighbourhood is the paper's ``h_DTR_eq``: components of evicted storages, joined where one is made from the other;
here they are made anew after each eviction, so that nothing is approximated when one leaves. Staleness is simulated
time since the last access. What the program needs no more is evicted at once (its "eager eviction"), and may come back.

Differs: only what forward makes may be evicted (a gradient's maker reads weights that are updated right behind it).
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from overlap_sched.problem import Kind, NodeId, Problem, StorageId

THRASHING = 4.0
"""A run this many times as long as the program has gone nowhere (the paper's figure 2 ends at a factor of about 2)."""


class OverBudgetError(RuntimeError):
    """What one step needs at once does not fit, or nearly all the time would go into recomputing."""


def dtr_run(problem: Problem, budget_bytes: int) -> list[NodeId]:
    """The nodes in the order in which they run, again where they are recomputed (``repeat_nodes`` of ``ways.py``).

    Raises:
        OverBudgetError: No eviction makes room, or the run takes :data:`THRASHING` times as long as the program.
    """
    simulated = _Simulation(problem, budget_bytes)
    for v in problem.original_order:
        simulated.step(v)
    return simulated.run


class _Simulation:
    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        self.problem, self.budget_bytes = problem, budget_bytes
        self.run: list[NodeId] = []
        self.clock_us = 0.0
        self.time_limit_us = THRASHING * sum(node.time_us for node in problem.nodes)
        self.uses_left = Counter(s for node in problem.nodes for s in node.use)
        self.evictable = made_by_forward(problem)
        self.beside = _neighbours(problem, self.evictable)
        self.accessed_us: dict[StorageId, float] = {}  # of what is resident
        for node in problem.nodes:
            if node.kind is Kind.INPUT:  # there from the start
                self.accessed_us.update(dict.fromkeys(node.alloc, 0.0))
        self.live_bytes = self._bytes(self.accessed_us)
        self.locked: Counter[StorageId] = Counter()  # needed by what is about to run
        self.gone: set[StorageId] = set()  # evicted; its maker can run again

    def step(self, v: NodeId) -> None:
        """Run the next node of the program, behind what must be recomputed for it."""
        self._execute(v)
        node = self.problem.nodes[v]
        self.uses_left.subtract(node.use)
        self._free_unneeded((*node.use, *node.alloc))

    def _execute(self, v: NodeId) -> None:
        nodes = self.problem.nodes
        stack = [v]
        self.locked.update(nodes[v].use)
        while stack:
            missing = next((s for s in nodes[stack[-1]].use if s in self.gone), None)
            if missing is not None:
                stack.append(self.problem.maker[missing])
                self.locked.update(nodes[stack[-1]].use)
                continue
            top = stack.pop()
            self._run(top)
            self.locked.subtract(nodes[top].use)
            if stack:  # recomputed for the next one: of what it made and took, only what is needed stays
                self._free_unneeded((*nodes[top].use, *nodes[top].alloc))

    def _run(self, v: NodeId) -> None:
        node = self.problem.nodes[v]
        if node.kind is not Kind.INPUT:
            self._make_room(self._bytes(node.alloc))
            self.live_bytes += self._bytes(s for s in node.alloc if s not in self.accessed_us)
        self.run.append(v)
        self.clock_us += node.time_us
        if self.clock_us > self.time_limit_us:
            raise OverBudgetError(f"a budget of {self.budget_bytes:,} bytes: more than {THRASHING:g} times the program")
        self.gone.difference_update(node.alloc)
        self.accessed_us.update(dict.fromkeys((*node.use, *node.alloc), self.clock_us))

    def _make_room(self, nbytes: int) -> None:
        while self.live_bytes + nbytes > self.budget_bytes:
            component, cost_us = self._components()
            candidates = [s for s in self.accessed_us if s in self.evictable and self.locked[s] <= 0]
            if not candidates:
                raise OverBudgetError(
                    f"a budget of {self.budget_bytes:,} bytes: {self.live_bytes + nbytes:,} are needed"
                )
            self._evict(min(candidates, key=lambda s: (self._h(s, component, cost_us), s)))

    def _h(self, s: StorageId, component: Mapping[StorageId, int], cost_us: Mapping[int, float]) -> float:
        around = {component[t] for t in self.beside[s] if t in component}
        cost = self._cost_us(s) + sum(cost_us[c] for c in around)
        staleness_us = max(self.clock_us - self.accessed_us[s], 1e-3)
        return cost / (max(self.problem.storages[s].bytes, 1) * staleness_us)

    def _components(self) -> tuple[dict[StorageId, int], dict[int, float]]:
        """Of the evicted storages that are made from each other: each one's component, and what each costs."""
        component: dict[StorageId, int] = {}
        cost_us: dict[int, float] = {}
        for first in sorted(self.gone):
            if first in component:
                continue
            component[first] = number = len(cost_us)
            cost_us[number] = 0.0
            stack = [first]
            while stack:
                s = stack.pop()
                cost_us[number] += self._cost_us(s)
                for t in self.beside[s]:
                    if t in self.gone and t not in component:
                        component[t] = number
                        stack.append(t)
        return component, cost_us

    def _cost_us(self, s: StorageId) -> float:
        return self.problem.nodes[self.problem.maker[s]].time_us

    def _free_unneeded(self, storages: Iterable[StorageId]) -> None:
        for s in storages:
            if s in self.accessed_us and not self.uses_left[s] and self.locked[s] <= 0 and not self._stays(s):
                self._evict(s)

    def _stays(self, s: StorageId) -> bool:
        return self.problem.storages[s].pinned

    def _evict(self, s: StorageId) -> None:
        del self.accessed_us[s]
        self.live_bytes -= self.problem.storages[s].bytes
        if s in self.evictable:
            self.gone.add(s)

    def _bytes(self, storages: Iterable[StorageId]) -> int:
        return sum(self.problem.storages[s].bytes for s in storages)


def made_by_forward(problem: Problem) -> frozenset[StorageId]:
    """What compute makes of the inputs of forward alone: nothing that a tangent goes into."""
    backward: set[NodeId] = set()
    for v, node in enumerate(problem.nodes):
        if node.name.startswith("tangents") or not backward.isdisjoint(problem.predecessors[v]):
            backward.add(v)
    made = (v for v, node in enumerate(problem.nodes) if node.kind is Kind.COMPUTE and v not in backward)
    return frozenset(s for v in made for s in problem.nodes[v].alloc)


def _neighbours(problem: Problem, evictable: frozenset[StorageId]) -> Mapping[StorageId, tuple[StorageId, ...]]:
    """Per storage that may be evicted, those that it is made from and that are made from it."""
    beside: dict[StorageId, set[StorageId]] = {s: set() for s in sorted(evictable)}
    for node in problem.nodes:
        for made in evictable.intersection(node.alloc):
            for source in evictable.intersection(node.use):
                beside[made].add(source)
                beside[source].add(made)
    return {s: tuple(sorted(around)) for s, around in beside.items()}
