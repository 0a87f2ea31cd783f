"""The tables of scripts/studies/fit/README.md: what a step costs in less memory, by others' rules and by ours. Simulated.

    python -m scripts.studies.fit                            MAGIS's workloads: every way, and the published figures
    python -m scripts.studies.fit ResNet BERT                only steps whose names contain one of these
    python -m scripts.studies.fit --distributed              whole steps of torchtitan's models and forward graphs instead
    python -m scripts.studies.fit --solver 10                the best recomputation of blocks alone, by CP-SAT with so much work
    python -m scripts.studies.fit --ours                     ours alone
    python -m scripts.studies.fit --parts                    parts of the batch alone, with nothing recomputed or copied
    python -m scripts.studies.fit --parts --ramp 20          the same, each kernel taking 20 us more
    python -m scripts.studies.fit --ablation                 ours alone, and without each kind of rewrite
    python -m scripts.studies.fit --search 64                how long the search takes: BTLM-3B with 64 layers
    python -m scripts.studies.fit --show record.json ...     the table of records, without measuring anything
    ... --record record.json                        also a dated record with hardware, versions and all points

Steps are traced without a GPU and priced for an RTX 3090 (the distributed ones: as their files are, for H100s).
Seconds are processor time of one thread. Exit status 1 where a network has not the weights that it should have.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx

from llama_repro import INSTANCES
from llama_repro.harness.record import provenance, read_record, write_record
from llama_repro.titan.models import MODELS
from overlap_sched.cost import CostModel, Roofline
from overlap_sched.fx.rewrites.batches import batch_fissions
from overlap_sched.joint.graphs import copy_of
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.problem.file import read_problem
from overlap_sched.scheduler.driver import schedule
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices
from scripts.studies.fit.baselines import BASELINES, BLOCKS, Solved, by_partitioner, by_solver, reordered
from scripts.studies.fit.models import WORKLOADS, Workload
from scripts.studies.fit.ours import KINDS, PCIE_3, in_parts, ours
from scripts.studies.fit.points import Point, point
from scripts.studies.fit.ramp import Ramped
from scripts.studies.fit.rows import FitRow, published_rows, recorded_rows, row
from scripts.studies.fit.search import search_rows, search_table
from scripts.studies.fit.solved import SolvedRow, solved_rows, solved_table
from scripts.studies.fit.tables import fit_table
from scripts.studies.fit.trace import step_lifted
from tests.support.traced_step import joint_graph, with_updates

PACKAGES = ("torch", "numpy", "sortedcontainers", "ortools")
FORWARD = ("llama3_8b_fw_64_2d",)


@dataclass(frozen=True)
class Case:
    """A step. ``original``: what its rows are parts of; ``traced``, ``fissions``: where the FX graph is there, too."""

    problem: Problem
    prices: Prices
    original: Point
    fissions: tuple[Fission, ...] = ()
    traced: tuple[Workload, fx.GraphModule] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.show:
        print(fit_table([made for path in options.show for made in recorded_rows(read_record(path))]))
        return 0
    if options.search:
        return _search(options, arguments)
    if options.solver:
        return _solver(options, arguments)
    broken = [w.name for w in WORKLOADS if _weights(w) != w.weights]
    rows: list[FitRow] = []
    for case in _distributed(options) if options.distributed else _workloads(options):
        for made in _rows(case, options):
            print(f"{made.graph}: {made.by}, {made.seconds:.1f} s", file=sys.stderr, flush=True)
            rows.append(made)
            _record(options, arguments, rows=[asdict(made) for made in rows])
    print(fit_table(rows))
    for name in broken:
        print(f"BROKEN: {name} has not the weights that it should have", file=sys.stderr)
    return 1 if broken else 0


def _record(options: argparse.Namespace, arguments: Sequence[str] | None, **found: Any) -> None:
    if options.record:
        command = " ".join(["python -m scripts.studies.fit", *(sys.argv[1:] if arguments is None else arguments)])
        write_record(options.record, {**provenance(command, PACKAGES), **found})


def _search(options: argparse.Namespace, arguments: Sequence[str] | None) -> int:
    rows = []
    for made in search_rows(options.search, options.effort):
        print(made, file=sys.stderr, flush=True)
        rows.append(made)
        _record(options, arguments, rows=[asdict(made) for made in rows])
    print(search_table(rows))
    return 0


def _solver(options: argparse.Namespace, arguments: Sequence[str] | None) -> int:
    rows: list[FitRow] = []
    budgets: list[SolvedRow] = []
    for case in _workloads(options):
        solved: list[Solved] = []
        made = partial(row, case.problem.name, len(case.problem.nodes), original=case.original)
        one = made("", found=lambda case=case, solved=solved: _solved(case, options.solver, solved))
        ended = ", ".join(f"{100 * one.share:.0f}" for one in solved if one.proven)
        rows.append(replace(one, by=f"Checkmate's program, {BLOCKS} blocks (proven at {ended or 'none'} %)"))
        budgets += solved_rows(case.problem.name, case.original, solved)
        print(solved_table(budgets), file=sys.stderr, flush=True)
        _record(options, arguments, rows=[asdict(made) for made in rows], budgets=[asdict(made) for made in budgets])
    print(f"{fit_table(rows)}\n\n{solved_table(budgets)}")
    return 0


def _solved(case: Case, work: float, solved: list[Solved]) -> list[Point]:
    """Points; ``solved`` gets what the solver says at each budget."""
    solved.extend(by_solver(case.problem, work))
    return [one.point for one in solved if one.point is not None]


def _weights(workload: Workload) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in workload.build().parameters())


def _wanted(name: str, options: argparse.Namespace) -> bool:
    return not options.steps or any(part in name for part in options.steps)


def _workloads(options: argparse.Namespace) -> Iterator[Case]:
    for workload in WORKLOADS:
        if _wanted(workload.name, options):
            joint = joint_graph(workload)
            lifted = step_lifted(workload, with_updates(copy_of(joint)), _model(workload, options))
            prices = Prices(lifted.model, host=PCIE_3)
            fissions = tuple(batch_fissions(lifted))
            yield Case(lifted.problem, prices, point(lifted.problem), fissions, (workload, joint))


def _model(workload: Workload, options: argparse.Namespace) -> CostModel:
    roofline = Roofline(workload.device)
    return Ramped(roofline, options.ramp) if options.ramp else roofline


def _distributed(options: argparse.Namespace) -> Iterator[Case]:
    """Slowdown counts from the best order within the original peak, peaks from the original one."""
    paths = [*(model.problem_file for model in MODELS.values()), *(INSTANCES / f"{n}.json.gz" for n in FORWARD)]
    for path in paths:
        if _wanted(path.name, options):
            problem = read_problem(path)
            step_us = schedule(problem, Options(memory_model=problem.memory_model)).scheduled.step_us
            yield Case(problem, Prices(Roofline()), Point(point(problem).peak_bytes, step_us))


def _ways(case: Case, options: argparse.Namespace) -> Iterator[FitRow]:
    made = partial(row, case.problem.name, len(case.problem.nodes))
    if case.traced is None:
        yield made("our order alone", case.original, lambda: reordered(case.problem))
    else:
        workload, joint = case.traced
        for way, baseline in BASELINES.items():
            yield made(way, case.original, partial(baseline, case.problem))
        yield made("torch's partitioner", case.original, lambda: by_partitioner(workload, joint))
    yield made("ours", case.original, lambda: _ours(case, KINDS, options))
    yield from published_rows(case.problem.name)


def _rows(case: Case, options: argparse.Namespace) -> Iterator[FitRow]:
    made, more = partial(row, case.problem.name, len(case.problem.nodes)), ""
    if options.ramp:
        more = f", {options.ramp:g} us more per kernel"
    if options.parts:
        return iter(
            [
                made(
                    f"ours, parts of the batch alone{more}",
                    case.original,
                    lambda: in_parts(case.problem, case.prices, case.fissions),
                )
            ]
        )
    if options.ours:
        return iter([made(f"ours{more}", case.original, lambda: _ours(case, KINDS, options))])
    return _ablation(case, options) if options.ablation else _ways(case, options)


def _ablation(case: Case, options: argparse.Namespace) -> Iterator[FitRow]:
    made = partial(row, case.problem.name, len(case.problem.nodes))
    yield made("ours", case.original, lambda: _ours(case, KINDS, options))
    for kind in KINDS if case.fissions else KINDS[:-1]:
        kinds = [other for other in KINDS if other != kind]
        yield made(f"ours without {kind}", case.original, partial(_ours, case, kinds, options))


def _ours(case: Case, kinds: Sequence[str], options: argparse.Namespace) -> Iterator[Point]:
    return ours(case.problem, case.prices, case.original.step_us, kinds, options.effort, case.fissions)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="NAME", help="only steps whose names contain one of these")
    parser.add_argument("--distributed", action="store_true", help="torchtitan's steps and forward graphs instead")
    parser.add_argument("--ours", action="store_true", help="ours alone")
    parser.add_argument("--parts", action="store_true", help="fission along the batch alone, nothing searched")
    parser.add_argument("--ablation", action="store_true", help="each kind of rewrite taken away")
    parser.add_argument("--search", type=int, default=0, metavar="LAYERS", help="how long the search takes")
    parser.add_argument(
        "--solver",
        type=float,
        default=0.0,
        metavar="WORK",
        help="recomputation by CP-SAT alone: its deterministic time at each budget",
    )
    parser.add_argument("--effort", type=int, default=2, help="of our search (default: 2)")
    parser.add_argument(
        "--ramp",
        type=float,
        default=0.0,
        metavar="US",
        help="price every kernel so much higher (with --ours or --parts)",
    )
    parser.add_argument("--show", type=Path, nargs="+", metavar="RECORD", help="print the table of records")
    parser.add_argument("--record", type=Path, metavar="PATH", help="write a record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
