"""The commands of one graph: ``plan``, ``explain``, ``report``, ``fit``, ``memory``, ``demo``; and ``schema``."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from overlap_sched.cli import arguments
from overlap_sched.cli.flags import limit_bytes, read_names
from overlap_sched.cli.input import Loaded, Printed, Tell, Want, cluster_of, options_for, read_input, save
from overlap_sched.cost import Roofline
from overlap_sched.errors import UnreachableError
from overlap_sched.fit import fit
from overlap_sched.fit.planner import KINDS
from overlap_sched.judge.validate import peak_memory, read_order
from overlap_sched.options import Options
from overlap_sched.peak_memory.addresses import AddressPlan, plan_addresses
from overlap_sched.peak_memory.best import MemoryPlan, best_order
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.report import answers
from overlap_sched.report.files import write_file, write_order
from overlap_sched.report.page import Extras, extras_of_fit, write_page
from overlap_sched.report.pictures import plot_memory, plot_schedule
from overlap_sched.report.terminal import align_rows, captioned_table
from overlap_sched.report.trace import write_trace
from overlap_sched.report.units import complain, count, duration, printable, size
from overlap_sched.report.words import schedule as words
from overlap_sched.report.words.graph import peak_text
from overlap_sched.report.words.rewrites import answer_line, points_table, rewrites_table, rewrites_text
from overlap_sched.scheduler.driver import Schedule, schedule, schedule_of
from overlap_sched.transform.plan import Plan, plan
from overlap_sched.transform.prices import PCIE_4, PCIE_5, HostLink, Prices, on_cluster

DEMO = Path(__file__).parent / "shipped/demo.json.gz"
CLUSTER = "dgx-h100"
"""That problem files are priced for where rewrites are asked for and no cluster is named."""


def scheduled(command: arguments.Rewriting, tell: Tell) -> tuple[Loaded, Schedule, Plan | None]:
    """Read the input and schedule it; with ``--rewrites`` also the plan that the schedule is of."""
    rewrites: list[Want] = ["rewrites"] if command.options.rewrites else []
    loaded = read_input(command, tell, rewrites, saves=not rewrites)
    problem, wanted = loaded.problem, options_for(command, command.options, loaded.problem)
    if command.order:
        return loaded, schedule_of(problem, read_order(command.order, problem), wanted), None
    tell(f"scheduling {len(problem.nodes):,} nodes")
    if not rewrites:
        return loaded, schedule(problem, wanted), None
    if loaded.model is not None:
        prices = Prices(loaded.model, command.comm_scale)
    else:
        problem, prices = on_cluster(problem, cluster_of(command, CLUSTER), command.comm_scale)
        anew = f"note: collectives are priced anew for {command.cluster or CLUSTER}, those of the original order, too"
        complain(f"{anew}: rewritten ones have no times in the file. --cluster FILE_OR_NAME says otherwise")
    made = plan(problem, prices, wanted, loaded.alike, refuses=loaded.refuses)
    save_rewritten(command, getattr(command, "out", None), made.schedule.problem, bool(made.rewrites))
    return loaded, made.schedule, made


def save_rewritten(command: arguments.Input, out: str | None, problem: Problem, rewritten: bool) -> None:
    """Save the graph that the order found is of, or say that only this file would tell which it is."""
    save(command, problem)
    if out and rewritten and not command.save_problem:
        complain("note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json")


def fell_back(result: Schedule, made: Plan | None) -> bool:
    """Tell whether the original order was kept because verification failed: then the exit code is 1."""
    return (result.fell_back if made is None else made.fell_back or made.without.fell_back) is not None


def prices_of(command: arguments.Input, loaded: Loaded, *, rewrites: bool = False) -> answers.PriceSource:
    """Say where the times come from; ``rewrites``: were the collectives of a problem file priced anew?"""
    anew = {"cluster": command.cluster or CLUSTER} if rewrites else {}
    source, priced = ("problem file", anew) if loaded.priced_for is None else ("dump", loaded.priced_for)
    return answers.PriceSource(source, command.comm_scale, len(command.profile), **priced)  # type: ignore[arg-type]


def run_plan(command: arguments.PlanCommand, tell: Tell) -> Printed:
    """Schedule, write the files asked for; what to print, and the exit code."""
    loaded, result, made = scheduled(command, tell)
    original = None if made is None else made.without.problem
    if command.out:
        write_order(command.out, result.problem, result.order)
    if command.plot:
        plot_schedule(result, command.plot)
    if command.trace:
        write_trace(result, command.trace, original=original)
    tell("computing figures")
    reserved = words.reserved_of(result, original)
    code = 1 if fell_back(result, made) else 4 if result.short_bytes else 0
    gain = words.gain_of(result, original)
    if command.json:
        prices = prices_of(command, loaded, rewrites=made is not None)
        return answers.as_json(answers.plan_answer(result, made, reserved, prices, gain)), code
    table = words.summary(result, words.summary_rows(result, reserved, gain, loaded.device_bytes))
    rewritten = [] if made is None else [rewrites_text(made)]
    return (table, *rewritten, *words.remarks(result)), code


_FLOPS_UNITS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))


def run_explain(command: arguments.ExplainCommand, tell: Tell) -> Printed:
    """Schedule, unless costs are asked for; what to print, and the exit code."""
    top = None if command.all else 10 if command.top is None else command.top
    if command.costs:
        loaded = read_input(command, tell)
        found = answers.costs_answer(loaded.problem, loaded.prices, top)
        return answers.as_json(found) if command.json else (_costs_text(found),), 0
    _, result, made = scheduled(command, tell)
    code = int(fell_back(result, made))
    if command.peak:
        peak, reserved = explain_peak(result.problem, result.order), words.reserved_rows(words.reserved_of(result))
        return (peak_text(peak), *words.figures_text(reserved)), code
    if command.json:
        return answers.as_json(answers.explain_answer(result, command.collective, top)), code
    told = words.explanation(result, command.collective, top)
    return (told,) if made is None else (told, rewrites_text(made)), code


def _costs_text(found: answers.CostsAnswer) -> str:
    """List totals by source, then a line per node."""
    sums = f"compute {duration(found.compute_us)}, collectives {duration(found.collective_us)} (predicted)"
    sources = [
        (one.kind, one.source, duration(one.time_us), f"{one.percent:.1f} %", f"in {one.nodes:,}")
        for one in found.sources
    ]
    rows = [("time", "source", "bound by", "flops", "bytes", "node")]
    for one in found.costs:
        what = f"{printable(one.name)} ({printable(one.op)}"
        what += "" if one.group is None else f" on group {printable(one.group)}"
        what += ")" if one.part_of is None else f"), part of the kernel of {printable(one.part_of)}"
        flops = next((f"{one.flops / of:,.1f} {unit}" for of, unit in _FLOPS_UNITS if one.flops >= of), "-")
        rows.append((duration(one.time_us), one.source, one.bound or "-", flops, size(one.bytes), what))
    head = f"{printable(found.name)}: {count(found.nodes, 'node')}, {sums}"
    return "\n".join([head, *align_rows(sources), *(["longest:", *align_rows(rows)] if found.costs else [])])


def run_report(command: arguments.ReportCommand, tell: Tell) -> Printed:
    """Schedule, write the page; what to print, and the exit code."""
    loaded, result, made = scheduled(command, tell)
    original, beside = result.problem if made is None else made.without.problem, None
    if command.beside is not None:
        beside = (Path(command.beside).name.removesuffix(".json"), read_order(command.beside, original))
    prices = prices_of(command, loaded, rewrites=made is not None)
    write_page(result, command.html, Extras(made, beside, command=command.given, prices=prices))
    return (f"{command.html}: written; open it in a browser",), int(fell_back(result, made))


LINKS: Mapping[str, HostLink] = {"pcie5": PCIE_5, "pcie4": PCIE_4}
PARTS: Mapping[str, Want] = {"fission": "fissions", "batch": "batches"}
"""More of ``--kinds``; of dumps alone, as a problem file has no shapes: sub-graphs in parts, and all that can be cut
along the batch. Without the last, results stay equal to the last bit."""


def run_fit(command: arguments.FitCommand, tell: Tell) -> Printed:
    """Search, write the files asked for; what to print, and the exit code. The graph saved is the rewritten one."""
    kinds = read_names(command.kinds, (*KINDS, *PARTS), "--kinds: ")
    loaded = read_input(command, tell, ["rewrites", *(PARTS[kind] for kind in kinds if kind in PARTS)], saves=False)
    problem = loaded.problem
    tell(f"fitting {len(problem.nodes):,} nodes")
    found = fit(
        problem,
        Prices(loaded.model or Roofline(), command.comm_scale, host=LINKS[command.host_link]),
        Options(strict=command.strict),
        memory_limit=command.memory_limit,
        max_slowdown=command.max_slowdown,
        kinds=[kind for kind in kinds if kind in KINDS],
        rerun=loaded.rerun,
        host_limit_bytes=command.host_memory,
        extra=loaded.fissions,
        fissions=loaded.batches,
        effort=command.effort,
        tell=tell,
    )
    best = found.best
    if not found.live_bytes_fit and found.limit_bytes is not None:
        raise UnreachableError(
            f"{best.problem.name!r} does not fit into {size(found.limit_bytes)}: the lowest peak found is "
            f"{size(best.peak_bytes)}, at a step of {duration(best.step_us)}. Allow more, more host memory or more "
            "kinds, shard over more ranks, or take a smaller batch. Forward or backward alone holds all that forward "
            "saves: give the dumps of both (fit FORWARD.py BACKWARD.py), or enable(memory_limit=...) in the job."
        )
    if command.out:
        write_order(command.out, best.problem, best.order)
    if command.html:
        schedule, extras = extras_of_fit(found)
        extras = extras._replace(command=command.given, prices=prices_of(command, loaded))
        write_page(schedule, command.html, extras)
    save_rewritten(command, command.out, best.problem, bool(best.rewrites))
    code = 1 if found.fell_back is not None else 0 if found.fits else 4
    if command.json:
        return answers.as_json(answers.fit_answer(found)), code
    tables = (rewrites_table(found), "") if best.rewrites else ()
    return (*tables, points_table(found), answer_line(found)), code


FORMAT = "overlap-addresses/1"


def run_memory(command: arguments.MemoryCommand, tell: Tell) -> Printed:
    """Plan, write the files asked for; what is to be printed: JSON, or a table and text."""
    problem = read_input(command, tell).problem
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
        addresses = plan_addresses(problem, plan.order, command.align, command.effort)
        write_file(command.addresses, _addresses_json(problem, addresses))
    if command.out:
        write_order(command.out, problem, plan.order)
    if command.plot:
        plot_memory(plan, command.plot)
    reserved = words.reserved_for(problem, plan.order)
    if command.json:
        return answers.as_json(answers.memory_answer(plan, addresses, reserved)), 0
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


def _table(plan: MemoryPlan, addresses: AddressPlan | None, reserved: words.Reserved | None) -> Table:
    problem = plan.problem
    proven = "optimal: no order has a lower peak" if plan.optimal else f"at most {100 * plan.gap:.2f} % above the best"
    peak = words.change_row("peak", size, plan.original_bytes, plan.peak_bytes, size(plan.bound_bytes))
    rows = [peak, *words.reserved_rows(reserved)]
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


def run_schema(command: arguments.SchemaCommand, tell: Tell) -> tuple[str, int]:
    """Return the JSON Schema of what a command prints, and the exit code."""
    return answers.schema_text(command.of), 0


def run_demo(command: arguments.DemoCommand, tell: Tell) -> Printed:
    """Plan the graph that comes with the package, and say what to do next."""
    printed, code = run_plan(arguments.PlanCommand(problem=str(DEMO), options=Options(rewrites=())), tell)
    page = f"On a page: overlap-sched report {DEMO} --html demo.html"
    return (*printed, f"\n{page}\nOf a dump of your own: overlap-sched plan --help"), code
