"""``overlap-sched memory``: the order with the lowest peak, its addresses, and why the peak is what it is."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from overlap_sched.errors import OptionsError
from overlap_sched.options import headroom_bytes
from overlap_sched.peak_memory.addresses import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.caching_allocator import Reservation, replay_allocator
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.report.files import check_writable, write_file
from overlap_sched.report.peak_text import peak_text
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, printable, size

FORMAT = "overlap-addresses/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``memory`` beyond how its input is read."""
    add = parser.add_argument
    add("--effort", type=int, default=2, metavar="N", help="how much is tried (default: 2; 0: simple orders only)")
    add(
        "--preserve-collective-order",
        choices=("none", "group", "all"),
        default="group",
        help="keep the original launch order within each process group (default), across all, or not at all",
    )
    add("--exact", action="store_true", help="give what the search leaves open to an integer program (extra: exact)")
    add("--solver", choices=("cp-sat", "highs"), default="cp-sat", help="of --exact (default: cp-sat)")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds for the solver of --exact (default: 60)")
    add("--limit", metavar="SIZE", help="with --exact: any order with a peak of at most this (20GiB) will do")
    add("--addresses", metavar="OUT.json", help="place all storages in one arena and write their offsets")
    add(
        "--align", type=int, default=512, metavar="BYTES", help="of --addresses (default: 512, as torch aligns on CUDA)"
    )
    add("--peak", action="store_true", help="say what is live at the peak of the new order, and why")
    add("--out", metavar="ORDER.json", help="write the order as a JSON list of node names")
    add("--plot", metavar="OUT.png", help="draw memory over the steps, before and after (.png, .svg, .pdf)")
    add("--json", action="store_true", help="print the figures as one JSON object")


def run(options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]) -> str:
    """Plan, write the files asked for; what is to be printed.

    Raises:
        OverlapSchedError: One of its subclasses: arguments, limits, a missing extra, files that cannot be written.
    """
    if options.limit is not None and not options.exact:
        raise OptionsError("--limit asks for a proof or an order: give --exact, too.")
    for path in filter(None, (options.out, options.addresses, options.plot)):
        check_writable(path)
    if options.plot:
        from overlap_sched.report.picture import check_plot

        check_plot(options.plot)
    tell(f"ordering {len(problem.nodes):,} nodes")
    plan = _plan(options, problem)
    addresses = None
    if options.addresses:
        tell("placing storages")
        addresses = plan_addresses(problem, plan.order, options.align, options.effort)
        write_file(options.addresses, _addresses_json(problem, addresses))
    if options.out:
        write_file(options.out, (json.dumps(problem.names(plan.order), separators=(",", ":")) + "\n").encode())
    if options.plot:
        from overlap_sched.report.memory_plot import plot_memory

        tell(f"drawing {options.plot}")
        plot_memory(plan, options.plot)
    before, after = replay_allocator(problem, problem.original_order), replay_allocator(problem, plan.order)
    if options.json:
        return json.dumps(figures(plan, addresses, before, after), allow_nan=False)
    shown = _table(plan, addresses, before, after)
    return f"{shown}\n\n{peak_text(explain_peak(problem, plan.order))}" if options.peak else shown


def _plan(options: argparse.Namespace, problem: Problem) -> MemoryPlan:
    if not options.exact:
        return best_order(problem, options.preserve_collective_order, options.effort)
    limit = None if options.limit is None else headroom_bytes(options.limit, 0)
    return exact_order(
        problem,
        options.preserve_collective_order,
        limit_bytes=limit,
        solver=options.solver,
        time_limit_s=options.time_limit,
        effort=options.effort,
    )


def figures(plan: MemoryPlan, addresses: AddressPlan | None, before: Reservation, after: Reservation) -> dict[str, Any]:
    """What ``memory --json`` prints: bytes, shares between 0 and 1."""
    found: dict[str, Any] = {
        "name": plan.problem.name,
        "nodes": len(plan.problem.nodes),
        "memory_model": plan.problem.memory_model,
        "original_peak_bytes": plan.original_bytes,
        "peak_bytes": plan.peak_bytes,
        "bound_bytes": plan.bound_bytes,
        "optimal": plan.optimal,
        "found_by": plan.found_by,
        "tried": dict(plan.tried),
        "work": plan.work,
        "original_reserved_bytes": before.reserved_bytes,
        "reserved_bytes": after.reserved_bytes,
    }
    if addresses is not None:
        found |= {"arena_bytes": addresses.arena_bytes, "fragmentation": addresses.fragmentation}
    return found


def _addresses_json(problem: Problem, plan: AddressPlan) -> bytes:
    data = {
        "format": FORMAT,
        "name": problem.name,
        "arena_bytes": plan.arena_bytes,
        "align_bytes": plan.align_bytes,
        "storages": [
            {
                "made_by": problem.nodes[problem.allocator[s]].name,
                "storage": s,
                "bytes": problem.storages[s].bytes,
                "offset": at,
            }
            for s, at in sorted(plan.offsets.items())
        ],
    }
    return (json.dumps(data, separators=(",", ":")) + "\n").encode()


def _table(plan: MemoryPlan, addresses: AddressPlan | None, before: Reservation, after: Reservation) -> str:
    problem = plan.problem
    proven = "optimal: no order has a lower peak" if plan.optimal else f"at most {100 * plan.gap:.2f} % above the best"
    table = captioned_table(
        f"{printable(problem.name)}: {len(problem.nodes):,} nodes",
        f"Simulated, in the {problem.memory_model} memory model. Order by {plan.found_by}; {proven}. "
        "Reserved: a replay of torch's CUDA caching allocator.",
        ("original", "new", "change", "bound"),
        first="",
    )
    peak = (plan.original_bytes, plan.peak_bytes)
    table.add_row("peak", *map(size, peak), change(*peak), size(plan.bound_bytes))
    reserved = (before.reserved_bytes, after.reserved_bytes)
    table.add_row("reserved by torch", *map(size, reserved), change(*reserved))
    if addresses is not None:
        table.add_row("one arena", "", size(addresses.arena_bytes), "", size(addresses.peak_bytes))
        table.add_row("fragmentation", "", f"{100 * addresses.fragmentation:.2f} %")
    console = Console(file=sys.stdout, markup=False, emoji=False)  # titles hold names from files
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")
