"""Several collectives become one, or one several: what buckets and splits make of an FX graph.

The nodes are those of :mod:`overlap_sched.transform.recipes`.
"""

from collections.abc import Sequence

import torch
from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.backends import check_coalesced, check_exact
from overlap_sched.fx.rewrites.draft import GraphDraft, kept_whole
from overlap_sched.fx.rewrites.sites import ATEN, C10D, GETITEM, WAIT, Site, check_offsets, check_same_value, site
from overlap_sched.transform import recipes
from overlap_sched.transform.members import check_alike
from overlap_sched.transform.rewrites import Bucket, Split


def bucket(draft: GraphDraft, rewrite: Bucket) -> None:
    """Make one of several, where they are alike; whether one needs another shows in :meth:`GraphDraft.sorted`."""
    members = [site(draft, name) for name in rewrite.members]
    check_alike([(one.node.name, _shared(one)) for one in members])
    for one in members:
        check_exact(one.node.name, one.op, one.reduction, one.taken.dtype, one.ranks)
    if rewrite.form == "coalesced":
        check_coalesced(rewrite.name, members[0])
        recipe = recipes.coalesced
    else:
        check_offsets(draft, members)
        recipe = recipes.copied
    first, outs = recipe(_GraphMaker(draft), rewrite.name, members)
    for one, out in zip(members, outs, strict=True):
        _stand_in(draft, one, first, out)


def split(draft: GraphDraft, rewrite: Split) -> None:
    """Make several of one."""
    one = site(draft, rewrite.collective)
    check_exact(one.node.name, one.op, one.reduction, one.taken.dtype, one.ranks)
    if not 2 <= rewrite.parts <= one.columns:
        raise RewriteError(
            f"{rewrite.collective!r} has {one.columns} elements per rank and is to be split into {rewrite.parts} "
            "parts: there must be 2 parts or more, none of them empty."
        )
    first, out = recipes.split(_GraphMaker(draft), rewrite.name, one, rewrite.parts)
    _stand_in(draft, one, first, out)


def _stand_in(draft: GraphDraft, one: Site, first: fx.Node, out: fx.Node) -> None:
    """Users of a collective's waits take ``out`` instead; ``first`` is the new node that reads its input first."""
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


class _GraphMaker:
    """Makes the nodes of :mod:`overlap_sched.transform.recipes`; columns are elements per rank."""

    def __init__(self, draft: GraphDraft) -> None:
        self.draft = draft

    def source(self, one: Site) -> fx.Node:
        return one.source

    def view(self, name: str, of: fx.Node, shape: recipes.Shape, at: float, like: Site) -> fx.Node:
        whole = of.meta["val"].numel()
        sizes = [whole] if shape == "flat" else list(like.given.shape)
        if shape == "rows":
            assert like.ranks is not None
            sizes = [like.ranks, whole // like.ranks]
        return self.draft.call(name, ATEN.view.default, (of, sizes), at, like.node)

    def piece(self, name: str, of: fx.Node, dim: int, columns: tuple[int, int], at: float, like: Site) -> fx.Node:
        return self.draft.call(name, ATEN.slice.Tensor, (of, dim, *columns), at, like.node)

    def copy(self, name: str, of: fx.Node, at: float, like: Site, *, result: bool = False) -> fx.Node:
        contiguous = {"memory_format": torch.contiguous_format}
        return kept_whole(self.draft.call(name, ATEN.clone.default, (of,), at, like.node, contiguous))

    def cat(
        self, name: str, of: Sequence[fx.Node], dim: int, at: float, like: Site, *, result: bool = False
    ) -> fx.Node:
        return kept_whole(self.draft.call(name, ATEN.cat.default, (list(of), dim), at, like.node))

    def launch(self, name: str, of: fx.Node, members: Sequence[Site], at: float, columns: int | None = None) -> fx.Node:
        like = members[0]
        return self.draft.call(name, like.node.target, (of, *like.rest), at, like.node)

    def coalesced(self, name: str, members: Sequence[Site], at: float) -> fx.Node:
        target = getattr(C10D, f"{members[0].op}_coalesced").default
        return self.draft.call(name, target, ([one.source for one in members], *members[0].rest), at, members[0].node)

    def got(self, name: str, launch: fx.Node, i: int, like: Site) -> fx.Node:
        return self.draft.call(name, GETITEM, (launch, i), like.place, like.node)

    def wait(self, name: str, of: fx.Node, at: float, like: Site) -> fx.Node:
        return self.draft.call(name, WAIT, (of,), at, like.node)
