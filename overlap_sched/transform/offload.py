"""A value goes to pinned host memory and comes back before its later users: two copies, hidden like collectives.

::

    compute  | a = mm | ...                                  ... | grad(a) |
    host              |= offload a =|        |= reload a =|
    device   | a ...................|        | a .....................|

The copies run on streams of their own (:class:`overlap_sched.transform.host.HostLink`); each is a launch and a wait, as
a collective is. The device's storage is held until the wait of the offload, and freed by it: so that comes after all
other users. The host's memory is no storage of the problem; what it takes is counted by :func:`host_bytes`.
"""

from collections.abc import Sequence

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.host import OUT, HostLink
from overlap_sched.transform.recompute import again, check_users, is_view, moved
from overlap_sched.transform.rewrites import Offload

OFFLOAD, RELOAD, WAIT = "offload", "reload", "ao.wait_tensor.default"
"""Operators of new nodes."""


def offloaded(draft: Draft, wanted: Offload, link: HostLink) -> None:
    """Make the copies; the users take what comes back."""
    v = draft.find(wanted.node)
    node = draft.node(v)
    if len(node.alloc) != 1 or node.kind not in (Kind.COMPUTE, Kind.INPUT, Kind.COLLECTIVE):
        raise RewriteError(f"{wanted.node!r} makes {len(node.alloc)} storages: what makes one can be offloaded.")
    (s,) = node.alloc
    nbytes, pinned = draft.storages[s]
    if pinned or not nbytes:
        why = "is empty" if not nbytes else "is never freed"
        raise RewriteError(f"{wanted.node!r} {why}: to offload it saves nothing.")
    source = _source(draft, wanted, v)
    views = [draft.find(name) for name in wanted.views]
    for w in views:
        if not is_view(draft.node(w)) or s not in draft.node(w).use:
            raise RewriteError(f"{draft.node(w).name!r} is no view of {wanted.node!r}.")
    users = check_users(draft, "an offload", (wanted.node, *wanted.views), [source, *views], wanted.users)
    at = min(draft.at[u] for u in users)
    for group in dict.fromkeys((OUT, link.back)):
        draft.groups.setdefault(group, Group(1, True))
    us, name = link.copy_us(nbytes), wanted.name
    last = max([draft.at[u] for u in draft.users(s) if draft.at[u] < at], default=draft.at[source])
    collective = Node("", Kind.COLLECTIVE, time_us=us, bytes=nbytes)
    out = draft.add(collective._replace(name=name, deps=(source,), use=(s,), op=OFFLOAD, group=OUT), last)
    there = draft.add(Node(f"{name}_wait", Kind.WAIT, (source, out), (), (s,), op=WAIT, collective=out), last)
    back = (draft.storage(nbytes),)
    deps = (there,)
    load = draft.add(collective._replace(name=wanted.back, deps=deps, alloc=back, op=RELOAD, group=link.back), at)
    here = draft.add(Node(f"{wanted.back}_wait", Kind.WAIT, (there, load), (), back, op=WAIT, collective=load), at)
    new, house = {source: here}, {s: back[0]}
    for w in views:
        new[w] = again(draft, w, wanted.new_name(draft.node(w).name), new, house, at)
    moved(draft, users, new, house)
    for u in list(draft.users(s)):
        if u not in (out, there):
            draft.depend(there, u)


def _source(draft: Draft, wanted: Offload, v: int) -> int:
    """Return what holds the value: of a collective its (first) wait."""
    if draft.node(v).kind is not Kind.COLLECTIVE:
        return v
    waits = draft.waits(v)
    if len(waits) != 1:
        raise RewriteError(f"{wanted.node!r} has {len(waits)} waits: what has one can be offloaded.")
    return waits[0]


def host_bytes(problem: Problem, order: Sequence[int]) -> int:
    """The most bytes of pinned host memory in use at once: from the launch of an offload to the wait of its reload."""
    used = most = 0
    for v in order:
        node = problem.nodes[v]
        if node.op == OFFLOAD and node.kind is Kind.COLLECTIVE:
            used += node.bytes
            most = max(most, used)
        elif node.collective is not None and problem.nodes[node.collective].op == RELOAD:
            used -= problem.nodes[node.collective].bytes
    return most
