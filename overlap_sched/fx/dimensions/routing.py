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

from overlap_sched.fx.dimensions.rules import RULES, Call, CallCut, Rule, end_if, is_float, is_pure, not_cut, reckoned
from overlap_sched.transform.dimension_graph import Cut, EndsError, Routed, Uncut

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
    end_if(len(tensors) != 1, f"{len(tensors)} of its tensors are routed")
    return tensors[0]


def pointwise(call: Call) -> CallCut:
    """Element by element; tensors that are not routed are broadcast along the rows."""
    not_cut(call)
    value = call.node.meta["val"]
    if not is_float(call.node) and call.node.target not in WHOLE_NUMBERS:
        raise EndsError("numbers of tokens are only added, moved and copied")
    rows = None
    for node, routed in call.routed.items():
        end_if(is_float(call.node) and not is_float(node), "it computes with the numbers of tokens")
        if routed.rows is not None:
            rows = routed.rows - node.meta["val"].ndim + value.ndim
    for node in call.node.all_input_nodes:
        one = node.meta.get("val")
        if node not in call.routed and isinstance(one, torch.Tensor) and rows is not None:
            at = rows - value.ndim + one.ndim
            if at >= 0 and not (type(one.shape[at]) is int and one.shape[at] == 1):
                raise EndsError(f"{node.name!r} has a row for each routed row, and is not routed")
    of = _of(call)
    return CallCut({}, Routed(rows, of, of is None and reckoned(*call.routed.values())))


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
    if type(size) is not int:
        return CallCut({}, _moved_unknown(call, source, routed))
    end_if(size % call.parts, f"{size} routed rows are no {call.parts} equal parts")
    found = RULES[call.node.target](Call(call.node, {source: Cut(routed.rows, 1, size // call.parts)}, call.parts))
    if not isinstance(found.gives, Cut) or found.gives.outer != 1:
        raise EndsError("rows are in another dimension's place")
    return found._replace(needs={}, gives=Routed(found.gives.dim, routed.of, routed.reckoned))


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


def like(call: Call) -> CallCut:
    """A tensor of the same size."""
    return CallCut({}, Routed(_only(call)[1].rows))


def prefix(call: Call) -> CallCut:
    """Sums along a dimension that stays, of numbers alone."""
    _, routed = _only(call)
    end_if(is_float(call.node), "it goes along routed rows")
    return CallCut({}, Routed(routed.rows, None, reckoned(routed)))


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
    return CallCut({}, Routed(rows, None, reckoned(routed)))


def for_host(call: Call) -> CallCut:
    """A number for the host, or a size."""
    _, routed = _only(call)
    if call.node.target is _ATEN._local_scalar_dense.default and reckoned(routed):
        raise EndsError("the host gets the number of a row")
    return CallCut({}, Routed(None))


def unbound(call: Call) -> CallCut:
    """Numbers one by one."""
    _, routed = _only(call)
    end_if(routed.rows is not None, "it takes rows apart")
    return CallCut({}, (routed,) * len(call.node.meta["val"]))


def repeated(call: Call) -> CallCut:
    """Which segment each row belongs to, by the lengths of segments."""
    end_if(reckoned(*call.routed.values()), "lengths are reckoned with the numbers of rows")
    return CallCut({}, Routed(0))


def counted(call: Call) -> CallCut:
    """As many numbers as a size says, one after the other."""
    if any(isinstance(one, torch.fx.Node) and one not in call.routed for one in call.node.args):
        raise EndsError("a size is not routed")
    return CallCut({}, Routed(0))


def _routed_of(call: Call, name: str) -> Routed:
    """An argument that must be routed."""
    found = call.routed.get(call.given(name))
    if found is None:
        raise EndsError(f"argument {name!r} is not routed while another one is")
    return found


def picked(call: Call) -> CallCut:
    """Rows by numbers: of what is cut, by numbers of its rows; of what is routed, by any; of a table, by no row's."""
    indices = call.arg("indices") if call.node.target is _ATEN.index.Tensor else [call.arg("index")]
    if len(indices) != 1 or indices[0] not in call.routed or call.routed[indices[0]].rows != 0:
        raise EndsError("rows are not picked by routed numbers")
    by, source = call.routed[indices[0]], call.given("self")
    cut, routed = call.cuts.get(source), call.routed.get(source)
    if cut is not None:
        end_if(by.of != cut, "what is cut is picked from by numbers that are not those of its rows")
        return CallCut({source: cut}, Routed(0))
    end_if(routed is None and (is_float(source) or reckoned(by)), "rows are picked from what is neither cut nor routed")
    if routed is not None and is_float(source) and routed.rows != 0:
        raise EndsError("rows are picked along another dimension than theirs")
    return CallCut({}, Routed(0) if routed is None else Routed(0, routed.of, routed.reckoned))


def gathered(call: Call) -> CallCut:
    """Rows of what is cut, by numbers of its rows, expanded over the other dimensions."""
    source = call.given("self")
    cut, by = call.cuts.get(source), _routed_of(call, "index")
    if call.arg("dim") != 0 or by.rows != 0 or cut is None or by.of != cut:
        raise EndsError("it picks other rows than those of what is cut")
    return CallCut({source: cut}, Routed(0))


def put(call: Call) -> CallCut:
    """Routed rows come back: to the rows that they came from, or to another order of routed rows."""
    indices = call.arg("indices")
    end_if(len(indices) != 1 or indices[0] not in call.routed, "it does not put by routed numbers")
    return _back(call, call.given("self"), call.routed[indices[0]], call.given("values"))


def added(call: Call) -> CallCut:
    """The same, added up."""
    end_if(call.arg("dim") != 0, "it adds along another dimension than the rows")
    return _back(call, call.given("self"), _routed_of(call, "index"), call.given("src"))


def added_by_torchtitan(call: Call) -> CallCut:
    """``torchtitan::deterministic_scatter_add(out, index, src)``: the same along dimension 0."""
    return _back(call, call.given("out"), _routed_of(call, "index"), call.given("src"))


def _back(call: Call, source: fx.Node, by: Routed, values: fx.Node) -> CallCut:
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
    of = _comes_back_to(call)
    if of is None or size[0] != of.rows(call.parts):
        raise EndsError("nothing says how large it is in a part")
    return CallCut({}, of, {"size": [of.outer * of.inner, *size[1:]]})


def _comes_back_to(call: Call) -> Cut | None:
    """How a new tensor is cut, by the numbers that rows are put into it with; ``None``: it is for something else."""
    users = list(call.node.users)
    if len(users) != 1 or users[0].target not in (_ATEN.index_put.default, _ATEN.index_put_.default):
        return None
    into, indices = users[0].args[:2]
    if into is not call.node or not isinstance(indices, list | tuple) or len(indices) != 1:
        return None
    known = call.known.get(indices[0])
    return None if known is None else known.of


def exchanged(call: Call) -> CallCut:
    """Counts go to all ranks evenly; rows by counts."""
    routed, splits = _routed_of(call, "input"), [*call.arg("output_split_sizes"), *call.arg("input_split_sizes")]
    counted = [one for one in splits if isinstance(one, fx.Node)]
    numbers = not is_float(call.given("input"))
    if routed.rows is None and not counted:
        return CallCut({}, Routed(None, None, reckoned(routed)))
    if routed.rows != 0 or len(counted) != len(splits) or any(one not in call.routed for one in counted):
        raise EndsError("how many rows go to whom is not said by routed numbers")
    return CallCut({}, Routed(0, None, numbers and reckoned(routed)))


def waited(call: Call) -> CallCut:
    """As its launch."""
    return CallCut({}, _routed_of(call, "tensor"))


def grouped(call: Call) -> CallCut:
    """Rows by expert with weights; or, over the rows of each expert, gradients of weights."""
    not_cut(call)
    offsets: Any = call.arg("offs")
    end_if(not isinstance(offsets, fx.Node) or offsets not in call.routed, "rows are not grouped by routed numbers")
    return _product(call)


def multiplied(call: Call) -> CallCut:
    """Rows with weights; or gradients of weights, over the rows."""
    not_cut(call)
    return _product(call)


def _product(call: Call) -> CallCut:
    left, right = call.routed.get(call.given("self")), call.routed.get(call.given("mat2"))
    if left is not None and left.rows == 0 and right is None:
        return CallCut({}, Routed(0))
    if left is not None and right is not None and (left.rows, right.rows) == (1, 0):
        return CallCut({}, Uncut.PARTIAL)
    raise EndsError("it is no product of routed rows with weights")


_C10D = torch.ops._c10d_functional


def starts(call: Call) -> CallCut | None:
    """Where rows become routed: numbers are sorted along the dimension that is cut; ``None``: not here."""
    if call.node.target not in (_ATEN.sort.stable, _ATEN.sort.default):
        return None
    source = call.given("self")
    value, cut = source.meta["val"], call.cuts.get(source)
    if cut is None or value.ndim != 1 or value.is_floating_point():
        return None
    return CallCut({source: cut}, (Routed(0), Routed(0, cut)))


def cut_routed_call(call: Call) -> CallCut:
    """Say what becomes of a call with inputs that are routed."""
    found = _rule(call.node.target)(call)
    value = call.node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    for one, of in zip(found.gives if isinstance(found.gives, tuple) else (found.gives,), values, strict=True):
        if isinstance(one, Routed) and isinstance(of, torch.Tensor):
            _check(call, one, of)
    return found


def _rule(target: Any) -> Rule:
    rule = added_by_torchtitan if target is _of_torchtitan() else _RULES.get(target)
    if rule is not None:
        return rule
    if target in WHOLE_NUMBERS or (is_pure(target) and torch.Tag.pointwise in target.tags):
        return pointwise
    raise EndsError(f"nothing is known of {target} for rows that are routed")


def _of_torchtitan() -> Any:
    """The operator that adds rows up (``torchtitan/ops/scatter_add.py``), where it has been imported."""
    packet = getattr(torch.ops.torchtitan, "deterministic_scatter_add", None)
    return None if packet is None else packet.default


def _check(call: Call, given: Routed, value: torch.Tensor) -> None:
    end_if(value.dtype is torch.bool, "it compares numbers of tokens")
    end_if(value.is_floating_point() and given.rows is None, "it computes with the numbers of tokens")
    if given.rows is not None and type(value.shape[given.rows]) is int and value.shape[given.rows] % call.parts:
        raise EndsError(f"{value.shape[given.rows]} routed rows are no {call.parts} equal parts")


_VIEWS = (_ATEN.view, _ATEN._unsafe_view, _ATEN.reshape, _ATEN.expand, _ATEN.permute, _ATEN.t, _ATEN.unsqueeze)
_RULES: Mapping[Any, Rule] = {
    **{packet.default: moved for packet in (*_VIEWS, _ATEN.alias, _ATEN.detach)},
    _ATEN.transpose.int: moved,
    _ATEN.squeeze.dim: moved,
    _ATEN.empty_like.default: like,
    _ATEN.zeros_like.default: like,
    _ATEN.cumsum.default: prefix,
    _ATEN.sum.dim_IntList: summed,
    _ATEN._local_scalar_dense.default: for_host,
    _ATEN.sym_size.int: for_host,
    _ATEN.sym_numel.default: for_host,
    _ATEN.unbind.int: unbound,
    _ATEN.repeat_interleave.Tensor: repeated,
    _ATEN.arange.default: counted,
    _ATEN.index.Tensor: picked,
    _ATEN.index_select.default: picked,
    _ATEN.gather.default: gathered,
    _ATEN.index_put.default: put,
    _ATEN.index_put_.default: put,
    _ATEN.scatter_add.default: added,
    _ATEN.new_empty.default: new,
    _ATEN.new_zeros.default: new,
    _C10D.all_to_all_single.default: exchanged,
    _C10D.wait_tensor.default: waited,
    _ATEN._grouped_mm.default: grouped,
    _ATEN.mm.default: multiplied,
}
