"""Graphs of several chains, listed in every way: how far our order ends above the bound, and how long that takes.

``python -m llama_repro.bench.chains`` prints a table of the committed graphs, in halves and side by side. Steps are
simulated; seconds are processor time of one run of the scheduler.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llama_repro import INSTANCES
from llama_repro.bench.cases import slower_network
from llama_repro.generate.chains import Chains, halves, side_by_side
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.scheduler.driver import schedule

SEEDS = (1, 2)

LISTINGS: Mapping[str, Callable[[Chains], Problem]] = {
    "one by one": Chains.one_by_one,
    "lock-step": Chains.lock_step,
    "stage by stage": Chains.stage_by_stage,
    **{f"merged, seed {seed}": lambda chains, seed=seed: chains.merged(seed) for seed in SEEDS},  # type: ignore[misc]
    **{f"shuffled, seed {seed}": lambda chains, seed=seed: chains.shuffled(seed) for seed in SEEDS},  # type: ignore[misc]
}


@dataclass(frozen=True)
class Listed:
    """One graph in one listing, at headroom 0.

    Attributes:
        nodes: How many.
        original_us, step_us, bound_us: Step of the listing, of our order, and the lower bound.
        original_bytes, peak_bytes: Their peaks.
        runs, cpu_s: What scheduling took.
    """

    nodes: int
    original_us: float
    step_us: float
    bound_us: float
    original_bytes: int
    peak_bytes: int
    runs: int
    cpu_s: float


def graphs() -> Mapping[str, Callable[[], Chains]]:
    """The committed graphs in halves and side by side, by name."""

    def read(name: str) -> Problem:
        return read_problem(INSTANCES / f"{name}.json.gz")

    ahead, back, back_1d = "llama3_8b_fw_64_2d", "llama3_8b_bw_64_2d", "llama3_8b_bw_64_1d"
    return {
        f"{ahead}, two halves": lambda: halves(read(ahead)),
        f"{ahead}, two halves that gather": lambda: halves(read(ahead), gathers_shared=False),
        f"{ahead}, three parts": lambda: halves(read(ahead), 3),
        f"{ahead} beside {back}": lambda: side_by_side(read(ahead), read(back)),
        f"{back}, twice": lambda: side_by_side(read(back), read(back)),
        f"{ahead} beside {back_1d}": lambda: side_by_side(read(ahead), read(back_1d)),
    }


def measured(problem: Problem, bound_us: float) -> Listed:
    """Schedule it once."""
    began = time.process_time()
    result = schedule(problem, Options(strict=True))
    cpu_s = time.process_time() - began
    before, after = result.original, result.scheduled
    steps, peaks = (before.step_us, after.step_us, bound_us), (before.peak_bytes, after.peak_bytes)
    return Listed(len(problem.nodes), *steps, *peaks, result.work.runs, cpu_s)


def rows(made: Mapping[str, Callable[[], Chains]], networks: Sequence[float]) -> Iterator[str]:
    """The lines of the table."""
    yield "| graph, network | listing | listed | ours | above the bound | peak, GiB | ours | runs | processor |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, make in made.items():
        chains = make()
        for network in networks:
            bound_us = lower_bound_us(slower_network(chains.problem, network))  # no listing changes it
            for listing, listed in LISTINGS.items():
                row = measured(slower_network(listed(chains), network), bound_us)
                yield (
                    f"| {name} x{network:g} | {listing} "
                    f"| {row.original_us / 1e3:,.1f} ms | {row.step_us / 1e3:,.1f} ms "
                    f"| {row.step_us / bound_us - 1:.2%} "
                    f"| {row.original_bytes / 2**30:.3f} | {row.peak_bytes / 2**30:.3f} "
                    f"| {row.runs} | {row.cpu_s:.2f} s |"
                )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m llama_repro.bench.chains", description=__doc__)
    parser.add_argument("--comm-scale", metavar="X", nargs="+", type=float, default=[1.0, 4.0], help="networks")
    options = parser.parse_args(arguments)
    for line in rows(graphs(), options.comm_scale):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
