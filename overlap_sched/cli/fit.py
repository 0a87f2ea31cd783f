"""``overlap-sched fit``: its options, and what it answers."""

from collections.abc import Mapping
from dataclasses import replace

from overlap_sched.cli.arguments import FitCommand
from overlap_sched.cli.flags import read_names
from overlap_sched.cli.input import Printed, Tell, Want, read_input
from overlap_sched.cli.plan import prices_of, save_rewritten
from overlap_sched.cost import Roofline
from overlap_sched.errors import UnreachableError
from overlap_sched.fit import fit
from overlap_sched.fit.planner import KINDS
from overlap_sched.options import Options
from overlap_sched.problem import Kind, Problem
from overlap_sched.report.answers import as_json, fit_answer
from overlap_sched.report.files import write_order
from overlap_sched.report.page import extras_of_fit, write_page
from overlap_sched.report.units import duration, size
from overlap_sched.report.words.rewrites import answer_line, points_table, rewrites_table
from overlap_sched.transform.prices import PCIE_4, PCIE_5, HostLink, Prices

LINKS: Mapping[str, HostLink] = {"pcie5": PCIE_5, "pcie4": PCIE_4}
KNOWN = (*KINDS, "fission", "batch")
"""What ``--kinds`` may name; of dumps alone, as a problem file has no shapes: sub-graphs in parts, and all that can be
cut along the batch. Without the last, results stay equal to the last bit."""


def run_fit(command: FitCommand, tell: Tell) -> Printed:
    """Search, write the files asked for; what to print, and the exit code. The graph saved is the rewritten one."""
    kinds = read_names(command.kinds, KNOWN, "--kinds: ")
    parts: dict[str, Want] = {"fission": "fissions", "batch": "batches"}
    wants: list[Want] = ["rewrites", *(want for kind, want in parts.items() if kind in kinds)]
    loaded = read_input(command, tell, wants, saves=False)
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
            f"{size(best.peak_bytes)}, at a step of {duration(best.step_us)}. {_remedy(found.original.problem)}"
        )
    if command.out:
        write_order(command.out, best.problem, best.order)
    if command.html:
        tell(f"writing {command.html}")
        schedule, extras = extras_of_fit(found)
        extras = replace(extras, command=command.given, prices=prices_of(command, loaded))
        write_page(schedule, command.html, extras)
    save_rewritten(command, command.out, best.problem, bool(best.rewrites), tell)
    code = 1 if found.fell_back is not None else 0 if found.fits else 4
    if command.json:
        return as_json(fit_answer(found)), code
    tables = (rewrites_table(found), "") if best.rewrites else ()
    return (*tables, points_table(found), answer_line(found)), code


def _remedy(problem: Problem) -> str:
    """Say what to do: where the graph is one half of a step, that is the cause (names are AOTAutograd's)."""
    inputs = [node.name for node in problem.nodes if node.kind is Kind.INPUT]
    parameters, gradients = (any(name.startswith(start) for name in inputs) for start in ("primals_", "tangents_"))
    if parameters and not gradients:
        half = "This is a forward graph alone: activations that it saves are its results, and live to its end"
    elif gradients and not all(name.startswith(("primals_", "tangents_")) for name in inputs):
        half = "This is a backward graph alone: activations that forward has saved are its inputs, there from the start"
    else:
        return "Allow more, more host memory or more kinds, shard over more ranks, or take a smaller batch."
    return (
        f"{half}. Give the dumps of both graphs (fit FORWARD.py BACKWARD.py), or let the job itself choose what is "
        "saved: enable(memory_limit=...)."
    )
