"""What a cut of its inputs makes of a call's result, operator by operator.

Element by element where torch says that an operator is pointwise. DTensor's own sharding strategies say the same of
many operators, ``Shard(d)`` in and out and ``Partial`` for sums, but only for ranges of one dimension, and not what
changes in the arguments. They are not asked: rules here are proved by running the operators.

- *Fused attention*: batches are free; heads where queries, keys and values have as many. Tokens are not: with a causal
  mask a query needs all keys before it, and which mask a part would want depends on where it begins.
- *Images*: batches are free, and channels where each is treated alone. A batch norm in training takes its mean over the
  whole batch: the dimension ends there.
- *Losses*: sums over the batch come in parts; a mean would have to know the whole batch, and ends it.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.transform.dimension_graph import (
    Cut,
    EndsError,
    Given,
    Routed,
    Shape,
    Uncut,
    broadcast,
    is_cut_of,
    joined,
    operand,
    piece,
    through_gather,
    through_permute,
    through_scatter,
    through_view,
    without,
)


class CallCut(NamedTuple):
    """What a rule says: the whole result is what the parts give, put together as ``gives`` says.

    Attributes:
        needs: Per input that each part takes in part, its cut. Other inputs go whole to every part.
        gives: Of the result, or a tuple with one for each of several results.
        changes: Arguments that are others for a part, by name: sizes, mostly.
        idle: Inputs that it takes and does not look at: they may be anything.
    """

    needs: Mapping[fx.Node, Cut]
    gives: Given | tuple[Given, ...]
    changes: Mapping[str, Any] = {}
    idle: tuple[fx.Node, ...] = ()


class Call:
    """A call with some inputs cut. What asks it for something that it is not gets an :class:`EndsError`.

    Attributes:
        node: The call.
        parts: Into how many.
        cuts: Of its inputs that are cut.
        routed: Its inputs that are routed.
        known: All values that are routed so far.
    """

    def __init__(
        self, node: fx.Node, cuts: Mapping[fx.Node, Cut], parts: int, known: Mapping[fx.Node, Routed] | None = None
    ) -> None:
        self.node, self.cuts, self.parts = node, cuts, parts
        self.known: Mapping[fx.Node, Routed] = known or {}
        self.routed = {u: self.known[u] for u in node.all_input_nodes if u in self.known}

    def has(self, name: str) -> bool:
        """Tell whether the schema has an argument of this name."""
        return name in _arguments(self.node.target)

    def arg(self, name: str, absent: Any = None) -> Any:
        """An argument by the name that the schema gives it, or its default; ``absent`` where there is none."""
        at, default = _arguments(self.node.target).get(name, (len(self.node.args), absent))
        return self.node.args[at] if at < len(self.node.args) else self.node.kwargs.get(name, default)

    def given(self, name: str) -> fx.Node:
        """An argument that must be a tensor."""
        value = self.arg(name)
        end_if(not isinstance(value, fx.Node), f"argument {name!r} is {value!r} and no tensor")
        return value

    def alike(self, *names: str, of: int = 1) -> tuple[dict[fx.Node, Cut], Cut]:
        """Those of the tensor arguments that there are, all cut as the first one of the first ``of`` that is cut."""
        nodes = [self.given(name) for name in names if self.has(name)]
        cut = next((self.cuts[u] for u in nodes[:of] if u in self.cuts), None)
        if cut is None:
            raise EndsError(f"argument {names[0]!r} is whole while another one is cut")
        return dict.fromkeys(nodes, cut), cut

    def source(self, name: str = "self") -> tuple[fx.Node, Cut]:
        """A tensor argument that must be cut, and its cut."""
        return self.given(name), self.alike(name)[1]

    def result(self, at: int | None = None) -> Shape:
        """The shape of what it gives, or of one of several."""
        value = self.node.meta["val"]
        return shape_of_value(value if at is None else value[at])


@cache
def _arguments(target: OpOverload) -> Mapping[str, tuple[int, Any]]:
    """Per argument of an operator, its place and its default."""
    return {one.name: (at, one.default_value) for at, one in enumerate(target._schema.arguments)}


def overloads(names: str) -> Iterator[OpOverload]:
    """Operators of ATen by name: ``"view transpose.int"``; the overload is ``default`` where none is named."""
    for name in names.split():
        packet, _, overload = name.partition(".")
        yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def end_if(ends: object, why: str) -> None:
    """Raise an :class:`EndsError` where the dimension ends."""
    if ends:
        raise EndsError(why)


Rule = Callable[[Call], CallCut]
"""What the parts of a call are, or an :class:`EndsError`: why the dimension ends there."""


def shape_of_value(value: Any) -> Shape:
    """The shape of a tensor, if it is one and its shape does not depend on data."""
    end_if(not isinstance(value, torch.Tensor), "no tensor")
    if not all(type(size) is int for size in value.shape):
        raise EndsError(f"the shape {tuple(value.shape)} is not of plain numbers")
    return tuple(value.shape)


def shape(node: fx.Node) -> Shape:
    """The shape of what a node gives."""
    return shape_of_value(node.meta.get("val"))


def results(value: Any) -> Sequence[Any]:
    """List what a call gives, one by one."""
    return value if isinstance(value, list | tuple) else (value,)


def checked(call: Call, found: CallCut) -> CallCut:
    """Return what a rule said, if it fits the call: whatever is cut is taken as it is cut, and all shapes divide."""
    for node, cut in call.cuts.items():
        end_if(found.needs.get(node) != cut, f"it takes {node.name!r} whole, or cut otherwise than it is")
    for node, cut in found.needs.items():
        if not is_cut_of(cut, shape(node), call.parts):
            raise EndsError(f"{node.name!r} of shape {shape(node)} cannot be cut as {cut}")
    for given, value in zip(results(found.gives), results(call.node.meta["val"]), strict=True):
        if isinstance(given, Cut) and not is_cut_of(given, shape_of_value(value), call.parts):
            raise EndsError(f"its result cannot be cut as {given}")
    return found


def is_float(node: fx.Node) -> bool:
    """Tell whether a value is a tensor of floats."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def functional(target: Any) -> Any:
    """The operator that gives what this one writes to its first argument; any other operator: itself."""
    if not isinstance(target, OpOverload) or not target._schema.is_mutable or target.namespace != "aten":
        return target
    packet, arguments = target._opname, target._schema.arguments
    written = [at for at, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]
    if written != [0] or not packet.endswith("_") or packet.endswith("__"):
        return target
    return getattr(getattr(torch.ops.aten, packet[:-1], None), target._overloadname, target)


def is_pointwise(target: Any) -> bool:
    """Tell whether an operator computes element by element and no more: no writes, no random numbers."""
    if not isinstance(target, OpOverload) or target._schema.is_mutable:
        return False
    return torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags


def _each(call: Call, given: Given) -> Given | tuple[Given, ...]:
    value = call.node.meta["val"]
    return (given,) * len(value) if isinstance(value, list | tuple) else given


def _gradients(call: Call, cut: Cut) -> tuple[Given, ...]:
    """Gradients of the input, cut; of weights and biases, where they are asked for, sums over the batch."""
    wanted = call.arg("output_mask")
    return (cut if wanted[0] else Uncut.SAME, *(Uncut.PARTIAL if one else Uncut.SAME for one in wanted[1:]))


def _alike(
    *names: str,
    free: Callable[[Call, Cut, Sequence[Shape]], bool] | None = None,
    why: str = "it goes over the dimension that is cut",
    of: int = 1,
    gives: Callable[[Call, Cut], Given | tuple[Given, ...]] = _each,
    changes: Callable[[Call, Cut], Mapping[str, Any]] = lambda call, cut: {},
) -> Rule:
    """Tensors are cut alike (:meth:`Call.alike`), and so are the results: what it does goes over other dimensions.

    ``free``: whether a call leaves the dimension alone along which its tensors, of these shapes, are cut.
    """

    def rule(call: Call) -> CallCut:
        needs, cut = call.alike(*names, of=of)
        end_if(free is not None and not free(call, cut, [shape(u) for u in needs]), why)
        return CallCut(needs, gives(call, cut), changes(call, cut))

    return rule


def _not_along(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    """Along the dimension ``dim``, which stays: softmax, cumsum, topk."""
    return call.arg("dim") % len(sizes[0]) != cut.dim


def _not_along_alike(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    """The same; other dimensions of indices may be smaller than those of what they are for, and begin there."""
    return _not_along(call, cut, sizes) and len({one[cut.dim] for one in sizes}) == 1


def _not_normalized(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    return cut.dim < len(sizes[0]) - len(call.arg("normalized_shape"))


def _batch(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    """Tell whether the batch is cut; a convolution may be of one image alone."""
    return cut.dim == 0 and (not call.has("stride") or len(sizes[0]) == len(shape(call.given("weight"))))


def _not_channels(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    return cut.dim != 1 and not call.arg("training") and not call.arg("train")


def _image(call: Call, cut: Cut, sizes: Sequence[Shape], dims: int = 2) -> bool:
    return cut.dim < dims and len(sizes[0]) == 4


def _not_padded(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    from_behind = 2 * (len(sizes[0]) - 1 - cut.dim)
    return not any(call.arg("pad")[from_behind : from_behind + 2])


def _not_in_type(call: Call, cut: Cut, sizes: Sequence[Shape]) -> bool:
    """Not the last dimension, which becomes part of the type, or comes from it."""
    return cut.dim < min(len(sizes[0]), len(call.result()))


def _rows_in_part(call: Call, cut: Cut) -> Mapping[str, Any]:
    return {"N": cut.outer * cut.inner}


def _size(call: Call, given: Cut, *, name: str) -> Mapping[str, Any]:
    """The argument that is the size of the result."""
    return {name: list(given.part(call.result()))}


def _attention(call: Call) -> CallCut:
    """Attended values and log-sum-exp have batch and head; seeds mean nothing without dropout. Gradients have both."""
    backward = call.has("logsumexp")
    names = ("grad_out", "grad_out_", "query", "key", "value", *(("out", "logsumexp") if backward else ()))
    needs, cut = call.alike(*names, of=len(names))
    end_if(call.arg("dropout_p") != 0.0, "dropout draws other numbers for a part")
    for name in ("attn_bias", "attn_mask"):
        mask = call.arg(name)
        if isinstance(mask, fx.Node) and mask.meta["val"] is not None and mask.meta["val"].numel():
            raise EndsError("it has a mask, which may differ for each part")
    end_if(cut.dim > 1, "a query needs all earlier keys: only batches and heads are cut")
    heads = {shape(node)[1] for node in needs}
    end_if(cut.dim == 1 and len(heads) > 1, "there are fewer heads of keys than of queries")
    values, first = call.node.meta["val"], call.result(0)[:2]
    shared = [isinstance(one, torch.Tensor) and (backward or one.shape[:2] == first) for one in values]
    return CallCut(needs, tuple(cut if has and (backward or at < 2) else Uncut.SAME for at, has in enumerate(shared)))


def _loss(call: Call) -> CallCut:
    """Losses of rows (likelihoods) or of elements (squares). Without a mean, backward looks at no total of weights."""
    needs, cut = call.alike("self", "target", of=2)
    rows, sizes, reduction = call.has("ignore_index"), shape(call.given("self")), call.arg("reduction")
    end_if(rows and (cut.dim or len(sizes) < 2), "only the batch of a loss is cut")
    end_if(not rows and sizes != shape(call.given("target")), "its target is broadcast")
    end_if(reduction == 1, "the mean over a batch is not that of its parts")
    if call.has("grad_output"):
        grad = {} if reduction else {call.given("grad_output"): cut}
        return CallCut(needs | grad, cut, idle=(call.given("total_weight"),) if rows else ())
    total: Given = Uncut.PARTIAL if reduction else cut
    return CallCut(needs, (total, Uncut.PARTIAL) if rows else total)


def _view(call: Call) -> CallCut:
    source, cut = call.source()
    given = through_view(cut, shape(source), call.result(), call.parts)
    return CallCut({source: cut}, given, _size(call, given, name="shape" if call.has("shape") else "size"))


def _expand(call: Call) -> CallCut:
    source, cut = call.source()
    given = broadcast(cut, shape(source), call.result())
    return CallCut({source: cut}, given, _size(call, given, name="size"))


def _permute(call: Call) -> CallCut:
    source, cut = call.source()
    dims = list(call.arg("dims", range(source.meta["val"].ndim)))
    if not call.has("dims"):
        a, b = call.arg("dim0", 0), call.arg("dim1", -1)
        dims[a], dims[b] = dims[b], dims[a]
    return CallCut({source: cut}, through_permute(cut, dims))


def _inserted(call: Call) -> CallCut:
    """A dimension that there was not; of several tensors, all are cut alike."""
    cut = next(iter(call.cuts.values()))
    given = cut.moved(cut.dim + (call.arg("dim") % len(call.result()) <= cut.dim))
    changes = _size(call, given, name="input_sizes") if call.has("input_sizes") else {}
    return CallCut(dict.fromkeys(call.node.all_input_nodes, cut), given, changes)


def _squeeze(call: Call) -> CallCut:
    source, cut = call.source()
    sizes = shape(source)
    dims = [dim % len(sizes) for dim in results(call.arg("dim"))]
    gone = [dim for dim in dims if sizes[dim] == 1]
    end_if(cut.dim in dims and cut.part(sizes)[cut.dim] == 1, "a part would have one row, and lose the dimension")
    return CallCut({source: cut}, without(cut, gone, False, len(sizes)) if gone else cut)


def _slice(call: Call) -> CallCut:
    source, cut = call.source()
    if _not_along(call, cut, [shape(source)]):
        return CallCut({source: cut}, cut)
    end_if(call.result() != shape(source), "a slice along the dimension that is cut")
    return CallCut({source: cut}, cut, {"start": 0, "end": cut.outer * cut.inner})


def _new(call: Call) -> CallCut:
    """A tensor of one value: of what it is given it takes the type and the device, and mostly the rows, too."""
    source, cut = call.source()
    size, sizes = call.result(), shape(source)
    if len(size) == len(sizes) and size[cut.dim] == sizes[cut.dim]:
        return CallCut({source: cut}, cut, _size(call, cut, name="size"))
    return CallCut({source: cut}, Uncut.SAME)


def _split(call: Call) -> CallCut:
    source, cut = call.source()
    dim = call.arg("dim") % len(shape(source))
    pieces = [piece(cut, dim, value.shape[dim], call.parts) for value in call.node.meta["val"]]
    rows = [rows for _, rows in pieces]
    changes = {"split_size": rows[0]} if call.has("split_size") else {"split_sizes": rows}
    return CallCut({source: cut}, tuple(one for one, _ in pieces), changes)


def _cat(call: Call) -> CallCut:
    tensors, cut = call.arg("tensors"), next(iter(call.cuts.values()))
    cuts, given = joined(cut, call.arg("dim") % len(call.result()), [shape(one) for one in tensors], call.parts)
    needs: dict[fx.Node, Cut] = {}
    for one, needed in zip(tensors, cuts, strict=True):
        end_if(needs.setdefault(one, needed) != needed, f"{one.name!r} is joined twice, cut in two ways")
    return CallCut(needs, given)


def _gather(call: Call, through: Callable[[Cut, int], Cut] = through_gather) -> CallCut:
    source, cut = call.source("input")
    return CallCut({source: cut}, through(cut, int(call.arg("group_size"))))


def _all_to_all(call: Call) -> CallCut:
    """Every rank sends whole runs to every rank: then parts of what is sent are parts of what comes."""
    source, cut = call.source("input")
    changes: dict[str, Any] = {}
    if cut.dim:
        return CallCut({source: cut}, cut)
    for name in ("output_split_sizes", "input_split_sizes"):
        sizes = call.arg(name)
        end_if(not all(type(size) is int for size in sizes), "how much is sent to whom depends on data")
        changes[name] = [piece(cut, 0, size, call.parts)[1] if size else 0 for size in sizes]
    return CallCut({source: cut}, Cut(0, call.result()[0] // (call.parts * cut.inner), cut.inner), changes)


def pointwise(call: Call) -> CallCut:
    """Each element of the result comes of one element of each operand, broadcast."""
    source, cut = next(iter(call.cuts.items()))
    given = broadcast(cut, shape(source), call.result())
    found = {node: operand(given, call.result(), shape(node)) for node in call.node.all_input_nodes}
    return CallCut({node: needed for node, needed in found.items() if needed is not None}, given)


def _product(call: Call) -> CallCut:
    """``a @ b``, both of two dimensions, or of three where the first is a batch; a bias may be added to it."""
    biased = call.has("mat1")
    a, b = call.given("mat1" if biased else "self"), call.given("mat2")
    batch = len(shape(a)) - 2
    for node, other, free in ((a, b, batch), (b, a, batch + 1)):
        cut = call.cuts.get(node)
        if cut is None:
            continue
        if cut.dim != free and cut.dim >= batch:
            end_if(biased, "each part would add the bias")
            return CallCut({node: cut, other: cut.moved(free)}, Uncut.PARTIAL)
        needs = {a: cut, b: cut} if cut.dim < batch else {node: cut}
        added = operand(cut, call.result(), shape(call.given("self"))) if biased else None
        return CallCut(needs if added is None else {**needs, call.given("self"): added}, cut)
    raise EndsError("no factor is cut")


def _reduction(call: Call, *, adds: bool = False) -> CallCut:
    """Over some dimensions, by the arguments ``dim`` and ``keepdim``; without dimensions: over all."""
    source, cut = call.source()
    dims, ndim = call.arg("dim"), len(shape(source))
    if adds and (not dims or cut.dim in [dim % ndim for dim in results(dims)]):
        return CallCut({source: cut}, Uncut.PARTIAL)
    given = without(cut, () if dims is None else results(dims), bool(call.arg("keepdim")), ndim)
    return CallCut({source: cut}, _each(call, given))


def _embedding_backward(call: Call) -> CallCut:
    needs, cut = call.alike("indices", "grad_output", of=2)
    counts = cut.dim >= len(shape(call.given("indices"))) or call.arg("scale_grad_by_freq")
    end_if(counts, "it counts all indices, or its columns are cut")
    return CallCut(needs, Uncut.PARTIAL)


def _index(call: Call) -> CallCut:
    """Rows of a table by one tensor of indices for the first dimension."""
    indices = call.arg("indices")
    cut = call.cuts.get(indices[0]) if len(indices) == 1 else None
    if cut is None:
        raise EndsError("more than rows by one tensor of indices")
    end_if(indices[0].meta["val"].dtype in (torch.bool, torch.uint8), "how many rows a mask takes depends on data")
    return CallCut({indices[0]: cut}, cut)


def _index_put(call: Call) -> CallCut:
    """Where a mask as large as the tensor's first dimensions is set, one value is written."""
    (source, cut), indices = call.source(), call.arg("indices")
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, fx.Node) or mask.meta["val"].dtype is not torch.bool or call.arg("accumulate"):
        raise EndsError("it puts by indices, which name rows of the whole")
    if any(size != 1 for size in shape(call.given("values"))) or cut.dim >= len(shape(mask)):
        raise EndsError("what it puts is more than one value, or the mask does not reach the dimension that is cut")
    return CallCut({source: cut, mask: cut}, cut)


def _values_alone(call: Call, cut: Cut) -> tuple[Given, ...]:
    """Normalized with the running mean and deviation: what is saved for backward is empty."""
    return (cut, *(Uncut.SAME,) * (len(call.node.meta["val"]) - 1))


_BY_RULE: dict[str, Rule] = {
    "view _unsafe_view reshape": _view,
    "expand": _expand,
    "permute transpose.int t": _permute,
    "unsqueeze stack select_backward": _inserted,
    "squeeze.dim squeeze.dims": _squeeze,
    "alias detach _conj": _alike("self"),
    "view_as_complex view_as_real": _alike("self", free=_not_in_type),
    "slice.Tensor": _slice,
    "slice_backward": _alike("grad_output", free=_not_along, changes=partial(_size, name="input_sizes")),
    "new_empty new_zeros new_ones new_full": _new,
    "split.Tensor split_with_sizes": _split,
    "cat": _cat,
    "mm bmm addmm": _product,
    "sum.dim_IntList sum": partial(_reduction, adds=True),
    "mean.dim amax amin logsumexp var.correction select.int unbind.int max.dim min.dim var_mean.correction": _reduction,
    "gather": _alike("self", "index", of=2, free=_not_along_alike),
    "scatter.src scatter.value scatter_.value scatter_add": _alike("self", "index", "src", of=3, free=_not_along_alike),
    "_softmax _log_softmax cumsum topk sort sort.stable": _alike("self", free=_not_along),
    "_softmax_backward_data _log_softmax_backward_data": _alike("grad_output", "output", free=_not_along),
    "native_layer_norm _fused_rms_norm": _alike("input", free=_not_normalized),
    "native_layer_norm_backward _fused_rms_norm_backward": _alike(
        "grad_out", "input", "mean", "rstd", free=_not_normalized, gives=_gradients
    ),
    "embedding": _alike("indices"),
    "embedding_dense_backward": _embedding_backward,
    "index.Tensor": _index,
    "index_put": _index_put,
    "_to_copy zeros_like ones_like full_like": pointwise,
    "convolution": _alike("input", free=_batch),
    "convolution_backward": _alike("grad_output", "input", free=_batch, gives=_gradients),
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d": _alike("self", free=_image),
    "upsample_nearest2d upsample_bilinear2d": _alike("self", free=_image),
    "upsample_nearest2d.vec upsample_bilinear2d.vec": _alike("input", free=_image),
    "pixel_shuffle": _alike("self", free=partial(_image, dims=1)),
    "avg_pool2d_backward _adaptive_avg_pool2d_backward": _alike("grad_output", "self", free=_image),
    "max_pool2d_with_indices_backward": _alike("grad_output", "self", "indices", free=_image),
    "upsample_nearest2d_backward upsample_bilinear2d_backward": _alike(
        "grad_output", free=_image, changes=partial(_size, name="input_size")
    ),
    "constant_pad_nd": _alike("self", free=_not_padded, why="the dimension that is cut is padded"),
    "native_group_norm": _alike("input", free=_batch, changes=_rows_in_part),
    "native_group_norm_backward": _alike(
        "grad_out", "input", "mean", "rstd", free=_batch, gives=_gradients, changes=_rows_in_part
    ),
    "native_batch_norm _native_batch_norm_legit_functional _native_batch_norm_legit_no_training": _alike(
        "input", free=_not_channels, gives=_values_alone
    ),
    "native_batch_norm_backward": _alike("grad_out", "input", free=_not_channels, gives=_gradients),
    "nll_loss_forward nll_loss_backward mse_loss mse_loss_backward": _loss,
    **{
        f"_scaled_dot_product_{kind} _scaled_dot_product_{kind}_backward": _attention
        for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    },
}
"""Operators by name, see :func:`overloads`."""
_C10D = torch.ops._c10d_functional
RULES: Mapping[Any, Rule] = {
    **{target: rule for names, rule in _BY_RULE.items() for target in overloads(names)},
    torch.ops.prims.convert_element_type.default: pointwise,
    _C10D.all_gather_into_tensor.default: _gather,
    _C10D.reduce_scatter_tensor.default: partial(_gather, through=through_scatter),
    **dict.fromkeys((_C10D.all_reduce.default, _C10D.broadcast.default), _alike("input")),
    _C10D.all_to_all_single.default: _all_to_all,
    _C10D.wait_tensor.default: _alike("tensor"),
}


def rule_of(node: fx.Node) -> Rule:
    """The rule of a call."""
    target = node.target
    end_if(node.op != "call_function" or target is operator.getitem, f"{node.name!r} is no call of an operator")
    rule = RULES.get(target)
    if rule is None and not is_pointwise(functional(target)):
        raise EndsError(f"nothing is known of {target}")
    return rule or pointwise
