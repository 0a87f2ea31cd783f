"""Several collectives become one: what a bucket makes of a problem.

The nodes and their names are listed in :mod:`overlap_sched.transform.rewrites`; this is what they hold::

    copied, all_gather                      ids of storages
      in       allocates the inputs, packed; uses each input            the inputs may die here
      b        allocates all results, packed; uses `in`                 both live until the wait
      copy_i   allocates result i; uses the packed results              these die with the last copy

    copied, reduce_scatter and all_reduce   the same, without copies behind: results are parts of one storage,
                                            which lives as long as any of them
    coalesced                               b allocates each result, and uses each input until its last wait
"""

from collections.abc import Sequence

from overlap_sched.problem import Kind, Node, NodeId
from overlap_sched.problem.node import StorageId
from overlap_sched.transform.draft import Draft, unique
from overlap_sched.transform.members import Alike, Member, awaited, check_alike, launched, member, replaced
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket

VIEW, SLICE, GETITEM = "aten.view.default", "aten.slice.Tensor", "getitem"
WAIT = "_c10d_functional.wait_tensor.default"
CAT, CLONE = "aten.cat.default", "aten.clone.default"


def bucketed(draft: Draft, bucket: Bucket, prices: Prices, alike: Alike) -> None:
    """Do it.

    Raises:
        RewriteError: The members are not alike, or one cannot be rewritten. (Whether one needs another shows at the
            end: :meth:`Draft.finished`.)
    """
    members = [member(draft, name) for name in bucket.members]
    check_alike([(one.node.name, _shared(one.node, alike)) for one in members])
    if bucket.form == "coalesced":
        outs = _coalesced(draft, bucket.name, members, prices)
    else:
        outs = _copied(draft, bucket.name, members, prices)
    for one, out in zip(members, outs, strict=True):
        replaced(draft, one, out)


def _shared(node: Node, alike: Alike) -> dict[str, object]:
    """Return what members must share."""
    return {
        "operator": node.op,
        "process group": node.group,
        "type and reduction": alike.get(node.name, ""),
    }


def _coalesced(draft: Draft, name: str, members: Sequence[Member], prices: Prices) -> list[NodeId]:
    at = max(draft.at[one.v] for one in members)
    deps = unique(u for one in members for u in one.inputs)
    takes = unique(s for one in members for s in one.takes)
    gives = unique(one.gives for one in members if one.gives is not None)
    launch = _launch(draft, name, f"{members[0].node.op}_coalesced", members, prices, (deps, takes, gives, at))
    outs = []
    for i, one in enumerate(members):
        given = () if one.gives is None else (one.gives,)
        place = min(draft.at[w] for w in one.waits)
        get = draft.add(Node(f"{name}_get_{i}", Kind.COMPUTE, (launch,), (), gives, op=GETITEM), place)
        wait = Node(f"{name}_out_{i}", Kind.WAIT, (get,), (), unique((*takes, *given)), op=WAIT, collective=launch)
        outs.append(awaited(draft, wait, _finish_us(draft, launch, prices), place))
    return outs


def _copied(draft: Draft, name: str, members: Sequence[Member], prices: Prices) -> list[NodeId]:
    at = max(draft.at[one.v] for one in members)
    op = members[0].node.op
    views = [
        draft.add(
            Node(
                f"{name}_{'rows' if 'scatter' in op else 'flat'}_{i}", Kind.COMPUTE, one.inputs, (), one.takes, op=VIEW
            ),
            at,
        )
        for i, one in enumerate(members)
    ]
    takes = unique(s for one in members for s in one.takes)
    taken, given = sum(one.taken_bytes for one in members), sum(one.given_bytes for one in members)
    packed = (draft.storage(taken),) if takes or members[0].gives is not None else ()
    result = (draft.storage(given),) if members[0].gives is not None else ()
    copy_us = prices.copy_us(CAT, 2 * taken)
    copy = Node(f"{name}_in", Kind.COMPUTE, tuple(views), packed, takes, copy_us, CAT, bytes=2 * taken)
    source = draft.add(copy, at)
    launch = _launch(draft, name, op, members, prices, ((source,), packed, result, at))
    first = min(draft.at[w] for one in members for w in one.waits)
    ended = Node(f"{name}_wait", Kind.WAIT, (launch,), (), (*packed, *result), op=WAIT, collective=launch)
    wait = awaited(draft, ended, _finish_us(draft, launch, prices), first)
    unpack = _copied_out if "gather" in op else _parts
    return unpack(draft, name, members, prices, (wait, result))


def _copied_out(
    draft: Draft, name: str, members: Sequence[Member], prices: Prices, source: tuple[NodeId, tuple[StorageId, ...]]
) -> list[NodeId]:
    """Results of a gather: n rows, one of each rank, in which member i has some columns."""
    wait, packed = source
    rows = draft.add(Node(f"{name}_rows", Kind.COMPUTE, (wait,), (), packed, op=VIEW), draft.at[wait])
    outs = []
    for i, one in enumerate(members):
        at, moved = min(draft.at[w] for w in one.waits), 2 * one.given_bytes
        given = () if one.gives is None else (one.gives,)
        part = draft.add(Node(f"{name}_part_{i}", Kind.COMPUTE, (rows,), (), packed, op=SLICE), at)
        us = prices.copy_us(CLONE, moved)
        copy = draft.add(Node(f"{name}_copy_{i}", Kind.COMPUTE, (part,), given, packed, us, CLONE, bytes=moved), at)
        outs.append(draft.add(Node(f"{name}_out_{i}", Kind.COMPUTE, (copy,), (), given, op=VIEW), at))
    return outs


def _parts(
    draft: Draft, name: str, members: Sequence[Member], prices: Prices, source: tuple[NodeId, tuple[StorageId, ...]]
) -> list[NodeId]:
    """Results that are contiguous parts of one storage: who used a member's result uses all of it."""
    wait, packed = source
    outs = []
    for i, one in enumerate(members):
        at = min(draft.at[w] for w in one.waits)
        part = draft.add(Node(f"{name}_part_{i}", Kind.COMPUTE, (wait,), (), packed, op=SLICE), at)
        outs.append(draft.add(Node(f"{name}_out_{i}", Kind.COMPUTE, (part,), (), packed, op=VIEW), at))
        if one.gives is not None:
            draft.rehouse(one.gives, packed[0])
    return outs


def _launch(
    draft: Draft,
    name: str,
    op: str,
    members: Sequence[Member],
    prices: Prices,
    where: tuple[tuple[NodeId, ...], tuple[StorageId, ...], tuple[StorageId, ...], float],
) -> NodeId:
    """The one collective; ``where``: its deps, what it uses, what it allocates, its place."""
    deps, takes, gives, at = where
    nbytes, group = sum(one.node.bytes for one in members), members[0].node.group
    assert group is not None
    facts = draft.groups[group]
    deps = launched(draft, name, deps, prices.launch_us(op, nbytes, facts), at)
    us = prices.collective_us(op, nbytes, facts)
    return draft.add(Node(name, Kind.COLLECTIVE, deps, gives, takes, us, op, group, bytes=nbytes), at)


def _finish_us(draft: Draft, launch: NodeId, prices: Prices) -> float:
    node = draft.node(launch)
    return prices.finish_us(node.op, node.bytes, draft.groups[node.group or ""])
