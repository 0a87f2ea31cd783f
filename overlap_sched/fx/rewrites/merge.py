"""Several products become one: what a merge makes of an FX graph.

The nodes and their names are listed in :mod:`overlap_sched.transform.merge`.
"""

from collections.abc import Sequence

import torch
from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.draft import Draft, kept_whole
from overlap_sched.fx.rewrites.sites import ALIGNMENT, ATEN, check_same_value, layout, ranges
from overlap_sched.transform.merge import Merge, check_merge

MM = ATEN.mm.default


def merge(draft: Draft, rewrite: Merge) -> None:
    """Do it.

    Raises:
        RewriteError: A member is no such product, or something writes to what would be put together or taken apart.
            (Whether one needs another shows when the nodes are sorted.)
    """
    check_merge(rewrite)
    members = [draft.find(name) for name in rewrite.members]
    for i, node in enumerate(members):
        _check_member(draft, rewrite, i, node)
        if draft.facts.written(node) or draft.facts.by_address(node) or draft.hazards.has(node):
            raise RewriteError(
                f"{node.name!r} is written to, looked at by its address, or must come after what it does not take: it "
                "stays a product of its own."
            )
    _check_alike(draft, rewrite, members)
    _Merging(draft, rewrite, members).run()


def _check_member(draft: Draft, rewrite: Merge, i: int, node: fx.Node) -> None:
    named = (rewrite.left[i], rewrite.right[i])
    taken = tuple(getattr(one, "name", "") for one in node.args)
    if node.target is not MM or taken != named:
        raise RewriteError(f"{node.name!r} is no product of {named[0]!r} and {named[1]!r}.")
    values = [one.meta.get("val") for one in (node, *node.args)]
    if not all(type(value) is FakeTensor and all(type(size) is int for size in value.shape) for value in values):
        raise RewriteError(f"{node.name!r} has operands whose shapes are not known.")
    result, left = values[0], values[1]
    said = (rewrite.rows[i], rewrite.columns[i], rewrite.inner, rewrite.item_bytes)
    found = (*result.shape, left.shape[1], result.dtype.itemsize)
    if said != found:
        raise RewriteError(f"{node.name!r} has rows, columns, inner size and bytes {found}, not {said}.")
    if rewrite.form == "rows" and rewrite.rows[i] * rewrite.columns[i] * rewrite.item_bytes % ALIGNMENT:
        raise RewriteError(f"the result of {node.name!r} is no multiple of {ALIGNMENT} bytes: the next starts askew.")


def _check_alike(draft: Draft, rewrite: Merge, members: Sequence[fx.Node]) -> None:
    """One type and device; and what goes in once is one value."""
    kinds = {(node.meta["val"].dtype, node.meta["val"].device) for node in members}
    if len(kinds) > 1:
        raise RewriteError(f"a merge of {', '.join(rewrite.members)}: they have several types or devices.")
    for side, names in enumerate((rewrite.left, rewrite.right)):
        if rewrite.shared == ("left", "right")[side]:
            first, *others = [draft.find(name) for name in names]
            for other in others:
                if other is not first and (draft.facts.written(first) or not same_value(first, other)):
                    raise RewriteError(f"{other.name!r} is not the value of {first.name!r}, which would go in for it.")


def same_value(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes give one tensor, as two views of one storage do; where nothing writes to it."""
    here, there = one.meta["val"], other.meta["val"]
    same = here.untyped_storage()._cdata == there.untyped_storage()._cdata
    return bool(same and here.storage_offset() == there.storage_offset() and layout(here) == layout(there))


class _Merging:
    """What is carried along while one merge is done."""

    def __init__(self, draft: Draft, rewrite: Merge, members: Sequence[fx.Node]) -> None:
        self.draft, self.rewrite, self.members = draft, rewrite, members
        self.at, self.like = max(draft.at[node] for node in members), members[0]
        self.left, self.right = ([draft.find(name) for name in names] for names in (rewrite.left, rewrite.right))

    def run(self) -> None:
        """Operands, the product, results; the members go."""
        first, product = self._product()
        for i, node in enumerate(self.members):
            out = self._out(i, product)
            check_same_value(node.name, node, out)
            self.draft.stand_in(node, out)
            self.draft.remove(node, first, product)

    def _product(self) -> tuple[fx.Node, fx.Node]:
        """What reads the operands first, and the product."""
        name = self.rewrite.name
        if self.rewrite.form == "batched":
            left, right = self._side("left", self.left), self._side("right", self.right)
            return left, self._call(name, ATEN.bmm.default, (left, right))
        if self.rewrite.form == "rows":
            copy = self._copy(f"{name}_in", ATEN.cat.default, (self.left, 0))
            return copy, self._call(name, MM, (copy, self.right[0]))
        copy = self._copy(f"{name}_in", ATEN.cat.default, (self.right, 1))
        return copy, self._call(name, MM, (self.left[0], copy))

    def _side(self, side: str, operands: list[fx.Node]) -> fx.Node:
        name = f"{self.rewrite.name}_{side}"
        if side != self.rewrite.shared:
            return self._copy(name, ATEN.stack.default, (operands,))
        one = self._call(f"{self.rewrite.name}_one", ATEN.unsqueeze.default, (operands[0], 0))
        shape = [len(operands), *operands[0].meta["val"].shape]
        return self._call(name, ATEN.expand.default, (one, shape))

    def _out(self, i: int, product: fx.Node) -> fx.Node:
        rewrite, name = self.rewrite, f"{self.rewrite.name}_out_{i}"
        if rewrite.form == "batched":
            return self._call(name, ATEN.select.int, (product, 0, i))
        if rewrite.form == "rows":
            return self._call(name, ATEN.slice.Tensor, (product, 0, *ranges(rewrite.rows)[i]))
        part = self._call(f"{rewrite.name}_part_{i}", ATEN.slice.Tensor, (product, 1, *ranges(rewrite.columns)[i]))
        contiguous = {"memory_format": torch.contiguous_format}
        return kept_whole(self.draft.call(name, ATEN.clone.default, (part,), self.at, self.like, contiguous))

    def _copy(self, name: str, target: object, args: tuple[object, ...]) -> fx.Node:
        return kept_whole(self._call(name, target, args))

    def _call(self, name: str, target: object, args: tuple[object, ...]) -> fx.Node:
        made = self.draft.call(name, target, args, self.at, self.like)
        self.draft.stands_beside(made, *self.members)
        return made
