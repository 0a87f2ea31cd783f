"""Nodes of an FX graph run again before later users: what that makes of the graph.

A copy has its node's own value as metadata: the storages of a copied node are new, as
:meth:`overlap_sched.fx.storages.Storages.copy_for` reads them.
"""

from typing import Any

from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.fx.rewrites.facts import GraphFacts
from overlap_sched.transform.rewrites import Recompute


def recompute(draft: GraphDraft, rewrite: Recompute) -> None:
    """Do it.

    Raises:
        RewriteError: A node is no pure function, a user does not take it, or what it reads is written to before it
            runs again.
    """
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
    """The users: each takes one of the nodes.

    Raises:
        RewriteError: They do not.
    """
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
    """A copy of a node that takes new ones where there are such; the next writer of what it reads comes after it.

    Raises:
        RewriteError: That writer comes before it.
    """

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
    graph = gm.graph if isinstance(gm, fx.GraphModule) else gm
    facts = GraphFacts(graph)
    return frozenset(node.name for node in graph.nodes if not facts.impure(node))
