"""What rules of routed values ask of a call."""

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call
from overlap_sched.transform.dimension_graph.cut import EndsError, Routed


def only(call: Call) -> tuple[fx.Node, Routed]:
    """The one tensor that is routed; sizes may be, too.

    Raises:
        EndsError: There are several, or something is cut.
    """
    not_cut(call)
    tensors = [(node, one) for node, one in call.routed.items() if isinstance(node.meta.get("val"), torch.Tensor)]
    if len(tensors) != 1:
        raise EndsError(f"{len(tensors)} of its tensors are routed")
    return tensors[0]


def not_cut(call: Call) -> None:
    """Refuse what is cut beside what is routed.

    Raises:
        EndsError: Something is cut.
    """
    if call.cuts:
        raise EndsError("it takes what is cut together with what is routed")


def routed_of(call: Call, name: str) -> Routed:
    """An argument that is routed.

    Raises:
        EndsError: It is not.
    """
    found = call.routed.get(call.given(name))
    if found is None:
        raise EndsError(f"argument {name!r} is not routed while another one is")
    return found


def is_float(node: fx.Node) -> bool:
    """Tell whether a value is a tensor of floats."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def reckoned(*operands: Routed) -> bool:
    """Tell whether something has been computed from numbers that name rows: nobody knows what the result names."""
    return any(one.reckoned or one.of is not None for one in operands)
