"""Optimal recomputation by constraint programming: what to run again, and when, for the least time within a budget.

The question is Checkmate's (Jain et al., MLSys 2020, arXiv 1910.02653), whose program has a variable for each pair of
steps: about 100,000 of them for the smallest of these graphs, 27 million for the largest. The program here is
MOCCASIN's (Bartan et al., ICML 2023, arXiv 2304.14463), which has a few intervals for each step instead: steps in a
given order, each run at most twice. A value is live in one piece, or in two::

    kept     [ made .......................... last use ]
    again    [ made ... last use in forward ]     [ again ... last use ]

At each place of the original order, all that is live fits into the budget (a cumulative constraint). What is run again
at a place runs right before the step there, and its inputs are live there.
"""

import importlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from llama_repro.errors import OverBudgetError
from llama_repro.workloads.dtr import dtr_run, made_by_forward
from overlap_sched.judge.liveness import memory_profile
from overlap_sched.problem import NodeId, Problem, StorageId

UNIT_BYTES = 2**16
"""The program counts in these, rounded up: it never says that something fits that does not."""


@dataclass(frozen=True)
class Recomputation:
    """What the solver found.

    Attributes:
        run: All nodes in the order in which they run; ``None``: nothing found within the limits.
        proven: Whether it is optimal (or, without a run, that there is none).
    """

    run: list[NodeId] | None
    proven: bool


def fastest(problem: Problem, budget_bytes: int, time_limit_s: float) -> Recomputation:
    """The least time within a budget."""
    program = _Program(problem)
    program.model.add(program.peak * UNIT_BYTES <= budget_bytes)
    program.model.minimize(program.cost_us)
    program.hint(_rule(problem, budget_bytes))
    return program.solved(time_limit_s)


def _rule(problem: Problem, budget_bytes: int) -> list[NodeId]:
    """DTR's run, for the solver to start from; the original order where there is none."""
    try:
        return dtr_run(problem, budget_bytes)
    except OverBudgetError:
        return list(problem.original_order)


@dataclass
class _Value:
    """Uses of one storage that may be made again: places of forward, and of backward."""

    forward: list[NodeId] = field(default_factory=list)
    backward: list[NodeId] = field(default_factory=list)


class _Program:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.cp = importlib.import_module("ortools.sat.python.cp_model")
        self.model = self.cp.CpModel()
        self.end = len(problem.nodes) - 1
        movable = made_by_forward(problem)
        self.makers = [v for v, node in enumerate(problem.nodes) if movable.intersection(node.alloc)]
        self.border = self.makers[-1]
        self.values = _values(problem, movable, self.border)
        self.again = {v: self.model.new_bool_var(f"again{v}") for v in self.makers}
        self.at = {v: self.model.new_int_var(self.border + 1, self._deadline(v), f"at{v}") for v in self.makers}
        self.last: dict[StorageId, Any] = {}
        for s, value in self.values.items():
            uses = [*value.forward, *value.backward, problem.allocator[s]]
            self.last[s] = self.model.new_int_var(max(uses), self.end, f"last{s}")
        self.cost_us = sum(round(problem.nodes[v].time_us) * self.again[v] for v in self.makers)
        self._inputs_are_live()
        self._all_fits()

    def _deadline(self, v: NodeId) -> NodeId:
        """A step runs again before its values are used in backward, and before its weights are written to."""
        node, nodes = self.problem.nodes[v], self.problem.nodes
        used = [u for s in node.alloc if s in self.values for u in self.values[s].backward]
        written = [u for u in range(self.border, self.end) if not nodes[u].alloc and nodes[u].time_us]
        return min([*used, *(u for u in written if set(nodes[u].use) & set(node.use)), self.end])

    def _inputs_are_live(self) -> None:
        for v in self.makers:
            for s in self.problem.nodes[v].use:
                if s in self.values:
                    maker = self.problem.allocator[s]
                    both = [self.again[v], self.again[maker]]
                    self.model.add(self.at[maker] <= self.at[v]).only_enforce_if(both)
                    self.model.add(self.last[s] >= self.at[v]).only_enforce_if(self.again[v])

    def _all_fits(self) -> None:
        problem, model = self.problem, self.model
        sizes = [-(-storage.bytes // UNIT_BYTES) for storage in problem.storages]
        intervals, demands = [], []
        for begin, end, nbytes in _fixed_profile(problem, self.values):
            intervals.append(model.new_fixed_size_interval_var(begin, end - begin, f"fixed{begin}"))
            demands.append(-(-nbytes // UNIT_BYTES))
        for s, value in self.values.items():
            maker = problem.allocator[s]
            again, stop = self.again[maker], self.last[s] + 1
            first = max([maker, *value.forward]) + 1 - maker
            pieces = (
                model.new_optional_interval_var(maker, self._length(maker, s), stop, ~again, f"kept{s}"),
                model.new_optional_fixed_size_interval_var(maker, first, again, f"first{s}"),
                model.new_optional_interval_var(
                    self.at[maker], self._length(self.at[maker], s), stop, again, f"second{s}"
                ),
            )
            intervals += pieces
            demands += [sizes[s]] * len(pieces)
        most = -(-max(_profile(problem)) // UNIT_BYTES) + len(sizes)
        self.peak = model.new_int_var(0, most, "peak")
        model.add_cumulative(intervals, demands, self.peak)

    def _length(self, begin: Any, s: StorageId) -> Any:
        length = self.model.new_int_var(1, self.end + 1, "")
        if isinstance(begin, int):
            self.model.add(length == self.last[s] + 1 - begin)
        return length

    def hint(self, run: Sequence[NodeId]) -> None:
        """Begin with what runs again there."""
        done: set[NodeId] = set()
        first: dict[NodeId, NodeId] = {}
        at = 0
        for v in run:
            if v in done:
                first.setdefault(v, at)
            else:
                done.add(v)
                at = v + 1
        for v in self.makers:
            self.model.add_hint(self.again[v], v in first)
            if v in first:
                self.model.add_hint(self.at[v], max(first[v], self.border + 1))

    def solved(self, time_limit_s: float) -> Recomputation:
        """Solve it, on one thread."""
        solver = self.cp.CpSolver()
        solver.parameters.max_time_in_seconds = time_limit_s
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        proven = status in (self.cp.OPTIMAL, self.cp.INFEASIBLE)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Recomputation(None, proven)
        before: dict[NodeId, list[NodeId]] = defaultdict(list)
        for v in self.makers:
            if solver.value(self.again[v]):
                before[solver.value(self.at[v])].append(v)
        return Recomputation([u for v in self.problem.original_order for u in (*before[v], v)], proven)


def _profile(problem: Problem) -> list[int]:
    return memory_profile(problem, problem.original_order)


def _values(problem: Problem, movable: frozenset[StorageId], border: NodeId) -> Mapping[StorageId, _Value]:
    values = {s: _Value() for s in sorted(movable)}
    for v, node in enumerate(problem.nodes):
        for s in movable.intersection(node.use):
            (values[s].forward if v <= border else values[s].backward).append(v)
    return values


def _fixed_profile(problem: Problem, values: Mapping[StorageId, _Value]) -> Iterator[tuple[NodeId, NodeId, int]]:
    """What is live whatever is run again: (from, up to without, bytes) where that is the same."""
    profile = _profile(problem)
    for s, value in values.items():
        maker, nbytes = problem.allocator[s], problem.storages[s].bytes
        for v in range(maker, max([maker, *value.forward, *value.backward]) + 1):
            profile[v] -= nbytes
    for nbytes, places in groupby(range(len(profile)), key=profile.__getitem__):
        whole = list(places)
        yield whole[0], whole[-1] + 1, nbytes
