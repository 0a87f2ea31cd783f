"""Nodes run again before later users, so that what they made need not live in between.

::

    h -> a = gelu(h) -> mm ... | ... grad(a)              a lives from gelu to grad
    h -> a = gelu(h) -> mm ... | ... again_a = gelu(h), grad(again_a)

What runs again reads what it read the first time. So it must be a pure function: no random numbers, nothing written,
no collective (that is ``Regather``).
"""

from collections.abc import Mapping, Sequence

from overlap_sched.errors import RewriteError
from overlap_sched.problem import OF_HOST, Kind, Node, NodeId, StorageId
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.rewrites import Recompute

_RANDOM = ("bernoulli", "dropout", "exponential", "multinomial", "normal", "poisson", "rand", "seed", "uniform")
"""Parts of names of operators that draw random numbers, or hand out seeds."""


def recomputed(draft: Draft, wanted: Recompute) -> None:
    """Make the nodes again; the users take the new ones."""
    ids = [draft.find(name) for name in wanted.nodes]
    users = check_users(draft, "running again", wanted.nodes, ids, wanted.users)
    at = min(draft.at[u] for u in users)
    new: dict[NodeId, NodeId] = {}
    house: dict[StorageId, StorageId] = {}
    for v in ids:
        node = draft.node(v)
        why_not = refusal(node)
        if why_not:
            raise RewriteError(f"{node.name!r} cannot run again: it {why_not}.")
        for s in node.alloc:
            house[s] = draft.storage(draft.storages[s].bytes)
        new[v] = again(draft, v, wanted.new_name(node.name), new, house, at)
    moved(draft, users, new, house)


def refusal(node: Node) -> str:
    """Why a node may never run again, as far as its name and kind tell; ``""``: nothing speaks against it."""
    if node.kind is not Kind.COMPUTE or node.op in OF_HOST:
        return f"is {article(node.kind.value)}"
    if node.launches:
        return f"communicates, or may ({node.op})"
    if draws(node.op):
        return f"draws random numbers ({node.op})"
    return f"writes to what it is given ({node.op})" if writes(node) else ""


def article(kind: str) -> str:
    """``"input"`` -> ``"an input"``."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def draws(op: str) -> bool:
    """Tell whether an operator of this name draws random numbers (attention may, too: that its name does not say)."""
    name = _name(op)
    return any(part in name for part in _RANDOM) and "backward" not in name and name != "layer_norm"


def writes(node: Node) -> bool:
    """Tell whether a compute node writes to what it is given: by its name, or as it takes time and makes nothing."""
    name = _name(node.op)
    in_place = (name.endswith("_") and not name.endswith("__")) or node.op.endswith(("out", "auto_functionalized"))
    return node.kind is Kind.COMPUTE and node.op not in OF_HOST and (in_place or (not node.alloc and node.time_us > 0))


def _name(op: str) -> str:
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_view(node: Node) -> bool:
    """Tell whether a node looks at a storage of another one: it makes nothing and takes no time."""
    return node.kind is Kind.COMPUTE and not node.alloc and not node.time_us and not writes(node)


def check_users(
    draft: Draft, what: str, names: Sequence[str], ids: Sequence[NodeId], users: Sequence[str]
) -> list[NodeId]:
    """Draft ids of the users, where each takes one of the nodes, and all are named once."""
    found = [draft.find(name) for name in users]
    if not ids or not found or len(set(found)) < len(found) or len(set(ids)) < len(ids):
        raise RewriteError(f"{what} wants nodes and users, each once: {', '.join(names)} for {', '.join(users)}.")
    for u in found:
        node = draft.node(u)
        if u in ids or not any(v in node.deps for v in ids) or node.kind is Kind.OUTPUT:
            raise RewriteError(f"{node.name!r} does not take {' or '.join(map(repr, names))}, or is an output.")
    return found


def again(
    draft: Draft, v: NodeId, name: str, new: Mapping[NodeId, NodeId], house: Mapping[StorageId, StorageId], at: float
) -> NodeId:
    """Copy a node: it takes new nodes and storages where there are such; later writers come after it, none before."""
    node = draft.node(v)
    copy = node._replace(
        name=name,
        deps=tuple(dict.fromkeys(new.get(u, u) for u in node.deps)),
        alloc=tuple(house[s] for s in node.alloc),
        use=tuple(house.get(s, s) for s in node.use),
    )
    made = draft.add(copy, at)
    for s in copy.use:
        later = [w for w in draft.users(s) if w != made and writes(draft.node(w)) and draft.at[w] > draft.at[v]]
        if later:
            w = min(later, key=draft.at.__getitem__)
            if draft.at[w] < at:
                raise RewriteError(
                    f"{node.name!r} cannot run again: {draft.node(w).name!r} writes to what it reads before that."
                )
            draft.depend(w, made)
    return made


def moved(
    draft: Draft, users: Sequence[NodeId], new: Mapping[NodeId, NodeId], house: Mapping[StorageId, StorageId]
) -> None:
    """Let users take new nodes, and, through views, those behind them; none may look at an old storage besides."""
    for u in users:
        launch = draft.launch_node(u) if draft.node(u).kind is Kind.COLLECTIVE else None
        for old, made in new.items():
            draft.redirect(old, made, [w for w in (u, launch) if w is not None and old in draft.node(w).deps])
    for old_storage, storage in house.items():
        _rehoused(draft, old_storage, storage, users)


def _rehoused(draft: Draft, old: StorageId, storage: StorageId, users: Sequence[NodeId]) -> None:
    todo = [u for u in users if old in draft.node(u).use]
    while todo:
        u = todo.pop()
        if old not in draft.node(u).use:
            continue
        others = [w for w in draft.node(u).deps if _gives(draft, w, old)]
        if others:
            raise RewriteError(
                f"{draft.node(u).name!r} also looks at it through {draft.node(others[0]).name!r}: name that, too."
            )
        draft.rehouse(old, storage, [u])
        if draft.node(u).kind is Kind.COLLECTIVE:  # its waits hold what it reads
            draft.rehouse(old, storage, [w for w in draft.waits(u) if old in draft.node(w).use])
        if is_view(draft.node(u)):
            todo.extend(w for w in draft.after(u) if old in draft.node(w).use)


def _gives(draft: Draft, v: NodeId, s: StorageId) -> bool:
    """Tell whether the result of v is the storage, or a view of it."""
    node = draft.node(v)
    if node.kind is Kind.WAIT and node.collective is not None:
        return s in draft.node(node.collective).alloc
    return s in node.alloc or (s in node.use and (is_view(node) or node.kind is Kind.WAIT))
