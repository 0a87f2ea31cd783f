"""Metadata of nodes that are made like others."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import fx


def own_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The same metadata for another node: dictionaries in it (``"custom"`` is one), and what these hold, are its own.

    An annotation of one node must not become one of the other. Values, and all else that is never changed, are shared.
    """
    return {key: _own(value) if isinstance(value, dict) else value for key, value in meta.items()}


def copied_node(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Copy a node of another graph to the end of this one, with metadata of its own; ``copies``: of what it takes."""
    made = graph.node_copy(node, copies.__getitem__)
    made.meta = own_meta(node.meta)
    return made


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, inside in value.items():
            if isinstance(inside, dict | list):
                made[key] = _own(inside)
        return made
    return [_own(inside) for inside in value] if isinstance(value, list) else value
