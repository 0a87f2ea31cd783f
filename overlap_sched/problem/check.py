"""The rules of every problem, and the error for the first one that is broken.

Problems are checked when they are made, those of ten thousand nodes too: all checks are linear, without recursion.
"""

import graphlib
from typing import TYPE_CHECKING

from overlap_sched import errors
from overlap_sched.problem.contention import check_contention
from overlap_sched.problem.node import Kind
from overlap_sched.problem.quantities import check_group, check_quantities, check_sums

if TYPE_CHECKING:
    from overlap_sched.problem import Problem


def check_problem(problem: "Problem") -> None:
    """Raise the error for the first rule that the problem breaks; linear, no recursion."""
    if not problem.nodes:
        raise errors.ProblemError(
            f"problem {problem.name!r} has no nodes: there is nothing to schedule. "
            "Was the graph empty when it was captured?"
        )
    if problem.memory_model not in ("runtime", "tracker"):
        raise errors.ProblemError(
            f"problem {problem.name!r}: memory_model is {problem.memory_model!r}; it is 'runtime' or 'tracker'."
        )
    _check_names(problem)
    _check_nodes(problem)
    _check_storages(problem)
    check_quantities(problem)
    for name, group in problem.groups.items():
        check_group(f"group {name!r}", group)
    check_contention(problem.contention, problem.groups)
    check_sums(problem)


def _check_names(problem: "Problem") -> None:
    seen: dict[str, int] = {}
    for v, node in enumerate(problem.nodes):
        first = seen.setdefault(node.name, v)
        if first != v:
            raise errors.ProblemError(
                f"nodes {first} and {v} are both named {node.name!r}. "
                "Orders are lists of names: give each node its own."
            )


def _check_nodes(problem: "Problem") -> None:
    nodes, n = problem.nodes, len(problem.nodes)
    forward = False
    for v, node in enumerate(nodes):
        for u in node.deps:
            if not 0 <= u < n:
                raise errors.ProblemError(
                    f"node {v} ({node.name!r}) depends on node {u}, but ids go from 0 to {n - 1}. "
                    "Was the list of nodes cut short?"
                )
            forward = forward or u >= v
        if node.kind is Kind.COLLECTIVE and node.group not in problem.groups:
            raise errors.ProblemError(
                f"collective {v} ({node.name!r}) runs on group {node.group!r}, which is not among the groups "
                f"{sorted(problem.groups)}. Add it to `groups` with its size."
            )
        if node.launches and node.kind is not Kind.COMPUTE:
            raise errors.ProblemError(
                f"node {v} ({node.name!r}) is of kind {node.kind.value!r} but has `launches`: those are the process "
                "groups on which compute communicates by itself. Make it a compute node or drop `launches`."
            )
        if node.kind is Kind.INPUT and node.deps:
            raise errors.ProblemError(
                f"input {v} ({node.name!r}) has dependencies {list(node.deps)}, but inputs are there from the start. "
                "Make it a compute node or drop them."
            )
        if node.collective is not None:
            _check_wait(problem, v)
            forward = forward or node.collective > v
    if forward:
        _raise_for_forward_dependency(problem)


def _check_wait(problem: "Problem", v: int) -> None:
    nodes, node = problem.nodes, problem.nodes[v]
    launch = node.collective
    if node.kind is not Kind.WAIT:
        raise errors.ProblemError(
            f"node {v} ({node.name!r}) is of kind {node.kind.value!r} but names a collective to wait for. "
            "Only waits do: make it a wait or drop `collective`."
        )
    if launch is None or not 0 <= launch < len(nodes) or nodes[launch].kind is not Kind.COLLECTIVE:
        raise errors.ProblemError(
            f"wait {v} ({node.name!r}) waits for node {launch}, which is not a collective of this problem. "
            "Leave `collective` out where it was launched before this graph."
        )


def _raise_for_forward_dependency(problem: "Problem") -> None:
    """Some node depends on one listed after it: a cycle if one exists, else a bad original order."""
    nodes = problem.nodes
    before = [{*node.deps} | ({node.collective} if node.collective is not None else set()) for node in nodes]
    try:
        graphlib.TopologicalSorter(dict(enumerate(before))).prepare()
    except graphlib.CycleError as error:
        ring = error.args[1]
    else:
        v = next(v for v, b in enumerate(before) if b and max(b) >= v)
        raise errors.ProblemError(
            f"node {v} ({nodes[v].name!r}) is listed before node {max(before[v])} ({nodes[max(before[v])].name!r}), "
            "on which it depends. List the nodes in an order that can run."
        )
    first = ring.index(min(ring))
    ring = [*ring[first:-1], *ring[: first + 1]]
    shown = [nodes[v].name for v in (ring if len(ring) <= 8 else ring[:8])]
    raise errors.ProblemError(
        f"nodes wait for each other in a ring of {len(ring) - 1}: {' -> '.join(shown)}"
        f"{' -> ...' if len(ring) > 8 else ''}. No order can run it: remove one of these dependencies."
    )


def _check_storages(problem: "Problem") -> None:
    nodes, count = problem.nodes, len(problem.storages)
    made_by: list[int | None] = [None] * count
    # inputs are live from the start, wherever they are listed
    listed = sorted(range(len(nodes)), key=lambda v: nodes[v].kind is not Kind.INPUT)
    for v in listed:
        node = nodes[v]
        for s in (*node.alloc, *node.use):
            if not 0 <= s < count:
                raise errors.ProblemError(
                    f"node {v} ({node.name!r}) names storage {s}, but storages go from 0 to {count - 1}. "
                    "Was the list of storages cut short?"
                )
        for s in node.alloc:
            first = made_by[s]
            if first is not None:
                raise errors.ProblemError(
                    f"storage {s} is allocated twice, by {nodes[first].name!r} and by {node.name!r}. "
                    "A storage has one allocation: let the second only use it, or give it a storage of its own."
                )
            made_by[s] = v
    for v, node in enumerate(nodes):
        if len(node.use) > 1 and len(set(node.use)) < len(node.use):
            s = next(s for at, s in enumerate(node.use) if s in node.use[:at])
            raise errors.ProblemError(
                f"node {v} ({node.name!r}) lists storage {s} twice in `use` and would count as two users of it. "
                "List it once."
            )
        for s in node.use:
            maker = made_by[s]
            if maker is None:
                raise errors.ProblemError(
                    f"node {v} ({node.name!r}) uses storage {s}, which no node allocates. "
                    "Add it to the `alloc` of the node that makes it (an input, if it comes from outside)."
                )
            if maker > v:
                raise errors.ProblemError(
                    f"node {v} ({node.name!r}) uses storage {s} before {nodes[maker].name!r} (node {maker}) "
                    "allocates it. "
                    "List the allocating node first."
                )
