"""Several collectives become one: what a bucket makes of an FX graph.

The nodes and their names are listed in :mod:`overlap_sched.transform.rewrites`. A gather's result has a row for each
rank, in which member i has some columns; a reduce_scatter's input the same, and so each rank's result has the members
one after the other::

    shards of rank r     a_r, b_r                          gradients    a (n rows), b (n rows)
    packed               a_r b_r                           packed       a_0 b_0 a_1 b_1 ...  (a row for each rank)
    gathered             a_0 b_0 a_1 b_1 ...               scattered    a_r b_r
    copied               a_0 a_1 ..., b_0 b_1 ...          parts        a_r, b_r
"""

from collections.abc import Sequence

import torch
from torch import fx

from overlap_sched.fx.rewrites.backends import check_coalesced
from overlap_sched.fx.rewrites.draft import GraphDraft, kept_whole
from overlap_sched.fx.rewrites.exactness import check_exact
from overlap_sched.fx.rewrites.sites import (
    ATEN,
    C10D,
    GETITEM,
    WAIT,
    Site,
    check_offsets,
    check_same_value,
    ranges,
    site,
)
from overlap_sched.transform.members import check_alike
from overlap_sched.transform.rewrites import Bucket


def bucket(draft: GraphDraft, rewrite: Bucket) -> None:
    """Do it.

    Raises:
        RewriteError: The members are not alike, or one cannot be rewritten. (Whether one needs another shows when the
            nodes are sorted: :meth:`~overlap_sched.fx.rewrites.draft.GraphDraft.sorted`.)
    """
    members = [site(draft, name) for name in rewrite.members]
    check_alike([(one.node.name, _shared(one)) for one in members])
    for one in members:
        check_exact(one.node.name, one.op, one.reduction, one.taken.dtype, one.ranks)
    if rewrite.form == "coalesced":
        check_coalesced(rewrite.name, members[0])
        first, outs = _coalesced(draft, rewrite.name, members)
    else:
        check_offsets(draft, members)
        first, outs = _copied(draft, rewrite.name, members)
    for one, out in zip(members, outs, strict=True):
        stand_in(draft, one, first, out)


def stand_in(draft: GraphDraft, one: Site, first: fx.Node, out: fx.Node) -> None:
    """Users of a collective's waits take ``out`` instead; it and its waits go.

    Args:
        draft: The graph.
        one: The collective.
        first: The new node that reads its input first.
        out: What is its result now.

    Raises:
        RewriteError: The new result is not laid out as the old one is.
    """
    for wait in one.waits:
        check_same_value(one.node.name, wait, out)
        draft.replace(wait, out)
        draft.remove(wait, first, out)
    draft.remove(one.node, first, out)


def _shared(one: Site) -> dict[str, object]:
    """Return what members must share."""
    return {
        "operator": one.op,
        "process group": one.group_name,
        "type and reduction": one.kind,
        "device": str(one.taken.device),
        "number of ranks": one.ranks,
    }


def _coalesced(draft: GraphDraft, name: str, members: Sequence[Site]) -> tuple[fx.Node, list[fx.Node]]:
    like, target = members[0].node, getattr(C10D, f"{members[0].op}_coalesced").default
    at = max(draft.at[one.node] for one in members)
    launch = draft.call(name, target, ([one.source for one in members], *members[0].rest), at, like)
    outs = []
    for i, one in enumerate(members):
        place = draft.at[one.waits[0]]
        get = draft.call(f"{name}_get_{i}", GETITEM, (launch, i), place, one.node)
        outs.append(draft.call(f"{name}_out_{i}", WAIT, (get,), place, one.node))
    return launch, outs


def _copied(draft: GraphDraft, name: str, members: Sequence[Site]) -> tuple[fx.Node, list[fx.Node]]:
    like, op, ranks = members[0].node, members[0].op, members[0].ranks
    at = max(draft.at[one.node] for one in members)
    scatters = op == "reduce_scatter_tensor"
    views = []
    for i, one in enumerate(members):
        shape = [ranks, one.given.numel()] if scatters else [one.taken.numel()]
        named = f"{name}_{'rows' if scatters else 'flat'}_{i}"
        views.append(draft.call(named, ATEN.view.default, (one.source, shape), at, one.node))
    packed = kept_whole(draft.call(f"{name}_in", ATEN.cat.default, (views, int(scatters)), at, like))
    launch = draft.call(name, like.target, (packed, *members[0].rest), at, like)
    first = min(draft.at[one.waits[0]] for one in members)
    wait = draft.call(f"{name}_wait", WAIT, (launch,), first, like)
    outs = (
        _columns(draft, name, members, wait) if op == "all_gather_into_tensor" else _parts(draft, name, members, wait)
    )
    return packed, outs


def _columns(draft: GraphDraft, name: str, members: Sequence[Site], wait: fx.Node) -> list[fx.Node]:
    ranks, total = members[0].ranks, sum(one.taken.numel() for one in members)
    rows = draft.call(f"{name}_rows", ATEN.view.default, (wait, [ranks, total]), draft.at[wait], members[0].node)
    outs = []
    for i, (one, (begin, end)) in enumerate(zip(members, ranges([m.taken.numel() for m in members]), strict=True)):
        at, like = draft.at[one.waits[0]], one.node
        part = draft.call(f"{name}_part_{i}", ATEN.slice.Tensor, (rows, 1, begin, end), at, like)
        contiguous = {"memory_format": torch.contiguous_format}
        copy = kept_whole(draft.call(f"{name}_copy_{i}", ATEN.clone.default, (part,), at, like, contiguous))
        outs.append(draft.call(f"{name}_out_{i}", ATEN.view.default, (copy, list(one.given.shape)), at, like))
    return outs


def _parts(draft: GraphDraft, name: str, members: Sequence[Site], wait: fx.Node) -> list[fx.Node]:
    outs, dim = [], int(members[0].op == "reduce_scatter_tensor")  # it gives one row
    for i, (one, (begin, end)) in enumerate(zip(members, ranges([m.given.numel() for m in members]), strict=True)):
        at = draft.at[one.waits[0]]
        part = draft.call(f"{name}_part_{i}", ATEN.slice.Tensor, (wait, dim, begin, end), at, one.node)
        outs.append(draft.call(f"{name}_out_{i}", ATEN.view.default, (part, list(one.given.shape)), at, one.node))
    return outs
