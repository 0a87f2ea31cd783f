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

from overlap_sched.fx.dimensions.call import Call, Rule, Told, is_pure, shape_of_value
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Routed, Uncut

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional
_WHOLE_NUMBERS = frozenset(
    {
        *(_ATEN.add.Tensor, _ATEN.add.Scalar, _ATEN.sub.Tensor, _ATEN.sub.Scalar, _ATEN.mul.Tensor, _ATEN.mul.Scalar),
        *(_ATEN.floor_divide.default, _ATEN._to_copy.default, _ATEN.clone.default, _ATEN.neg.default),
    }
)
"""What may be done to numbers, element by element."""


def starts(call: Call) -> Told | None:
    """Where rows become routed: numbers are sorted along the dimension that is cut; ``None``: not here."""
    if call.node.target not in (_ATEN.sort.stable, _ATEN.sort.default):
        return None
    source, value = call.given("self"), call.given("self").meta["val"]
    cut = call.cuts.get(source)
    if cut is None or value.ndim != 1 or value.is_floating_point():
        return None
    return Told({source: cut}, (Routed(0), Routed(0, cut)))


def told_of_routed(call: Call) -> Told:
    """What becomes of a call with inputs that are routed.

    Raises:
        EndsError: The dimension ends here, and why.
    """
    target = call.node.target
    rule = _add if target is _deterministic_scatter_add() else _RULES.get(target)
    if rule is None and ((is_pure(target) and torch.Tag.pointwise in target.tags) or target in _WHOLE_NUMBERS):
        rule = _pointwise
    if rule is None:
        raise EndsError(f"nothing is known of {target} for rows that are routed")
    told = rule(call)
    given = told.gives if isinstance(told.gives, tuple) else (told.gives,)
    for one, value in zip(given, _values(call.node), strict=True):
        if isinstance(one, Routed):
            _check_value(call, one, value)
    return told


def _values(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check_value(call: Call, given: Routed, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        return
    if value.dtype is torch.bool:
        raise EndsError("it compares numbers of tokens")
    if value.is_floating_point() and given.rows is None:
        raise EndsError("it computes with the numbers of tokens")
    if given.rows is not None and type(value.shape[given.rows]) is int and value.shape[given.rows] % call.parts:
        raise EndsError(f"{value.shape[given.rows]} routed rows are no {call.parts} equal parts")


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _routed(call: Call, name: str) -> Routed:
    found = call.routed.get(call.given(name))
    if found is None:
        raise EndsError(f"argument {name!r} is not routed while another one is")
    return found


def _only(call: Call) -> tuple[fx.Node, Routed]:
    """The one tensor that is routed; sizes may be, too."""
    tensors = [(node, one) for node, one in call.routed.items() if isinstance(node.meta.get("val"), torch.Tensor)]
    if len(tensors) != 1:
        raise EndsError(f"{len(tensors)} of its tensors are routed")
    return tensors[0]


def _not_cut(call: Call) -> None:
    if call.cuts:
        raise EndsError("it takes what is cut together with what is routed")


def _pointwise(call: Call) -> Told:
    """Element by element; tensors that are not routed are broadcast along the rows."""
    _not_cut(call)
    value = call.node.meta["val"]
    floats = value.is_floating_point()
    if not floats and call.node.target not in _WHOLE_NUMBERS:
        raise EndsError("numbers of tokens are only added, moved and copied")
    rows = None
    for node, routed in call.routed.items():
        if floats and not _is_float(node):
            raise EndsError("it computes with the numbers of tokens")
        if routed.rows is not None:
            rows = routed.rows - node.meta["val"].ndim + value.ndim
    for node in call.node.all_input_nodes:
        one = node.meta.get("val")
        if node not in call.routed and isinstance(one, torch.Tensor) and rows is not None:
            at = rows - value.ndim + one.ndim
            if at >= 0 and not (type(one.shape[at]) is int and one.shape[at] == 1):
                raise EndsError(f"{node.name!r} has a row for each routed row, and is not routed")
    return Told({}, Routed(rows, _of(call)))


def _of(call: Call) -> Cut | None:
    """Rows of what: a row number stays one where it is copied; ``rows // k`` numbers rows of k."""
    (first, *others) = call.routed
    of = call.routed[first].of
    if of is None or others or _is_float(call.node):
        return None
    if call.node.target in (_ATEN._to_copy.default, _ATEN.clone.default):
        return of
    if call.node.target is _ATEN.floor_divide.default and first is call.node.args[0]:
        by = call.node.args[1]
        if type(by) is int and by > 0 and of.inner % by == 0:
            return Cut(of.dim, of.outer, of.inner // by)
    return None


def _moved(call: Call) -> Told:
    """Views and other moves: rows are followed; sizes of rows that are plain numbers are those of a part."""
    from overlap_sched.fx.dimensions.moves import MOVES

    _not_cut(call)
    source, routed = _only(call)
    if routed.rows is None:
        return Told({}, Routed(None))
    size = source.meta["val"].shape[routed.rows]
    if type(size) is not int:
        return _moved_unknown(call, source, routed)
    if size % call.parts:
        raise EndsError(f"{size} routed rows are no {call.parts} equal parts")
    cut = Cut(routed.rows, 1, size // call.parts)
    told = MOVES[call.node.target](Call(call.node, {source: cut}, call.parts))
    assert isinstance(told.gives, Cut)
    if told.gives.outer != 1:
        raise EndsError("rows are in another dimension's place")
    return told._replace(needs={}, gives=Routed(told.gives.dim, routed.of))


def _moved_unknown(call: Call, source: fx.Node, routed: Routed) -> Told:
    """The same where the number of rows depends on data: permutations, and shapes that name it."""
    target, ndim = call.node.target, source.meta["val"].ndim
    assert routed.rows is not None
    if target in (_ATEN.transpose.int, _ATEN.t.default):
        a, b = (call.arg("dim0"), call.arg("dim1")) if target is _ATEN.transpose.int else (0, 1)
        swap = {a % ndim: b % ndim, b % ndim: a % ndim}
        return Told({}, Routed(swap.get(routed.rows, routed.rows), routed.of))
    if target in (_ATEN.alias.default, _ATEN.detach.default):
        return Told({}, routed)
    raise EndsError(f"{target} of rows whose number depends on data")


def _numbers(call: Call) -> Told:
    """Along a dimension that stays, numbers alone."""
    _not_cut(call)
    if _is_float(call.node):
        raise EndsError("it goes along routed rows")
    _, routed = _only(call)
    return Told({}, Routed(routed.rows))


def _sum(call: Call) -> Told:
    """Over the rows: partial; over other dimensions: row by row. Numbers are numbers."""
    _not_cut(call)
    source, routed = _only(call)
    ndim, dims = source.meta["val"].ndim, call.arg("dim")
    gone = {dim % ndim for dim in dims} if dims else set(range(ndim))
    if routed.rows in gone:
        return Told({}, Uncut.PARTIAL if _is_float(call.node) else Routed(None))
    if routed.rows is None or call.arg("keepdim"):
        return Told({}, Routed(routed.rows))
    return Told({}, Routed(routed.rows - sum(dim < routed.rows for dim in gone)))


def _index(call: Call) -> Told:
    """Rows by numbers: of what is cut, by numbers of its rows; of what is routed, or of a few numbers, by any."""
    indices = call.arg("indices") if call.node.target is _ATEN.index.Tensor else [call.arg("index")]
    if len(indices) != 1 or indices[0] not in call.routed or call.routed[indices[0]].rows != 0:
        raise EndsError("rows are not picked by routed numbers")
    by, source = call.routed[indices[0]], call.given("self")
    cut = call.cuts.get(source)
    if cut is not None:
        if by.of != cut:
            raise EndsError("what is cut is picked from by numbers that are not those of its rows")
        return Told({source: cut}, Routed(0))
    routed = call.routed.get(source)
    if _is_float(source):
        if routed is None or routed.rows != 0:
            raise EndsError("rows are picked from what is neither cut nor routed")
    elif routed is None and source.meta["val"].shape[0] % call.parts == 0 and source.op == "placeholder":
        raise EndsError("numbers are picked from an input")
    return Told({}, Routed(0))


def _gather(call: Call) -> Told:
    """Rows of what is cut, by numbers of its rows, expanded over the other dimensions."""
    source = call.given("self")
    cut, by = call.cuts.get(source), _routed(call, "index")
    if call.arg("dim") != 0 or by.rows != 0 or cut is None or by.of != cut:
        raise EndsError("it picks other rows than those of what is cut")
    return Told({source: cut}, Routed(0))


def _put(call: Call) -> Told:
    """Routed rows come back: to the rows that they came from, or to another order of routed rows."""
    indices, source, values = call.arg("indices"), call.given("self"), call.given("values")
    if len(indices) != 1 or indices[0] not in call.routed:
        raise EndsError("it does not put by routed numbers")
    return _back(call, source, call.routed[indices[0]], values, "index_put")


def _deterministic_scatter_add() -> Any:
    """The operator of torchtitan (``torchtitan/ops/scatter_add.py``), where it has been imported: along dimension 0."""
    packet = getattr(torch.ops.torchtitan, "deterministic_scatter_add", None)
    return None if packet is None else packet.default


def _add(call: Call) -> Told:
    source = call.given("out" if call.node.target is not _ATEN.scatter_add.default else "self")
    if call.node.target is _ATEN.scatter_add.default and call.arg("dim") != 0:
        raise EndsError("it adds along another dimension than the rows")
    return _back(call, source, _routed(call, "index"), call.given("src"), "scatter_add")


def _back(call: Call, source: fx.Node, by: Routed, values: fx.Node, what: str) -> Told:
    routed, cut = call.routed.get(values), call.cuts.get(source)
    if routed is None or routed.rows != 0 or by.rows != 0:
        raise EndsError(f"{what} of what is not routed")
    if source in call.routed:
        if call.routed[source].rows != 0:
            raise EndsError(f"{what} into something else than rows")
        return Told({}, Routed(0))
    if by.of is None:
        raise EndsError(f"{what} to other rows than those that were routed")
    sizes = shape_of_value(source.meta.get("val"))
    if cut is None:  # taken in part from outside: zeros, mostly
        cut = by.of
    if cut != by.of or sizes[0] != cut.rows(call.parts):
        raise EndsError(f"{what} to rows that are cut otherwise than those that were routed")
    return Told({source: cut}, cut)


def _new(call: Call) -> Told:
    """A tensor of one value: as long as the rows, or as what they come back to, where that is what it is for."""
    size = call.arg("size")
    if any(isinstance(one, fx.Node) for one in size):
        return Told({}, Routed(0)) if isinstance(size[0], fx.Node) else Told({}, Uncut.SAME)
    of = _comes_back_to(call)
    if of is None:
        raise EndsError("nothing says how large it is in a part")
    if size[0] != of.rows(call.parts):
        raise EndsError("it is not as long as what rows come back to")
    return Told({}, of, {"size": [of.outer * of.inner, *size[1:]]})


def _comes_back_to(call: Call) -> Cut | None:
    """How a new tensor is cut, by the numbers that rows are put into it with."""
    users = list(call.node.users)
    if len(users) != 1 or users[0].target not in (_ATEN.index_put.default, _ATEN.index_put_.default):
        return None
    indices = users[0].args[1]
    if users[0].args[0] is not call.node or len(indices) != 1:
        return None
    known = call.known.get(indices[0])
    return None if known is None else known.of


def _all_to_all(call: Call) -> Told:
    """Counts go to all ranks evenly; rows by counts."""
    source = call.given("input")
    routed = _routed(call, "input")
    splits = [*call.arg("output_split_sizes"), *call.arg("input_split_sizes")]
    counted = [one for one in splits if isinstance(one, fx.Node)]
    if routed.rows is None and not counted:
        return Told({}, Routed(None))
    if routed.rows != 0 or len(counted) != len(splits) or any(one not in call.routed for one in counted):
        raise EndsError(f"how many rows of {source.name!r} go to whom is not said by routed numbers")
    return Told({}, Routed(0))


def _grouped(call: Call) -> Told:
    """Rows by expert with weights; or, over the rows of each expert, gradients of weights."""
    a, b = call.given("self"), call.given("mat2")
    if not isinstance(call.arg("offs"), fx.Node) or call.arg("offs") not in call.routed:
        raise EndsError("rows are not grouped by routed numbers")
    left, right = call.routed.get(a), call.routed.get(b)
    if left is not None and left.rows == 0 and right is None and b not in call.cuts:
        return Told({}, Routed(0))
    if left is not None and right is not None and (left.rows, right.rows) == (1, 0):
        return Told({}, Uncut.PARTIAL)
    raise EndsError("it groups something else than routed rows")


def _mm(call: Call) -> Told:
    _not_cut(call)
    left, right = call.routed.get(call.given("self")), call.routed.get(call.given("mat2"))
    if left is not None and left.rows == 0 and right is None:
        return Told({}, Routed(0))
    if left is not None and right is not None and (left.rows, right.rows) == (1, 0):
        return Told({}, Uncut.PARTIAL)
    raise EndsError("it is no product of routed rows with weights")


def _scalar(call: Call) -> Told:
    """A number for the host, or a size."""
    return Told({}, Routed(None))


def _unbind(call: Call) -> Told:
    _, routed = _only(call)
    if routed.rows is not None:
        raise EndsError("it takes rows apart")
    return Told({}, (Routed(None),) * len(call.node.meta["val"]))


def _repeat(call: Call) -> Told:
    """As many numbers as rows."""
    return Told({}, Routed(0))


def _arange(call: Call) -> Told:
    return Told({}, Routed(0))


def _like(call: Call) -> Told:
    return Told({}, Routed(_only(call)[1].rows))


_VIEWS = (_ATEN.view, _ATEN._unsafe_view, _ATEN.reshape, _ATEN.expand, _ATEN.permute, _ATEN.t, _ATEN.unsqueeze)
_RULES: Mapping[Any, Rule] = {
    **{packet.default: _moved for packet in (*_VIEWS, _ATEN.alias, _ATEN.detach)},
    _ATEN.transpose.int: _moved,
    _ATEN.squeeze.dim: _moved,
    _ATEN.empty_like.default: _like,
    _ATEN.zeros_like.default: _like,
    _ATEN.cumsum.default: _numbers,
    _ATEN.sum.dim_IntList: _sum,
    _ATEN.index.Tensor: _index,
    _ATEN.index_select.default: _index,
    _ATEN.gather.default: _gather,
    _ATEN.index_put.default: _put,
    _ATEN.index_put_.default: _put,
    _ATEN.scatter_add.default: _add,
    _ATEN.new_empty.default: _new,
    _ATEN.new_zeros.default: _new,
    _C10D.all_to_all_single.default: _all_to_all,
    _C10D.wait_tensor.default: lambda call: Told({}, _routed(call, "tensor")),
    _ATEN._grouped_mm.default: _grouped,
    _ATEN.mm.default: _mm,
    _ATEN._local_scalar_dense.default: _scalar,
    _ATEN.sym_size.int: _scalar,
    _ATEN.sym_numel.default: _scalar,
    _ATEN.unbind.int: _unbind,
    _ATEN.repeat_interleave.Tensor: _repeat,
    _ATEN.arange.default: _arange,
}
