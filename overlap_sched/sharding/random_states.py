"""States of random numbers beside the meshes of DTensor parameters: a repair of torch's partitioner.

A checkpoint that draws random numbers (dropout; on torch 2.13 attention of any kind) has the generator's state saved
for backward. ``torch/_functorch/partitioners.py: functionalize_rng_ops`` (2.13 to 2.15) puts states in front of the
symbolic sizes, but behind opaque objects, such as the mesh that every DTensor parameter brings. Readers count from the
end: they take the mesh for a tensor, and the first forward dies. Here states go in front of opaque objects, in both
graphs. Where there is nothing to put right, graphs stay as torch makes them.
"""

import functools
from collections.abc import Sequence
from typing import Any

from torch import fx

_REPAIRED = "_repaired_by_overlap_sched"


def repair_random_states() -> None:
    """Put it right from now on; once per process. A torch without this function is left alone."""
    import torch._functorch.partitioners as partitioners

    torchs = getattr(partitioners, "functionalize_rng_ops", None)
    if torchs is None or hasattr(torchs, _REPAIRED):
        return

    @functools.wraps(torchs)
    def functionalize(
        joint: fx.GraphModule, forward: fx.GraphModule, backward: fx.GraphModule, num_sym_nodes: int
    ) -> Any:
        saved: Sequence[Any] = forward.graph.output_node().args[0]
        opaque = _opaque_before(saved, len(saved) - num_sym_nodes)
        before = set(_inputs(backward))
        made = torchs(joint, forward, backward, num_sym_nodes + opaque)
        if opaque:
            _bring_forward(made[1], before)
        return made

    setattr(functionalize, _REPAIRED, True)
    partitioners.functionalize_rng_ops = functionalize


def _opaque_before(saved: Sequence[Any], end: int) -> int:
    """How many opaque objects stand right in front of ``end``."""
    from torch._functorch._aot_autograd.graph_compile import is_opaque_node

    first = end
    while first and is_opaque_node(saved[first - 1]):
        first -= 1
    return end - first


def _bring_forward(backward: fx.GraphModule, before: set[fx.Node]) -> None:
    """Inputs that are new, and stand in front of the tangents, move in front of the first opaque object.

    The states of generators of GPUs come last of all, behind the tangents: they stay.
    """
    from torch._functorch._aot_autograd.graph_compile import is_opaque_node

    inputs = _inputs(backward)
    first = next(node for node in inputs if is_opaque_node(node))
    tangents = next(at for at, node in enumerate(inputs) if "tangent" in node.name)
    for state in inputs[:tangents]:
        if state not in before:
            first.prepend(state)
    backward.recompile()


def _inputs(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))
