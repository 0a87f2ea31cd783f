"""The order of effects: what the FX graph chains by tokens (``with_effects``) must run in that order.

torch 2.13 chains effects among kernels that it calls as they are, and collectives among themselves; of a collective and
another kernel either may come first (https://github.com/pytorch/pytorch/issues/188301). A send and its receive may then
meet the wrong partner.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from overlap_sched.errors import NotUnderstoodError
from overlap_sched.fx.operators import is_higher_order
from overlap_sched.inductor.lift.nearest import nearest
from overlap_sched.inductor.private import V, ir, members


def in_order_of_effects(snodes: list[Any]) -> list[Any]:
    """The nodes; where some stand against the order of effects, as near to their order as keeps that.

    Args:
        snodes: In an order that keeps torch's dependencies.

    Raises:
        NotUnderstoodError: torch's dependencies are against the order of effects.
    """
    chain = _chain(snodes)
    if all(before < at for before, at in pairwise(chain)):
        return snodes
    order = nearest(snodes, pairwise(chain))
    if order is None:
        first, then = next((u, w) for u, w in pairwise(chain) if w < u)
        raise NotUnderstoodError(
            f"{snodes[then].get_name()!r} runs before {snodes[first].get_name()!r}, whose effects come before its own, "
            "and other kernels in between keep them so."
        )
    return [snodes[at] for at in order]


def _chain(snodes: Sequence[Any]) -> list[int]:
    """Positions of the nodes that have effects, in the order that the FX graph gives to those."""
    effects = [node for node in V.graph.graph.nodes if is_higher_order(node.target, "with_effects")]
    if not effects:
        return []
    number = {node: k for k, node in enumerate(effects)}
    found: list[tuple[int, int]] = []
    for at, snode in enumerate(snodes):
        for member in members(snode):
            if member.node is None or not member.is_extern() or isinstance(member.node, ir.MultiOutput):
                continue
            found += [(number[node], at) for node in member.node.origins or () if node in number]
    return list(dict.fromkeys(at for _, at in sorted(found)))
