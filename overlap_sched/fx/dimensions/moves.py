"""Rules of operators that move elements: views, pieces, joins, communication."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Uncut
from overlap_sched.transform.dimension_graph.shapes import (
    broadcast,
    joined,
    operand,
    piece,
    through_gather,
    through_permute,
    through_scatter,
    through_view,
    without,
)

_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def _view(call: Call) -> Told:
    source = call.given("self")
    cut = through_view(call.cut("self"), shape(source), call.result(), call.parts)
    return Told({source: call.cut("self")}, cut, {"size": list(cut.part(call.result()))})


def _reshape(call: Call) -> Told:
    told = _view(call)
    return told._replace(changes={"shape": told.changes["size"]})


def _expand(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    given = broadcast(cut, shape(source), call.result())
    return Told({source: cut}, given, {"size": list(given.part(call.result()))})


def _permute(call: Call) -> Told:
    cut = call.cut("self")
    return Told({call.given("self"): cut}, through_permute(cut, call.arg("dims")))


def _transpose(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    dims = list(range(len(shape(source))))
    a, b = (call.arg("dim0"), call.arg("dim1")) if call.node.target is _ATEN.transpose.int else (0, -1)
    dims[a], dims[b] = dims[b], dims[a]
    return Told({source: cut}, through_permute(cut, dims))


def _unsqueeze(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    at = call.arg("dim") % (len(shape(source)) + 1)
    return Told({source: cut}, cut.moved(cut.dim + (at <= cut.dim)))


def _squeeze(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    dims = call.arg("dim")
    dims = [dims] if isinstance(dims, int) else dims
    sizes = shape(source)
    gone = [dim for dim in dims if sizes[dim] == 1]
    if cut.dim in [dim % len(sizes) for dim in dims] and cut.part(sizes)[cut.dim] == 1:
        raise EndsError("a part would have one row, and lose the dimension")
    return Told({source: cut}, without(cut, gone, False, len(sizes)) if gone else cut)


def _same(call: Call, name: str = "self") -> Told:
    return Told({call.given(name): call.cut(name)}, call.cut(name))


def _last_kept(call: Call) -> Told:
    """The last dimension becomes part of the type, or comes from it."""
    source, cut = call.given("self"), call.cut("self")
    if cut.dim >= min(len(shape(source)), len(call.result())):
        raise EndsError("it goes over the dimension that is cut")
    return Told({source: cut}, cut)


def _slice(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    if call.arg("dim") % len(shape(source)) == cut.dim:
        if call.result() != shape(source):
            raise EndsError("a slice along the dimension that is cut")
        return Told({source: cut}, cut, {"start": 0, "end": cut.part(shape(source))[cut.dim]})
    return Told({source: cut}, cut)


def _select(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    return Told({source: cut}, without(cut, [call.arg("dim")], False, len(shape(source))))


def _slice_backward(call: Call) -> Told:
    grad, cut = call.given("grad_output"), call.cut("grad_output")
    if call.arg("dim") % len(call.result()) == cut.dim:
        raise EndsError("a slice along the dimension that is cut")
    return Told({grad: cut}, cut, {"input_sizes": list(cut.part(call.result()))})


def _select_backward(call: Call) -> Told:
    grad, cut = call.given("grad_output"), call.cut("grad_output")
    given = cut.moved(cut.dim + (call.arg("dim") % len(call.result()) <= cut.dim))
    return Told({grad: cut}, given, {"input_sizes": list(given.part(call.result()))})


def _new(call: Call) -> Told:
    """A tensor of one value: of what it is given it takes the type and the device, and mostly the rows, too."""
    source, cut = call.given("self"), call.cut("self")
    size, sizes = call.result(), shape(source)
    if len(size) == len(sizes) and size[cut.dim] == sizes[cut.dim]:
        return Told({source: cut}, cut, {"size": list(cut.part(size))})
    return Told({source: cut}, Uncut.SAME)


def _split(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    dim = call.arg("dim") % len(shape(source))
    sizes = [tuple(value.shape)[dim] for value in call.node.meta["val"]]
    pieces = [piece(cut, dim, size, call.parts) for size in sizes]
    name = "split_size" if call.node.target is _ATEN.split.Tensor else "split_sizes"
    rows = [rows for _, rows in pieces]
    return Told({source: cut}, tuple(one for one, _ in pieces), {name: rows[0] if name == "split_size" else rows})


def _unbind(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    given = without(cut, [call.arg("dim")], False, len(shape(source)))
    return Told({source: cut}, (given,) * len(call.node.meta["val"]))


def _stack(call: Call) -> Told:
    """All are cut alike, and joined along a dimension that there was not."""
    _, cut = call.first()
    at = call.arg("dim") % len(call.result())
    return Told(dict.fromkeys(call.arg("tensors"), cut), cut.moved(cut.dim + (at <= cut.dim)))


def _cat(call: Call) -> Told:
    tensors: Sequence[fx.Node] = call.arg("tensors")
    dim = call.arg("dim") % len(call.result())
    _, cut = call.first()
    cuts, given = joined(cut, dim, [shape(one) for one in tensors], call.parts)
    needs: dict[fx.Node, Cut] = {}
    for one, needed in zip(tensors, cuts, strict=True):
        if needs.setdefault(one, needed) != needed:
            raise EndsError(f"{one.name!r} is joined twice, cut in two ways")
    return Told(needs, given)


def _wait(call: Call) -> Told:
    return _same(call, "tensor" if any(a.name == "tensor" for a in call.node.target._schema.arguments) else "self")


def _gather(call: Call) -> Told:
    source, cut = call.given("input"), call.cut("input")
    return Told({source: cut}, through_gather(cut, int(call.arg("group_size"))))


def _scatter(call: Call) -> Told:
    source, cut = call.given("input"), call.cut("input")
    return Told({source: cut}, through_scatter(cut, int(call.arg("group_size"))))


def _all_to_all(call: Call) -> Told:
    """Every rank sends whole runs to every rank: then parts of what is sent are parts of what comes."""
    source, cut = call.given("input"), call.cut("input")
    changes: dict[str, Any] = {}
    given = cut
    if cut.dim == 0:
        for name in ("output_split_sizes", "input_split_sizes"):
            sizes = call.arg(name)
            if not all(type(size) is int for size in sizes):
                raise EndsError("how much is sent to whom depends on data")
            changes[name] = [piece(cut, 0, size, call.parts)[1] if size else 0 for size in sizes]
        given = Cut(0, call.result()[0] // (call.parts * cut.inner), cut.inner)
    return Told({source: cut}, given, changes)


def pointwise(call: Call) -> Told:
    """Each element of the result comes of one element of each operand, broadcast."""
    source, cut = call.first()
    given = broadcast(cut, shape(source), call.result())
    needs = {}
    for node in call.node.all_input_nodes:
        if (needed := operand(given, call.result(), shape(node))) is not None:
            needs[node] = needed
    return Told(needs, given)


MOVES: dict[Any, Rule] = {
    _ATEN.view.default: _view,
    _ATEN._unsafe_view.default: _view,
    _ATEN.reshape.default: _reshape,
    _ATEN.expand.default: _expand,
    _ATEN.permute.default: _permute,
    _ATEN.transpose.int: _transpose,
    _ATEN.t.default: _transpose,
    _ATEN.unsqueeze.default: _unsqueeze,
    _ATEN.squeeze.dim: _squeeze,
    _ATEN.squeeze.dims: _squeeze,
    _ATEN.alias.default: _same,
    _ATEN.detach.default: _same,
    _ATEN._conj.default: _same,
    _ATEN.view_as_complex.default: _last_kept,
    _ATEN.view_as_real.default: _last_kept,
    _ATEN.slice.Tensor: _slice,
    _ATEN.select.int: _select,
    _ATEN.slice_backward.default: _slice_backward,
    _ATEN.select_backward.default: _select_backward,
    _ATEN.new_empty.default: _new,
    _ATEN.new_zeros.default: _new,
    _ATEN.new_ones.default: _new,
    _ATEN.new_full.default: _new,
    _ATEN.split.Tensor: _split,
    _ATEN.split_with_sizes.default: _split,
    _ATEN.unbind.int: _unbind,
    _ATEN.stack.default: _stack,
    _ATEN.cat.default: _cat,
    _C10D.all_gather_into_tensor.default: _gather,
    _C10D.reduce_scatter_tensor.default: _scatter,
    _C10D.all_reduce.default: partial(_same, name="input"),
    _C10D.broadcast.default: partial(_same, name="input"),
    _C10D.all_to_all_single.default: _all_to_all,
    _C10D.wait_tensor.default: _wait,
}
