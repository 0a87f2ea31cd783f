"""The memory tables as Markdown."""

from collections.abc import Sequence
from statistics import mean

from llama_repro.zoo.published import MODEL_AVERAGES, MODEL_LIKE, TORCH_RATIOS
from llama_repro.zoo.rows import CollectiveRow, ZooRow
from llama_repro.zoo.solver_rows import SolverRow
from overlap_sched.report.units import change, duration, size


def zoo_table(rows: Sequence[ZooRow]) -> str:
    """One line per step with SGD."""
    lines = [
        "| model, batch | nodes | original | lpmf | bfs | dfs | **ours** | saved | bound | arena | fragmentation "
        "| torch reserves: original → ours | order | addresses |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if row.update:
            lines.append(
                f"| {row.model}, {row.batch} | {row.nodes:,} | {size(row.original_bytes)} | {size(row.lpmf_bytes)} "
                f"| {size(row.bfs_bytes)} | {size(row.dfs_bytes)} | **{size(row.peak_bytes)}** "
                f"| {row.saved_percent:.1f} % | {_bound(row)} | {size(row.arena_bytes)} "
                f"| {100 * row.fragmentation:.3f} % "
                f"| {size(row.original_reserved_bytes)} → {size(row.reserved_bytes)} "
                f"| {row.order_s:.2f} s | {row.addresses_s:.2f} s |"
            )
    return "\n".join(lines)


def averages(rows: Sequence[ZooRow]) -> str:
    """Beside MODeL's averages: order alone, order with addresses, fragmentation."""
    lines = [
        "| batch | order alone: ours | MODeL | order and addresses, against what torch reserves: ours | MODeL "
        "| fragmentation left | proven optimal | within 1 % of the bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for batch, theirs in MODEL_AVERAGES.items():
        mine = [row for row in rows if row.update and row.batch == batch and row.model in MODEL_LIKE]
        whole = [row for row in rows if row.update and row.batch == batch]
        if mine:
            total = mean(100 * (1 - row.arena_bytes / row.original_reserved_bytes) for row in mine)
            lines.append(
                f"| {batch} | {mean(row.saved_percent for row in mine):.1f} % | {theirs.order} % | {total:.1f} % "
                f"| {theirs.total} % | {100 * max(row.fragmentation for row in mine):.3f} % at most "
                f"| {sum(row.peak_bytes == row.bound_bytes for row in whole)} of {len(whole)} "
                f"| {sum(row.gap_percent <= 1 for row in whole)} of {len(whole)} |"
            )
    return "\n".join(lines)


def torch_table(rows: Sequence[ZooRow]) -> str:
    """Beside torch's published ratios: steps with SGD, and without (gradients are kept, as in its graphs)."""
    lines = [
        "| model, batch | | original | best of lpmf, bfs, dfs | ours | ratio | torch, published | bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if (row.model, row.batch) in TORCH_RATIOS:
            best = min(row.original_bytes, row.lpmf_bytes, row.bfs_bytes, row.dfs_bytes)
            lines.append(
                f"| {row.model}, {row.batch} | {'with SGD' if row.update else 'gradients kept'} "
                f"| {size(row.original_bytes)} | {size(best)} | {size(row.peak_bytes)} "
                f"| {row.original_bytes / row.peak_bytes:.2f} "
                f"| {TORCH_RATIOS[row.model, row.batch]:.2f} | {_bound(row)} |"
            )
    return "\n".join(lines)


def collective_table(rows: Sequence[CollectiveRow]) -> str:
    """Lowest peaks of graphs with collectives, and overlap from there."""
    lines = [
        "| graph | nodes | original peak | lowest found | bound | time (7 simple orders) | step: original "
        "| scheduled from the original | from the lowest, within the original peak "
        "| from the lowest, within the lowest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        model = "" if row.memory_model == "runtime" else f", {row.memory_model} model"
        lines.append(
            f"| `{row.graph}`{model} | {row.nodes:,} | {size(row.original_bytes)} | {size(row.peak_bytes)} "
            f"({change(row.original_bytes, row.peak_bytes)}) | {_bound(row)} "
            f"| {row.order_s:.1f} s ({row.simple_s:.2f} s) | {duration(row.original_us)} "
            f"| {duration(row.step_us)}, {size(row.scheduled_bytes)} "
            f"| {duration(row.base_step_us)} ({change(row.step_us, row.base_step_us)}), {size(row.base_bytes)} "
            f"| {duration(row.tight_step_us)} ({change(row.step_us, row.tight_step_us)}) |"
        )
    return "\n".join(lines)


def solver_table(rows: Sequence[SolverRow]) -> str:
    """Both solvers side by side."""
    lines = ["| window of | nodes | variables | rows | CP-SAT | HiGHS |", "| --- | --- | --- | --- | --- | --- |"]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        lines.append(
            f"| {first.graph} | {first.window} | {first.variables:,} | {first.rows:,} "
            f"| {_solver(first)} | {_solver(second)} |"
        )
    return "\n".join(lines)


def _bound(row: ZooRow | CollectiveRow) -> str:
    if row.peak_bytes == row.bound_bytes:
        return "optimal"
    return f"{size(row.bound_bytes)} ({100 * (row.peak_bytes / row.bound_bytes - 1):.2f} %)"


def _solver(row: SolverRow) -> str:
    found = "nothing" if row.lowest_bytes is None else size(row.lowest_bytes)
    return f"{found}, {'proven' if row.proven else 'not proven'}, {row.solve_s:.1f} s"
