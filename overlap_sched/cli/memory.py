"""``overlap-sched memory``: the order with the lowest peak, its addresses, and why the peak is what it is."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any, get_args

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.sizes import limit_bytes
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory.addresses.plan import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve
from overlap_sched.problem.sizes import show_number
from overlap_sched.report.files import write_file, write_order
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, printable, size
from overlap_sched.report.words.peak import peak_text
from overlap_sched.report.words.reserved import Reserved, reserved_figures, reserved_for, reserved_rows, settings_for

FORMAT = "overlap-addresses/1"
MAX_EFFORT = 30
MAX_ALIGN_BYTES = 2**40
_LIMIT = "--limit"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add = parser.add_argument
    add(
        "--effort",
        type=int,
        default=2,
        metavar="N",
        help="how hard to search: each unit doubles the work "
        f"(default: 2; 0: simple orders only; at most {MAX_EFFORT})",
    )
    add(
        "--preserve-collective-order",
        choices=get_args(Preserve),
        default="none",
        help="keep the original launch order within each process group, across all, or across all and each wait behind "
        "those that it followed (default: none)",
    )
    add(
        "--exact",
        action="store_true",
        help="if the search cannot prove its order optimal, solve an integer program "
        "(pip install 'overlap_sched[exact]')",
    )
    add("--solver", choices=("cp-sat", "highs"), default="cp-sat", help="solver of --exact (default: cp-sat)")
    add(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that the solver of --exact may take (default: 60)",
    )
    add(
        _LIMIT,
        metavar="SIZE",
        help="with --exact: stop at any order whose peak is at most this: 20GiB, or 90%% of the original peak",
    )
    add("--addresses", metavar="OUT.json", help="place all storages in one arena and write their offsets")
    add(
        "--align",
        type=int,
        default=512,
        metavar="BYTES",
        help="alignment of --addresses (default: 512, as torch aligns on CUDA)",
    )
    add("--peak", action="store_true", help="also print what is live at the peak of the new order, and why")
    add("--out", metavar="ORDER.json", help="write the order found as a JSON list of node names")
    add("--plot", metavar="OUT.png", help="draw memory over the steps, before and after (.png, .svg, .pdf)")
    add("--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema memory`)")


def check(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before the input is read."""
    if options.limit is not None and not options.exact:
        raise OptionsError("--limit asks for a proof or an order: give --exact, too.")
    if options.limit is not None:
        limit_bytes(_LIMIT, options.limit, 0)
    if options.effort > MAX_EFFORT:
        raise OptionsError(
            f"--effort is {show_number(options.effort)}; each unit doubles the work: {MAX_EFFORT} at most."
        )
    if options.align > MAX_ALIGN_BYTES:
        raise OptionsError(f"--align is {show_number(options.align)}; it is a number of bytes, 1 to 2**40.")
    if not options.time_limit < math.inf:
        raise OptionsError(f"--time-limit is {options.time_limit}; it is a finite number of seconds above 0.")


def answer(
    options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]
) -> str | tuple[RenderableType, ...]:
    """Plan, write the files asked for; what is to be printed: JSON, or a table and text."""
    tell(f"ordering {len(problem.nodes):,} nodes")
    plan = _plan(options, problem)
    addresses = None
    if options.addresses:
        tell("placing storages")
        addresses = plan_addresses(problem, plan.order, options.align, options.effort)
        write_file(options.addresses, _addresses_json(problem, addresses))
    if options.out:
        write_order(options.out, problem, plan.order)
    if options.plot:
        from overlap_sched.report.pictures import plot_memory

        tell(f"drawing {options.plot}")
        plot_memory(plan, options.plot)
    reserved = reserved_for(problem, plan.order, settings_for(problem))
    if options.json:
        return as_json("memory", figures(plan, addresses, reserved))
    table = _table(plan, addresses, reserved)
    return (table, f"\n{peak_text(explain_peak(problem, plan.order))}") if options.peak else (table,)


def _plan(options: argparse.Namespace, problem: Problem) -> MemoryPlan:
    if not options.exact:
        return best_order(problem, options.preserve_collective_order, options.effort)
    original, _ = peak_memory(problem, problem.original_order)
    limit = None if options.limit is None else limit_bytes(_LIMIT, options.limit, original)
    return exact_order(
        problem,
        options.preserve_collective_order,
        limit_bytes=limit,
        solver=options.solver,
        time_limit_s=options.time_limit,
        effort=options.effort,
    )


def figures(plan: MemoryPlan, addresses: AddressPlan | None, reserved: Reserved | None) -> dict[str, Any]:
    """Return what ``memory --json`` prints: bytes, shares between 0 and 1."""
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
        **reserved_figures(reserved),
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
                "made_by": problem.nodes[problem.maker[s]].name,
                "storage": s,
                "bytes": problem.storages[s].bytes,
                "offset": at,
            }
            for s, at in sorted(plan.offsets.items())
        ],
    }
    return (json.dumps(data, separators=(",", ":")) + "\n").encode()


def _table(plan: MemoryPlan, addresses: AddressPlan | None, reserved: Reserved | None) -> Table:
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
    for row in reserved_rows(reserved):
        table.add_row(*row)
    if addresses is not None:
        table.add_row("one arena", "", size(addresses.arena_bytes), "", size(addresses.peak_bytes))
        table.add_row("fragmentation", "", f"{100 * addresses.fragmentation:.2f} %")
    return table
