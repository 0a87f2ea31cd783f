"""Keep a gathered tensor for its next use, or gather it again: what that makes of an FX graph.

Both need that the gathered tensor and the shard stay as they are: nothing in the graph writes to either.
"""

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.draft import Draft
from overlap_sched.fx.rewrites.sites import WAIT, Site, check_same_value, site
from overlap_sched.transform.rewrites import Keep, Regather


def keep(draft: Draft, rewrite: Keep) -> None:
    """The later gather goes; its users take the first one's result.

    Raises:
        RewriteError: They do not gather the same, or a result must be a tensor of its own.
    """
    first, again = _gather(draft, rewrite.first), _gather(draft, rewrite.again)
    names = f"{rewrite.first!r} and {rewrite.again!r}"
    if first.node is again.node or (first.source, first.group_name, first.rest) != (
        again.source,
        again.group_name,
        again.rest,
    ):
        raise RewriteError(f"{names} are not two gathers of one tensor in one group.")
    if draft.at[first.node] > draft.at[again.node]:
        raise RewriteError(f"{rewrite.again!r} is gathered before {rewrite.first!r}: name them in their order.")
    if draft.facts.returned(first.waits[0]) and draft.facts.returned(again.waits[0]):
        raise RewriteError(f"the graph returns the results of {names}: one tensor must not stand for both.")
    kept = first.waits[0]
    for wait in again.waits:
        check_same_value(rewrite.again, wait, kept)
        draft.replace(wait, kept)
        draft.remove(wait, kept, kept)
    draft.remove(again.node, kept, kept)


def regather(draft: Draft, rewrite: Regather) -> None:
    """Some users of a gather's result use a fresh gather of the same tensor.

    Raises:
        RewriteError: They do not use it, or the result must be one tensor.
    """
    one = _gather(draft, rewrite.gather)
    users = [draft.find(name) for name in rewrite.users]
    for user in users:
        if user.op == "output" or not any(wait in user.all_input_nodes for wait in one.waits):
            raise RewriteError(f"{user.name!r} does not use a wait of {rewrite.gather!r}, or is the graph's output.")
    if not users or len(set(users)) < len(users):
        raise RewriteError(f"{rewrite.gather!r} is to be gathered again for {len(users)} users: name each once.")
    if all(user in users for wait in one.waits for user in draft.users(wait)):
        raise RewriteError(f"gathering {rewrite.gather!r} again needs users for both: some, and not all.")
    at = min(draft.at[user] for user in users)
    launch = draft.call(rewrite.name, one.node.target, one.node.args, at, one.node)
    wait = draft.call(f"{rewrite.name}_wait", WAIT, (launch,), at, one.node)
    check_same_value(rewrite.gather, one.waits[0], wait)
    for old in one.waits:
        draft.replace(old, wait, [user for user in users if old in user.all_input_nodes])


def _gather(draft: Draft, name: str) -> Site:
    one = site(draft, name)
    if one.op != "all_gather_into_tensor":
        raise RewriteError(f"{name!r} is {one.op!r}: only gathers are kept or gathered again.")
    if draft.facts.written(one.source):
        raise RewriteError(f"something writes to the input of {name!r}: a later gather of it may give something else.")
    return one
