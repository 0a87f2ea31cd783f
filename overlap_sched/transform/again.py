"""A gathered parameter is kept for its next use, or gathered again; a collective goes to a second stream.

Two nodes give the same value, as far as a problem tells, where they are the same source, looked at and cast in the same
way. A parameter that is gathered twice is cast twice, too, where a graph was not freed of repetitions::

    w -> cast   -> gather   -> mm ...           forward
    w -> cast_1 -> gather_1 -> mm ...           backward: `cast_1` gives what `cast` gives
"""

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.members import WAIT, Member, awaited, launched, member, replaced
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recompute import again, is_view, moved
from overlap_sched.transform.rewrites import Keep, Regather, Stream, second_group

WHOLE = (
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.view.default",
    "prims.convert_element_type.default",
)
"""Operators that give all elements of their one input, in their order; types and shapes a graph must compare."""

Origin = tuple[NodeId, tuple[tuple[str, int], ...]]
"""A node that is looked through no further; then operators and bytes of what lies behind it, the last first."""


def origin(draft: Draft, v: NodeId) -> Origin:
    """Where a value comes from. Nodes of equal origin give the same."""
    steps = []
    while looked_through(draft, v):
        node = draft.node(v)
        steps.append((node.op, sum(draft.storages[s].bytes for s in node.alloc)))
        (v,) = node.deps
    return v, tuple(steps)


def looked_through(draft: Draft, v: NodeId) -> bool:
    """Tell whether a node is one of :data:`WHOLE`; what must also come after others may see what they write."""
    node = draft.node(v)
    return node.kind is Kind.COMPUTE and node.op in WHOLE and len(node.deps) == 1


def kept(draft: Draft, keep: Keep) -> None:
    """Let users of the later gather use the first one's wait and result; what was cast for it alone goes, too."""
    first, again = _gather(draft, keep.first), _gather(draft, keep.again)
    if first.v == again.v or given(draft, first) != given(draft, again):
        raise RewriteError(f"{keep.first!r} and {keep.again!r} do not gather the same input in the same group.")
    replaced(draft, again, first.waits[0])
    if again.gives is not None and first.gives is not None:
        draft.rehouse(again.gives, first.gives)
    for u in again.inputs:
        _remove_unused(draft, u)


def given(draft: Draft, one: Member) -> tuple[object, ...]:
    """Return what a gather gives, as far as a problem tells: equal for gathers of the same."""
    return one.node.op, one.node.group, tuple(origin(draft, u) for u in one.inputs)


def _remove_unused(draft: Draft, v: NodeId) -> None:
    """A cast that nothing uses any more goes, and so do those that it was made of."""
    while looked_through(draft, v) and not draft.after(v):
        (before,) = draft.node(v).deps
        draft.remove(v)
        v = before


def gathered_again(draft: Draft, wanted: Regather, prices: Prices) -> None:
    """Some users of a gather's result, or of views of it, use a fresh one, launched for them.

    Views behind the users (what uses the same storage and comes after one of them alone) go with them.
    """
    one = _gather(draft, wanted.gather)
    views = [draft.find(name) for name in wanted.views]
    for v in views:
        if not is_view(draft.node(v)) or one.gives not in draft.node(v).use:
            raise RewriteError(f"{draft.node(v).name!r} is no view of what {wanted.gather!r} gives.")
    behind = {u for w in (*one.waits, *views) for u in draft.after(w)}.difference(views)
    users = [draft.find(name) for name in wanted.users]
    for u in users:
        if u not in behind:
            raise RewriteError(f"{draft.node(u).name!r} does not use a wait of {wanted.gather!r}.")
    if not users or len(set(users)) == len(behind):
        raise RewriteError(f"gathering {wanted.gather!r} again needs users for both: some, and not all.")
    name, node, group = wanted.name, one.node, one.node.group or ""
    at = min(draft.at[u] for u in users)
    house = {} if one.gives is None else {one.gives: draft.storage(draft.storages[one.gives].bytes)}
    fresh = tuple(house.values())
    work = node.op, node.bytes, draft.groups[group]
    deps = launched(draft, name, one.inputs, prices.launch_us(*work), at)
    launch = draft.add(node._replace(name=name, deps=deps, alloc=fresh), at)
    use = tuple(dict.fromkeys((*one.takes, *fresh)))
    ended = Node(f"{name}_wait", Kind.WAIT, (launch,), (), use, op=WAIT, collective=launch)
    wait = awaited(draft, ended, prices.finish_us(*work), at)
    new = dict.fromkeys(one.waits, wait)
    for v in views:
        new[v] = again(draft, v, wanted.new_name(draft.node(v).name), new, house, at)
    moved(draft, users, new, house)


def streamed(draft: Draft, stream: Stream) -> None:
    """Let a collective run in a second group of the same ranks."""
    v = draft.find(stream.collective)
    group = draft.node(v).group
    if group is None:
        raise RewriteError(f"{stream.collective!r} is no collective: it has no stream to leave.")
    if group.endswith(second_group("")):
        raise RewriteError(f"{stream.collective!r} is on the second communicator {group!r} already.")
    draft.set_group(v, second_group(group))


def _gather(draft: Draft, name: str) -> Member:
    one = member(draft, name)
    if "gather" not in one.node.op:
        raise RewriteError(f"{name!r} is {one.node.op!r}: only what is gathered is kept or gathered again.")
    return one
