#!/usr/bin/env python3
"""What each stage of the scheduler earns: steps and processor time without it, as a table.

    scripts/ablation.py                                  problem files of scripts/instances
    scripts/ablation.py --unseen                         and graphs by which nothing in the scheduler was chosen
    scripts/ablation.py --unlike 0 1                     and graphs a little unlike each, by seed
    scripts/ablation.py FILE.json.gz --stages relink "relink+fill stalls"

Each row is a graph on a network, 1 and 4 times as slow. ``A+B`` leaves out two stages together. Steps are simulated.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro import INSTANCES
from llama_repro.bench.ablation import Run, ablated, table
from llama_repro.harness.console import guarded
from overlap_sched.problem import Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.terminal import progress
from overlap_sched.scheduler.driver import ALL
from tests.support.layers import unlike


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print the table; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("ablation", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    ALL.without(*(part for name in options.stages for part in name.split("+")))  # tells of one that is not there
    runs = list[Run]()
    with progress() as tell:
        for problem in _problems(options):
            for scale in options.comm_scale:
                row = f"{problem.name} x{scale:g}"
                for one in ablated(row, problem.with_comm_scale(scale), options.stages):
                    tell(f"{row}: without {one.without or 'nothing'}")
                    runs.append(one)
    print(table(runs))
    return 0


def _problems(options: argparse.Namespace) -> Iterator[Problem]:
    for problem in map(read_problem, options.problems or sorted(INSTANCES.glob("*.json.gz"))):
        yield problem
        for seed in options.unlike:
            other = unlike(problem, Random(seed), every=10, larger=(-0.05, 0.0, 0.05), pad_us=5.0)
            yield replace(other, name=f"unlike_{seed}_{problem.name.removeprefix('repro_')}")
    if options.unseen:
        from llama_repro.generate.unseen import UNSEEN, unseen_problems

        for config in UNSEEN.values():
            yield from unseen_problems(config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files (default: those of scripts/instances)")
    parser.add_argument("--unseen", action="store_true", help="also graphs traced for this, without a GPU")
    parser.add_argument("--unlike", nargs="+", type=int, default=[], metavar="SEED", help="also graphs unlike them")
    parser.add_argument("--stages", nargs="+", default=ALL.names, help="stages to leave out (default: each)")
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0, 4.0], help="networks (default: 1 4)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
