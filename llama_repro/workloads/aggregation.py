"""What it is worth to run several products of a step as one, at its prices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llama_repro.harness.console import markdown_table
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.rewrites.merge import MM
from overlap_sched.fx.rewrites.merges import merge_candidates, merges
from overlap_sched.judge.replay import replay
from overlap_sched.transform.apply import apply
from overlap_sched.transform.merged import saved_us
from overlap_sched.transform.prices import Prices

HEADS = ("step", "products", "groups", "best of one first operand", "of one second", "of one size", "worth it", "step")
FORMS = ("columns", "rows", "batched")


@dataclass(frozen=True)
class MergeRow:
    """Merges of one step; simulated.

    Attributes:
        graph: Which. products: ``mm`` in it. groups: of those that could be one, each in each form that it can have.
        best_us: Per form of :data:`FORMS`, what the best group takes off the step, below 0: adds; ``None``: none.
        worth: How many are worth it, all together.
        step_us: As it is. merged_us: with those.
    """

    graph: str
    products: int
    groups: int
    best_us: tuple[float | None, ...]
    worth: int
    step_us: float
    merged_us: float


def merge_row(lifted: Lifted, prices: Prices) -> MergeRow:
    """Look at all groups of products of a step."""
    problem, graph = lifted.problem, lifted.nodes[0].graph
    nodes, candidates = {node.name: node for node in problem.nodes}, merge_candidates(graph)
    saved = [(one.form, saved_us(one, [nodes[name] for name in one.members], prices)) for one in candidates]
    found = merges(lifted, prices)
    after = apply(problem, found, prices)
    return MergeRow(
        graph=problem.name,
        products=len(graph.find_nodes(op="call_function", target=MM)),
        groups=len(candidates),
        best_us=tuple(max((us for form, us in saved if form == wanted), default=None) for wanted in FORMS),
        worth=len(found),
        step_us=replay(problem, problem.original_order).step_us,
        merged_us=replay(after, after.original_order).step_us,
    )


def merge_table(rows: Iterable[MergeRow]) -> str:
    """As documents have it; below 0: shorter."""
    return markdown_table(HEADS, [_line(row) for row in rows])


def _line(row: MergeRow) -> Sequence[str]:
    return (
        row.graph,
        f"{row.products:,}",
        f"{row.groups:,}",
        *("none" if us is None else f"{-us:+,.1f} us" for us in row.best_us),
        f"{row.worth:,}",
        f"{100 * (row.merged_us / row.step_us - 1):+.2f} %",
    )
