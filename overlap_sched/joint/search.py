"""Look for the cut that answers a question. Torch's own is the first, and stays where nothing better is found.

::

    over the limit      run more again: choices along torch's order, cut, judged; aimed lower while it does not fit
    within the limit    gathers that were to run again are kept, those of the last layers first, while it fits

How much is tried is counted, never timed.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fit.answer import Question
from overlap_sched.fit.greedy import Greedy, rewrites_of
from overlap_sched.fit.state import LiveState
from overlap_sched.joint.cut import JointCut, Judge, Marks, Partitioner, Whole, cut, whole
from overlap_sched.joint.graphs import runs_again
from overlap_sched.transform.rewrites import Recompute
from overlap_sched.transform.search import Limit, halve

AIMS = 6
"""How often choices are made anew, lower, where what they make is above the limit after all."""
HALVINGS = 5
"""Of the range of limits, for the question of steps."""
HIGH = (0.5, 0.0)
"""See :class:`overlap_sched.fit.greedy.Greedy`. Which is better shows afterwards."""
LEAST = 100
"""What is aimed lower by, at least: this part of the limit."""
LARGE = 4_000
"""Of larger graphs one of them is tried."""
SHORTER = 1e-3
"""What is shorter by less than this part is not shorter: torch's own cut stays."""


@dataclass(frozen=True)
class JointSearchResult:
    """The answer.

    Attributes:
        best: The cut to use. before: torch's own.
        limit_bytes, limit_us: As asked for; ``None``: the question was the other one.
        lowest_bytes: The lowest peak of all cuts that were tried.
        tried: How many.
    """

    best: JointCut
    before: JointCut
    limit_bytes: int | None
    limit_us: float | None
    lowest_bytes: int
    tried: int

    @property
    def fits(self) -> bool:
        """Tell whether the best cut keeps to the limit."""
        return self.limit_bytes is None or self.best.peak_bytes <= self.limit_bytes


def fit_joint(joint: fx.GraphModule, partitioner: Partitioner, judge: Judge, question: Question) -> JointSearchResult:
    """Cut a joint graph, which stays as it is, within a limit; where nothing fits, torch's own cut.

    Raises:
        Exception: Torch's own cut fails, or cannot be read.
    """
    search = _JointSearch(joint, partitioner, judge)
    before = search.before
    limit = question.limit(before.peak_bytes, before.step_us)
    if limit.us is not None:
        search.lower(limit)
    elif limit.bytes is not None:
        (search.within if before.peak_bytes > limit.bytes else search.keep)(limit.bytes)
    best = limit.best(search.cuts.values())
    if limit.bytes is not None and not _better(best, before, limit.bytes):
        best = before
    lowest = min(one.peak_bytes for one in search.cuts.values())
    return JointSearchResult(best, before, limit.bytes, limit.us, lowest, len(search.cuts))


@dataclass
class _JointSearch:
    """Cuts that have been made, by their marks."""

    joint: fx.GraphModule
    partitioner: Partitioner
    judge: Judge
    cuts: dict[Marks, JointCut] = field(default_factory=dict)
    refused: set[Marks] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before = cut(self.joint, self.partitioner, Marks(), self.judge)
        self.cuts[Marks()] = self.before

    @cached_property
    def whole(self) -> Whole:
        """Both halves of torch's own cut."""
        return whole(self.before, self.judge)

    def cut(self, marks: Marks) -> JointCut | None:
        """A cut; ``None``: torch's partitioner finds none."""
        if marks not in self.cuts and marks not in self.refused:
            try:
                self.cuts[marks] = cut(self.joint, self.partitioner, marks, self.judge)
            except Exception:  # as torch's: a graph of infinite capacity, assertions
                self.refused.add(marks)
        return self.cuts.get(marks)

    def within(self, limit: int) -> None:
        """Run more again."""
        ways = HIGH if len(self.whole.problem.nodes) <= LARGE else HIGH[:1]
        names = {node.name for node in self.joint.graph.nodes}
        for high in ways:
            aim = limit
            for _ in range(AIMS):
                again = chosen(self.whole, aim, high) & names
                found = self.cut(Marks(again))
                over = limit if found is None else found.peak_bytes - limit
                if over <= 0 or aim <= 0:
                    break
                aim -= max(over, limit // LEAST)

    def keep(self, limit: int) -> None:
        """Keep gathers: as many as fit, those of the last layers."""
        groups = gathers_again(self.joint)

        def fits(count: int) -> bool:
            found = self.cut(Marks(kept=frozenset().union(*groups[len(groups) - count :])))
            return found is not None and found.peak_bytes <= limit

        if groups and not fits(len(groups)):
            bisect_left(range(len(groups) - 1, 0, -1), True, key=fits)

    def lower(self, limit: Limit) -> None:
        """The lowest peak within a step limit, by halving the range of memory limits."""

        def reach(middle: int) -> int:
            self.within(middle)
            return limit.best(self.cuts.values()).peak_bytes

        halve(0, self.before.peak_bytes, reach, HALVINGS)


def _better(one: JointCut, before: JointCut, limit_bytes: int) -> bool:
    """Tell whether a cut fits, and torch's own does not or takes longer by more than a little."""
    if one.peak_bytes > limit_bytes:
        return False
    return before.peak_bytes > limit_bytes or one.step_us <= before.step_us * (1 - SHORTER)


def chosen(whole: Whole, limit_bytes: int, high: float) -> frozenset[str]:
    """Names of the nodes of forward that run again in backward, so that what is live fits into a limit, or nearly.

    Args:
        whole: Both halves.
        limit_bytes: What is live at most.
        high: See :class:`overlap_sched.fit.greedy.Greedy`.
    """
    state = LiveState(whole.problem, limit_bytes, whole.may_run_again)
    Greedy(state, None, None, ("recompute",), 0.0, high).run()
    late = set(whole.late)
    again: set[str] = set()
    for one in rewrites_of(state):
        if isinstance(one, Recompute) and late.intersection(one.users):
            again.update(name for name in one.nodes if name not in whole.late)
            late.update(one.new_name(name) for name in one.nodes)
    return frozenset(_with_inlined(whole, again))


def _with_inlined(whole: Whole, again: set[str]) -> set[str]:
    """And what lives in registers only, of which these are made: torch would save it in their place."""
    nodes, found = whole.problem.nodes, set(again)
    todo = [v for v, node in enumerate(nodes) if node.name in again]
    while todo:
        for v in nodes[todo.pop()].deps:
            name = nodes[v].name
            if name in whole.in_registers and name in whole.may_run_again and name not in found:
                found.add(name)
                todo.append(v)
    return found


_FUNCTIONAL, _ATEN = torch.ops._c10d_functional, torch.ops.aten
_GATHERS: frozenset[Any] = frozenset(
    packet
    for name in ("", "_coalesced", "_out", "_single")
    if (packet := getattr(_FUNCTIONAL, f"all_gather_into_tensor{name}", None)) is not None
)
"""Not all are in every version of torch."""
_BESIDE: frozenset[Any] = frozenset({
    _ATEN._to_copy, _ATEN._unsafe_view, _ATEN.alias, _ATEN.cat, _ATEN.clone, _ATEN.constant_pad_nd, _ATEN.contiguous,
    _ATEN.detach, _ATEN.expand, _ATEN.permute, _ATEN.reshape, _ATEN.slice, _ATEN.squeeze, _ATEN.t, _ATEN.transpose,
    _ATEN.unsqueeze, _ATEN.view, _FUNCTIONAL.wait_tensor, torch.ops.prims.convert_element_type,
})  # fmt: skip
"""Operators that belong to a gather: types, padding, views."""


def gathers_again(gm: fx.GraphModule) -> list[frozenset[str]]:
    """Per checkpoint that is one gather and nothing that computes: names of its nodes; in the order of the graph.

    As :func:`overlap_sched.distributed.shard` makes them with ``reshard_after_forward``. AOTAutograd numbers
    checkpoints (``node.meta["ac_graph_id"]``).
    """
    groups: dict[int, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and runs_again(node) and "ac_graph_id" in node.meta:
            groups.setdefault(node.meta["ac_graph_id"], []).append(node)
    return [frozenset(node.name for node in group) for group in groups.values() if _is_gather(group)]


def _is_gather(group: list[fx.Node]) -> bool:
    packets = {_packet(node) for node in group}
    return not packets.isdisjoint(_GATHERS) and packets <= _GATHERS | _BESIDE


def _packet(node: fx.Node) -> Any:
    """The operator, whatever its overload; what is none stands for itself."""
    return node.target.overloadpacket if isinstance(node.target, OpOverload) else node.target
