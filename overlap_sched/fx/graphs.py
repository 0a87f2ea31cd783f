"""FX graphs: orders put back, metadata of copied nodes, and what a model's code says of its nodes (modules, pins).

::

    with overlap_sched.pinned("in flight 64MiB"):        what runs in here, forward and backward
        full = gather(self.weight)
"""

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx, nn
from torch.fx.traceback import annotate

from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.problem import Problem
from overlap_sched.problem.pins import read_mark


def graph_of(gm: object) -> fx.Graph:
    """Return the graph of a graph module; a graph is its own.

    Raises:
        OptionsError: It is neither.
    """
    if isinstance(gm, fx.GraphModule | fx.Graph):
        return gm.graph if isinstance(gm, fx.GraphModule) else gm
    if isinstance(gm, nn.Module) or callable(gm):
        what = "Call enable() before torch.compile(model), which orders its graphs."
    else:
        what = "Of a Problem: schedule(problem)." if isinstance(gm, Problem) else "See lift() for what it must hold."
    raise OptionsError(f"gm is a {type(gm).__name__}; it is a graph of a compiler, a torch.fx.GraphModule. {what}")


def reorder(gm: fx.GraphModule | fx.Graph, nodes: Sequence[fx.Node]) -> None:
    """Make ``nodes`` the order of the graph, in place and in linear time; a module is recompiled.

    Inputs stay in front in their own order (it is the signature) and the output last, wherever ``nodes`` has them.

    Raises:
        ProblemError: ``nodes`` are not exactly the graph's nodes; the graph is as it was.
    """
    present = list(graph_of(gm).nodes)
    if len(nodes) != len(present) or set(nodes) != set(present):
        counts = f"the order has {len(nodes)} nodes ({len(set(nodes))} different) and the graph has {len(present)}"
        raise ProblemError(f"{counts}. List each of the graph's nodes once.")
    link(gm, with_ends(nodes, [node for node in present if node.op == "placeholder"]))


def with_ends(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes, inputs in front in the order given, the output last."""
    body = [node for node in nodes if node.op not in ("placeholder", "output")]
    return [*inputs, *body, *(node for node in nodes if node.op == "output")]


def link(gm: fx.GraphModule | fx.Graph, order: Sequence[fx.Node]) -> None:
    """Set the order, which must be right: all nodes of the graph. A module is recompiled."""
    last = next(iter(graph_of(gm).nodes), None)
    for node in order:
        if last is not None and node is not last:
            last.append(node)
        last = node
    if isinstance(gm, fx.GraphModule):
        gm.recompile()


def own_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The same metadata for another node: dictionaries in it (``"custom"`` is one), and what these hold, are its own.

    An annotation of one node must not become one of the other. Values, and all else that is never changed, are shared.
    """

    def own(value: Any) -> Any:
        if isinstance(value, dict):
            made = copy.copy(value)  # of its own class
            made.update((key, own(inside)) for key, inside in value.items() if isinstance(inside, dict | list))
            return made
        return [own(inside) for inside in value] if isinstance(value, list) else value

    return {key: own(value) if isinstance(value, dict) else value for key, value in meta.items()}


def copied_node(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Copy a node of another graph to the end of this one, with metadata of its own; ``copies``: of what it takes."""
    made = graph.node_copy(node, copies.__getitem__)
    made.meta = own_meta(node.meta)
    return made


MARK = "overlap_sched: "
"""How keys of ``node.meta["custom"]`` begin that are pins: ``"overlap_sched: as written"``; values mean nothing."""

_ROOT = re.compile(r"^[LG]\['\w+'\]|^[LG]__\w+?___")
_STEP = re.compile(r"(?:\._modules)?\['?(\w+)'?\]")


def pinned(pin: str) -> AbstractContextManager[None]:
    """Pin all that runs inside, in the forward and the backward graph; in code that ``torch.compile`` traces.

    Args:
        pin: One as in ``Options.pins``, without nodes: those are what runs inside.

    Raises:
        OptionsError: It is none, or names nodes. Where it is traced, it is found when the graph is scheduled.
    """
    if not torch.compiler.is_compiling():
        read_mark(pin)
    block: AbstractContextManager[None] = annotate({MARK + pin: True})
    return block


def module_of(meta: Mapping[str, Any]) -> str:
    """The module in which a node was made, or whose backward it is of: ``"layers.3.attention"``; ``""``: not known."""
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    if not isinstance(stack, dict) or not stack:
        return ""
    last = list(stack.values())[-1]
    path = str(last[0] if isinstance(last, tuple) else last)
    return _STEP.sub(r".\1", _ROOT.sub("", path)).strip(".")


def marks_of(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The pins that a node has itself, sorted."""
    custom = meta.get("custom")
    keys = [key for key in custom if isinstance(key, str)] if isinstance(custom, dict) else []
    return tuple(sorted(key.removeprefix(MARK) for key in keys if key.startswith(MARK)))
