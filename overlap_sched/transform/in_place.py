"""A result is written over what it was made of: what that makes of a problem, and where it can be done.

::

    zeros -> g = index_put(zeros, at, rows)     copies all of zeros, writes rows: both live at once
    zeros -> index_put_(zeros, at, rows)        writes rows; what g was is where zeros are

Whoever else looks at the first input must have done so before: that becomes a dependency.

In place, the copy is neither read nor written, and of the rows that are written no more is touched than is given with
them. So it moves at most three times what it takes besides: once for that, and as much read and written where it
belongs. The time is the node's own, by what the cost model says of these bytes beside what it says of the node's, as of
parts (:mod:`overlap_sched.transform.in_parts`), and never longer. A graph lifted again may know of fewer bytes.
"""

from collections.abc import Iterable

from overlap_sched.cost.model import Compute
from overlap_sched.errors import RewriteError
from overlap_sched.problem import OF_HOST, Kind, Node, NodeId, Problem, StorageId
from overlap_sched.problem.precedence import reached
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recompute import is_view, writes
from overlap_sched.transform.rewrites import InPlace

COPYING = (
    "aten.index_add.default",
    "aten.index_copy.default",
    "aten.index_put.default",
    "aten.scatter.reduce",
    "aten.scatter.src",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
)
"""Operators that copy their first input and then write rows, or elements, of the copy."""


def written_over(draft: Draft, wanted: InPlace, prices: Prices) -> None:
    """Let a node write over its first input, and who used the result use that; refused, the draft is as it was."""
    v, over = draft.find(wanted.node), draft.find(wanted.over)
    old, new = _storages(draft, v, over)
    others = [w for w in draft.users(new) if w != v]
    _check_others(draft, v, over, new, others)
    node = draft.node(v)
    moved, us = _in_place(node, draft.storages[new].bytes, prices)
    before = [w for w in others if draft.node(w).kind is not Kind.COLLECTIVE]  # of those, their waits
    deps = tuple(dict.fromkeys((*node.deps, *before)))
    draft.become(v, node._replace(op=in_place_op(node.op), deps=deps, alloc=(), bytes=moved, time_us=us))
    draft.rehouse(old, new)


def in_place_op(op: str) -> str:
    """``"aten.index_put.default"`` -> ``"aten.index_put_.default"``."""
    namespace, name, overload = op.split(".")
    return f"{namespace}.{name}_.{overload}"


def what_is_written(name: str, op: str) -> str:
    """Say what is written by a node that is none of :data:`COPYING`."""
    return f"{name!r} is {op!r}: what can be written in place is {', '.join(COPYING)}."


def _storages(draft: Draft, v: NodeId, over: NodeId) -> tuple[StorageId, StorageId]:
    """Return what the node makes, and what it is to write over."""
    node, given = draft.node(v), draft.node(over)
    if node.kind is not Kind.COMPUTE or node.op not in COPYING:
        raise RewriteError(what_is_written(node.name, node.op or node.kind.value))
    if given.kind is not Kind.COMPUTE or given.op in OF_HOST or len(given.alloc) != 1:
        raise RewriteError(f"{given.name!r} makes no storage of its own, or several: it cannot be written over.")
    if over not in node.deps or given.alloc[0] not in node.use:
        raise RewriteError(f"{node.name!r} does not take {given.name!r}.")
    held = [draft.storages[s].bytes for s in (*node.alloc, *given.alloc)]
    if len(node.alloc) != 1 or held[0] != held[1]:
        raise RewriteError(
            f"{node.name!r} makes {sum(held[:-1]):,} bytes and {given.name!r} {held[-1]:,}: only what is as large can "
            "be written over."
        )
    if any(draft.storages[s].pinned for s in (*node.alloc, *given.alloc)):
        raise RewriteError(f"{node.name!r} or {given.name!r} is never freed: each stays where it is.")
    return node.alloc[0], given.alloc[0]


def _check_others(draft: Draft, v: NodeId, over: NodeId, s: StorageId, others: Iterable[NodeId]) -> None:
    """Check that all others that look at a storage can come before the node that is to write over it."""
    name, given = draft.node(v).name, draft.node(over).name
    behind: set[NodeId] | None = None

    def behind_it(u: NodeId) -> Iterable[NodeId]:
        return (*draft.after(u), *(w for s in draft.node(u).alloc for w in draft.users(s)))

    for w in others:
        other = draft.node(w)
        if other.kind is Kind.OUTPUT:
            raise RewriteError(f"{given!r} is given to {other.name!r}: it must stay as it is.")
        if writes(other):
            raise RewriteError(f"{other.name!r} writes to {given!r}, too: it can be written over once.")
        if other.kind is Kind.COLLECTIVE and not draft.waits(w):
            raise RewriteError(f"a collective that reads {given!r} is not waited for: it must stay as it is.")
        if w in draft.node(v).deps and is_view(other):
            raise RewriteError(f"{name!r} also takes {given!r} through {other.name!r}: it would read what it writes.")
        behind = reached([v], behind_it) if behind is None else behind
        if w in behind:
            raise RewriteError(f"{other.name!r} takes {given!r} and comes after {name!r}, which would have changed it.")


def _in_place(node: Node, whole_bytes: int, prices: Prices) -> tuple[int, float]:
    """Return what a node moves in place, and how long that takes; as before where it may not move both copies."""
    beside = node.bytes - 2 * whole_bytes
    moved = min(3 * beside, node.bytes)
    if beside < 0:
        return node.bytes, node.time_us
    before = prices.model.compute_us(Compute(node.op, node.flops, node.bytes))
    after = prices.model.compute_us(Compute(in_place_op(node.op), node.flops, moved))
    return moved, node.time_us * after / before if after < before else node.time_us


def places(problem: Problem) -> list[InPlace]:
    """List what might be written in place: the last first, so that each still makes what a later one is written over.

    Of several inputs as large, each is listed: a graph knows which comes first.
    """
    nodes, found = problem.nodes, list[InPlace]()
    for node in reversed(nodes):
        if node.op in COPYING and len(node.alloc) == 1:
            whole = problem.storages[node.alloc[0]].bytes
            makers = [nodes[u] for u in node.deps if nodes[u].kind is Kind.COMPUTE and len(nodes[u].alloc) == 1]
            same = [maker for maker in makers if problem.storages[maker.alloc[0]].bytes == whole]
            found += [InPlace(node.name, maker.name) for maker in same]
    return found


def legal_together(problem: Problem, wanted: Iterable[InPlace], prices: Prices) -> list[InPlace]:
    """Keep those of these, one after the other, that are legal with the ones before."""
    draft, done = Draft(problem, problem.original_order), list[InPlace]()
    for one in wanted:
        try:
            written_over(draft, one, prices)
        except RewriteError:
            continue
        done.append(one)
    return done


def saved_us(problem: Problem, prices: Prices) -> float:
    """No rewrites of this kind take more off the compute stream."""
    over = {one.node for one in places(problem)}
    nodes = [node for node in problem.nodes if node.name in over]
    return sum(node.time_us - _in_place(node, problem.storages[node.alloc[0]].bytes, prices)[1] for node in nodes)
