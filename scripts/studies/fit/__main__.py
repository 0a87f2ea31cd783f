"""The tables of scripts/studies/fit/README.md: what a step costs in less memory, by others' rules and by ours. Simulated.

    python -m scripts.studies.fit                            MAGIS's workloads: every way, and the published figures
    python -m scripts.studies.fit ResNet BERT                only steps whose names contain one of these
    python -m scripts.studies.fit --solver 10                the best recomputation of blocks alone, by CP-SAT with so much work
    python -m scripts.studies.fit --parts                    parts of the batch alone, with nothing recomputed or copied
    python -m scripts.studies.fit --parts --ramp 20          the same, each kernel taking 20 us more
    ... --record record.json                        also a dated record with hardware, versions and all points

Steps are traced without a GPU and priced for an RTX 3090. Seconds are processor time of one thread. Exit status 1 where
a network has not the weights that it should have.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from llama_repro.harness.console import markdown_table
from llama_repro.harness.record import provenance, write_record
from overlap_sched.fx.fitting import batch_fissions
from overlap_sched.joint.graphs import copy_of
from overlap_sched.problem import Problem
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Fission
from scripts.studies.fit import ways
from scripts.studies.fit.models import WORKLOADS
from scripts.studies.fit.published import DTR, MAGIS
from scripts.studies.fit.ways import LIMITS, PCIE_3, SLOWDOWNS, Point, point
from scripts.studies.memory_zoo.rows import timed
from tests.support.traced_step import Workload, joint_graph, with_updates

HEADS = (
    "step",
    "way",
    *(f"slowdown at {100 * limit:.0f} % of the peak" for limit in LIMITS),
    *(f"peak at {100 * slowdown:.0f} % slowdown" for slowdown in SLOWDOWNS),
    "seconds",
)


@dataclass(frozen=True)
class Row:
    """One way to run one step; simulated, but for published ones.

    Attributes:
        graph: Which. nodes: of it; 0 where it is not ours.
        by: Whose way.
        original: The graph as it is: what the others are parts of; ``None`` where it is not ours.
        slowdown_at: Per limit of :data:`LIMITS`, how much slower the fastest is that fits; ``None``: none fits.
        peak_at: Per limit of :data:`SLOWDOWNS`, the lowest peak that is fast enough, as a part; ``None``: none is.
        seconds: Processor time of all of it.
        points: All that were found, none worse in both.
    """

    graph: str
    nodes: int
    by: str
    original: Point | None
    slowdown_at: tuple[float | None, ...]
    peak_at: tuple[float | None, ...]
    seconds: float
    points: tuple[Point, ...] = ()


def measure_way(problem: Problem, by: str, find: Callable[[], Iterable[Point]]) -> Row:
    """Find points, and read the figures off them; the original is among them."""
    original = point(problem)
    points, seconds = timed(lambda: [original, *find()])
    steps = [[p.step_us for p in points if p.peak_bytes <= limit * original.peak_bytes] for limit in LIMITS]
    peaks = [[p.peak_bytes for p in points if p.step_us <= (1 + more) * original.step_us] for more in SLOWDOWNS]
    return Row(
        problem.name,
        len(problem.nodes),
        by,
        original,
        tuple(min(fitting) / original.step_us - 1 if fitting else None for fitting in steps),
        tuple(min(fast) / original.peak_bytes for fast in peaks),
        seconds,
        tuple(frontier(points)),
    )


def frontier(points: Iterable[Point]) -> Iterator[Point]:
    """Those that no other one beats in both, by ascending peak."""
    step_us = float("inf")
    for one in sorted(points):
        if one.step_us < step_us:
            step_us = one.step_us
            yield one


def published_rows(step: str) -> Iterator[Row]:
    """What MAGIS's paper has for a step; it has no figures at 60 %."""
    for by, figures in (("DTR, measured by MAGIS", DTR[step]), ("MAGIS, measured", MAGIS[step])):
        slowdowns = (figures.slowdown_at_80, None, figures.slowdown_at_40)
        yield Row(step, 0, by, None, slowdowns, (figures.peak_at_5, figures.peak_at_10), 0.0)


def fit_table(rows: Sequence[Row]) -> str:
    """One line per row; a step is named once, with its nodes, peak and time."""
    return markdown_table(HEADS, (_cells(row, k == 0 or rows[k - 1].graph != row.graph) for k, row in enumerate(rows)))


def _cells(row: Row, first: bool) -> Iterator[str]:
    if first and row.original is not None:
        gib, ms = row.original.peak_bytes / 2**30, row.original.step_us / 1e3
        yield f"{row.graph}: {row.nodes:,} nodes, {gib:.1f} GiB, {ms:,.0f} ms"
    else:
        yield ""
    yield f"**{row.by}**" if row.by.startswith("ours") else row.by
    for limit, more in zip(LIMITS, row.slowdown_at, strict=True):
        missing = "" if row.original is None and limit == 0.6 else "does not fit"
        yield missing if more is None else f"{100 * more:+.1f} %"
    for part in row.peak_at:
        yield "does not fit" if part is None else f"{100 * part:.1f} %"
    yield f"{row.seconds:.0f}" if row.nodes else ""


def solver_row(problem: Problem, work: float) -> Row:
    """Checkmate's program; what it finds at each budget goes to stderr."""

    def find() -> Iterator[Point]:
        for one in ways.solve(problem, work):
            print(one, file=sys.stderr, flush=True)
            yield from () if one.point is None else (one.point,)

    return measure_way(problem, f"Checkmate's program, {ways.BLOCKS} blocks", find)


def rows_of(workload: Workload, options: argparse.Namespace) -> Iterator[Row]:
    """All ways that are asked for, of one step."""
    joint = joint_graph(workload)
    lifted = ways.lift_step(workload, with_updates(copy_of(joint)), options.ramp)
    problem, prices = lifted.problem, Prices(lifted.model, host=PCIE_3)
    fissions: tuple[Fission, ...] = tuple(batch_fissions(lifted))
    if options.solver:
        yield solver_row(problem, options.solver)
    elif options.parts:
        more = f", {options.ramp:g} us more per kernel" if options.ramp else ""
        split = partial(ways.split_batch, problem, prices, fissions)
        yield measure_way(problem, f"ours, parts of the batch alone{more}", split)
    else:
        yield measure_way(problem, "our order alone", partial(ways.reorder, problem))
        yield measure_way(problem, "torch's partitioner", partial(ways.partition, workload, joint))
        yield measure_way(problem, "ours", partial(ways.fit_step, problem, prices, options.effort, fissions))
        yield from published_rows(problem.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    options = _parser().parse_args(arguments)
    command = " ".join(["python -m scripts.studies.fit", *(sys.argv[1:] if arguments is None else arguments)])
    broken = [workload.name for workload in WORKLOADS if _count_weights(workload.build) != workload.weights]
    rows: list[Row] = []
    for workload in WORKLOADS:
        if options.steps and not any(part in workload.name for part in options.steps):
            continue
        for made in rows_of(workload, options):
            print(f"{made.graph}: {made.by}, {made.seconds:.1f} s", file=sys.stderr, flush=True)
            rows.append(made)
            if options.record:
                about = provenance(command, ("torch", "numpy", "sortedcontainers", "ortools"))
                write_record(options.record, {**about, "rows": [asdict(made) for made in rows]})
    print(fit_table(rows))
    for name in broken:
        print(f"BROKEN: {name} has not the weights that it should have", file=sys.stderr)
    return 1 if broken else 0


def _count_weights(build: Callable[[], torch.nn.Module]) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in build().parameters())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="NAME", help="only steps whose names contain one of these")
    parser.add_argument("--parts", action="store_true", help="fission along the batch alone, nothing searched")
    parser.add_argument(
        "--solver", type=float, default=0.0, metavar="WORK", help="CP-SAT alone: its deterministic time"
    )
    parser.add_argument("--effort", type=int, default=2, help="of our search (default: 2)")
    parser.add_argument("--ramp", type=float, default=0.0, metavar="US", help="price every kernel so much higher")
    parser.add_argument("--record", type=Path, metavar="PATH", help="write a record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
