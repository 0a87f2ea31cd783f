"""One collective becomes several of nearly equal parts: what a split makes of a problem.

The nodes and their names are listed in :mod:`overlap_sched.transform.rewrites`. Parts of a gather's input are views of
it; a reduce_scatter's are columns, which are copied. Results are put together by a copy.
"""

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId
from overlap_sched.problem.node import StorageId
from overlap_sched.transform.bucket import CAT, CLONE, SLICE, VIEW, WAIT
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.members import Member, awaited, launched, member, replaced
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Split


def split(draft: Draft, wanted: Split, prices: Prices) -> None:
    """Do it.

    Raises:
        RewriteError: Fewer than two parts, or the collective cannot be rewritten.
    """
    one = member(draft, wanted.collective)
    if wanted.parts < 2:
        raise RewriteError(f"{wanted.collective!r} in {wanted.parts} parts: two at least.")
    name, at, place = wanted.name, draft.at[one.v], min(draft.at[w] for w in one.waits)
    scatters, gathers = "scatter" in one.node.op, "gather" in one.node.op
    view = f"{name}_rows" if scatters else f"{name}_flat"
    source = draft.add(Node(view, Kind.COMPUTE, one.inputs, (), one.takes, op=VIEW), at)
    last: list[NodeId] = []
    results: list[StorageId] = []
    for p, nbytes in enumerate(parts_of(one.node.bytes, wanted.parts)):
        wait, result = _part(draft, one, (f"{name}_", p), (source, nbytes), prices)
        last.append(wait)
        results += result
        if gathers:
            rows = Node(f"{name}_rows_{p}", Kind.COMPUTE, (wait,), (), tuple(result), op=VIEW)
            last[-1] = draft.add(rows, place)
    given = () if one.gives is None else (one.gives,)
    moved = 2 * one.given_bytes
    us = prices.copy_us(CAT, moved)
    copy = Node(f"{name}_copy", Kind.COMPUTE, tuple(last), given, tuple(results), us, CAT, bytes=moved)
    put_together = draft.add(copy, place)
    out = draft.add(Node(f"{name}_out", Kind.COMPUTE, (put_together,), (), given, op=VIEW), place)
    replaced(draft, one, out)


def parts_of(nbytes: int, parts: int) -> list[int]:
    """Bytes of each part: as equal as can be, the first ones larger."""
    return [nbytes // parts + (p < nbytes % parts) for p in range(parts)]


def _part(
    draft: Draft, one: Member, named: tuple[str, int], of: tuple[NodeId, int], prices: Prices
) -> tuple[NodeId, list[StorageId]]:
    """One part: its wait, and the storage of its result (none where it is not counted)."""
    (name, p), (source, nbytes) = named, of
    node, group = one.node, one.node.group or ""
    at, place = draft.at[one.v], min(draft.at[w] for w in one.waits)
    facts, takes = draft.groups[group], one.takes
    part = draft.add(Node(f"{name}part_{p}", Kind.COMPUTE, (source,), (), takes, op=SLICE), at)
    if "scatter" in node.op:
        takes = (draft.storage(nbytes),) if one.gives is not None else ()
        us = prices.copy_us(CLONE, 2 * nbytes)
        copy = Node(f"{name}in_{p}", Kind.COMPUTE, (part,), takes, one.takes, us, CLONE, bytes=2 * nbytes)
        part = draft.add(copy, at)
    given = one.given_bytes * nbytes // node.bytes if node.bytes else 0
    result = [draft.storage(given)] if one.gives is not None else []
    deps = launched(draft, f"{name}{p}", (part,), prices.launch_us(node.op, nbytes, facts), at)
    us = prices.collective_us(node.op, nbytes, facts)
    launch = draft.add(
        Node(f"{name}{p}", Kind.COLLECTIVE, deps, tuple(result), takes, us, node.op, group, bytes=nbytes), at
    )
    use = tuple(dict.fromkeys((*takes, *result)))
    ended = Node(f"{name}wait_{p}", Kind.WAIT, (launch,), (), use, op=WAIT, collective=launch)
    return awaited(draft, ended, prices.finish_us(node.op, nbytes, facts), place), result
