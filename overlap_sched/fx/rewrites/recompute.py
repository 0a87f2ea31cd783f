"""Nodes of an FX graph run again before later users, or go to pinned host memory and come back: what that makes of it.

A copy has its node's own value as metadata: the storages of a copied node are new, as
:meth:`overlap_sched.fx.reading.Storages.copy_for` reads them.

On CUDA devices values go to the host by torch's own operators for activation offloading, ``torch.ops.ao`` (2.13 and
2.15: ``torch/_functorch/_activation_offloading/offload_ops.py``), whose wait frees the device's storage. Elsewhere by
plain copies, which stand for them: nothing is freed sooner there.
"""

from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from overlap_sched.errors import RewriteError, UnsupportedError
from overlap_sched.fx.graphs import graph_of
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.facts import GraphFacts
from overlap_sched.fx.rewrites.known import shares_storage
from overlap_sched.fx.rewrites.sites import WAIT, known_value
from overlap_sched.transform.rewrites import Offload, Recompute


def recompute(draft: GraphDraft, rewrite: Recompute) -> None:
    """Run nodes again for some of their users."""
    nodes = [draft.find(name) for name in rewrite.nodes]
    users = check_users(draft, rewrite.nodes, nodes, rewrite.users)
    at = min(draft.at[user] for user in users)
    new: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        why_not = draft.impure(node)
        if why_not:
            raise RewriteError(f"{node.name!r} cannot run again: it {why_not}.")
        new[node] = copied(draft, node, rewrite.new_name(node.name), new, at)
    for old, again in new.items():
        draft.replace(old, again, [user for user in users if old in user.all_input_nodes])


def check_users(
    draft: GraphDraft, names: tuple[str, ...], nodes: list[fx.Node], wanted: tuple[str, ...]
) -> list[fx.Node]:
    """The users, where each takes one of the nodes, and all are named once."""
    users = [draft.find(name) for name in wanted]
    if not nodes or not users or len(set(users)) < len(users) or len(set(nodes)) < len(nodes):
        raise RewriteError(
            f"running again wants nodes and users, each once: {', '.join(names)} for {', '.join(wanted)}."
        )
    for user in users:
        if user in nodes or user.op == "output" or not any(node in user.all_input_nodes for node in nodes):
            raise RewriteError(f"{user.name!r} does not take {' or '.join(map(repr, names))}, or is an output.")
    return users


def copied(draft: GraphDraft, node: fx.Node, name: str, new: dict[fx.Node, fx.Node], at: float) -> fx.Node:
    """Copy a node: it takes new ones where there are such; the next writer of what it reads comes after it."""

    def mapped(argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda one: new.get(one, one))

    made = draft.copy(node, name, mapped(node.args), mapped(node.kwargs), at)
    for writer in draft.next_writers(node):
        if draft.at[writer] < at:
            raise RewriteError(f"{node.name!r} cannot run again: {writer.name!r} writes to what it reads before that.")
        draft.add_hazard(writer, made)
    return made


def rerunnable(gm: fx.GraphModule | fx.Graph) -> frozenset[str]:
    """Names of the nodes that may run again: pure functions, nothing of whose values is written to."""
    graph = graph_of(gm)
    facts = GraphFacts(graph)
    return frozenset(node.name for node in graph.nodes if not facts.impure(node))


_ATEN = torch.ops.aten


def offload(draft: GraphDraft, rewrite: Offload) -> None:
    """Copy a value to the host and back, where it is a whole storage that nothing writes to."""
    source = _source(draft, rewrite.node)
    views = [draft.find(name) for name in rewrite.views]
    users = check_users(draft, (rewrite.node, *rewrite.views), [source, *views], rewrite.users)
    if source.target is not WAIT and any(shares_storage(source, taken) for taken in source.all_input_nodes):
        raise RewriteError(
            f"{rewrite.node!r} is no node that makes a storage of its own: what makes one can be offloaded."
        )
    value = known_value(repr(rewrite.node), source)
    if value.untyped_storage().nbytes() != value.numel() * value.dtype.itemsize:
        raise RewriteError(f"{rewrite.node!r} is a part of its storage: what is whole can be offloaded.")
    if draft.facts.written(source):
        raise RewriteError(f"something writes to {rewrite.node!r}: its copy would not know.")
    at = min(draft.at[user] for user in users)
    there, back = _copies(draft, rewrite, source, value, at)
    new = {source: back}
    for view in views:
        new[view] = copied(draft, view, rewrite.new_name(view.name), new, at)
    for old, made in new.items():
        draft.replace(old, made, [user for user in users if old in user.all_input_nodes])
    for user in draft.readers(source):
        if user is not there and user not in there.all_input_nodes:
            draft.add_hazard(there, user)


def _source(draft: GraphDraft, name: str) -> fx.Node:
    """Return what holds the value: of a collective its wait."""
    node = draft.find(name)
    waits = [user for user in draft.users(node) if user.target is WAIT]
    if len(waits) > 1:
        raise RewriteError(f"{name!r} has {len(waits)} waits: what has one can be offloaded.")
    return waits[0] if waits else node


def _copies(
    draft: GraphDraft, rewrite: Offload, source: fx.Node, value: FakeTensor, at: float
) -> tuple[fx.Node, fx.Node]:
    """The wait of the copy to the host, and that of the copy back."""
    last = max([draft.at[user] for user in draft.readers(source) if draft.at[user] < at], default=draft.at[source])
    to_host, to_device = f"{rewrite.name}_wait", f"{rewrite.back}_wait"
    device, sizes = value.device, (list(value.shape), list(value.stride()))
    with value.fake_mode:
        host = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        returned = torch.empty_strided(*sizes, dtype=value.dtype, device=device)
    if device.type == "cuda":
        ao = _operators()
        out = draft.call_giving(rewrite.name, ao.offload.default, (source,), last, source, host)
        there = draft.call_giving(to_host, ao.wait_tensor.default, (out, source), last, source, host)
        load = draft.call_giving(rewrite.back, ao.reload.default, (there, device, *sizes), at, source, returned)
        return there, draft.call_giving(to_device, ao.wait_tensor.default, (load, there), at, source, returned)
    copy, alias, to = _ATEN._to_copy.default, _ATEN.alias.default, {"device": device}
    out = draft.call_giving(rewrite.name, copy, (source,), last, source, host, {"device": torch.device("cpu")})
    there = draft.call_giving(to_host, alias, (out,), last, source, host)
    load = draft.call_giving(rewrite.back, copy, (there,), at, source, returned, to)
    return there, draft.call_giving(to_device, alias, (load,), at, source, returned)


def _operators() -> Any:
    try:
        import torch._functorch._activation_offloading.offload_ops  # registers them
    except ImportError:
        raise UnsupportedError(
            f"torch {torch.__version__} has no operators for offloading (torch.ops.ao). Use 2.13 or newer."
        ) from None
    return torch.ops.ao
