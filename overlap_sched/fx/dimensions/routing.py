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
from torch import fx

from overlap_sched.fx.dimensions.rules import (
    RULES,
    Call,
    CallCut,
    Rule,
    end_if,
    is_float,
    is_pointwise,
    overloads,
    results,
)
from overlap_sched.transform.dimension_graph import Cut, EndsError, Routed, Uncut

_ATEN = torch.ops.aten
_TITAN = "torchtitan.deterministic_scatter_add.default"
"""``(out, index, src)``: adds rows up (``torchtitan/ops/scatter_add.py``)."""
WHOLE_NUMBERS = frozenset(
    overloads("add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar floor_divide _to_copy clone neg")
)
"""What may be done to numbers, element by element."""


def _not_cut(call: Call) -> None:
    end_if(call.cuts, "it takes what is cut together with what is routed")


def _only(call: Call) -> tuple[fx.Node, Routed]:
    """The one tensor that is routed, where nothing is cut; sizes may be routed, too."""
    _not_cut(call)
    tensors = [(node, one) for node, one in call.routed.items() if isinstance(node.meta.get("val"), torch.Tensor)]
    end_if(len(tensors) != 1, f"{len(tensors)} of its tensors are routed")
    return tensors[0]


def _routed_of(call: Call, name: str) -> Routed:
    """An argument that must be routed."""
    found = call.routed.get(call.given(name))
    if found is None:
        raise EndsError(f"argument {name!r} is not routed while another one is")
    return found


def _reckoned(*operands: Routed) -> bool:
    """Tell whether something has been computed from numbers that name rows: nobody knows what the result names."""
    return any(one.reckoned or one.of is not None for one in operands)


def pointwise(call: Call) -> CallCut:
    """Element by element; tensors that are not routed are broadcast along the rows."""
    _not_cut(call)
    floats, ndim = is_float(call.node), call.node.meta["val"].ndim
    end_if(not floats and call.node.target not in WHOLE_NUMBERS, "numbers of tokens are only added, moved and copied")
    rows = None
    for node, routed in call.routed.items():
        end_if(floats and not is_float(node), "it computes with the numbers of tokens")
        if routed.rows is not None:
            rows = routed.rows - node.meta["val"].ndim + ndim
    for node in call.node.all_input_nodes:
        one = node.meta.get("val")
        if node not in call.routed and isinstance(one, torch.Tensor) and rows is not None:
            at = rows - ndim + one.ndim
            if at >= 0 and not (type(one.shape[at]) is int and one.shape[at] == 1):
                raise EndsError(f"{node.name!r} has a row for each routed row, and is not routed")
    of = _of(call)
    return CallCut({}, Routed(rows, of, of is None and _reckoned(*call.routed.values())))


def _of(call: Call) -> Cut | None:
    """Rows of what: a row number stays one where it is copied; ``rows // k`` numbers rows of k."""
    (first, *others) = call.routed
    of = call.routed[first].of
    if of is None or others or is_float(call.node):
        return None
    if call.node.target in (_ATEN._to_copy.default, _ATEN.clone.default):
        return of
    if call.node.target is _ATEN.floor_divide.default and first is call.node.args[0]:
        by = call.node.args[1]
        if type(by) is int and by > 0 and of.inner % by == 0:
            return Cut(of.dim, of.outer, of.inner // by)
    return None


def moved(call: Call) -> CallCut:
    """Views and other moves: rows are followed; sizes of rows that are plain numbers are those of a part."""
    source, routed = _only(call)
    if routed.rows is None:
        return CallCut({}, routed)
    size = source.meta["val"].shape[routed.rows]
    known = type(size) is int  # else it depends on data, and dimensions may be swapped
    end_if(known and size % call.parts, f"{size} routed rows are no {call.parts} equal parts")
    cut = Cut(routed.rows, 1, size // call.parts if known else 1)
    found = RULES[call.node.target](Call(call.node, {source: cut}, call.parts))
    if not isinstance(found.gives, Cut) or found.gives.outer != 1:
        raise EndsError("rows are in another dimension's place")
    return found._replace(needs={}, gives=Routed(found.gives.dim, routed.of, routed.reckoned))


def prefix(call: Call) -> CallCut:
    """Sums along a dimension that stays, of numbers alone."""
    _, routed = _only(call)
    end_if(is_float(call.node), "it goes along routed rows")
    return CallCut({}, Routed(routed.rows, None, _reckoned(routed)))


def summed(call: Call) -> CallCut:
    """Over the rows: partial; over other dimensions: row by row. Numbers are numbers."""
    source, routed = _only(call)
    ndim, dims = source.meta["val"].ndim, call.arg("dim")
    gone = {dim % ndim for dim in dims} if dims else set(range(ndim))
    if routed.rows in gone and is_float(call.node):
        return CallCut({}, Uncut.PARTIAL)
    rows = None if routed.rows in gone else routed.rows
    if rows is not None and not call.arg("keepdim"):
        rows -= sum(dim < rows for dim in gone)
    return CallCut({}, Routed(rows, None, _reckoned(routed)))


def for_host(call: Call) -> CallCut:
    """A number for the host, or a size."""
    _, routed = _only(call)
    named = call.node.target is _ATEN._local_scalar_dense.default and _reckoned(routed)
    end_if(named, "the host gets the number of a row")
    return CallCut({}, Routed(None))


def unbound(call: Call) -> CallCut:
    """Numbers one by one."""
    _, routed = _only(call)
    end_if(routed.rows is not None, "it takes rows apart")
    return CallCut({}, (routed,) * len(call.node.meta["val"]))


def repeated(call: Call) -> CallCut:
    """Which segment each row belongs to, by the lengths of segments."""
    end_if(_reckoned(*call.routed.values()), "lengths are reckoned with the numbers of rows")
    return CallCut({}, Routed(0))


def counted(call: Call) -> CallCut:
    """As many numbers as a size says, one after the other."""
    end_if(any(isinstance(one, fx.Node) and one not in call.routed for one in call.node.args), "a size is not routed")
    return CallCut({}, Routed(0))


def picked(call: Call) -> CallCut:
    """Rows by numbers: of what is cut, by numbers of its rows; of what is routed, by any; of a table, by no row's."""
    indices = call.arg("indices", [call.arg("index")])
    if len(indices) != 1 or indices[0] not in call.routed or call.routed[indices[0]].rows != 0:
        raise EndsError("rows are not picked by routed numbers")
    by, source = call.routed[indices[0]], call.given("self")
    cut, routed = call.cuts.get(source), call.routed.get(source)
    if cut is not None:
        end_if(by.of != cut, "what is cut is picked from by numbers that are not those of its rows")
        return CallCut({source: cut}, Routed(0))
    if routed is None:
        end_if(is_float(source) or _reckoned(by), "rows are picked from what is neither cut nor routed")
        return CallCut({}, Routed(0))
    end_if(is_float(source) and routed.rows != 0, "rows are picked along another dimension than theirs")
    return CallCut({}, Routed(0, routed.of, routed.reckoned))


def gathered(call: Call) -> CallCut:
    """Rows of what is cut, by numbers of its rows, expanded over the other dimensions."""
    source = call.given("self")
    cut, by = call.cuts.get(source), _routed_of(call, "index")
    if call.arg("dim") != 0 or by.rows != 0 or cut is None or by.of != cut:
        raise EndsError("it picks other rows than those of what is cut")
    return CallCut({source: cut}, Routed(0))


def returned(call: Call) -> CallCut:
    """Routed rows are put, or added up, to the rows that they came from, or to another order of routed rows."""
    indices = call.arg("indices", [call.arg("index")])
    end_if(len(indices) != 1 or indices[0] not in call.routed, "rows do not come back by routed numbers")
    end_if(call.arg("dim", 0) != 0, "it adds along another dimension than the rows")
    by, values = call.routed[indices[0]], call.given("values" if call.has("values") else "src")
    source = call.given("self" if call.has("self") else "out")
    routed, into = call.routed.get(values), call.routed.get(source)
    end_if(routed is None or routed.rows != 0 or by.rows != 0, "what is not routed would be put to routed rows")
    if into is not None:
        end_if(into.rows != 0 or into.of is not None, "rows would be put into something else than rows")
        return CallCut({}, Routed(0, None, not is_float(values)))
    if by.of is None:
        raise EndsError("rows would come back to others than those that were routed")
    return CallCut({source: by.of}, by.of)  # what is cut otherwise, or has other rows, is refused for all rules alike


def new(call: Call) -> CallCut:
    """A tensor of one value: as long as the rows, or as what they come back to, where that is what it is for."""
    size = call.arg("size")
    if size and isinstance(size[0], fx.Node):
        end_if(size[0] not in call.routed, "a size is not routed")
        return CallCut({}, Routed(0))
    users, of = list(call.node.users), None
    if len(users) == 1 and users[0].target in overloads("index_put index_put_") and users[0].args[0] is call.node:
        (number, *more), known = results(users[0].args[1]), call.known
        of = known[number].of if not more and number in known else None
    if of is None or size[0] != of.rows(call.parts):
        raise EndsError("nothing says how large it is in a part")
    return CallCut({}, of, {"size": [of.outer * of.inner, *size[1:]]})


def exchanged(call: Call) -> CallCut:
    """Counts go to all ranks evenly; rows by counts."""
    routed, splits = _routed_of(call, "input"), [*call.arg("output_split_sizes"), *call.arg("input_split_sizes")]
    counted = [one for one in splits if isinstance(one, fx.Node)]
    if routed.rows is None and not counted:
        return CallCut({}, Routed(None, None, _reckoned(routed)))
    if routed.rows != 0 or len(counted) != len(splits) or any(one not in call.routed for one in counted):
        raise EndsError("how many rows go to whom is not said by routed numbers")
    return CallCut({}, Routed(0, None, not is_float(call.given("input")) and _reckoned(routed)))


def multiplied(call: Call) -> CallCut:
    """Rows with weights, maybe grouped by expert; or, over the rows, gradients of weights."""
    _not_cut(call)
    end_if(call.has("offs") and call.arg("offs") not in call.routed, "rows are not grouped by routed numbers")
    left, right = call.routed.get(call.given("self")), call.routed.get(call.given("mat2"))
    if left is not None and left.rows == 0 and right is None:
        return CallCut({}, Routed(0))
    if left is not None and right is not None and (left.rows, right.rows) == (1, 0):
        return CallCut({}, Uncut.PARTIAL)
    raise EndsError("it is no product of routed rows with weights")


def starts(call: Call) -> CallCut | None:
    """Where rows become routed: numbers are sorted along the dimension that is cut; ``None``: not here."""
    if call.node.target not in SORTS:
        return None
    source = call.given("self")
    value, cut = source.meta["val"], call.cuts.get(source)
    if cut is None or value.ndim != 1 or value.is_floating_point():
        return None
    return CallCut({source: cut}, (Routed(0), Routed(0, cut)))


def cut_routed_call(call: Call) -> CallCut:
    """Say what becomes of a call with inputs that are routed."""
    target = call.node.target
    rule = returned if str(target) == _TITAN else _RULES.get(target)
    if rule is None and target not in WHOLE_NUMBERS and not is_pointwise(target):
        raise EndsError(f"nothing is known of {target} for rows that are routed")
    found = (rule or pointwise)(call)
    for given, value in zip(results(found.gives), results(call.node.meta.get("val")), strict=True):
        if isinstance(given, Routed) and isinstance(value, torch.Tensor):
            end_if(value.dtype is torch.bool, "it compares numbers of tokens")
            size = None if given.rows is None else value.shape[given.rows]
            end_if(value.is_floating_point() and size is None, "it computes with the numbers of tokens")
            end_if(type(size) is int and size % call.parts, f"{size} routed rows are no {call.parts} equal parts")
    return found


SORTS = tuple(overloads("sort sort.stable"))
_BY_RULE: dict[str, Rule] = {
    "view _unsafe_view reshape expand permute t unsqueeze alias detach transpose.int squeeze.dim": moved,
    "empty_like zeros_like": lambda call: CallCut({}, Routed(_only(call)[1].rows)),
    "cumsum": prefix,
    "sum.dim_IntList": summed,
    "_local_scalar_dense sym_size.int sym_numel": for_host,
    "unbind.int": unbound,
    "repeat_interleave.Tensor": repeated,
    "arange": counted,
    "index.Tensor index_select": picked,
    "gather": gathered,
    "index_put index_put_ scatter_add": returned,
    "new_empty new_zeros": new,
    "_grouped_mm mm": multiplied,
}
_RULES: Mapping[Any, Rule] = {
    **{target: rule for names, rule in _BY_RULE.items() for target in overloads(names)},
    torch.ops._c10d_functional.all_to_all_single.default: exchanged,
    torch.ops._c10d_functional.wait_tensor.default: lambda call: CallCut({}, _routed_of(call, "tensor")),
}
