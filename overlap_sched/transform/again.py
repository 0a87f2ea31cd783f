"""A gathered parameter is kept for its next use, or gathered again; a collective goes to a second stream."""

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node
from overlap_sched.transform.bucket import WAIT
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.members import Member, launched, member
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Keep, Regather, Stream, second_group


def kept(draft: Draft, keep: Keep) -> None:
    """Users of the later gather use the first one's wait and result.

    Raises:
        RewriteError: They do not gather the same, or not in this order.
    """
    first, again = _gather(draft, keep.first), _gather(draft, keep.again)
    if (first.inputs, first.node.group) != (again.inputs, again.node.group) or first.v == again.v:
        raise RewriteError(f"{keep.first!r} and {keep.again!r} do not gather the same input in the same group.")
    wait = first.waits[0]
    for w in again.waits:
        draft.redirect(w, wait)
        draft.remove(w)
    draft.redirect(again.v, wait)
    draft.remove(again.v)
    if again.launch is not None:
        draft.remove(again.launch)
    if again.gives is not None and first.gives is not None:
        draft.rehouse(again.gives, first.gives)


def gathered_again(draft: Draft, wanted: Regather, prices: Prices) -> None:
    """Some users of a gather's result use a fresh one, launched for them.

    Views behind the users (what uses the same storage and comes after one of them alone) go with them.

    Raises:
        RewriteError: A user does not use a wait of the gather, or none would be left to the first one.
    """
    one = _gather(draft, wanted.gather)
    behind = [u for w in one.waits for u in draft.after(w)]
    users = [draft.find(name) for name in wanted.users]
    for u in users:
        if u not in behind:
            raise RewriteError(f"{draft.node(u).name!r} does not use a wait of {wanted.gather!r}.")
    if not users or len(set(users)) == len(set(behind)):
        raise RewriteError(f"gathering {wanted.gather!r} again needs users for both: some, and not all.")
    name, node, group = wanted.name, one.node, one.node.group or ""
    at = min(draft.at[u] for u in users)
    given = (draft.storage(draft.storages[one.gives].bytes),) if one.gives is not None else ()
    host_us = prices.launch_us(node.op, node.bytes, draft.groups[group])
    deps = launched(draft, name, one.inputs, host_us, at)
    launch = draft.add(node._replace(name=name, deps=deps, alloc=given), at)
    use = tuple(dict.fromkeys((*one.takes, *given)))
    wait = draft.add(Node(f"{name}_wait", Kind.WAIT, (launch,), (), use, op=WAIT, collective=launch), at)
    moved = _with_views(draft, one, users)
    for w in one.waits:
        draft.redirect(w, wait, [u for u in users if w in draft.node(u).deps])
    if one.gives is not None and given:
        draft.rehouse(one.gives, given[0], [u for u in draft.users(one.gives) if u in moved])


def _with_views(draft: Draft, one: Member, users: list[int]) -> set[int]:
    """The users, and what looks at the gathered result through them."""
    moved, todo = set(users), list(users)
    while todo:
        v = todo.pop()
        for w in draft.after(v):
            if w not in moved and one.gives in draft.node(w).use and not draft.node(v).alloc:
                moved.add(w)
                todo.append(w)
    return moved


def streamed(draft: Draft, stream: Stream) -> None:
    """The collective runs in a second group of the same ranks.

    Raises:
        RewriteError: It is no collective, or there already.
    """
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
