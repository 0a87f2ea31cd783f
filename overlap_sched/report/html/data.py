"""All that the HTML page of a schedule shows, as data: the page draws it and adds nothing of its own.

Times are microseconds, rounded to nanoseconds where they are drawn; the figures are those of ``plan --json``,
unrounded. What the page stacks and lists at an instant it counts from live ranges, by the rule of
:mod:`overlap_sched.judge.validate`: a storage is live from position ``first`` to ``last`` of an order, both included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overlap_sched.problem import Order
from overlap_sched.report.words.verdict import InShort


@dataclass(frozen=True)
class PageNodes:
    """Columns, indexed by node id; ``op``, ``group`` and ``module`` count in lists of their own (-1: none, not known).

    ``collective`` is, of a wait, the id of its collective (-1: not a wait, or launched before this graph).
    """

    name: tuple[str, ...]
    kind: tuple[str, ...]
    op: tuple[int, ...]
    group: tuple[int, ...]
    module: tuple[int, ...]
    collective: tuple[int, ...]


@dataclass(frozen=True)
class PageStorages:
    """Columns, one row per storage that is ever live; ``kind`` counts in :attr:`Page.memory_kinds`.

    ``maker`` is the id of the node that allocates it.
    """

    bytes: tuple[int, ...]
    kind: tuple[int, ...]
    maker: tuple[int, ...]


@dataclass(frozen=True)
class PageGraph:
    """What an order is of; ``marked`` are ids of nodes that rewrites make of it, or that they have made."""

    nodes: PageNodes
    storages: PageStorages
    marked: tuple[int, ...]


@dataclass(frozen=True)
class PageRun:
    """One order in time.

    Attributes:
        title: ``original``, ``scheduled``, or what the one beside them is called.
        graph: Number in :attr:`Page.graphs`.
        step_us, exposed_us, peak_bytes: Its figures, unrounded. peak_at: the first position at the peak.
        order: Node ids in the order run.
        at_us: Per position, when the compute stream reached the node.
        start_us, finish_us: Per node id, when it ran (a collective: on its stream; a wait: reached, and left).
        first, last: Per row of :class:`PageStorages`, the positions between which it is live, both included.
        flights: (row of :class:`PageStorages`, first, last): where a collective in flight holds it.
    """

    title: str
    graph: int
    step_us: float
    exposed_us: float
    peak_bytes: int
    peak_at: int
    order: Order
    at_us: tuple[float, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    flights: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CollectiveRow:
    """One row of the table.

    Attributes:
        node: Its id in the scheduled graph. bytes, time_us: as of the problem.
        before: Ids in the original graph of what it stands for: itself, or what was rewritten to it.
        earlier: By how many positions it is launched sooner than originally (negative: later).
        original_exposed_us, exposed_us, hidden_us: stalls at its waits, before and after; time under compute.
        causes: Of its stalls: (number in :attr:`Page.causes`, microseconds).
        why: What kept it from being hidden better, on a line. more: Why it is launched there, and what memory refused.
    """

    node: int
    before: tuple[int, ...]
    bytes: int
    time_us: float
    earlier: int
    original_exposed_us: float
    exposed_us: float
    hidden_us: float
    causes: tuple[tuple[int, float], ...]
    why: str
    more: str


@dataclass(frozen=True)
class RewriteRow:
    """One rewrite: what it did, bought and costs, in words; ``node`` is what it launches in the scheduled graph.

    ``node`` is -1 where it launches nothing of its own.
    """

    words: str
    node: int


@dataclass(frozen=True)
class FrontierPoint:
    """An order by its peak and step; ``name``: ``original``, ``scheduled``, that of the one beside, or empty."""

    peak_bytes: int
    step_us: float
    exposed_us: float
    name: str


@dataclass(frozen=True)
class FrontierData:
    """What more memory buys.

    Attributes:
        points: On the frontier, by ascending peak.
        others: The orders of this page.
    """

    points: tuple[FrontierPoint, ...]
    others: tuple[FrontierPoint, ...]


@dataclass(frozen=True)
class Page:
    """Everything.

    Attributes:
        figures: The object that ``plan --json`` prints, as far as a schedule tells it.
        verdict: What came of it.
        columns, summary: Headings and rows of the table of figures.
        groups: By what they are for, in the order of rows.
        colours: By name; ``groups``, ``memory`` and ``orders`` are lists: as :attr:`groups`, :attr:`memory_kinds` and
            :attr:`runs`.
        legend: (words, colour) of the streams.
        causes: (words, microseconds, number of collectives), the most expensive first.
        graphs: That of the original order first; only one where nothing was rewritten.
        runs: The original order, the scheduled one, and one beside them if there is one.
        rewrites, tried: What was rewritten; (what, result) of each plan that was tried.
        frontier: ``None``: not computed.
        left: The heading, then (rewrite, step without it) of each that was left out; none: none was.
    """

    figures: Mapping[str, Any]
    verdict: InShort
    columns: tuple[str, ...]
    summary: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]
    budget_bytes: int
    ops: tuple[str, ...]
    modules: tuple[str, ...]
    groups: tuple[str, ...]
    colours: Mapping[str, str | Sequence[str]]
    legend: tuple[tuple[str, str], ...]
    memory_kinds: tuple[str, ...]
    in_flight: int
    causes: tuple[tuple[str, float, int], ...]
    graphs: tuple[PageGraph, ...]
    runs: tuple[PageRun, ...]
    collectives: tuple[CollectiveRow, ...]
    rewrites: tuple[RewriteRow, ...]
    tried: tuple[tuple[str, str], ...]
    frontier: FrontierData | None
    left: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries, keys as the attributes."""
        return asdict(self)
