"""One line of the benchmark: an order of a graph, measured by the judges; and who makes orders."""

import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llama_repro.errors import TorchPassError
from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.lower_bound import EXACT_NODES, lower_bound_us
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.validate import violation
from overlap_sched.options import Options
from overlap_sched.problem import MAX_TOTAL_BYTES, Kind, Order, Problem
from overlap_sched.scheduler.pipeline import schedule
from overlap_sched.scheduler.result import Schedule

ORIGINAL, OURS = "original", "ours, headroom 0"
TORCH = {"default": "torch, default caps", "zero": "torch, zero caps"}
AT_TORCHS_PEAK = "ours, torch's peak"
MORE: Mapping[str, int | str] = {"ours, headroom 5%": "5%", "ours, no limit": MAX_TOTAL_BYTES}
"""Headrooms besides 0."""

LONG = 0.1
"""A reduce_scatter is long if it takes this part of the longest one."""

TorchOrders = Mapping[str, tuple[Order, float] | str]
"""By caps, torch's order and the seconds it took; or why there is none."""


@dataclass(frozen=True)
class Row:
    """One order of one graph, measured. Steps are simulated.

    Attributes:
        by: Who made it. headroom_bytes: above the original peak, where it was told; ``None``: it was not.
        bound_us: Of any order. budget_bound_us: of any order with that headroom, where it is known.
        tail_us: Standstill after the launch of the last long reduce_scatter (0: there is none).
        pass_s: Wall-clock seconds that making it took, lifting from FX included where the graph was captured.
        cpu_s: The same in seconds of processor time, where it is known.
        work: The same counted, where it is.
        broken: What is wrong with it, if it promised anything. remark: what else is to be said.
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

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a row of another record is compared by."""
        return self.graph, self.network, self.memory_model, self.by


class Judge:
    """Measures orders of one problem."""

    def __init__(self, problem: Problem, network: str) -> None:
        """Replay the original order."""
        self.problem, self.network = problem, network
        self.bound_us = lower_bound_us(problem)
        self.peak_bytes, _ = peak_memory(problem, problem.original_order)
        self.step_us = replay(problem, problem.original_order).step_us

    def row(self, by: str, order: Sequence[int], pass_s: float) -> Row:
        """Any valid order."""
        problem, timeline = self.problem, replay(self.problem, order)
        peak, _ = peak_memory(problem, order)
        gap, rise = 100 * (timeline.step_us / self.bound_us - 1), 100 * (peak / self.peak_bytes - 1)
        who = (problem.name, self.network, by, problem.memory_model, len(problem.nodes))
        times = (timeline.step_us, timeline.exposed_us, tail_us(problem, order, timeline), gap)
        return Row(*who, None, self.bound_us, None, *times, peak, rise, pass_s)

    def ours(self, by: str, result: Schedule, pass_s: float, cpu_s: float) -> Row:
        """An order that promises to stay within its budget and not to be slower."""
        row = self.row(by, result.order, pass_s)
        broken = violation(self.problem, result.order) or result.fell_back
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


def measured(
    problem: Problem, network: str, torchs: TorchOrders, *, effort: int, repeats: int, more: bool, lift_s: float = 0.0
) -> Iterator[Row]:
    """The original order, torch's, and ours at headroom 0; with ``more`` at larger headrooms and at torch's peak."""
    judge = Judge(problem, network)
    yield judge.row(ORIGINAL, problem.original_order, 0.0)
    torch_row = None
    for caps, name in TORCH.items():
        made = torchs.get(caps)
        if isinstance(made, str):
            yield replace(judge.row(name, problem.original_order, 0.0), remark=made)
        elif made is not None:
            row = judge.row(name, *made)
            yield row
            torch_row = torch_row or row
    options = Options(effort=effort, memory_model=problem.memory_model)
    yield ours(judge, OURS, options, repeats, lift_s)
    for name, headroom in MORE.items() if more else ():
        yield ours(judge, name, replace(options, headroom=headroom), 1, lift_s)
    if torch_row is not None and more:
        above = max(torch_row.peak_bytes - judge.peak_bytes, 0)
        row = ours(judge, AT_TORCHS_PEAK, replace(options, headroom=above), 1, lift_s)
        if row.step_us > torch_row.step_us:
            row = replace(
                row, remark=f"{row.step_us / torch_row.step_us - 1:.3%} slower than torch's order at its peak"
            )
        yield row


def ours(judge: Judge, by: str, options: Options, repeats: int = 1, lift_s: float = 0.0) -> Row:
    """Our order; of several runs the median time."""
    walls, cpus = [], []
    for _ in range(repeats):
        began, began_cpu = time.perf_counter(), time.process_time()
        result = schedule(judge.problem, options)
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - began_cpu)
    return judge.ours(by, result, lift_s + statistics.median(walls), lift_s + statistics.median(cpus))


def torch_orders(problem: Problem) -> dict[str, tuple[Order, float] | str]:
    """By caps, the order of torch's own pass, or why it gives none; its warnings are ours to know, not the reader's."""
    from llama_repro.harness.torch_pass import torch_order

    result: dict[str, tuple[Order, float] | str] = {}
    for caps in ("default", "zero"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                result[caps] = torch_order(problem, caps)
            except TorchPassError as error:
                result[caps] = str(error)
    return result
