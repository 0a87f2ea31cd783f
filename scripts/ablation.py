#!/usr/bin/env python3
"""What each stage of the scheduler earns: steps, what the allocator lacks, and processor time without it.

    scripts/ablation.py --record ablation.jsonl                      problem files of scripts/instances
    scripts/ablation.py --record ablation.jsonl --unseen             and the graphs of scripts/reserved.py
    scripts/ablation.py --record ablation.jsonl --unlike 0 1         and graphs a little unlike each, by seed
    scripts/ablation.py FILE.json.gz --record ablation.jsonl         other problem files
    scripts/ablation.py --record ablation.jsonl --rows dsv3 --stages "random walk" repairs --seeds 0 1
    scripts/ablation.py --record ablation.jsonl --show               only the table, also of stages that are gone by now

Each row is a graph on a network (1 and 4 times as slow; plain prices, and those of a cluster), beside an allocator or
none. Every run is added to the record at once: started again, it goes on where it was. ``A+B`` leaves out two stages
together. Steps are simulated.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro import CLUSTER, INSTANCES
from llama_repro.bench.ablation import Record, Row, ablated
from llama_repro.bench.ablation_table import table
from llama_repro.bench.cases import on_cluster, slower_network
from llama_repro.harness.console import guarded
from overlap_sched.problem import Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.report.progress import progress
from overlap_sched.scheduler.stages import ALL
from tests.support.unlike import unlike

ALLOCATORS = ("none", "plain", "expandable")
PRICES = ("plain", "true")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing and print the table; returns the exit status."""
    options = _parser().parse_args(arguments)
    return guarded("ablation", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    record, began = Record(options.record), time.monotonic()
    if options.show:
        return _shown(record, record.stages, options)
    ALL.without(*(part for name in options.stages for part in name.split("+")))  # tells of one that is not there
    with progress() as tell:
        for row in _rows(options):
            tell(row.name)
            for run in ablated(row, record, options.stages, options.seeds):
                tell(f"{row.name}: without {run.without or 'nothing'}, seed {run.seed}")
                if options.seconds is not None and time.monotonic() - began > options.seconds:
                    return _shown(record, options.stages, options)
    return _shown(record, options.stages, options)


def _shown(record: Record, stages: Sequence[str], options: argparse.Namespace) -> int:
    print(table(record, stages, options.seeds))
    return 0


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    for problem in _problems(options):
        for prices in options.prices:
            priced = problem if prices == "plain" else on_cluster(problem, CLUSTER)
            for scale in options.comm_scale:
                slower, network = slower_network(priced, scale), f"x{scale:g}{', true' if prices == 'true' else ''}"
                for allocator in options.allocator:
                    row = Row(problem.name, network, allocator, slower)
                    if not options.rows or any(part in row.name for part in options.rows):
                        yield row


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
    parser.add_argument("--record", type=Path, required=True, help="runs, as JSON lines: read, and added to")
    parser.add_argument("--unseen", action="store_true", help="also the graphs traced for scripts/reserved.py")
    parser.add_argument("--unlike", nargs="+", type=int, default=[], metavar="SEED", help="also graphs unlike them")
    parser.add_argument("--rows", nargs="+", metavar="PART", help="only rows whose names contain one of these")
    parser.add_argument("--stages", nargs="+", default=ALL.names, help="stages to leave out (default: each)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of what is random (default: 0 1 2)")
    parser.add_argument("--comm-scale", nargs="+", type=float, default=[1.0, 4.0], help="networks (default: 1 4)")
    parser.add_argument("--prices", nargs="+", choices=PRICES, default=PRICES, help="default: both")
    parser.add_argument("--allocator", nargs="+", choices=ALLOCATORS, default=ALLOCATORS, help="default: all")
    parser.add_argument("--seconds", type=float, help="begin no run after so many")
    parser.add_argument("--show", action="store_true", help="run nothing, print what the record has")
    return parser


if __name__ == "__main__":
    sys.exit(main())
