"""Look for the cut that answers a question. Torch's own is the first, and stays where nothing better is found.

::

    over the limit      run more again: choices along torch's order, cut, judged; aimed lower while it does not fit
    within the limit    gathers that were to run again are kept, those of the last layers first, while it fits

Torch's partitioner makes every cut; what it makes is priced by our judges. How much is tried is counted, never timed.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from overlap_sched.cost.fusion import FusionRules, FusionStep, find_loop_nests, merge_nests
from overlap_sched.fit.answer import Question
from overlap_sched.fit.greedy import Greedy, rewrites_of
from overlap_sched.fit.state import LiveState
from overlap_sched.fit.tuning import TUNING
from overlap_sched.fx import lift
from overlap_sched.fx.calls import name_and_group
from overlap_sched.fx.costs import Fusion, is_free
from overlap_sched.fx.fusion import rules_for, steps_of
from overlap_sched.fx.hazards import graph_hazards
from overlap_sched.fx.lifting import STAYS, Lifted
from overlap_sched.fx.operators import NO_CALL, Role
from overlap_sched.fx.reading import read_graph
from overlap_sched.fx.rewrites import rerunnable
from overlap_sched.joint.graphs import copy_of, draws, inputs_of, joined, mark, note_what_stays, returned, runs_again
from overlap_sched.options import Options, on_devices
from overlap_sched.problem import Problem
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.scheduler.driver import schedule
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.transform.rewrites import Recompute
from overlap_sched.transform.search import Limit, halve

Partitioner = Callable[[fx.GraphModule], tuple[fx.GraphModule, fx.GraphModule]]
"""Cuts a joint graph, which it changes."""


@dataclass(frozen=True)
class Judge:
    """How halves are priced.

    Attributes:
        options: With which they will be scheduled.
        fusion: ``"inductor"`` where it compiles them: what stays inside of its kernels then takes no memory.
        lifting: Further arguments of :func:`overlap_sched.fx.lift`: ``model``, ``cluster`` and so on.
        outputs: How many values forward gives to its caller; what follows is saved.
    """

    options: Options
    fusion: Fusion
    lifting: Mapping[str, Any]
    outputs: int

    def lifted(self, gm: fx.GraphModule, name: str) -> tuple[Problem, Lifted]:
        """The problem of a graph."""
        found = lift(gm, name=name, fusion=self.fusion, **self.lifting)
        if self.fusion == "none":
            return found.problem, found
        return without_registers(found.problem, in_registers(gm.graph)), found


@dataclass(frozen=True)
class Whole:
    """Both halves as one problem.

    Attributes:
        problem: Forward, then backward.
        late: Names of its nodes of backward.
        may_run_again: Names of those of forward that may.
        in_registers: Names of those whose values take no memory.
    """

    problem: Problem
    late: frozenset[str]
    may_run_again: frozenset[str]
    in_registers: frozenset[str]


@dataclass(frozen=True)
class Marks:
    """What torch's partitioner is told, by names of nodes of the joint graph.

    Attributes:
        again: These run again in backward.
        kept: These do not, although the model's author had asked for it.
    """

    again: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JointCut:
    """Two halves.

    Attributes:
        marks: With which they were cut.
        forward, backward: Graphs. outputs: as of :class:`Judge`.
        step_us: Of both, in the best order found for each. peak_bytes: the higher one, with what lies outside of the
            graph that runs: inputs that backward does not take, what forward has returned.
        saved_bytes: Of all that backward takes of what forward has computed.
    """

    marks: Marks
    forward: fx.GraphModule
    backward: fx.GraphModule
    step_us: float
    peak_bytes: int
    saved_bytes: int


def cut(joint: fx.GraphModule, partitioner: Partitioner, marks: Marks, judge: Judge) -> JointCut:
    """Cut a copy of a joint graph.

    Raises:
        Exception: What torch's partitioner raises, where what must run again cannot.
    """
    gm = copy_of(joint)
    mark(gm, sorted(marks.again), sorted(marks.kept))
    forward, backward = partitioner(gm)
    front, _ = judge.lifted(forward, "forward")
    note_what_stays(forward, backward)
    back, found = judge.lifted(backward, "backward")
    options = on_devices(replace(judge.options, rewrites=(), memory_limit=None), found.devices)
    plans = [schedule(problem, options).scheduled for problem in (front, back)]
    outside = _outside(forward, backward, front, judge.outputs)
    peak = max(plans[0].peak_bytes, plans[1].peak_bytes + outside)
    return JointCut(marks, forward, backward, sum(one.step_us for one in plans), peak, _saved(backward, back))


def _outside(forward: fx.GraphModule, backward: fx.GraphModule, front: Problem, outputs: int) -> int:
    """Bytes that are there while backward runs and that it does not take."""
    taken = {node.name for node in inputs_of(backward.graph)}
    given = [node.name for node in returned(forward.graph)[:outputs] if node is not None]
    held = dict.fromkeys([*(node.name for node in inputs_of(forward.graph)), *given])
    of_name = {node.name: node for node in front.nodes}
    stored = _storages(of_name, front, held)
    return sum(front.storages[s].bytes for s in stored - _storages(of_name, front, taken))


def _storages(of_name: Mapping[str, Any], problem: Problem, names: Collection[str]) -> set[int]:
    return {s for name in names if name in of_name for s in of_name[name].alloc or of_name[name].use[:1]}


def _saved(backward: fx.GraphModule, back: Problem) -> int:
    inputs = [node for node in inputs_of(backward.graph) if STAYS not in node.meta]
    names = {node.name for node in inputs if not node.name.startswith("tangents")}
    return sum(back.storages[s].bytes for node in back.nodes if node.name in names for s in node.alloc)


def whole(one: JointCut, judge: Judge) -> Whole:
    """Both halves as one problem, in torch's order; times and bytes are those of the halves by themselves."""
    gm, late = joined(one.forward, one.backward, judge.outputs)
    halves = [judge.lifted(half, "half")[0] for half in (one.forward, one.backward)]
    us = {node.name: node.time_us for node in halves[0].nodes}
    us |= {late[node.name]: node.time_us for node in halves[1].nodes if node.name in late}
    found = lift(gm, name="joint", **{**judge.lifting, "cost": lambda node: us.get(node.name)})
    none = set(in_registers(one.forward.graph))
    none |= {late[name] for name in in_registers(one.backward.graph) if name in late}
    problem = without_registers(found.problem, frozenset(none)) if judge.fusion == "inductor" else found.problem
    seeded = {node.name for node in gm.graph.nodes if draws(node)}
    return Whole(problem, frozenset(late.values()), rerunnable(gm) - set(late.values()) - seeded, frozenset(none))


def in_registers(graph: fx.Graph) -> frozenset[str]:
    """Names of the nodes whose values no kernel writes: inlined where they are read, or read in their kernel alone."""
    reading = read_graph(graph)
    traits = reading.traits
    comms = [v for v, t in enumerate(traits) if t.comm is not None and t.comm.role is not Role.WAIT]
    after = graph_hazards(reading, {v: name_and_group(reading.nodes[v])[0] for v in comms})
    calls = [v for v, t in enumerate(traits) if t is not NO_CALL and t.comm is None]
    free = {v for v in calls if is_free(reading, v)}
    rules = rules_for(reading)
    return frozenset(reading.nodes[v].name for v in _unwritten(steps_of(reading, free, after, rules), rules))


def without_registers(problem: Problem, names: frozenset[str]) -> Problem:
    """The problem with no bytes for what these nodes make."""
    none = {s for node in problem.nodes if node.name in names for s in node.alloc}
    storages = tuple(one._replace(bytes=0) if s in none else one for s, one in enumerate(problem.storages))
    return replace(problem, storages=storages)


def _unwritten(steps: Sequence[FusionStep | None], rules: FusionRules) -> list[int]:
    nests = find_loop_nests(steps, rules)
    kernels = merge_nests(nests, rules)
    kernel_of = {nest.step: kernel for nest, kernel in zip(nests, kernels, strict=True)}
    written = {nest.step for nest in nests if nest.kept or nest.space is None}
    for nest, kernel in zip(nests, kernels, strict=True):
        written.update(read.value for read in nest.reads if kernel_of.get(read.value) != kernel)
    return [v for v, step in enumerate(steps) if step is not None and v not in written]


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
        names = {node.name for node in self.joint.graph.nodes}
        for high in TUNING.high if len(self.whole.problem.nodes) <= TUNING.large_nodes else TUNING.high[1:]:
            aim = limit
            for _ in range(TUNING.joint_cuts):
                found = self.cut(Marks(chosen(self.whole, aim, high) & names))
                over = limit if found is None else found.peak_bytes - limit
                if over <= 0 or aim <= 0:
                    break
                aim -= over

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

        halve(0, self.before.peak_bytes, reach, TUNING.joint_cuts)


def _better(one: JointCut, before: JointCut, limit_bytes: int) -> bool:
    """Tell whether a cut fits, and torch's own does not or takes longer."""
    if one.peak_bytes > limit_bytes:
        return False
    return before.peak_bytes > limit_bytes or one.step_us < before.step_us * (1 - SAME_STEP)


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
    nodes, inlined = whole.problem.nodes, whole.in_registers & whole.may_run_again
    start = [v for v, node in enumerate(nodes) if node.name in again]
    made_of = find_reachable(start, lambda v: [u for u in nodes[v].deps if nodes[u].name in inlined])
    return frozenset(again | {nodes[v].name for v in made_of})  # torch would save what is in registers in their place


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
    kinds = [{getattr(node.target, "overloadpacket", node.target) for node in group} for group in groups.values()]
    return [
        frozenset(node.name for node in group)
        for group, packets in zip(groups.values(), kinds, strict=True)
        if not packets.isdisjoint(_GATHERS) and packets <= _GATHERS | _BESIDE
    ]
