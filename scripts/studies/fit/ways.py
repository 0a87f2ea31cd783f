"""Ways to run a step in less memory, by others and by us: each on the same graph, at the same prices, by one judge."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition

from overlap_sched.cost import Collective, Compute, CostModel, Roofline
from overlap_sched.fit import fit
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import Lifted
from overlap_sched.joint.graphs import copy_of, joined
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory import best_order
from overlap_sched.problem import Kind, Node, NodeId, Order, Problem, Storage
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import HostLink, Prices
from overlap_sched.transform.rewrites import Fission
from scripts.studies.fit.checkmate import Program, Runs, blocks_of
from tests.support.traced_step import Workload, with_updates

LIMITS = (0.8, 0.6, 0.4)
"""Memory limits, as parts of the original peak."""
SLOWDOWNS = (0.05, 0.10)
"""Limits of the step: so much slower than the original."""
PCIE_3 = HostLink("PCIe 3.0 x16", 12.6e9)
"""MAGIS's machine: Xeon Silver 4210R (Intel's product page: PCI Express 3.0), so 15.75 GB/s in one direction; 0.8 of
it, as the other links of :mod:`overlap_sched.transform.prices`."""
SOLVER_BUDGETS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
PARTITIONER_BUDGETS = tuple(n / 10 for n in range(11))
"""Of ``torch._functorch.config.activation_memory_budget``. 1.0 (its default) recomputes where it thinks that faster."""
BLOCKS = 60
"""Of a step, for the solver: what it solves within minutes."""


class Point(NamedTuple):
    """One way to run a step, simulated: the most bytes live at once (``runtime`` model), and its time."""

    peak_bytes: int
    step_us: float


def point(problem: Problem, order: Order | None = None) -> Point:
    """By the judge; ``None``: the original order."""
    order = problem.original_order if order is None else order
    return Point(peak_memory(problem, order)[0], replay(problem, order).step_us)


@dataclass(frozen=True)
class Ramped:
    """A cost model with ``ramp_us`` more for every kernel: what a GPU takes to fill up, which a roofline does not know.

    Many small kernels then cost more than few large ones: that bears on fission, whose parts are smaller kernels.
    """

    model: CostModel
    ramp_us: float

    def compute_us(self, work: Compute) -> float:
        """As of the model, and the ramp; 0.0 where nothing runs."""
        us = self.model.compute_us(work)
        return us + self.ramp_us if us else 0.0

    def collective_us(self, work: Collective) -> float:
        """As of the model."""
        return self.model.collective_us(work)


def lift_step(workload: Workload, step: fx.GraphModule, ramp_us: float = 0.0) -> Lifted:
    """The step at the roofline of the workload's device, a kernel per operator, as PyTorch and MAGIS run it.

    (Prices of fused kernels would not do here: a kernel's time is divided among the operators in it, and some of them
    cost nothing; what runs again alone costs its own kernel.)
    """
    roofline = Roofline(workload.device)
    return lift(step, name=workload.name, model=Ramped(roofline, ramp_us) if ramp_us else roofline)


def reorder(problem: Problem) -> Iterator[Point]:
    """Our order with the lowest peak, nothing recomputed."""
    yield point(problem, best_order(problem).order)


def repeat_nodes(problem: Problem, run: Sequence[NodeId]) -> Problem:
    """The problem whose original order is ``run``.

    A node that runs again gets another name (``mm`` becomes ``mm.again1``) and storages of its own, and whoever comes
    later uses these: what the earlier run made dies at its last use before that::

        run   relu  mm  relu  relu_backward         relu's first output dies after mm, its second after relu_backward

    Args:
        problem: Without collectives: only compute may run again.
        run: All nodes at least once, each behind what it needs.
    """
    nodes: list[Node] = []
    storages: list[Storage] = []
    newest: dict[int, int] = {}  # per storage, the id of its newest copy
    latest: dict[NodeId, int] = {}  # per node, the id of its latest run
    times = [0] * len(problem.nodes)
    for v in run:
        node = problem.nodes[v]
        assert not times[v] or node.kind is Kind.COMPUTE, "only compute runs again"
        alloc = tuple(range(len(storages), len(storages) + len(node.alloc)))
        storages += [problem.storages[s] for s in node.alloc]
        use = tuple(newest[s] for s in node.use if s not in node.alloc)
        newest.update(zip(node.alloc, alloc, strict=True))
        use += tuple(newest[s] for s in node.use if s in node.alloc)
        name = f"{node.name}.again{times[v]}" if times[v] else node.name
        nodes.append(node._replace(name=name, deps=tuple(latest[u] for u in node.deps), alloc=alloc, use=use))
        latest[v] = len(nodes) - 1
        times[v] += 1
    assert all(times), "every node runs"
    return Problem(problem.name, tuple(nodes), tuple(storages), problem.groups, problem.memory_model)


def partition(workload: Workload, joint: fx.GraphModule) -> Iterator[Point]:
    """What torch's partitioner makes of it at all budgets: its own estimate of time (operations) and its own solver.

    Recomputation stands where the partitioner puts it. ``joint`` stays as it is.
    """
    weights = list(range(len(joint.graph.find_nodes(op="placeholder")) - 1))
    for budget in PARTITIONER_BUDGETS:
        with config.patch(activation_memory_budget=budget):
            halves = min_cut_rematerialization_partition(
                copy_of(joint), None, num_fwd_outputs=1, static_lifetime_input_indices=weights
            )
        yield point(lift_step(workload, with_updates(joined(*halves, 1)[0])).problem)


class Solved(NamedTuple):
    """What the solver found at one budget.

    Attributes:
        share: The budget, as a part of the original peak.
        point: By our judge; ``None``: nothing.
        proven: Whether no other recomputation of whole blocks is faster; or, without a point, that none fits.
        again_us: The least time that is proven to run again, of whole blocks.
    """

    share: float
    point: Point | None
    proven: bool
    again_us: float


def solve(problem: Problem, work: float) -> Iterator[Solved]:
    """Checkmate's program at each budget, of a step in blocks, each solved from the solution of the last.

    Args:
        problem: Without collectives.
        work: What the solver may do at each budget (CP-SAT's deterministic time).
    """
    original_bytes, program = point(problem).peak_bytes, Program(problem, blocks_of(problem, BLOCKS))
    runs: Runs | None = None
    for share in SOLVER_BUDGETS:
        found = program.solved(int(share * original_bytes), work, runs)
        runs = found.runs or runs
        made = None if found.runs is None else point(repeat_nodes(problem, program.run_of(found.runs)))
        yield Solved(share, made, found.proven, found.again_us)


def fit_step(problem: Problem, prices: Prices, effort: int, fissions: Sequence[Fission]) -> Iterator[Point]:
    """All plans that :func:`overlap_sched.fit.fit` found on the way to the answers, each measured again by the judge."""
    original = point(problem)
    ask = partial(fit, problem, prices, kinds=("recompute", "offload"), effort=effort, fissions=fissions)
    for limit in LIMITS:
        found = ask(memory_limit=int(limit * original.peak_bytes))
        yield from (point(plan.problem, plan.order) for plan in (found.best, found.without, *found.points))
    for slowdown in SLOWDOWNS:
        allowed = (1 + slowdown) * original.step_us / found.without.step_us - 1
        answer = ask(max_slowdown=max(allowed, 0.0))
        yield from (point(plan.problem, plan.order) for plan in (answer.best, *answer.points))


def split_batch(problem: Problem, prices: Prices, fissions: Iterable[Fission]) -> Iterator[Point]:
    """The step in parts along its batch, as it is emitted: nothing recomputed, copied or reordered."""
    for one in fissions:
        yield point(apply(problem, [one], prices))
