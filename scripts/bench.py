#!/usr/bin/env python3
"""Schedule real and generated graphs, and print ours beside torch's own pass, judged by one judge on the same costs.

    scripts/bench.py                          several graphs, two networks, with contention and without, torch's
                                              pass, three headrooms, sizes
    scripts/bench.py --no-torch               ours alone: a fraction of the time
    scripts/bench.py --no-sizes               without graphs of growing size; --no-contention: without contention
    scripts/bench.py --full                   more graphs, a million nodes
    scripts/bench.py --record docs/records/bench    also bench-DATE.json and .md there, with hardware and versions

Steps, peaks and gaps are simulated (in the runtime memory model, if no other is named). Run times are wall clock,
measured side by side in one run: quote the ratio, not the seconds. Exit status 1 where a promise is broken: an order
that is not valid, a peak above the budget, a step above the original one.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro.bench import tables
from llama_repro.bench.cases import CONTENTION, Case, Tell, cases
from llama_repro.bench.rows import TorchOrders, measured
from llama_repro.bench.scale import Size, growth, sizes
from llama_repro.harness.console import guarded, verdict
from llama_repro.harness.judge import Row
from llama_repro.harness.record import provenance, write_record
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.report.files import write_file
from overlap_sched.report.terminal import progress

TORCH_NODES = 12_000
"""torch's pass runs on graphs of at most so many nodes; with ``--full`` four times as many."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(width=None if sys.stdout.isatty() else 170)
    return guarded("bench", lambda: run(given, console))


def run(arguments: Sequence[str], console: Console) -> int:
    """All graphs, then all sizes."""
    options = _parser().parse_args(arguments)
    command = " ".join(["scripts/bench.py", *arguments])
    rows: list[Row] = []
    with progress() as tell:
        found = (
            []
            if options.problems or not options.sizes
            else list(sizes(options.full, options.effort, options.comm_scale, tell))
        )
        for case in cases(options.problems, full=options.full):
            tell(f"{case.name}: loading")
            rows += _rows(case, options, tell)
            if options.record:  # after every graph: what is cut short keeps what it has
                _write(options.record, record(command, rows, found), rows, found)
    console.print(tables.table(rows))
    if found:
        print(tables.scale_markdown(found, record(command, rows, found)["growth"]))
    remarks = [f"{row.graph} {row.network}, {row.by}: {row.remark}" for row in rows if row.remark]
    broken = [f"{row.graph} {row.network}, {row.by}: {row.broken}" for row in rows if row.broken]
    return verdict(console, remarks, broken)


def record(command: str, rows: Sequence[Row], found: Sequence[Size]) -> dict[str, Any]:
    """Everything, as JSON takes it."""
    networks = dict.fromkeys(size.network for size in found)
    return {
        **provenance(command),
        "rows": [asdict(row) for row in rows],
        "sizes": [asdict(size) for size in found],
        "growth": {name: growth([size for size in found if size.network == name]) for name in networks},
    }


def _write(stem: str, data: Mapping[str, Any], rows: Sequence[Row], found: Sequence[Size]) -> None:
    dated = f"{stem}-{date.today().isoformat()}"
    write_record(Path(f"{dated}.json"), data)
    write_file(Path(f"{dated}.md"), documents(data, rows, found).encode())


def _rows(case: Case, options: argparse.Namespace, tell: Tell) -> Iterator[Row]:
    """Without contention, then with it: all orders of a graph on each network, torch's first."""
    loaded = case.load(tell)
    for scale in options.comm_scale:
        graphs = ((loaded.problem, ""), (loaded.contended, CONTENTION))
        for graph, contention in graphs if options.contention else graphs[:1]:
            problem, network = graph.with_comm_scale(scale), f"x{scale:g}{contention}"
            torchs = _torchs(problem, f"{case.name} {network}", options, tell)
            tell(f"{case.name} {network}: ours")
            yield from measured(problem, network, torchs, options.effort, options.repeats, loaded.lift_s)


def _torchs(problem: Problem, name: str, options: argparse.Namespace, tell: Tell) -> TorchOrders:
    """Orders of torch's pass, where they were asked for and it is not too slow."""
    if not options.torch or len(problem.nodes) > (TORCH_NODES * 4 if options.full else TORCH_NODES):
        return {}
    tell(f"{name}: torch's own pass")
    from llama_repro.harness.torch_pass import torch_orders

    return torch_orders(problem)


def documents(data: Mapping[str, Any], rows: Sequence[Row], found: Sequence[Size]) -> str:
    """The record for people."""
    contended = [row for row in rows if row.network.endswith(CONTENTION)]
    alone = [row for row in rows if not row.network.endswith(CONTENTION)]
    parts = [
        f"# Benchmark of {data['date']}",
        tables.provenance(data),
        "## Against torch's own pass\n\nStep (above the lower bound), peak against the original order's. Prices of "
        "`overlap-sched plan DUMP --cluster dgx-h100 --no-contention`: fused kernels, NCCL's tuning, groups on nodes.",
        tables.markdown(alone),
        *(
            ["## With contention\n\nAs `overlap-sched plan DUMP` prices by default.", tables.markdown(contended)]
            if contended
            else []
        ),
        "## What memory buys\n\nOurs at three headrooms; the tail is what stands still after the last long "
        "reduce_scatter was launched, at headroom 0.",
        tables.headroom_markdown(rows),
    ]
    if found:
        parts += ["## Scale", tables.scale_markdown(found, data["growth"])]
    remarks = [f"- {row.graph} {row.network}, {row.by}: {row.remark}" for row in rows if row.remark]
    if remarks:
        parts += ["## Remarks", "\n".join(remarks)]
    return "\n\n".join(parts) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", type=Path, help="problem files (default: the benchmark's own graphs)")
    parser.add_argument(
        "--comm-scale",
        metavar="X",
        nargs="+",
        type=float,
        default=[1.0, 4.0],
        help="networks: how many times as long collectives take (default: 1 4)",
    )
    parser.add_argument(
        "--effort",
        metavar="N",
        type=int,
        default=Options().effort,
        help="scheduling runs per graph, the best kept (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        default=3,
        help="runs of ours per row at headroom 0; the median time is printed (torch's pass runs once: it takes "
        "seconds; default: %(default)s)",
    )
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave out torch's own pass")
    parser.add_argument("--no-contention", dest="contention", action="store_false", help="leave out contention")
    parser.add_argument("--no-sizes", dest="sizes", action="store_false", help="leave out how it grows with the graph")
    parser.add_argument("--full", action="store_true", help="more graphs, a million nodes")
    parser.add_argument("--record", metavar="STEM", help="write STEM-DATE.json, and tables as STEM-DATE.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
