"""One order of one graph, measured: the same judges for every scheduler, on the same costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.lower_bound import EXACT_NODES, lower_bound_us
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.scheduler.driver import Schedule

ORIGINAL = "original"
DEFAULT_CAPS, NO_CAPS = "torch, default caps", "torch, caps 0"
"""How torch's pass is set: its own caps (1 GB or 5 % of the peak, whichever is more), or both caps 0."""

LONG = 0.1
"""A reduce_scatter is long if it takes this part of the longest one."""


@dataclass(frozen=True)
class Row:
    """One order of one graph, measured. Steps are simulated.

    Attributes:
        by: Who made it. headroom_bytes: above the original peak, where it was given; ``None``: it was not.
        bound_us: Of any order. budget_bound_us: of any order with that headroom, where it is known.
        tail_us: Standstill after the launch of the last long reduce_scatter (0: there is none).
        pass_s: Wall-clock seconds that making it took, lifting from FX included where the graph was captured.
        cpu_s: The same in seconds of processor time, where it is known.
        work: The same counted, where it is.
        broken: What is wrong with it: not valid, or a promise not kept. remark: anything else worth knowing.
    """

    graph: str
    network: str
    by: str
    memory_model: str
    nodes: int
    headroom_bytes: int | None
    bound_us: float
    budget_bound_us: float | None
    step_us: float
    exposed_us: float
    tail_us: float
    gap_percent: float
    peak_bytes: int
    peak_percent: float
    pass_s: float
    cpu_s: float | None = None
    work: Mapping[str, int] | None = None
    broken: str | None = None
    remark: str | None = None


class TorchOrder(NamedTuple):
    """What torch's pass gives: the order, how many seconds it took, and a remark (or ``""``)."""

    order: Order
    pass_s: float
    remark: str = ""


class Judge:
    """Measures orders of one problem."""

    def __init__(self, problem: Problem, network: str) -> None:
        """Replay the original order."""
        self.problem, self.network = problem, network
        self.bound_us = lower_bound_us(problem)
        self.peak_bytes, _ = peak_memory(problem, problem.original_order)
        self.step_us = replay(problem, problem.original_order).step_us

    def row(self, by: str, order: Sequence[int], pass_s: float) -> Row:
        """Any order; ``broken`` where it is not valid."""
        problem, timeline = self.problem, replay(self.problem, order)
        peak, _ = peak_memory(problem, order)
        gap, rise = 100 * (timeline.step_us / self.bound_us - 1), 100 * (peak / self.peak_bytes - 1)
        who = (problem.name, self.network, by, problem.memory_model, len(problem.nodes))
        times = (timeline.step_us, timeline.exposed_us, tail_us(problem, order, timeline), gap)
        return Row(*who, None, self.bound_us, None, *times, peak, rise, pass_s, broken=violation(problem, order))

    def ours(self, by: str, result: Schedule, pass_s: float, cpu_s: float | None = None) -> Row:
        """An order that promises to stay within its budget and not to be slower."""
        row = self.row(by, result.order, pass_s)
        broken = row.broken or result.fell_back
        over = row.peak_bytes - self.peak_bytes - result.headroom_bytes
        if over > 0:
            broken = broken or f"peak {over} bytes above the original peak and the headroom"
        if row.step_us > self.step_us * (1 + 1e-9):
            broken = broken or f"step {row.step_us} us above the original {self.step_us} us"
        within = None
        if len(self.problem.nodes) <= EXACT_NODES:
            within = budget_bound_us(self.problem, result.budget_bytes)
        made = replace(row, work=result.work._asdict(), cpu_s=cpu_s, broken=broken)
        return replace(made, headroom_bytes=result.headroom_bytes, budget_bound_us=within)


def tail_us(problem: Problem, order: Sequence[int], timeline: Replay) -> float:
    """Standstill of the compute stream, to the end of the step, after the last long reduce_scatter was launched."""
    nodes = problem.nodes
    scatters = [v for v in problem.collectives if nodes[v].op.startswith("reduce_scatter")]
    longest_us = max((nodes[v].time_us for v in scatters), default=0.0)
    long = {v for v in scatters if nodes[v].time_us >= LONG * longest_us}
    if not long:
        return 0.0
    last = max(at for at, v in enumerate(order) if v in long)
    end_us = max(timeline.finish_us[v] for v in order if nodes[v].kind is not Kind.COLLECTIVE)
    return sum(timeline.stall_us[v] for v in order[last:]) + timeline.step_us - end_us
