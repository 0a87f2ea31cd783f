"""MiniMalloc's hard problems of placement (google/minimalloc, ``benchmarks/challenging``)."""

import csv
import itertools
from pathlib import Path

from overlap_sched.problem import Kind, Node, Problem, Storage

LETTERS = "ABCDEFGHIJK"
CAPACITY = 2**20
"""Bytes: all of the problems are known to fit into it."""


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
