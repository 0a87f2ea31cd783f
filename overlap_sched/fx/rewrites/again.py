"""Gathers kept or repeated, collectives on a second communicator: what that makes of an FX graph.

To keep a gathered tensor or gather it again needs that it and the shard stay as they are: nothing writes to either. A
communicator must be there, on all ranks, before a graph is rewritten:
:func:`overlap_sched.distributed.second_communicators`.
"""

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.errors import RewriteError
from overlap_sched.fx.calls import GROUPS_KEY, live_ranks
from overlap_sched.fx.operators import Arg, Role, traits_of
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.known import shares_storage
from overlap_sched.fx.rewrites.recompute import copied
from overlap_sched.fx.rewrites.sites import ATEN, WAIT, Site, check_same_value, site
from overlap_sched.transform.rewrites import Keep, Regather, Stream, second_group

_WHOLE: frozenset[Any] = frozenset({
    ATEN._to_copy.default, ATEN.alias.default, ATEN.detach.default, ATEN.view.default,
    torch.ops.prims.convert_element_type.default,
})  # fmt: skip
"""The operators of :data:`overlap_sched.transform.again.WHOLE`."""


def keep(draft: GraphDraft, rewrite: Keep) -> None:
    """Drop the later gather: its users take the first one's result. Casts that were made for it alone go, too."""
    first, again = check_keep(draft, rewrite)
    kept = first.waits[0]
    for wait in again.waits:
        draft.replace(wait, kept)
        draft.remove(wait, kept, kept)
    draft.remove(again.node, kept, kept)
    source = again.source
    while source is not first.source and _looked_through(source) and not draft.users(source):
        draft.remove(source, kept, kept)
        source = source.all_input_nodes[0]


def check_keep(draft: GraphDraft, rewrite: Keep) -> tuple[Site, Site]:
    """The first gather and the later one, where they are of the same, and one result may stand for both."""
    first, again = _gather(draft, rewrite.first), _gather(draft, rewrite.again)
    names = f"{rewrite.first!r} and {rewrite.again!r}"
    alike = (first.group_name, first.rest) == (again.group_name, again.rest)
    if first.node is again.node or not alike or not _same(draft, first.source, again.source):
        raise RewriteError(f"{names} are not two gathers of one tensor in one group.")
    if draft.at[first.node] > draft.at[again.node]:
        raise RewriteError(f"{rewrite.again!r} is gathered before {rewrite.first!r}: name them in their order.")
    if draft.facts.returned(first.waits[0]) and draft.facts.returned(again.waits[0]):
        raise RewriteError(f"the graph returns the results of {names}: one tensor must not stand for both.")
    for wait in again.waits:
        check_same_value(rewrite.again, wait, first.waits[0])
    return first, again


def _same(draft: GraphDraft, one: fx.Node, other: fx.Node) -> bool:
    """Tell whether two nodes give the same value: one node, or casts and views of one, with the same arguments.

    Nothing writes to what they look at (:func:`_gather` asks that of the last), or what does comes after both.
    """
    while one is not other:
        if not (_looked_through(one) and _looked_through(other)) or one.target is not other.target:
            return False
        if (one.args[1:], one.kwargs) != (other.args[1:], other.kwargs):
            return False
        if draft.next_writers(one) != draft.next_writers(other):
            return False
        one, other = one.all_input_nodes[0], other.all_input_nodes[0]
    return True


def _looked_through(node: fx.Node) -> bool:
    return node.target in _WHOLE and len(node.all_input_nodes) == 1


def regather(draft: GraphDraft, rewrite: Regather) -> None:
    """Let some users of a gather's result, or of views of it, use a fresh gather of the same tensor."""
    one, views, users = check_regather(draft, rewrite)
    at = min(draft.at[user] for user in users)
    launch = draft.call(rewrite.name, one.node.target, (one.source, *one.rest), at, one.node)
    wait = draft.call(f"{rewrite.name}_wait", WAIT, (launch,), at, one.node)
    check_same_value(rewrite.gather, one.waits[0], wait)
    new = dict.fromkeys(one.waits, wait)
    for view in views:
        new[view] = copied(draft, view, rewrite.new_name(view.name), new, at)
    for old, made in new.items():
        draft.replace(old, made, [user for user in users if old in user.all_input_nodes])


def check_regather(draft: GraphDraft, rewrite: Regather) -> tuple[Site, list[fx.Node], list[fx.Node]]:
    """The gather, the views and the users, where these use it, and others do, too."""
    one = _gather(draft, rewrite.gather)
    views = [draft.find(name) for name in rewrite.views]
    for view in views:
        if draft.impure(view) or not any(shares_storage(view, wait) for wait in one.waits):
            raise RewriteError(f"{view.name!r} is no view of what {rewrite.gather!r} gives.")
    sources = [*one.waits, *views]
    users = [draft.find(name) for name in rewrite.users]
    for user in users:
        if user.op == "output" or not any(source in user.all_input_nodes for source in sources):
            raise RewriteError(f"{user.name!r} does not use a wait of {rewrite.gather!r}, or is the graph's output.")
    if not users or len(set(users)) < len(users):
        raise RewriteError(f"{rewrite.gather!r} is to be gathered again for {len(users)} users: name each once.")
    if all(user in users or user in views for source in sources for user in draft.users(source)):
        raise RewriteError(f"gathering {rewrite.gather!r} again needs users for both: some, and not all.")
    return one, views, users


def _gather(draft: GraphDraft, name: str) -> Site:
    one = site(draft, name)
    if one.op != "all_gather_into_tensor":
        raise RewriteError(f"{name!r} is {one.op!r}: only gathers are kept or gathered again.")
    if draft.written(one.source):
        raise RewriteError(f"something writes to the input of {name!r}: a later gather of it may give something else.")
    return one


def stream(draft: GraphDraft, rewrite: Stream) -> None:
    """Let a collective run in the second group of its ranks."""
    node, argument, group = check_stream(draft, rewrite)
    carried = _carried(draft)
    if group in carried:
        carried[second_group(group)] = carried[group]
    draft.set_argument(node, argument, second_group(group))


def check_stream(draft: GraphDraft, rewrite: Stream) -> tuple[fx.Node, Arg, str]:
    """The launch, where it takes its group, and the group, where that has a second communicator."""
    node = draft.find(rewrite.collective)
    argument = _group_argument(node)
    group = None if argument is None else argument.of(node.args, node.kwargs)
    if not isinstance(group, str) or argument is None:
        raise RewriteError(f"{rewrite.collective!r} does not name its process group: it must stay there.")
    if group.endswith(second_group("")):
        raise RewriteError(f"{rewrite.collective!r} is on a second communicator already, {group!r}.")
    if draft.facts.sends(group):
        raise RewriteError(f"process group {group!r} also sends or receives: its order must stay.")
    second, ranks = second_group(group), live_ranks(group)
    if group not in _carried(draft) and ranks is not None and live_ranks(second) != ranks:
        raise RewriteError(
            f"there is no second communicator {second!r}. Make it on all ranks before compiling: "
            "overlap_sched.distributed.second_communicators()."
        )
    return node, argument, group


def _carried(draft: GraphDraft) -> dict[str, Any]:
    """The groups that the graph of a dump carries along."""
    found: dict[str, Any] = getattr(draft.graph.owning_module, "meta", {}).get(GROUPS_KEY) or {}
    return found


def _group_argument(node: fx.Node) -> Arg | None:
    """Where a functional collective takes its group; ``None``: it is none."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return None
    comm = traits_of(node.target).comm
    if comm is None or comm.role is not Role.LAUNCH or comm.point_to_point:
        return None
    names = [argument.name for argument in node.target._schema.arguments]
    return Arg((names.index("group_name"), "group_name")) if "group_name" in names else None
