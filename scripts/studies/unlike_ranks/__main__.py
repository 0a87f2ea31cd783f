"""What do ranks that differ lose? Waits or launches kept, one of them followed, and each by itself, beside the bound.

    python -m scripts.studies.unlike_ranks                     all problem files of scripts/instances
    python -m scripts.studies.unlike_ranks FILE.json.gz --comm-scale 1

Rank 0 has the graph; the other rank has an operator more in front of one collective in twenty, which copies what is sent,
and storages that are 5 % larger or smaller, one in three: harsher than a last shard of fewer rows. The figure is its gap to
the bound within its own budget. Rank 0 loses nothing where it is followed. Simulated.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from llama_repro import INSTANCES
from llama_repro.harness.console import guarded, markdown_table
from overlap_sched import Options, schedule
from overlap_sched.judge.budget_bound import budget_bound_us
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.terminal import progress
from overlap_sched.scheduler.driver import follow
from overlap_sched.scheduler.restrictions import Proposal
from tests.support.layers import unlike

HEADINGS = ("graph", "original", "waits kept", "launches kept", "followed", "by itself")
SEED, EVERY, LARGER = 1, 20, (0, 0, 0, 0, 0.05, -0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    """Schedule and print; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("unlike_ranks", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    lines = []
    with progress() as tell:
        for path in options.problems or sorted(INSTANCES.glob("*.gz")):
            for scale in options.comm_scale:
                problem = read_problem(path).with_comm_scale(scale)
                tell(f"{problem.name} x{scale:g}")
                gaps = gaps_of(problem, unlike(problem, Random(SEED), EVERY, LARGER, pad_us=20.0), Options())
                lines.append((f"`{problem.name}` x{scale:g}", *gaps))
                print("\t".join(lines[-1]), file=sys.stderr, flush=True)
    print(markdown_table(HEADINGS, lines))
    return 0


def gaps_of(problem: Problem, other: Problem, options: Options) -> tuple[str, ...]:
    """Of the other rank: original, with waits and launches kept, with launches kept, followed, by itself."""
    bound_us = budget_bound_us(other, peak_memory(other, other.original_order)[0])
    proposal = Proposal.of(problem, schedule(problem, options).order)
    waits = schedule(other, replace(options, preserve_collective_order="waits"))
    kept = schedule(other, replace(options, preserve_collective_order="all"))
    found, alone = follow(other, proposal, options), schedule(other, options)
    steps = (
        kept.original,
        waits.scheduled,
        kept.scheduled,
        None if found is None else found.scheduled,
        alone.scheduled,
    )
    return tuple("cannot be" if one is None else f"{(one.step_us / bound_us - 1):.2%}" for one in steps)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files")
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0, 4.0], help="network as many times as slow")
    return parser


if __name__ == "__main__":
    sys.exit(main())
