"""Rules of operators that compute along dimensions: products, reductions, norms, lookups."""

from functools import partial
from typing import Any

import torch
from torch import fx

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape, summed
from overlap_sched.fx.dimensions.moves import pointwise
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Uncut
from overlap_sched.transform.dimension_graph.shapes import operand, without

_ATEN = torch.ops.aten


def _product(call: Call, a: fx.Node, b: fx.Node) -> Told:
    """``a @ b``, both of two dimensions, or of three where the first is a batch."""
    batch = len(shape(a)) - 2
    for node, other, contracted, free in ((a, b, batch + 1, batch), (b, a, batch, batch + 1)):
        cut = call.cuts.get(node)
        if cut is None:
            continue
        if cut.dim < batch:
            return Told({a: cut, b: cut}, cut)
        if cut.dim == free:
            return Told({node: cut}, cut)
        return Told({node: cut, other: cut.moved(2 * batch + 1 - contracted)}, Uncut.PARTIAL)
    raise EndsError("no factor is cut")


def _mm(call: Call) -> Told:
    return _product(call, call.given("self"), call.given("mat2"))


def _addmm(call: Call) -> Told:
    bias = call.given("self")
    told = _product(call, call.given("mat1"), call.given("mat2"))
    if not isinstance(told.gives, Cut):
        raise EndsError("each part would add the bias")
    added = operand(told.gives, call.result(), shape(bias))
    return told if added is None else told._replace(needs={**told.needs, bias: added})


def _reduction(call: Call, *, adds: bool = False, results: int = 1) -> Told:
    """Over some dimensions, by the arguments ``dim`` and ``keepdim``; without dimensions: over all."""
    source, cut = call.given("self"), call.cut("self")
    sizes = shape(source)
    dims = call.arg("dim")
    dims = [dims] if isinstance(dims, int) else dims
    try:
        given = without(cut, dims or (), bool(call.arg("keepdim")), len(sizes))
    except EndsError:
        if not adds:
            raise
        return Told({source: cut}, Uncut.PARTIAL)
    return Told({source: cut}, given if results == 1 else (given,) * results)


def _along(call: Call, *others: str, results: int = 1) -> Told:
    """Along the dimension ``dim``, which stays: softmax, cumsum, topk. Other tensors are as large as the first."""
    name = "grad_output" if others else "self"
    source, cut = call.given(name), call.cut(name)
    if call.arg("dim") % len(shape(source)) == cut.dim:
        raise EndsError("it goes along the dimension that is cut")
    return Told(dict.fromkeys((source, *map(call.given, others)), cut), cut if results == 1 else (cut,) * results)


def _softmax_backward(call: Call) -> Told:
    return _along(call, "output")


def _norm(call: Call) -> Told:
    """Over the last dimensions; means and deviations keep the others."""
    source, cut = call.given("input"), call.cut("input")
    _keeps_last(cut, call)
    return Told({source: cut}, (cut,) * len(call.node.meta["val"]))


def _norm_backward(call: Call) -> Told:
    """Gradients of weights are sums over the rows."""
    cut = call.cut("grad_out")
    _keeps_last(cut, call)
    schema = [argument.name for argument in call.node.target._schema.arguments]
    saved = [name for name in ("grad_out", "input", "mean", "rstd") if name in schema]
    return Told(dict.fromkeys(map(call.given, saved), cut), (cut, *summed(call.arg("output_mask")[1:])))


def _keeps_last(cut: Cut, call: Call) -> None:
    if cut.dim >= len(shape(call.given("input"))) - len(call.arg("normalized_shape")):
        raise EndsError("it goes over the dimension that is cut")


def _embedding(call: Call) -> Told:
    indices, cut = call.given("indices"), call.cut("indices")
    if call.given("weight") in call.cuts:
        raise EndsError("the table is cut")
    return Told({indices: cut}, cut)


def _embedding_backward(call: Call) -> Told:
    grad, indices = call.given("grad_output"), call.given("indices")
    cut = call.cuts.get(indices) or call.cut("grad_output")
    if cut.dim >= len(shape(indices)) or call.arg("scale_grad_by_freq"):
        raise EndsError("it counts all indices, or its columns are cut")
    return Told({grad: cut, indices: cut}, Uncut.PARTIAL)


def _index(call: Call) -> Told:
    """Rows of a table by one tensor of indices for the first dimension."""
    indices = call.arg("indices")
    if len(indices) != 1 or not isinstance(indices[0], fx.Node) or call.given("self") in call.cuts:
        raise EndsError("more than rows by one tensor of indices")
    if indices[0].meta["val"].dtype in (torch.bool, torch.uint8):
        raise EndsError("how many rows a mask takes depends on data")
    cut = call.cuts[indices[0]]
    return Told({indices[0]: cut}, cut)


def _index_put(call: Call) -> Told:
    """Where a mask as large as the tensor's first dimensions is set, one value is written."""
    source, indices, values = call.given("self"), call.arg("indices"), call.given("values")
    cut = call.cut("self")
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, fx.Node) or mask.meta["val"].dtype is not torch.bool or call.arg("accumulate"):
        raise EndsError("it puts by indices, which name rows of the whole")
    if any(size != 1 for size in shape(values)) or cut.dim >= len(shape(mask)):
        raise EndsError("what it puts is more than one value, or the mask does not reach the dimension that is cut")
    return Told({source: cut, mask: cut}, cut)


def _sum_of_all(call: Call) -> Told:
    return Told({call.given("self"): call.cut("self")}, Uncut.PARTIAL)


def _gather(call: Call) -> Told:
    """Along the dimension ``dim``; the others of the indices are as large as those of the source, or begin there."""
    source, index = call.given("self"), call.given("index")
    cut = call.cuts.get(source) or call.cut("index")
    if call.arg("dim") % len(shape(source)) == cut.dim:
        raise EndsError("it goes along the dimension that is cut")
    if shape(source)[cut.dim] != shape(index)[cut.dim]:
        raise EndsError("it takes only the first rows of the dimension that is cut")
    return Told({source: cut, index: cut}, cut)


def _scatter(call: Call) -> Told:
    """Along the dimension ``dim``; the others of the indices are as large as those of what is written to."""
    target, index = call.given("self"), call.given("index")
    _, cut = call.first()
    if call.arg("dim") % len(shape(target)) == cut.dim:
        raise EndsError("it goes along the dimension that is cut")
    if shape(target)[cut.dim] != shape(index)[cut.dim]:
        raise EndsError("it writes only to the first rows of the dimension that is cut")
    needs = {target: cut, index: cut}
    if call.node.target in (_ATEN.scatter_add.default, _ATEN.scatter.src):
        source = call.given("src")
        if shape(source)[cut.dim] != shape(index)[cut.dim]:
            raise EndsError("it takes only the first rows of the dimension that is cut")
        needs[source] = cut
    return Told(needs, cut)


SUMS: dict[Any, Rule] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _mm,
    _ATEN.addmm.default: _addmm,
    _ATEN.sum.dim_IntList: partial(_reduction, adds=True),
    _ATEN.sum.default: _sum_of_all,
    _ATEN.mean.dim: _reduction,
    _ATEN.max.dim: partial(_reduction, results=2),
    _ATEN.min.dim: partial(_reduction, results=2),
    _ATEN.gather.default: _gather,
    _ATEN.scatter.src: _scatter,
    _ATEN.scatter.value: _scatter,
    _ATEN.scatter_.value: _scatter,
    _ATEN.scatter_add.default: _scatter,
    _ATEN.amax.default: _reduction,
    _ATEN.amin.default: _reduction,
    _ATEN.logsumexp.default: _reduction,
    _ATEN.var.correction: _reduction,
    _ATEN.var_mean.correction: partial(_reduction, results=2),
    _ATEN._softmax.default: _along,
    _ATEN._log_softmax.default: _along,
    _ATEN._softmax_backward_data.default: _softmax_backward,
    _ATEN._log_softmax_backward_data.default: _softmax_backward,
    _ATEN.cumsum.default: _along,
    _ATEN.topk.default: partial(_along, results=2),
    _ATEN.sort.default: partial(_along, results=2),
    _ATEN.sort.stable: partial(_along, results=2),
    _ATEN.native_layer_norm.default: _norm,
    _ATEN._fused_rms_norm.default: _norm,
    _ATEN.native_layer_norm_backward.default: _norm_backward,
    _ATEN._fused_rms_norm_backward.default: _norm_backward,
    _ATEN.embedding.default: _embedding,
    _ATEN.embedding_dense_backward.default: _embedding_backward,
    _ATEN.index.Tensor: _index,
    _ATEN.index_put.default: _index_put,
    torch.ops.prims.convert_element_type.default: pointwise,
    _ATEN._to_copy.default: pointwise,
    _ATEN.zeros_like.default: pointwise,
    _ATEN.ones_like.default: pointwise,
    _ATEN.full_like.default: pointwise,
}
