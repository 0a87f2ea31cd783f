"""Rules of fused attention: batches are free; heads are where queries, keys and values have as many.

Tokens are not: with a causal mask a query needs all keys before it, and which mask a part would want depends on where
the part begins. So a cut of tokens ends here, and goes on between two attentions.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Given, Uncut

_ATEN = torch.ops.aten


def _forward(call: Call) -> Told:
    needs, cut = _needs(call, ("query", "key", "value"))
    results = call.node.meta["val"]
    return Told(needs, _given(results, cut, call.result(0)))


def _backward(call: Call) -> Told:
    names = [a.name for a in call.node.target._schema.arguments]
    grad = "grad_out" if "grad_out" in names else "grad_out_"
    needs, cut = _needs(call, (grad, "query", "key", "value", "out", "logsumexp"))
    return Told(needs, tuple(cut if isinstance(one, torch.Tensor) else Uncut.SAME for one in call.node.meta["val"]))


def _needs(call: Call, names: Sequence[str]) -> tuple[dict[fx.Node, Cut], Cut]:
    """All tensors with batch and head are cut alike."""
    if call.arg("dropout_p") != 0.0:
        raise EndsError("dropout draws other numbers for a part")
    schema = {a.name for a in call.node.target._schema.arguments}
    for name in ("attn_bias", "attn_mask"):
        mask = call.arg(name) if name in schema else None
        if isinstance(mask, fx.Node) and mask.meta["val"] is not None and mask.meta["val"].numel():
            raise EndsError("it has a mask, which may differ for each part")
    nodes = [call.given(name) for name in names]
    found = [call.cuts[node] for node in nodes if node in call.cuts]
    if not found or found[0].dim > 1:
        raise EndsError("a query needs all earlier keys: only batches and heads are cut")
    if found[0].dim == 1 and len({shape(node)[1] for node in nodes}) > 1:
        raise EndsError("there are fewer heads of keys than of queries")
    return dict.fromkeys(nodes, found[0]), found[0]


def _given(results: Sequence[Any], cut: Cut, first: tuple[int, ...]) -> tuple[Given, ...]:
    """Attended values and log-sum-exp have batch and head; seeds and the like mean nothing without dropout."""
    return tuple(
        cut if at < 2 and isinstance(one, torch.Tensor) and one.shape[:2] == first[:2] else Uncut.SAME
        for at, one in enumerate(results)
    )


def _rules() -> dict[Any, Rule]:
    found: dict[Any, Rule] = {}
    for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"):
        for suffix, rule in (("", _forward), ("_backward", _backward)):
            packet = getattr(_ATEN, f"_scaled_dot_product_{kind}{suffix}", None)
            if packet is not None:
                found[packet.default] = rule
    return found


ATTENTION = _rules()
