"""A result is written over what it was made of: what that makes of an FX graph.

The node calls the in-place overload of its operator, and its value is that of its first argument. Bits stay: the
operator copies its first argument and then does to the copy what the in-place overload does to the argument.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.problem.precedence import reached
from overlap_sched.transform.in_place import COPYING, what_is_written
from overlap_sched.transform.rewrites import InPlace

IN_PLACE: Mapping[Any, Any] = {
    getattr(getattr(torch.ops.aten, name), overload): getattr(getattr(torch.ops.aten, f"{name}_"), overload)
    for _, name, overload in (op.split(".") for op in COPYING)
}
"""Per operator of :data:`overlap_sched.transform.in_place.COPYING` its in-place overload."""


def in_place(draft: GraphDraft, rewrite: InPlace) -> None:
    """Let a node write over its first input."""
    node, over, before = check_in_place(draft, rewrite)
    draft.write_over(node, IN_PLACE[node.target], over)
    for one in before:
        draft.add_hazard(node, one)


def check_in_place(draft: GraphDraft, rewrite: InPlace) -> tuple[fx.Node, fx.Node, list[fx.Node]]:
    """The node, whose whole storage it may be written over, and who must come before."""
    node, over = draft.find(rewrite.node), draft.find(rewrite.over)
    if node.op != "call_function" or node.target not in IN_PLACE:
        op = traits_of(node.target).op if node.op == "call_function" else node.op
        raise RewriteError(what_is_written(node.name, op))
    if not node.args or node.args[0] is not over:
        raise RewriteError(f"{node.name!r} does not take {over.name!r} as its first argument.")
    if not _rows_are_known(node):
        raise RewriteError(
            f"{node.name!r} writes one number: how often, and so how long it takes in place, is not known."
        )
    if not draft.makes_its_own(over):
        raise RewriteError(f"{over.name!r} makes no storage of its own, or several: it cannot be written over.")
    if not draft.makes_its_own(node):
        raise RewriteError(f"{node.name!r} makes no storage of its own: it is in place already.")
    if not _alike_and_whole(node.meta.get("val"), over.meta.get("val")):
        raise RewriteError(f"{node.name!r} and {over.name!r} are not two whole storages of one layout.")
    if draft.facts.returned(over):
        raise RewriteError(f"the graph returns {over.name!r}: it must stay as it is.")
    if draft.written(over):
        raise RewriteError(f"something else writes to {over.name!r}: it can be written over once.")
    return node, over, _others(draft, node, over)


def _rows_are_known(node: fx.Node) -> bool:
    """Tell whether what is written is a tensor with rows (:func:`overlap_sched.fx.costs.untouched_bytes`)."""
    at, name = (2, "values") if node.target is torch.ops.aten.index_put.default else (3, "source")
    source = node.args[at] if len(node.args) > at else node.kwargs.get(name, node.kwargs.get("src"))
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    return isinstance(value, Tensor) and value.dim() > 0


def _alike_and_whole(one: Any, other: Any) -> bool:
    """Tell whether two values are tensors laid out alike, each all of its storage; not where a size is a symbol."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return False
    layouts = [(v.dtype, v.device, tuple(v.shape), tuple(v.stride()), v.storage_offset()) for v in (one, other)]
    numbers = [*one.shape, *other.shape, *one.stride(), *other.stride()]
    if not all(type(number) is int for number in numbers) or layouts[0] != layouts[1] or layouts[0][-1] != 0:
        return False
    return all(v.untyped_storage().nbytes() == v.numel() * v.dtype.itemsize for v in (one, other))


def _others(draft: GraphDraft, node: fx.Node, over: fx.Node) -> list[fx.Node]:
    """Others that look at what is to be written over, and waits of collectives that read it: all can come before."""
    others = [one for one in draft.lookers(over) if one is not node]
    if sum(arg is over for arg in _flat(node)) > 1:
        raise RewriteError(f"{node.name!r} takes {over.name!r} twice: it would read what it writes.")
    for one in node.all_input_nodes:
        if one is not over and draft.looks_at(one, over):
            raise RewriteError(
                f"{node.name!r} also takes {over.name!r} through {one.name!r}: it would read what it writes."
            )
    if draft.facts.left_in_flight(over):
        raise RewriteError(f"a collective that reads {over.name!r} is not waited for: it must stay as it is.")
    behind = reached([node], draft.users)
    for one in others:
        if one in behind:
            raise RewriteError(
                f"{one.name!r} takes {over.name!r} and comes after {node.name!r}, which would have changed it."
            )
    return others


def _flat(node: fx.Node) -> list[fx.Node]:
    taken: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), taken.append)
    return taken
