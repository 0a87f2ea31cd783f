"""MiniMalloc's hard problems of placement (google/minimalloc, ``benchmarks/challenging``), and how we do on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from llama_repro.harness.console import markdown_table
from overlap_sched.peak_memory.addresses import plan_addresses
from overlap_sched.problem import Problem
from scripts.studies.memory_zoo.rows import timed
from tests.support.layers import CAPACITY


@dataclass(frozen=True)
class HardRow:
    """One problem; bytes.

    Attributes:
        problem: Its letter. buffers: in it.
        peak_bytes: No arena is smaller. arena_bytes: ours. found_by: what found it.
        addresses_s: Processor time.
    """

    problem: str
    buffers: int
    peak_bytes: int
    arena_bytes: int
    found_by: str
    addresses_s: float


def hard_row(problem: Problem) -> HardRow:
    """All figures of one problem, by default effort."""
    plan, addresses_s = timed(lambda: plan_addresses(problem, problem.original_order))
    return HardRow(problem.name, len(problem.storages), plan.peak_bytes, plan.arena_bytes, plan.found_by, addresses_s)


def hard_table(rows: Sequence[HardRow]) -> str:
    """One line per problem."""
    heads = ["problem", "buffers", "peak", "**arena**", "of the capacity", "found by", "time"]
    lines = [
        (
            row.problem,
            f"{row.buffers}",
            f"{row.peak_bytes:,}",
            f"**{row.arena_bytes:,}**",
            f"{100 * row.arena_bytes / CAPACITY:.2f} %",
            row.found_by,
            f"{row.addresses_s:.1f} s",
        )
        for row in rows
    ]
    return markdown_table(heads, lines)
