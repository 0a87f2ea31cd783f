"""A collective goes to a second communicator of the same ranks: what that makes of an FX graph.

The communicator must be there, on all ranks, before a graph is rewritten:
:func:`overlap_sched.distributed.second_communicators`.
"""

from typing import Any

from torch import fx
from torch._ops import OpOverload

from overlap_sched.errors import RewriteError
from overlap_sched.fx.collectives import Role
from overlap_sched.fx.groups import GROUPS_KEY, live_ranks
from overlap_sched.fx.operator_traits import Arg
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.rewrites.draft import GraphDraft
from overlap_sched.transform.rewrites import Stream, second_group


def stream(draft: GraphDraft, rewrite: Stream) -> None:
    """Do it.

    Raises:
        RewriteError: See :func:`check_stream`.
    """
    node, argument, group = check_stream(draft, rewrite)
    carried = _carried(draft)
    if group in carried:
        carried[second_group(group)] = carried[group]
    draft.set_argument(node, argument, second_group(group))


def check_stream(draft: GraphDraft, rewrite: Stream) -> tuple[fx.Node, Arg, str]:
    """The launch, where it takes its group, and the group.

    Raises:
        RewriteError: It is no functional collective, is on a second communicator already, or there is none.
    """
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
