"""The memory tables as Markdown."""

from collections.abc import Iterator, Sequence
from statistics import mean

from llama_repro.harness.console import markdown_table
from overlap_sched.report.units import size
from scripts.studies.memory_zoo.published import MODEL_AVERAGES, MODEL_LIKE, TORCH_RATIOS
from scripts.studies.memory_zoo.rows import ZooRow


def zoo_table(rows: Sequence[ZooRow]) -> str:
    """One line per step with SGD."""
    heads = ["model, batch", "nodes", "original", "lpmf", "**ours**", "saved", "bound", "arena"]
    heads += ["fragmentation", "torch reserves: original → ours", "order", "addresses"]
    lines = [
        (
            f"{row.model}, {row.batch}",
            f"{row.nodes:,}",
            *map(size, (row.original_bytes, row.lpmf_bytes)),
            f"**{size(row.peak_bytes)}**",
            f"{row.saved_percent:.1f} %",
            _bound(row),
            size(row.arena_bytes),
            f"{100 * row.fragmentation:.3f} %",
            f"{size(row.original_reserved_bytes)} → {size(row.reserved_bytes)}",
            f"{row.order_s:.2f} s",
            f"{row.addresses_s:.2f} s",
        )
        for row in rows
        if row.update
    ]
    return markdown_table(heads, lines)


def averages(rows: Sequence[ZooRow]) -> str:
    """Beside MODeL's averages: order alone, order with addresses, fragmentation."""
    heads = ["batch", "order alone: ours", "MODeL", "order and addresses, against what torch reserves: ours", "MODeL"]
    return markdown_table([*heads, "fragmentation left", "proven optimal", "within 1 % of the bound"], _averages(rows))


def _averages(rows: Sequence[ZooRow]) -> Iterator[Sequence[str]]:
    for batch, theirs in MODEL_AVERAGES.items():
        mine = [row for row in rows if row.update and row.batch == batch and row.model in MODEL_LIKE]
        whole = [row for row in rows if row.update and row.batch == batch]
        if mine:
            total = mean(100 * (1 - row.arena_bytes / row.original_reserved_bytes) for row in mine)
            yield (
                f"{batch}",
                f"{mean(row.saved_percent for row in mine):.1f} %",
                f"{theirs.order} %",
                f"{total:.1f} %",
                f"{theirs.total} %",
                f"{100 * max(row.fragmentation for row in mine):.3f} % at most",
                f"{sum(row.peak_bytes == row.bound_bytes for row in whole)} of {len(whole)}",
                f"{sum(row.gap_percent <= 1 for row in whole)} of {len(whole)}",
            )


def torch_table(rows: Sequence[ZooRow]) -> str:
    """Beside torch's published ratios: steps with SGD, and without (gradients are kept, as in its graphs)."""
    heads = ["model, batch", "", "original", "lpmf", "ours", "ratio", "torch, published", "bound"]
    lines = [
        (
            f"{row.model}, {row.batch}",
            "with SGD" if row.update else "gradients kept",
            size(row.original_bytes),
            size(min(row.original_bytes, row.lpmf_bytes)),
            size(row.peak_bytes),
            f"{row.original_bytes / row.peak_bytes:.2f}",
            f"{TORCH_RATIOS[row.model, row.batch]:.2f}",
            _bound(row),
        )
        for row in rows
        if (row.model, row.batch) in TORCH_RATIOS
    ]
    return markdown_table(heads, lines)


def _bound(row: ZooRow) -> str:
    if row.peak_bytes == row.bound_bytes:
        return "optimal"
    return f"{size(row.bound_bytes)} ({100 * (row.peak_bytes / row.bound_bytes - 1):.2f} %)"
