"""Do two nodes give the same value? As far as a problem tells: the same source, looked at and cast in the same way.

A parameter that is gathered twice is cast twice, too, where a graph was not freed of repetitions::

    w -> cast   -> gather   -> mm ...           forward
    w -> cast_1 -> gather_1 -> mm ...           backward: `cast_1` gives what `cast` gives
"""

from overlap_sched.problem import Kind, NodeId
from overlap_sched.transform.draft import Draft

WHOLE = (
    "aten._to_copy.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.view.default",
    "prims.convert_element_type.default",
)
"""Operators that give all elements of their one input, in their order; types and shapes a graph must compare."""

Origin = tuple[NodeId, tuple[tuple[str, int], ...]]
"""A node that is looked through no further; then operators and bytes of what lies behind it, the last first."""


def origin(draft: Draft, v: NodeId) -> Origin:
    """Where a value comes from. Nodes of equal origin give the same."""
    steps = []
    while looked_through(draft, v):
        node = draft.node(v)
        steps.append((node.op, sum(draft.storages[s].bytes for s in node.alloc)))
        (v,) = node.deps
    return v, tuple(steps)


def looked_through(draft: Draft, v: NodeId) -> bool:
    """Tell whether a node is one of :data:`WHOLE`; what must also come after others may see what they write."""
    node = draft.node(v)
    return node.kind is Kind.COMPUTE and node.op in WHOLE and len(node.deps) == 1
