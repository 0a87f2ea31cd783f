"""What TorchInductor never puts into memory: values that live inside of one kernel, by the prediction of fusion."""

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from overlap_sched.cost.fusion.loop_nests import loop_nests
from overlap_sched.cost.fusion.merging import merged
from overlap_sched.cost.fusion.steps import Rules, Step
from overlap_sched.fx.collectives import Role
from overlap_sched.fx.costs import is_free
from overlap_sched.fx.fusion_steps import rules_for, steps_of
from overlap_sched.fx.graph_hazards import graph_hazards
from overlap_sched.fx.groups import name_and_group
from overlap_sched.fx.operator_traits import NO_CALL
from overlap_sched.fx.reader import read_graph
from overlap_sched.problem import Problem


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


def _unwritten(steps: Sequence[Step | None], rules: Rules) -> list[int]:
    nests = loop_nests(steps, rules)
    kernels = merged(nests, rules)
    kernel_of = {nest.step: kernel for nest, kernel in zip(nests, kernels, strict=True)}
    written = {nest.step for nest in nests if nest.kept or nest.space is None}
    for nest, kernel in zip(nests, kernels, strict=True):
        written.update(read.value for read in nest.reads if kernel_of.get(read.value) != kernel)
    return [v for v, step in enumerate(steps) if step is not None and v not in written]
