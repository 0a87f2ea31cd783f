"""Rules of routed rows that move: picked, put back, sent to other ranks, multiplied by expert."""

from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call, Told, is_float, not_cut, reckoned
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Routed, Uncut

_ATEN = torch.ops.aten


def _routed_of(call: Call, name: str) -> Routed:
    """An argument that must be routed."""
    found = call.routed.get(call.given(name))
    if found is None:
        raise EndsError(f"argument {name!r} is not routed while another one is")
    return found


def picked(call: Call) -> Told:
    """Rows by numbers: of what is cut, by numbers of its rows; of what is routed, by any; of a table, by no row's."""
    indices = call.arg("indices") if call.node.target is _ATEN.index.Tensor else [call.arg("index")]
    if len(indices) != 1 or indices[0] not in call.routed or call.routed[indices[0]].rows != 0:
        raise EndsError("rows are not picked by routed numbers")
    by, source = call.routed[indices[0]], call.given("self")
    cut, routed = call.cuts.get(source), call.routed.get(source)
    if cut is not None:
        if by.of != cut:
            raise EndsError("what is cut is picked from by numbers that are not those of its rows")
        return Told({source: cut}, Routed(0))
    if routed is None and (is_float(source) or reckoned(by)):
        raise EndsError("rows are picked from what is neither cut nor routed")
    if routed is not None and is_float(source) and routed.rows != 0:
        raise EndsError("rows are picked along another dimension than theirs")
    return Told({}, Routed(0) if routed is None else Routed(0, routed.of, routed.reckoned))


def gathered(call: Call) -> Told:
    """Rows of what is cut, by numbers of its rows, expanded over the other dimensions."""
    source = call.given("self")
    cut, by = call.cuts.get(source), _routed_of(call, "index")
    if call.arg("dim") != 0 or by.rows != 0 or cut is None or by.of != cut:
        raise EndsError("it picks other rows than those of what is cut")
    return Told({source: cut}, Routed(0))


def put(call: Call) -> Told:
    """Routed rows come back: to the rows that they came from, or to another order of routed rows."""
    indices = call.arg("indices")
    if len(indices) != 1 or indices[0] not in call.routed:
        raise EndsError("it does not put by routed numbers")
    return _back(call, call.given("self"), call.routed[indices[0]], call.given("values"))


def added(call: Call) -> Told:
    """The same, added up."""
    if call.arg("dim") != 0:
        raise EndsError("it adds along another dimension than the rows")
    return _back(call, call.given("self"), _routed_of(call, "index"), call.given("src"))


def added_by_torchtitan(call: Call) -> Told:
    """``torchtitan::deterministic_scatter_add(out, index, src)``: the same along dimension 0."""
    return _back(call, call.given("out"), _routed_of(call, "index"), call.given("src"))


def _back(call: Call, source: fx.Node, by: Routed, values: fx.Node) -> Told:
    routed, into = call.routed.get(values), call.routed.get(source)
    if routed is None or routed.rows != 0 or by.rows != 0:
        raise EndsError("what is not routed would be put to routed rows")
    if into is not None:
        if into.rows != 0 or into.of is not None:
            raise EndsError("rows would be put into something else than rows")
        return Told({}, Routed(0, None, not is_float(values)))
    if by.of is None:
        raise EndsError("rows would come back to others than those that were routed")
    return Told({source: by.of}, by.of)  # what is cut otherwise, or has other rows, is refused for all rules alike


def new(call: Call) -> Told:
    """A tensor of one value: as long as the rows, or as what they come back to, where that is what it is for."""
    size = call.arg("size")
    if size and isinstance(size[0], fx.Node):
        if size[0] not in call.routed:
            raise EndsError("a size is not routed")
        return Told({}, Routed(0))
    of = _comes_back_to(call)
    if of is None or size[0] != of.rows(call.parts):
        raise EndsError("nothing says how large it is in a part")
    return Told({}, of, {"size": [of.outer * of.inner, *size[1:]]})


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


def exchanged(call: Call) -> Told:
    """Counts go to all ranks evenly; rows by counts."""
    routed, splits = _routed_of(call, "input"), [*call.arg("output_split_sizes"), *call.arg("input_split_sizes")]
    counted = [one for one in splits if isinstance(one, fx.Node)]
    numbers = not is_float(call.given("input"))
    if routed.rows is None and not counted:
        return Told({}, Routed(None, None, reckoned(routed)))
    if routed.rows != 0 or len(counted) != len(splits) or any(one not in call.routed for one in counted):
        raise EndsError("how many rows go to whom is not said by routed numbers")
    return Told({}, Routed(0, None, numbers and reckoned(routed)))


def waited(call: Call) -> Told:
    """Return what was told of the launch."""
    return Told({}, _routed_of(call, "tensor"))


def grouped(call: Call) -> Told:
    """Rows by expert with weights; or, over the rows of each expert, gradients of weights."""
    not_cut(call)
    offsets: Any = call.arg("offs")
    if not isinstance(offsets, fx.Node) or offsets not in call.routed:
        raise EndsError("rows are not grouped by routed numbers")
    return _product(call)


def multiplied(call: Call) -> Told:
    """Rows with weights; or gradients of weights, over the rows."""
    not_cut(call)
    return _product(call)


def _product(call: Call) -> Told:
    left, right = call.routed.get(call.given("self")), call.routed.get(call.given("mat2"))
    if left is not None and left.rows == 0 and right is None:
        return Told({}, Routed(0))
    if left is not None and right is not None and (left.rows, right.rows) == (1, 0):
        return Told({}, Uncut.PARTIAL)
    raise EndsError("it is no product of routed rows with weights")
