"""``overlap-sched memory``: the order with the lowest peak, its addresses, and why the peak is what it is."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.cli.flags import Flag, limit_bytes, refuse
from overlap_sched.cli.input import Input, read_input
from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory.addresses import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import Preserve
from overlap_sched.problem.sizes import show_number
from overlap_sched.report.answers import as_json, memory_answer
from overlap_sched.report.files import write_file, write_order
from overlap_sched.report.table import captioned_table, complain
from overlap_sched.report.units import change, printable, size
from overlap_sched.report.words.graph import peak_text
from overlap_sched.report.words.schedule import Reserved, reserved_for, reserved_rows

FORMAT = "overlap-addresses/1"
MAX_EFFORT = 30
MAX_ALIGN_BYTES = 2**40


@dataclass(frozen=True, kw_only=True)
class MemoryCommand(Input):
    """Find the lowest peak."""

    effort: int = 2
    """N: how hard to search: each unit doubles the work (default: 2; 0: simple orders only; at most 30)"""
    preserve_collective_order: Preserve = "none"
    """keep the original launch order within each process group, across all, or across all and each wait behind those
    that it followed"""
    exact: bool = False
    """if the search cannot prove its order optimal, solve an integer program (pip install 'overlap_sched[exact]')"""
    time_limit: float = 60.0
    """S: seconds that the solver of --exact may take"""
    limit: str | None = None
    """SIZE: with --exact: stop at any order whose peak is at most this: 20GiB, or 90% of the original peak"""
    addresses: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: place all storages in one arena and write their offsets"""
    align: int = 512
    """BYTES: alignment of --addresses (default: 512, as torch aligns on CUDA)"""
    peak: bool = False
    """also print what is live at the peak of the new order, and why"""
    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found as a JSON list of node names"""
    plot: Annotated[str | None, Flag(file="out")] = None
    """OUT.png: draw memory over the steps, before and after (.png, .svg, .pdf)"""
    json: bool = False
    """print the figures as one JSON object (`overlap-sched schema memory`)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None:
            limit_bytes("--limit", self.limit, 0)
        effort, align = show_number(self.effort), show_number(self.align)
        refuse(
            (self.limit and not self.exact, "--limit asks for a proof or an order: give --exact, too."),
            (self.effort > MAX_EFFORT, f"--effort is {effort}; each doubles the work: at most {MAX_EFFORT}."),
            (self.align > MAX_ALIGN_BYTES, f"--align is {align}; it is a number of bytes, 1 to 2**40."),
            (not self.time_limit < math.inf, f"--time-limit is {self.time_limit}; it is finite, and above 0."),
        )


def run_memory(command: MemoryCommand, tell: Callable[[str], None]) -> tuple[str | tuple[RenderableType, ...], int]:
    """Plan, write the files asked for; what is to be printed: JSON, or a table and text."""
    problem = read_input(command, tell).problem
    if command.slowdown or command.link:
        complain("note: --slowdown and --link change nothing here: memory does not depend on times")
    tell(f"ordering {len(problem.nodes):,} nodes")
    if command.exact:
        original, _ = peak_memory(problem, problem.original_order)
        plan = exact_order(
            problem,
            command.preserve_collective_order,
            limit_bytes=None if command.limit is None else limit_bytes("--limit", command.limit, original),
            time_limit_s=command.time_limit,
            effort=command.effort,
        )
    else:
        plan = best_order(problem, command.preserve_collective_order, command.effort)
    addresses = None
    if command.addresses:
        tell("placing storages")
        addresses = plan_addresses(problem, plan.order, command.align, command.effort)
        write_file(command.addresses, _addresses_json(problem, addresses))
    if command.out:
        write_order(command.out, problem, plan.order)
    if command.plot:
        from overlap_sched.report.pictures import plot_memory

        tell(f"drawing {command.plot}")
        plot_memory(plan, command.plot)
    reserved = reserved_for(problem, plan.order)
    if command.json:
        return as_json(memory_answer(plan, addresses, reserved)), 0
    table = _table(plan, addresses, reserved)
    return (table, f"\n{peak_text(explain_peak(problem, plan.order))}") if command.peak else (table,), 0


def _addresses_json(problem: Problem, plan: AddressPlan) -> bytes:
    nodes, maker, made = problem.nodes, problem.maker, problem.storages
    storages = [
        {"made_by": nodes[maker[s]].name, "storage": s, "bytes": made[s].bytes, "offset": at}
        for s, at in sorted(plan.offsets.items())
    ]
    data = {"format": FORMAT, "name": problem.name, "arena_bytes": plan.arena_bytes, "align_bytes": plan.align_bytes}
    return (json.dumps(data | {"storages": storages}, separators=(",", ":")) + "\n").encode()


def _table(plan: MemoryPlan, addresses: AddressPlan | None, reserved: Reserved | None) -> Table:
    problem = plan.problem
    proven = "optimal: no order has a lower peak" if plan.optimal else f"at most {100 * plan.gap:.2f} % above the best"
    peak = (plan.original_bytes, plan.peak_bytes)
    rows = [("peak", *map(size, peak), change(*peak), size(plan.bound_bytes)), *reserved_rows(reserved)]
    if addresses is not None:
        rows.append(("one arena", "", size(addresses.arena_bytes), "", size(addresses.peak_bytes)))
        rows.append(("fragmentation", "", f"{100 * addresses.fragmentation:.2f} %"))
    return captioned_table(
        f"{printable(problem.name)}: {len(problem.nodes):,} nodes",
        f"Simulated, in the {problem.memory_model} memory model. Order by {plan.found_by}; {proven}. "
        "Reserved: a replay of torch's CUDA caching allocator.",
        ("original", "new", "change", "bound"),
        "",
        rows,
    )
