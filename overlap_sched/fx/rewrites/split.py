"""One collective becomes several, of nearly equal parts: what a split makes of an FX graph.

The inverse of a copied bucket; the nodes are listed in :mod:`overlap_sched.transform.rewrites`. Every rank cuts its
shard (of a reduce_scatter: each of its n rows) at the same places, and the results are put together again column by
column, so that every element is back where it was.
"""

import torch
from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.bucket import stand_in
from overlap_sched.fx.rewrites.draft import GraphDraft, kept_whole
from overlap_sched.fx.rewrites.exactness import check_exact
from overlap_sched.fx.rewrites.sites import ATEN, WAIT, Site, ranges, site
from overlap_sched.transform.rewrites import Split


def split(draft: GraphDraft, rewrite: Split) -> None:
    """Do it.

    Raises:
        RewriteError: The collective cannot be rewritten, or cut into so many parts.
    """
    one = site(draft, rewrite.collective)
    check_exact(one.node.name, one.op, one.reduction, one.taken.dtype, one.ranks)
    columns = one.given.numel() if one.op == "reduce_scatter_tensor" else one.taken.numel()
    if not 2 <= rewrite.parts <= columns:
        raise RewriteError(
            f"{rewrite.collective!r} has {columns} elements per rank and is to be split into {rewrite.parts} parts: "
            "there must be 2 parts or more, none of them empty."
        )
    first, out = _split(draft, rewrite, one, columns)
    stand_in(draft, one, first, out)


def _split(draft: GraphDraft, rewrite: Split, one: Site, columns: int) -> tuple[fx.Node, fx.Node]:
    name, like = rewrite.name, one.node
    at, place = draft.at[one.node], draft.at[one.waits[0]]
    scatters, gathers = one.op == "reduce_scatter_tensor", one.op == "all_gather_into_tensor"
    shape = [one.ranks, columns] if scatters else [columns]
    whole = draft.call(f"{name}_{'rows' if scatters else 'flat'}", ATEN.view.default, (one.source, shape), at, like)
    parts = []
    for p, (begin, end) in enumerate(ranges(even(columns, rewrite.parts))):
        part = draft.call(f"{name}_part_{p}", ATEN.slice.Tensor, (whole, int(scatters), begin, end), at, like)
        if scatters:
            contiguous = {"memory_format": torch.contiguous_format}
            part = kept_whole(draft.call(f"{name}_in_{p}", ATEN.clone.default, (part,), at, like, contiguous))
        launch = draft.call(f"{name}_{p}", like.target, (part, *one.rest), at, like)
        done = draft.call(f"{name}_wait_{p}", WAIT, (launch,), place, like)
        if gathers:
            done = draft.call(f"{name}_rows_{p}", ATEN.view.default, (done, [one.ranks, end - begin]), place, like)
        parts.append(done)
    copy = kept_whole(draft.call(f"{name}_copy", ATEN.cat.default, (parts, int(scatters or gathers)), place, like))
    return whole, draft.call(f"{name}_out", ATEN.view.default, (copy, list(one.given.shape)), place, like)


def even(columns: int, parts: int) -> list[int]:
    """As equal parts as can be, the first ones one larger: ``even(7, 3)`` -> ``[3, 2, 2]``."""
    each, more = divmod(columns, parts)
    return [each + (p < more) for p in range(parts)]
