"""In which order a bucket packs its members: that of parameters, as FSDP2's buffers are packed.

Where a sum is taken by several machines, how it is rounded depends on where its summands lie in the buffer. So members
do not lie as they happen to be launched, but as the graph lists the parameters::

    gather    what it gathers is made of one input of the graph      its place among the inputs
    reduce    what it gives becomes one output of the graph          its place among the outputs

AOTAutograd lists gradients as it lists parameters. Members with a place come first, by it; the others, and those of one
place, in the order of the problem.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from overlap_sched.problem import Kind, NodeId, Problem
from overlap_sched.problem.node import OF_HOST

LONGEST = 16
"""So many nodes (casts, pads, views) may lie between a collective and its parameter."""


def packed(members: Iterable[NodeId], places: Mapping[NodeId, int]) -> list[NodeId]:
    """Members by the places of their parameters (:func:`places_of`)."""
    return sorted(members, key=lambda v: (places.get(v, math.inf), v))


def places_of(problem: Problem) -> dict[NodeId, int]:
    """Per collective the place of its parameter among inputs or outputs, where it has one."""
    users: list[list[NodeId]] = [[] for _ in problem.nodes]
    for v, node in enumerate(problem.nodes):
        if node.op not in OF_HOST:
            for u in node.deps:
                users[u].append(v)
    found = {}
    for v in problem.collectives:
        place = _input(problem, v) if "gather" in problem.nodes[v].op else _output(problem, v, users)
        if place is not None:
            found[v] = place
    return found


def _input(problem: Problem, v: NodeId) -> int | None:
    """The input that alone leads to a node."""
    for _ in range(LONGEST):
        before = [u for u in problem.nodes[v].deps if problem.nodes[u].op not in OF_HOST]
        if len(before) != 1 or problem.nodes[before[0]].kind in (Kind.COLLECTIVE, Kind.WAIT):
            return None
        v = before[0]
        if problem.nodes[v].kind is Kind.INPUT:
            return v
    return None


def _output(problem: Problem, v: NodeId, users: Sequence[Sequence[NodeId]]) -> int | None:
    """The place of the output that alone comes of a node."""
    for _ in range(LONGEST):
        if len(users[v]) != 1 or problem.nodes[users[v][0]].kind is Kind.COLLECTIVE:
            return None
        user = problem.nodes[users[v][0]]
        if user.kind is Kind.OUTPUT:
            return user.deps.index(v)
        v = users[v][0]
    return None
