"""Rules of routed rows: tokens sorted by expert, sent to other ranks, computed there, brought back and added up.

What is sorted in a part is not a part of what is sorted in the whole, so no cut describes it. But each part can sort
its own tokens: rows are then its own, in an order of its own, and so are the numbers that say which row goes where::

    tokens     cut     x ------------ index ------------------------------------------- scatter_add -> y
    numbers    routed  ids -> sort -> rows -> counts -> splits -> offsets                   ^
    rows       routed                    x[rows] -> all_to_all -> grouped_mm -> all_to_all -'

Why that gives the same ``y``, row by row: a routed row is computed from one row of ``x`` alone (by the expert that its
token chose), and comes back to the row that it came from. So what may happen is narrow; all else ends the dimension:

- of floats: what works row by row; products with weights, grouped by expert; sums over the rows, which are partial;
- of whole numbers: sums, differences, products, prefix sums, copies and moves. Nothing that compares: how many tokens
  an expert has must not decide what happens to one of them (a capacity above which tokens are dropped);
- in and out: by numbers that are rows of what is cut (``Routed.of``), as sorting gives them.

Products of weights by experts are summed over the rows of a part, so their gradients are rounded otherwise.
"""

from collections.abc import Mapping
from typing import Any

import torch

from overlap_sched.fx.dimensions import routed_numbers as numbers
from overlap_sched.fx.dimensions import routed_rows as rows
from overlap_sched.fx.dimensions.call import Call, Rule, Told, is_pure
from overlap_sched.transform.dimension_graph.cut import EndsError, Routed

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def starts(call: Call) -> Told | None:
    """Where rows become routed: numbers are sorted along the dimension that is cut; ``None``: not here."""
    if call.node.target not in (_ATEN.sort.stable, _ATEN.sort.default):
        return None
    source = call.given("self")
    value, cut = source.meta["val"], call.cuts.get(source)
    if cut is None or value.ndim != 1 or value.is_floating_point():
        return None
    return Told({source: cut}, (Routed(0), Routed(0, cut)))


def told_of_routed(call: Call) -> Told:
    """Say what becomes of a call with inputs that are routed."""
    told = _rule(call.node.target)(call)
    value = call.node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    for one, of in zip(told.gives if isinstance(told.gives, tuple) else (told.gives,), values, strict=True):
        if isinstance(one, Routed) and isinstance(of, torch.Tensor):
            _check(call, one, of)
    return told


def _rule(target: Any) -> Rule:
    rule = rows.added_by_torchtitan if target is _of_torchtitan() else _RULES.get(target)
    if rule is not None:
        return rule
    if target in numbers.WHOLE_NUMBERS or (is_pure(target) and torch.Tag.pointwise in target.tags):
        return numbers.pointwise
    raise EndsError(f"nothing is known of {target} for rows that are routed")


def _of_torchtitan() -> Any:
    """The operator that adds rows up (``torchtitan/ops/scatter_add.py``), where it has been imported."""
    packet = getattr(torch.ops.torchtitan, "deterministic_scatter_add", None)
    return None if packet is None else packet.default


def _check(call: Call, given: Routed, value: torch.Tensor) -> None:
    if value.dtype is torch.bool:
        raise EndsError("it compares numbers of tokens")
    if value.is_floating_point() and given.rows is None:
        raise EndsError("it computes with the numbers of tokens")
    if given.rows is not None and type(value.shape[given.rows]) is int and value.shape[given.rows] % call.parts:
        raise EndsError(f"{value.shape[given.rows]} routed rows are no {call.parts} equal parts")


_VIEWS = (_ATEN.view, _ATEN._unsafe_view, _ATEN.reshape, _ATEN.expand, _ATEN.permute, _ATEN.t, _ATEN.unsqueeze)
_RULES: Mapping[Any, Rule] = {
    **{packet.default: numbers.moved for packet in (*_VIEWS, _ATEN.alias, _ATEN.detach)},
    _ATEN.transpose.int: numbers.moved,
    _ATEN.squeeze.dim: numbers.moved,
    _ATEN.empty_like.default: numbers.like,
    _ATEN.zeros_like.default: numbers.like,
    _ATEN.cumsum.default: numbers.prefix,
    _ATEN.sum.dim_IntList: numbers.summed,
    _ATEN._local_scalar_dense.default: numbers.for_host,
    _ATEN.sym_size.int: numbers.for_host,
    _ATEN.sym_numel.default: numbers.for_host,
    _ATEN.unbind.int: numbers.unbound,
    _ATEN.repeat_interleave.Tensor: numbers.repeated,
    _ATEN.arange.default: numbers.counted,
    _ATEN.index.Tensor: rows.picked,
    _ATEN.index_select.default: rows.picked,
    _ATEN.gather.default: rows.gathered,
    _ATEN.index_put.default: rows.put,
    _ATEN.index_put_.default: rows.put,
    _ATEN.scatter_add.default: rows.added,
    _ATEN.new_empty.default: rows.new,
    _ATEN.new_zeros.default: rows.new,
    _C10D.all_to_all_single.default: rows.exchanged,
    _C10D.wait_tensor.default: rows.waited,
    _ATEN._grouped_mm.default: rows.grouped,
    _ATEN.mm.default: rows.multiplied,
}
