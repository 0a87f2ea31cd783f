"""``overlap-sched memory``: the order with the lowest peak, its addresses, and why the peak is what it is."""

import json

from rich.table import Table

from overlap_sched.cli.arguments import MemoryCommand
from overlap_sched.cli.flags import limit_bytes
from overlap_sched.cli.input import Printed, Tell, read_input
from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory.addresses import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.report.answers import as_json, memory_answer
from overlap_sched.report.files import write_file, write_order
from overlap_sched.report.table import captioned_table, complain
from overlap_sched.report.units import change, printable, size
from overlap_sched.report.words.graph import peak_text
from overlap_sched.report.words.schedule import Reserved, reserved_for, reserved_rows

FORMAT = "overlap-addresses/1"


def run_memory(command: MemoryCommand, tell: Tell) -> Printed:
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
