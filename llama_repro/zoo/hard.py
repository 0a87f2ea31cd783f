"""MiniMalloc's hard problems of placement (google/minimalloc, ``benchmarks/challenging``), and how we do on them."""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_repro.harness.console import markdown_table
from llama_repro.zoo.rows import timed
from overlap_sched.peak_memory.addresses.plan import plan_addresses
from overlap_sched.problem import Kind, Node, Problem, Storage

LETTERS = "ABCDEFGHIJK"
CAPACITY = 2**20
"""Bytes: all of the problems are known to fit into it."""


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


def hard_problem(folder: Path, letter: str) -> Problem:
    """A chain with a node per time at which something begins or ends; what is live between two is live at the first."""
    with (folder / f"{letter}.{CAPACITY}.csv").open(newline="", encoding="utf-8") as file:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    times = sorted({row[key] for row in rows for key in ("lower", "upper")})
    nodes = [
        Node(
            f"t{time}",
            Kind.COMPUTE,
            deps=(at - 1,) if at else (),
            alloc=tuple(s for s, row in enumerate(rows) if row["lower"] == time),
            use=tuple(s for s, row in enumerate(rows) if row["upper"] == until and row["lower"] < time),
        )
        for at, (time, until) in enumerate(itertools.pairwise(times))
    ]
    return Problem(letter, tuple(nodes), tuple(Storage(row["size"], False) for row in rows))


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
