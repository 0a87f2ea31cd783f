"""Rules of routed values where rows stay where they are: element by element, sums, views, numbers for the host."""

from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call, Told, is_float, not_cut, reckoned
from overlap_sched.fx.dimensions.moves import MOVES
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Routed, Uncut

_ATEN = torch.ops.aten
WHOLE_NUMBERS: frozenset[Any] = frozenset(
    {
        *(_ATEN.add.Tensor, _ATEN.add.Scalar, _ATEN.sub.Tensor, _ATEN.sub.Scalar, _ATEN.mul.Tensor, _ATEN.mul.Scalar),
        *(_ATEN.floor_divide.default, _ATEN._to_copy.default, _ATEN.clone.default, _ATEN.neg.default),
    }
)
"""What may be done to numbers, element by element."""


def _only(call: Call) -> tuple[fx.Node, Routed]:
    """The one tensor that is routed, where nothing is cut; sizes may be routed, too."""
    not_cut(call)
    tensors = [(node, one) for node, one in call.routed.items() if isinstance(node.meta.get("val"), torch.Tensor)]
    if len(tensors) != 1:
        raise EndsError(f"{len(tensors)} of its tensors are routed")
    return tensors[0]


def pointwise(call: Call) -> Told:
    """Element by element; tensors that are not routed are broadcast along the rows."""
    not_cut(call)
    value = call.node.meta["val"]
    if not is_float(call.node) and call.node.target not in WHOLE_NUMBERS:
        raise EndsError("numbers of tokens are only added, moved and copied")
    rows = None
    for node, routed in call.routed.items():
        if is_float(call.node) and not is_float(node):
            raise EndsError("it computes with the numbers of tokens")
        if routed.rows is not None:
            rows = routed.rows - node.meta["val"].ndim + value.ndim
    for node in call.node.all_input_nodes:
        one = node.meta.get("val")
        if node not in call.routed and isinstance(one, torch.Tensor) and rows is not None:
            at = rows - value.ndim + one.ndim
            if at >= 0 and not (type(one.shape[at]) is int and one.shape[at] == 1):
                raise EndsError(f"{node.name!r} has a row for each routed row, and is not routed")
    of = _of(call)
    return Told({}, Routed(rows, of, of is None and reckoned(*call.routed.values())))


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


def moved(call: Call) -> Told:
    """Views and other moves: rows are followed; sizes of rows that are plain numbers are those of a part."""
    source, routed = _only(call)
    if routed.rows is None:
        return Told({}, routed)
    size = source.meta["val"].shape[routed.rows]
    if type(size) is not int:
        return Told({}, _moved_unknown(call, source, routed))
    if size % call.parts:
        raise EndsError(f"{size} routed rows are no {call.parts} equal parts")
    told = MOVES[call.node.target](Call(call.node, {source: Cut(routed.rows, 1, size // call.parts)}, call.parts))
    if not isinstance(told.gives, Cut) or told.gives.outer != 1:
        raise EndsError("rows are in another dimension's place")
    return told._replace(needs={}, gives=Routed(told.gives.dim, routed.of, routed.reckoned))


def _moved_unknown(call: Call, source: fx.Node, routed: Routed) -> Routed:
    """The same where the number of rows depends on data: dimensions are swapped."""
    target, ndim = call.node.target, source.meta["val"].ndim
    assert routed.rows is not None
    if target in (_ATEN.alias.default, _ATEN.detach.default):
        return routed
    if target is not _ATEN.transpose.int and target is not _ATEN.t.default:
        raise EndsError(f"{target} of rows whose number depends on data")
    a, b = (call.arg("dim0"), call.arg("dim1")) if target is _ATEN.transpose.int else (0, 1)
    swap = {a % ndim: b % ndim, b % ndim: a % ndim}
    return Routed(swap.get(routed.rows, routed.rows), routed.of, routed.reckoned)


def like(call: Call) -> Told:
    """A tensor of the same size."""
    return Told({}, Routed(_only(call)[1].rows))


def prefix(call: Call) -> Told:
    """Sums along a dimension that stays, of numbers alone."""
    _, routed = _only(call)
    if is_float(call.node):
        raise EndsError("it goes along routed rows")
    return Told({}, Routed(routed.rows, None, reckoned(routed)))


def summed(call: Call) -> Told:
    """Over the rows: partial; over other dimensions: row by row. Numbers are numbers."""
    source, routed = _only(call)
    ndim, dims = source.meta["val"].ndim, call.arg("dim")
    gone = {dim % ndim for dim in dims} if dims else set(range(ndim))
    if routed.rows in gone and is_float(call.node):
        return Told({}, Uncut.PARTIAL)
    rows = None if routed.rows in gone else routed.rows
    if rows is not None and not call.arg("keepdim"):
        rows -= sum(dim < rows for dim in gone)
    return Told({}, Routed(rows, None, reckoned(routed)))


def for_host(call: Call) -> Told:
    """A number for the host, or a size."""
    _, routed = _only(call)
    if call.node.target is _ATEN._local_scalar_dense.default and reckoned(routed):
        raise EndsError("the host gets the number of a row")
    return Told({}, Routed(None))


def unbound(call: Call) -> Told:
    """Numbers one by one."""
    _, routed = _only(call)
    if routed.rows is not None:
        raise EndsError("it takes rows apart")
    return Told({}, (routed,) * len(call.node.meta["val"]))


def repeated(call: Call) -> Told:
    """Which segment each row belongs to, by the lengths of segments."""
    if reckoned(*call.routed.values()):
        raise EndsError("lengths are reckoned with the numbers of rows")
    return Told({}, Routed(0))


def counted(call: Call) -> Told:
    """As many numbers as a size says, one after the other."""
    if any(isinstance(one, torch.fx.Node) and one not in call.routed for one in call.node.args):
        raise EndsError("a size is not routed")
    return Told({}, Routed(0))
