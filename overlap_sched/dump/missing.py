"""What a dump does not say of a node whose shape cannot be found, and what to do about it, in words."""

import operator

import torch
from torch import fx

from overlap_sched.dump.literals import UnknownOp


def _operator_missing(node: fx.Node) -> str | None:
    """The operator that this torch build lacks: the node's own, or the one that a higher-order operator calls."""
    found = [item for item in (node.target, *node.args) if isinstance(item, UnknownOp)]
    return found[0].__name__ if found else None


def missing(node: fx.Node) -> str:
    """Why fake execution has no value for a node."""
    name = _operator_missing(node)
    if name is not None:
        return f"this torch build does not know the operator {name}"
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return "the dump does not hold the body that this higher-order operator runs"
    return "this torch build cannot tell the shapes of its results"


def mend(node: fx.Node) -> str:
    """Say what the user can do about it."""
    parts = [user.name for user in node.users if user.target is operator.getitem]
    annotate = f'annotate it by hand (`{parts[0] if parts else node.name}: "bf16[8, 4]" = ...`).'
    if parts:
        annotate = annotate.replace("annotate it", "annotate each of its parts")
    if _operator_missing(node) is not None:
        return f"Import the package that registers it first (--import PACKAGE on the command line), or {annotate}"
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"Load the graph as tlparse prints it for reading, bodies included (aot_forward_graph), or {annotate}"
    return f"Load it with the torch that wrote it, or {annotate}"
