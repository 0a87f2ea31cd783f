"""Optimal recomputation: Checkmate's program (Jain et al., MLSys 2020, arXiv 1910.02653), solved by CP-SAT.

Blocks of nodes run in stages; stage t ends with the first run of block t. Two triangular matrices say what else runs
in a stage, and what is kept from the stage before (the paper's R and S, its equations 1 and 2)::

                 stage 0   stage 1    stage 2        stage 3
    block runs   0         1          2              0 1 3        runs[3][0] = runs[3][1] = 1
    kept                   0          1              2            what block 2 made

A block that runs takes what is kept, or made before it in the same stage. Memory behind each block of each stage fits
into the budget. The paper has a product of variables for what may be freed behind a block; here a variable says whether
a value is needed later in the stage or in the next one, which is the same.

Blocks are consecutive nodes: views and updates in place go with what is before them; then neighbours are merged of which
the second takes most bytes of what the first makes, as long as a block takes little of the step.

What is inside of a block is counted on top of all that it takes and makes: so the program never counts less than our
judge, and its optimum is that of whole blocks: single nodes may do better. Never run again: blocks that write,
draw random numbers or communicate, and those whose inputs have been written to since.
"""

import importlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from overlap_sched.errors import MissingExtraError
from overlap_sched.problem import Kind, NodeId, Problem, StorageId
from overlap_sched.transform.apply import refusal

UNIT_BYTES = 2**16
"""The program counts in these, rounded up: it never says that something fits that does not."""
_TENTHS = 10
"""And in tenths of microseconds."""
Runs = tuple[tuple[int, ...], ...]
"""Per stage, the blocks that run in it again, before the stage's own."""
Block = tuple[NodeId, ...]
_LARGEST = 1.5
"""How many times as long as the mean a block may take, at first; and what that grows by where nothing may be merged."""
_WIDER = 1.25


def blocks_of(problem: Problem, most: int) -> list[Block]:
    """The compute nodes in their original order, in ``most`` blocks (at least 1), or fewer; inputs, outputs in none."""
    nodes = problem.nodes
    blocks = _units(problem)
    us = [sum(nodes[v].time_us for v in block) for block in blocks]
    taken = [_taken_bytes(problem, *pair) for pair in pairwise(blocks)]
    cap_us = _LARGEST * sum(us) / most
    while len(blocks) > most:
        pairs = [k for k in range(len(taken)) if us[k] + us[k + 1] <= cap_us]
        if not pairs:
            cap_us *= _WIDER
            continue
        k = max(pairs, key=lambda k: (taken[k], -us[k] - us[k + 1], -k))
        blocks[k : k + 2] = [blocks[k] + blocks[k + 1]]
        us[k : k + 2] = [us[k] + us[k + 1]]
        around = blocks[max(k - 1, 0) : k + 2]
        taken[max(k - 1, 0) : k + 2] = [_taken_bytes(problem, *pair) for pair in pairwise(around)]
    return blocks


def _units(problem: Problem) -> list[Block]:
    """A block for each node that makes something, with those behind it that make nothing."""
    units: list[list[NodeId]] = []
    for v, node in enumerate(problem.nodes):
        if node.kind is Kind.COMPUTE:
            if units and not node.alloc:
                units[-1].append(v)
            else:
                units.append([v])
    return [tuple(unit) for unit in units]


def _taken_bytes(problem: Problem, one: Block, other: Block) -> int:
    """What the first makes and the second takes."""
    used = {s for v in other for s in problem.nodes[v].use}
    return sum(problem.storages[s].bytes for v in one for s in problem.nodes[v].alloc if s in used)


@dataclass(frozen=True)
class Found:
    """What the solver found.

    Attributes:
        runs: ``None``: nothing within the budget, or not within the limit of its work.
        proven: Whether it is optimal (or, without runs, that there are none).
        again_us: The least time that is proven to run again, of whole blocks.
    """

    runs: Runs | None
    proven: bool
    again_us: float


@dataclass(frozen=True)
class _Value:
    """What one block makes and the same other blocks take; ``maker`` -1: an input that dies at some time."""

    maker: int
    users: tuple[int, ...]
    units: int


class Program:
    """Checkmate's program of a step in blocks."""

    def __init__(self, problem: Problem, blocks: Sequence[Block]) -> None:
        """Facts alone; a model is made for each budget.

        Args:
            problem: Without collectives.
            blocks: All its compute nodes, in the original order.
        """
        outputs = tuple(v for v, node in enumerate(problem.nodes) if node.kind is Kind.OUTPUT)
        self.problem, self.blocks = problem, (*blocks, outputs)
        self.block_of = {v: k for k, block in enumerate(self.blocks) for v in block}
        self.writes = [_written(problem, block) for block in self.blocks]
        self.values = self._values()
        self.inside = [self._inside_units(k) for k in range(len(self.blocks))]
        used = {s for node in problem.nodes for s in node.use}
        given = {s for node in problem.nodes if node.kind is Kind.INPUT for s in node.alloc}
        stay = [one.bytes for s, one in enumerate(problem.storages) if one.pinned or s in given - used]
        self.fixed = -(-sum(stay) // UNIT_BYTES)

    @cached_property
    def times(self) -> list[int]:
        """Per block, its time in tenths of microseconds."""
        return [round(_TENTHS * sum(self.problem.nodes[v].time_us for v in block)) for block in self.blocks]

    def again(self, i: int, stage: int) -> bool:
        """Whether a block may run again in a stage."""
        nodes = self.problem.nodes
        if self.writes[i] or any(refusal(nodes[v]) for v in self.blocks[i]):
            return False
        read = {s for v in self.blocks[i] for s in nodes[v].use}
        return all(read.isdisjoint(written) for written in self.writes[i + 1 : stage])

    def _values(self) -> list[_Value]:
        users: dict[StorageId, set[int]] = defaultdict(set)
        for v, node in enumerate(self.problem.nodes):
            for s in node.use:
                if v in self.block_of:
                    users[s].add(self.block_of[v])
        sizes: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        for s, storage in enumerate(self.problem.storages):
            maker = self.block_of.get(self.problem.maker[s], -1)
            taken = tuple(sorted(users[s] - {maker}))
            if taken and not storage.pinned:
                sizes[maker, taken] += storage.bytes
        return [_Value(maker, taken, -(-nbytes // UNIT_BYTES)) for (maker, taken), nbytes in sorted(sizes.items())]

    def _inside_units(self, k: int) -> int:
        """What a block holds of its own beside all that it takes and all that it gives, at most."""
        nodes, storages, block = self.problem.nodes, self.problem.storages, self.blocks[k]
        mine = {s: v for v in block for s in nodes[v].alloc}
        last = dict(mine)
        for v, node in enumerate(nodes):
            last.update({s: v if self.block_of.get(v) == k else len(nodes) for s in node.use if s in mine})
        inner = [s for s in mine if last[s] < len(nodes) and not storages[s].pinned]
        most = max((sum(storages[s].bytes for s in inner if mine[s] <= v <= last[s]) for v in block), default=0)
        return -(-most // UNIT_BYTES)

    def solved(self, budget_bytes: int, work: float, hint: Runs | None = None) -> Found:
        """The least time that must run again within a budget.

        Args:
            budget_bytes: Of the peak.
            work: How much the solver may do: CP-SAT's deterministic time, about a second each, on one thread.
            hint: Runs to begin with.

        Raises:
            MissingExtraError: OR-tools is not installed.
        """
        return _Model(self, budget_bytes // UNIT_BYTES, hint).solved(work)

    def run_of(self, runs: Runs) -> list[NodeId]:
        """All nodes in the order in which they run; what nobody takes is not run again."""
        inputs = [v for v, node in enumerate(self.problem.nodes) if node.kind is Kind.INPUT]
        listed = [(v, True) for v in inputs]
        for k, block in enumerate(self.blocks):
            listed += [(v, False) for i in runs[k] for v in self.blocks[i]]
            listed += [(v, True) for v in block]
        run: list[NodeId] = []
        wanted: set[NodeId] = set()
        for v, first in reversed(listed):
            if first or v in wanted:
                run.append(v)
                wanted.discard(v)
                wanted.update(self._takes(v))
        return run[::-1]

    def _takes(self, v: NodeId) -> list[NodeId]:
        """Whose value a node takes: what it only has to come after shares no storage with it."""
        nodes = self.problem.nodes
        return [u for u in nodes[v].deps if not set(nodes[v].use).isdisjoint(nodes[u].alloc or nodes[u].use)]


def _written(problem: Problem, block: Block) -> set[StorageId]:
    """What a block writes to that it does not make."""
    nodes = problem.nodes
    made = {s for v in block for s in nodes[v].alloc}
    return {s for v in block if refusal(nodes[v]).startswith("writes") for s in nodes[v].use if s not in made}


class _Model:
    """The program with one budget.

    Attributes:
        runs: ``runs[t][i]``: block i runs in stage t; without those that may not, and with 1 for i = t.
        kept: ``kept[t][v]``: value v is there from the stage before on.
    """

    def __init__(self, program: Program, budget: int, hint: Runs | None) -> None:
        self.program, self.budget = program, budget
        self.cp = _cp_sat()
        self.model = self.cp.CpModel()
        stages = range(len(program.blocks))
        self.runs: list[dict[int, Any]] = [
            {**{i: self._bool() for i in range(t) if program.again(i, t)}, t: 1} for t in stages
        ]
        self.kept = [self._kept(t) for t in stages]
        for t in stages:
            self._can_run(t)
            self._fits(t)
        again = [(run, program.times[i]) for t in stages for i, run in self.runs[t].items() if i < t]
        if again:
            self.model.minimize(self.cp.LinearExpr.weighted_sum([run for run, _ in again], [us for _, us in again]))
        if hint is not None:
            for t in stages:
                for i, run in self.runs[t].items():
                    if i < t:
                        self.model.add_hint(run, i in hint[t])

    def _bool(self) -> Any:
        return self.model.new_bool_var("")

    def _kept(self, t: int) -> dict[int, Any]:
        return {
            v: self._bool() for v, value in enumerate(self.program.values) if value.maker < t and self._useful(v, t)
        }

    def _useful(self, v: int, t: int) -> bool:
        """Whether somebody may take a value in a stage or later."""
        users = self.program.values[v].users
        return users[-1] >= t or any(i in self.runs[u] for i in users for u in range(t, len(self.runs)))

    def _can_run(self, t: int) -> None:
        """Whoever runs has what it takes; what is kept was there."""
        for v, value in enumerate(self.program.values):
            made = self.runs[t].get(value.maker, 0)
            kept = self.kept[t].get(v, 0)
            for i in value.users:
                if i in self.runs[t]:
                    self.model.add(self.runs[t][i] <= kept + made)
            if v in self.kept[t] and t:
                before = self.runs[t - 1].get(value.maker, 0)
                self.model.add(kept <= self.kept[t - 1].get(v, 0) + before)

    def _fits(self, t: int) -> None:
        """Behind each block that runs: what is kept and still to come, what is needed later, what is inside."""
        needed = [self._needed(t, v) for v in range(len(self.program.values))]
        for k, run in self.runs[t].items():
            held = [(run, self.program.inside[k])]
            for v, value in enumerate(self.program.values):
                if value.maker > k:
                    here = self.kept[t].get(v, 0)
                elif value.maker == t:
                    here = 1
                else:
                    here = needed[v][sum(u < k for u in value.users)]
                held.append((here, value.units))
            self._at_most(held, self.budget - self.program.fixed)

    def _at_most(self, terms: Sequence[tuple[Any, int]], room: int) -> None:
        """Variables, or numbers, times units."""
        known = sum(one * units for one, units in terms if isinstance(one, int))
        free = [(one, units) for one, units in terms if not isinstance(one, int)]
        self.model.add(
            self.cp.LinearExpr.weighted_sum([one for one, _ in free], [units for _, units in free]) <= room - known
        )

    def _needed(self, t: int, v: int) -> list[Any]:
        """Per user of a value, whether it or a later one takes it, or it is kept for the next stage; and that alone."""
        users = self.program.values[v].users
        after = self.kept[t + 1].get(v, 0) if t + 1 < len(self.kept) else 0
        found = [after]
        for i in reversed(users):
            run = self.runs[t].get(i, 0)
            found.append(self._either(run, found[-1]))
        return found[::-1]

    def _either(self, one: Any, other: Any) -> Any:
        for here, there in ((one, other), (other, one)):
            if isinstance(here, int):
                return 1 if here else there
        both = self._bool()
        self.model.add_implication(one, both)
        self.model.add_implication(other, both)
        return both

    def solved(self, work: float) -> Found:
        """Solve it, on one thread."""
        solver = self.cp.CpSolver()
        solver.parameters.max_deterministic_time = work
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        proven = status in (self.cp.OPTIMAL, self.cp.INFEASIBLE)
        bound_us = max(solver.best_objective_bound, 0.0) / _TENTHS
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return Found(None, proven, bound_us)
        stages = [[i for i, run in row.items() if i < t and solver.value(run)] for t, row in enumerate(self.runs)]
        return Found(tuple(tuple(sorted(row)) for row in stages), proven, bound_us)


def _cp_sat() -> Any:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise MissingExtraError(
            "recomputation by a solver needs OR-tools, which is not installed: pip install 'overlap_sched[exact]'."
        ) from None
