"""A joint graph cut in two by torch's partitioner, and what its halves cost by our judges."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from overlap_sched.cost.fusion import FusionRules, FusionStep, loop_nests, merged
from overlap_sched.fx import lift
from overlap_sched.fx.calls import name_and_group
from overlap_sched.fx.costs import Fusion, is_free
from overlap_sched.fx.fusion import rules_for, steps_of
from overlap_sched.fx.hazards import graph_hazards
from overlap_sched.fx.lifting import STAYS, Lifted
from overlap_sched.fx.operators import NO_CALL, Role
from overlap_sched.fx.reading import read_graph
from overlap_sched.fx.rewrites import rerunnable
from overlap_sched.joint.graphs import copy_of, draws, inputs_of, joined, mark, note_what_stays, returned
from overlap_sched.options import Options, on_devices
from overlap_sched.problem import Problem
from overlap_sched.scheduler.driver import schedule

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

    @property
    def priced(self) -> dict[str, Any]:
        """Arguments of :func:`overlap_sched.fx.lift` for a graph whose nodes have times already."""
        return {name: value for name, value in self.lifting.items() if name != "cost"}

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
    found = lift(gm, name="joint", cost=lambda node: us.get(node.name), **judge.priced)
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
    nests = loop_nests(steps, rules)
    kernels = merged(nests, rules)
    kernel_of = {nest.step: kernel for nest, kernel in zip(nests, kernels, strict=True)}
    written = {nest.step for nest in nests if nest.kept or nest.space is None}
    for nest, kernel in zip(nests, kernels, strict=True):
        written.update(read.value for read in nest.reads if kernel_of.get(read.value) != kernel)
    return [v for v, step in enumerate(steps) if step is not None and v not in written]
