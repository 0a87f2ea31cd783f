"""How long the search takes on a large step of one GPU, with ways to run it in parts along its batch."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llama_repro.harness.console import markdown_table
from overlap_sched.fit import Fit, fit
from overlap_sched.fit.planner import FOUND
from overlap_sched.fx.rewrites.batches import batch_fissions
from overlap_sched.transform.fission import Fission
from overlap_sched.transform.prices import Prices
from scripts.studies.fit.models import WORKLOADS
from scripts.studies.fit.ours import PCIE_3
from scripts.studies.fit.points import point
from scripts.studies.fit.rows import LIMITS
from scripts.studies.fit.trace import step_lifted
from tests.support.traced_step import joint_graph, language_model, with_updates

MODEL, WIDTH, HEADS = "BTLM-3B", 2560, 32
SLOWDOWN = 0.05


@dataclass(frozen=True)
class SearchRow:
    """One question; simulated, but for the seconds, which are processor time of one thread.

    Attributes:
        graph: Which step. nodes: of it. parts: what it may run in parts of.
        way: The question. first_s: until the first plan that fits; ``None``: not told. all_s: of all of it.
        slowdown, peak: The answer, beside the best order, and as a part of the original peak. by: how it begins.
    """

    graph: str
    nodes: int
    parts: tuple[int, ...]
    way: str
    first_s: float | None
    all_s: float
    slowdown: float
    peak: float
    by: str


def search_rows(layers: int, effort: int) -> Iterator[SearchRow]:
    """All questions of a step with so many layers."""
    (workload,) = (one for one in WORKLOADS if one.name == MODEL)
    workload = replace(workload, build=partial(language_model, layers, WIDTH, HEADS))
    lifted = step_lifted(workload, with_updates(joint_graph(workload)))
    problem, fissions = lifted.problem, tuple(batch_fissions(lifted))
    original_bytes = point(problem).peak_bytes
    ask = partial(fit, problem, Prices(lifted.model, host=PCIE_3), fissions=fissions, effort=effort)
    questions: list[tuple[str, dict[str, Any]]] = [
        (f"{100 * one:.0f} % of the peak", {"memory_limit": int(one * original_bytes)}) for one in LIMITS
    ]
    questions.append((f"lowest peak within {100 * SLOWDOWN:.0f} %", {"max_slowdown": SLOWDOWN}))
    for asked, question in questions:
        clock = _Clock()
        found = ask(**question, tell=clock.tell)
        yield SearchRow(
            graph=f"{MODEL} with {layers} layers",
            nodes=len(problem.nodes),
            parts=tuple(one.parts for one in fissions),
            way=asked,
            first_s=clock.first_s if found.limit_bytes is not None else None,
            all_s=clock.now_s(),
            slowdown=found.slowdown,
            peak=found.best.peak_bytes / original_bytes,
            by=_begins(found),
        )


class _Clock:
    """Processor time since it was made, and until the first plan was told of."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._began_s = time.process_time()

    def now_s(self) -> float:
        return time.process_time() - self._began_s

    def tell(self, text: str) -> None:
        if text == FOUND and self.first_s is None:
            self.first_s = self.now_s()


def _begins(found: Fit) -> str:
    parts = [one.parts for one in found.best.rewrites if isinstance(one, Fission)]
    others = len(found.best.rewrites) - len(parts)
    return ", ".join([*(f"{n} parts" for n in parts), *([f"{others:,} others"] if others else [])])


def search_table(rows: list[SearchRow]) -> str:
    """As documents have it."""
    heads = ("nodes", "asked", "first plan that fits", "all", "slowdown", "peak", "by")
    return markdown_table(
        heads,
        [
            (
                f"{row.nodes:,}",
                row.way,
                "" if row.first_s is None else f"{row.first_s:.1f} s",
                f"{row.all_s:.1f} s",
                f"{100 * row.slowdown:+.1f} %",
                f"{100 * row.peak:.1f} %",
                row.by,
            )
            for row in rows
        ],
    )
