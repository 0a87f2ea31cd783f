"""Which process groups shard parameters: they gather what goes into the graph and reduce what comes out of it.

FSDP gathers a parameter that at most a cast has touched, and its reduce_scatter of a gradient goes straight to an
output. Tensor and expert parallel collectives stand between matmuls. So a group counts as one that shards if at least
half of its collectives have no other collective and only a short path of compute on their outer side.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

SHORT = 6
"""Compute steps on a path that still counts as none: casts, padding, copies."""
_FAR = 1 << 30


class DataflowNode(NamedTuple):
    """A node of a graph: what it takes, whether it does anything, and, of a collective, its operator and group."""

    inputs: Sequence[int]
    works: bool
    op: str = ""
    group: str = ""


def sharding_groups(steps: Sequence[DataflowNode]) -> set[str]:
    """Names of the groups; the steps in an order in which inputs come first. Linear."""
    before = _depths(steps, range(len(steps)), [step.inputs for step in steps])
    users: list[list[int]] = [[] for _ in steps]
    for v, step in enumerate(steps):
        for u in step.inputs:
            users[u].append(v)
    after = _depths(steps, range(len(steps) - 1, -1, -1), users)
    outer: dict[str, list[bool]] = {}
    for v, step in enumerate(steps):
        if step.group:
            depths = [before[u] for u in step.inputs] if "gather" in step.op else [after[u] for u in users[v]]
            moves = "gather" in step.op or "reduce" in step.op
            outer.setdefault(step.group, []).append(moves and max(depths, default=0) <= SHORT)
    return {group for group, found in outer.items() if 2 * sum(found) >= len(found)}


def _depths(steps: Sequence[DataflowNode], order: Iterable[int], before: Sequence[Sequence[int]]) -> list[int]:
    depths = [0] * len(steps)
    for v in order:
        own = _FAR if steps[v].group else int(steps[v].works)
        depths[v] = min(max((depths[u] for u in before[v]), default=0) + own, _FAR)
    return depths
