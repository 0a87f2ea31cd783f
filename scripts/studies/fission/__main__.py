"""The table of docs/fit.md: steps of graphs of which a part runs in parts, at the original peak. Simulated.

    python -m scripts.studies.fission DUMP.py                       the fissions from inputs, prices as they are
    python -m scripts.studies.fission DUMP.py --comm-scale 4        every collective four times as long
    python -m scripts.studies.fission DUMP.py --returned-in-parts   the graph returns tuples of parts where it can
    python -m scripts.studies.fission DUMP.py --sums                sums may be split, too

Dumps: ``autoparallel/tools/overlap_simulator/repro_*.py`` of github.com/meta-pytorch/autoparallel. Prices are a
roofline of an H100 and its network, and each order is found by the scheduler as shipped.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from overlap_sched import Options, Problem, load_dump
from overlap_sched.analysis.relabel import relabelled
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions.candidates import fission_candidates
from overlap_sched.judge.validate import measure
from overlap_sched.problem import Kind
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.transform.apply import apply
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices
from scripts.studies.fission.stagger import staggered


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    parser.add_argument("--comm-scale", type=float, default=1.0, metavar="K")
    parser.add_argument("--parts", type=int, nargs="+", default=[2])
    parser.add_argument("--returned-in-parts", action="store_true")
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--candidates", type=int, default=1, help="so many of the candidates are scheduled")
    parser.add_argument("--regions", type=int, default=8, help="so many are looked at")
    parser.add_argument("--effort", type=int, default=4, help="of the scheduler")
    options = parser.parse_args(arguments)
    dump = load_dump(options.dump)
    lifted = lift(dump.gm)
    problem, prices = _scaled(lifted.problem, options.comm_scale), Prices(lifted.model, options.comm_scale)
    print("| what | nodes | parts | put together MB | order | step ms | its bound | peak | seconds |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    began = time.process_time()
    plain = schedule(problem, Options(effort=options.effort))
    budget = plain.original.peak_bytes
    print(f"| {dump.name} as it is | {len(problem.nodes)} | 1 | 0 | original | {plain.original.step_us / 1e3:.1f} |")
    _row("not cut", len(problem.nodes), 1, 0, "scheduled", plain, budget, time.process_time() - began)
    found = fission_candidates(
        lifted,
        parts=options.parts,
        sums=options.sums,
        returned_in_parts=options.returned_in_parts,
        effort=options.regions,
    )
    shown = 0
    for one in found:
        after = apply(problem, [one], prices)
        over = max(measure(after, after.original_order).profile) - budget
        if over > 0:
            mib = f"{over / 2**20:.0f} MiB over"
            print(f"| {one.nodes[0]} .. | {len(one.nodes)} | {one.parts} | {_copied(one)} | {mib} |", flush=True)
            continue
        _try(one, after, budget, options.effort)
        shown += 1
        if shown == options.candidates:
            break
    return 0


def _try(one: Fission, after: Problem, budget: int, effort: int) -> None:
    what = f"{one.nodes[0]} .. {one.nodes[-1]}"
    for order in ("stages", "staggered"):
        began = time.process_time()
        listed: Problem | None = after
        if order == "staggered":
            start = staggered(after, one, budget)
            listed = None if start is None else relabelled(after, start)
        if listed is not None:
            result = schedule(listed, Options(effort=effort))
            spent = time.process_time() - began
            _row(what, len(one.nodes), one.parts, _copied(one), order, result, budget, spent)


def _row(what: str, nodes: int, parts: int, copied: int, order: str, result: Schedule, budget: int, s: float) -> None:
    scheduled, bound_us = result.scheduled, result.lower_bound_us
    peak = 100 * (scheduled.peak_bytes / budget - 1)
    step, bound = scheduled.step_us / 1e3, bound_us / 1e3
    print(
        f"| {what} | {nodes} | {parts} | {copied} | {order} | {step:.1f} | {bound:.1f} | {peak:+.1f} % | {s:.0f} |",
        flush=True,
    )


def _copied(one: Fission) -> int:
    return sum(leave.bytes for leave in one.leaves if leave.how in ("cat", "sum")) // 10**6


def _scaled(problem: Problem, scale: float) -> Problem:
    nodes = (
        node._replace(time_us=node.time_us * scale) if node.kind is Kind.COLLECTIVE else node for node in problem.nodes
    )
    return replace(problem, nodes=tuple(nodes))


if __name__ == "__main__":
    sys.exit(main())
