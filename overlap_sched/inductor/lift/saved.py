"""Inputs of a backward graph whose memory is not its own: who else holds what forward saved.

A weight may be saved as a view of itself, under the view's name; what forward has returned may be saved, too; and with
``retain_graph`` all that is saved stays. AOTAutograd knows: the others are *donated* to backward
(``torch/_functorch/_aot_autograd/graph_compile.py:collect_bw_donated_buffer_idxs``), and Inductor may write over them.
"""

from typing import Any

from torch import fx
from torch._inductor.utils import get_donated_idxs

from overlap_sched.fx.inputs import STAYS


def note_held(graph: fx.Graph) -> None:
    """Mark the inputs of a backward graph that others hold on (:data:`~overlap_sched.fx.inputs.STAYS`).

    To be called while torch compiles the graph. Gradients of outputs (``tangents_*``) are not saved: of them nothing
    is said. Nothing is marked in other graphs, or where torch does not know.
    """
    inputs = list(graph.find_nodes(op="placeholder"))
    donated = get_donated_idxs()
    if donated is None or not any(node.name.startswith("tangents") for node in inputs):
        return
    for i, node in enumerate(inputs):
        if i not in donated and not node.name.startswith("tangents"):
            node.meta[STAYS] = True


def held_names(graph: Any) -> set[str]:
    """The names of such inputs in the graph that Inductor lowers (``V.graph``)."""
    if not graph.is_backward or graph.bw_donated_idxs is None:
        return set()
    return {name for i, name in enumerate(graph.graph_input_names) if i not in graph.bw_donated_idxs}
