"""What a cut of its inputs makes of a call's result, operator by operator: tables by operator object.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

    def arg(self, name: str) -> Any:
        """An argument by the name that the schema gives it, or its default."""
        schema = self.node.target._schema
        for at, argument in enumerate(schema.arguments):
            if argument.name == name:
                if at < len(self.node.args):
                    return self.node.args[at]
                return self.node.kwargs.get(name, argument.default_value)
        raise EndsError(f"{self.node.target} has no argument {name!r}")

    def given(self, name: str) -> fx.Node:
        """An argument that must be a tensor."""
        value = self.arg(name)
        end_if(not isinstance(value, fx.Node), f"argument {name!r} is {value!r} and no tensor")
        return value

    def first(self) -> tuple[fx.Node, Cut]:
        """The first input that is cut."""
        return next(iter(self.cuts.items()))

    def cut(self, name: str) -> Cut:
        """The cut of a tensor argument, which must be cut."""
        cut = self.cuts.get(self.given(name))
        if cut is None:
            raise EndsError(f"argument {name!r} is whole while another one is cut")
        return cut

    def source(self, name: str = "self") -> tuple[fx.Node, Cut]:
        """A tensor argument that must be cut, and its cut."""
        return self.given(name), self.cut(name)

    def result(self, at: int | None = None) -> Shape:
        """The shape of what it gives, or of one of several."""
        value = self.node.meta["val"]
        return shape_of_value(value if at is None else value[at])


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


def checked(call: Call, found: CallCut) -> CallCut:
    """Return what a rule said, if it fits the call: whatever is cut is taken as it is cut, and all shapes divide."""
    for node, cut in call.cuts.items():
        end_if(found.needs.get(node) != cut, f"it takes {node.name!r} whole, or cut otherwise than it is")
    for node, cut in found.needs.items():
        if not is_cut_of(cut, shape(node), call.parts):
            raise EndsError(f"{node.name!r} of shape {shape(node)} cannot be cut as {cut}")
    value = call.node.meta["val"]
    several = isinstance(found.gives, tuple)
    for at, given in enumerate(found.gives if isinstance(found.gives, tuple) else (found.gives,)):
        if isinstance(given, Cut) and not is_cut_of(given, shape_of_value(value[at] if several else value), call.parts):
            raise EndsError(f"its result cannot be cut as {given}")
    return found


def is_pure(target: Any) -> bool:
    """Tell whether an operator only computes: writes nothing, and draws no random numbers that depend on shapes."""
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
    )


def not_cut(call: Call) -> None:
    """Refuse what is cut beside what is routed."""
    end_if(call.cuts, "it takes what is cut together with what is routed")


def is_float(node: fx.Node) -> bool:
    """Tell whether a value is a tensor of floats."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def reckoned(*operands: Routed) -> bool:
    """Tell whether something has been computed from numbers that name rows: nobody knows what the result names."""
    return any(one.reckoned or one.of is not None for one in operands)


def summed(wanted: Sequence[bool]) -> tuple[Uncut, ...]:
    """Gradients of weights and biases, where they are asked for: sums over the batch."""
    return tuple(Uncut.PARTIAL if one else Uncut.SAME for one in wanted)


def functional(target: Any) -> Any:
    """The operator that gives what this one writes to its first argument; any other operator: itself."""
    if not isinstance(target, OpOverload) or not target._schema.is_mutable or target.namespace != "aten":
        return target
    packet, arguments = target._opname, target._schema.arguments
    written = [at for at, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write]
    if written != [0] or not packet.endswith("_") or packet.endswith("__"):
        return target
    pure = getattr(torch.ops.aten, packet[:-1], None)
    return getattr(pure, target._overloadname, target) if pure is not None else target


_ATEN, _C10D = torch.ops.aten, torch.ops._c10d_functional


def _attention(call: Call) -> CallCut:
    needs, cut = _needs(call, ("query", "key", "value"))
    first = call.result(0)[:2]
    gives = tuple(  # attended values and log-sum-exp have batch and head; seeds mean nothing without dropout
        cut if at < 2 and isinstance(one, torch.Tensor) and one.shape[:2] == first else Uncut.SAME
        for at, one in enumerate(call.node.meta["val"])
    )
    return CallCut(needs, gives)


def _attention_backward(call: Call) -> CallCut:
    names = [a.name for a in call.node.target._schema.arguments]
    grad = "grad_out" if "grad_out" in names else "grad_out_"
    needs, cut = _needs(call, (grad, "query", "key", "value", "out", "logsumexp"))
    return CallCut(needs, tuple(cut if isinstance(one, torch.Tensor) else Uncut.SAME for one in call.node.meta["val"]))


def _needs(call: Call, names: Sequence[str]) -> tuple[dict[fx.Node, Cut], Cut]:
    """All tensors with batch and head are cut alike."""
    end_if(call.arg("dropout_p") != 0.0, "dropout draws other numbers for a part")
    schema = {a.name for a in call.node.target._schema.arguments}
    for name in ("attn_bias", "attn_mask"):
        mask = call.arg(name) if name in schema else None
        if isinstance(mask, fx.Node) and mask.meta["val"] is not None and mask.meta["val"].numel():
            raise EndsError("it has a mask, which may differ for each part")
    nodes = [call.given(name) for name in names]
    found = [call.cuts[node] for node in nodes if node in call.cuts]
    end_if(not found or found[0].dim > 1, "a query needs all earlier keys: only batches and heads are cut")
    if found[0].dim == 1 and len({shape(node)[1] for node in nodes}) > 1:
        raise EndsError("there are fewer heads of keys than of queries")
    return dict.fromkeys(nodes, found[0]), found[0]


def _convolution(call: Call) -> CallCut:
    source, cut = call.source("input")
    _only_batch(call, cut)
    return CallCut({source: cut}, cut)


def _convolution_backward(call: Call) -> CallCut:
    grad, cut = call.source("grad_output")
    _only_batch(call, cut)
    wanted = call.arg("output_mask")
    return CallCut({grad: cut, call.given("input"): cut}, (cut if wanted[0] else Uncut.SAME, *summed(wanted[1:])))


def _only_batch(call: Call, cut: Cut) -> None:
    ranks = {len(shape(call.given(name))) for name in ("input", "weight")}
    end_if(cut.dim != 0 or len(ranks) > 1, "only the batch of a convolution is cut")


def _by_image(call: Call, first: str = "self", others: Sequence[str] = (), dims: int = 2) -> CallCut:
    """Image by image; channel by channel where ``dims`` is 2. Other tensors are cut as the first is."""
    source, cut = call.source(first)
    end_if(cut.dim >= dims or len(shape(source)) != 4, "a window goes over the dimension that is cut")
    value = call.node.meta["val"]
    needs = dict.fromkeys((source, *map(call.given, others)), cut)
    return CallCut(needs, (cut,) * len(value) if isinstance(value, tuple | list) else cut)


def _resized_backward(call: Call) -> CallCut:
    found = _by_image(call, "grad_output")
    assert isinstance(found.gives, Cut)
    return found._replace(changes={"input_size": list(found.gives.part(call.result()))})


def _padded(call: Call) -> CallCut:
    source, cut = call.source()
    pad = call.arg("pad")
    from_behind = len(shape(source)) - 1 - cut.dim
    end_if(any(pad[2 * from_behind : 2 * from_behind + 2]), "the dimension that is cut is padded")
    return CallCut({source: cut}, cut)


def _group_norm(call: Call) -> CallCut:
    source, cut = call.source("input")
    end_if(cut.dim, "a group norm goes over the dimension that is cut")
    return CallCut({source: cut}, (cut, cut, cut), {"N": cut.part(shape(source))[0]})


def _group_norm_backward(call: Call) -> CallCut:
    cut = call.cut("grad_out")
    end_if(cut.dim, "a group norm goes over the dimension that is cut")
    needs = dict.fromkeys(map(call.given, ("grad_out", "input", "mean", "rstd")), cut)
    rows = cut.part(shape(call.given("input")))[0]
    return CallCut(needs, (cut, *summed(call.arg("output_mask")[1:])), {"N": rows})


def _batch_norm(call: Call) -> CallCut:
    """With the running mean and deviation, each element for itself; what it saves for backward is empty then."""
    source = call.given("input")
    if call.node.target is not _ATEN._native_batch_norm_legit_no_training.default and call.arg("training"):
        raise EndsError("a batch norm in training takes the mean of the whole batch")
    cut = call.cut("input")
    _not_channels(cut)
    return CallCut({source: cut}, (cut, *(Uncut.SAME,) * (len(call.node.meta["val"]) - 1)))


def _batch_norm_backward(call: Call) -> CallCut:
    end_if(call.arg("train"), "a batch norm in training takes the mean of the whole batch")
    grad, source, cut = call.given("grad_out"), call.given("input"), call.cut("grad_out")
    _not_channels(cut)
    wanted = call.arg("output_mask")
    first: Given = cut if wanted[0] else Uncut.SAME
    return CallCut({grad: cut, source: cut}, (first, *summed(wanted[1:])))


def _not_channels(cut: Cut) -> None:
    end_if(cut.dim == 1, "the channels of a batch norm have weights and means of their own")


_NONE, _SUM = 0, 2
"""Of ``reduction``; 1 is the mean."""


def _not_a_mean(call: Call) -> int:
    reduction = int(call.arg("reduction"))
    end_if(reduction not in (_NONE, _SUM), "the mean over a batch is not that of its parts")
    return reduction


def _rows(call: Call, source: str) -> Cut:
    """The cut of the rows of likelihoods, or of their targets."""
    rows = call.cuts.get(call.given(source)) or call.cut("target")
    end_if(rows.dim != 0 or len(shape(call.given(source))) < 2, "only the batch of a loss is cut")
    return rows


def _nll(call: Call) -> CallCut:
    cut = _rows(call, "self")
    gives = cut if _not_a_mean(call) == _NONE else Uncut.PARTIAL
    return CallCut(dict.fromkeys((call.given("self"), call.given("target")), cut), (gives, Uncut.PARTIAL))


def _nll_backward(call: Call) -> CallCut:
    """Without a mean, it looks at no total of weights."""
    cut = _rows(call, "self")
    needs = dict.fromkeys((call.given("self"), call.given("target")), cut)
    if _not_a_mean(call) == _NONE:
        needs[call.given("grad_output")] = cut
    return CallCut(needs, cut, idle=(call.given("total_weight"),))


def _squares(call: Call) -> CallCut:
    cut = call.cuts.get(call.given("self")) or call.cut("target")
    end_if(shape(call.given("self")) != shape(call.given("target")), "its target is broadcast")
    gives = cut if _not_a_mean(call) == _NONE else Uncut.PARTIAL
    return CallCut(dict.fromkeys((call.given("self"), call.given("target")), cut), gives)


def _squares_backward(call: Call) -> CallCut:
    found = _squares(call)
    cut = next(iter(found.needs.values()))
    grad = {call.given("grad_output"): cut} if _not_a_mean(call) == _NONE else {}
    return CallCut({**found.needs, **grad}, cut)


def _view(call: Call) -> CallCut:
    source = call.given("self")
    cut = through_view(call.cut("self"), shape(source), call.result(), call.parts)
    size = "shape" if call.node.target is _ATEN.reshape.default else "size"
    return CallCut({source: call.cut("self")}, cut, {size: list(cut.part(call.result()))})


def _expand(call: Call) -> CallCut:
    source, cut = call.source()
    given = broadcast(cut, shape(source), call.result())
    return CallCut({source: cut}, given, {"size": list(given.part(call.result()))})


def _permute(call: Call) -> CallCut:
    cut = call.cut("self")
    return CallCut({call.given("self"): cut}, through_permute(cut, call.arg("dims")))


def _transpose(call: Call) -> CallCut:
    source, cut = call.source()
    dims = list(range(len(shape(source))))
    a, b = (call.arg("dim0"), call.arg("dim1")) if call.node.target is _ATEN.transpose.int else (0, -1)
    dims[a], dims[b] = dims[b], dims[a]
    return CallCut({source: cut}, through_permute(cut, dims))


def _unsqueeze(call: Call) -> CallCut:
    source, cut = call.source()
    at = call.arg("dim") % (len(shape(source)) + 1)
    return CallCut({source: cut}, cut.moved(cut.dim + (at <= cut.dim)))


def _squeeze(call: Call) -> CallCut:
    source, cut = call.source()
    dims = call.arg("dim")
    dims = [dims] if isinstance(dims, int) else dims
    sizes = shape(source)
    gone = [dim for dim in dims if sizes[dim] == 1]
    if cut.dim in [dim % len(sizes) for dim in dims] and cut.part(sizes)[cut.dim] == 1:
        raise EndsError("a part would have one row, and lose the dimension")
    return CallCut({source: cut}, without(cut, gone, False, len(sizes)) if gone else cut)


def _same(call: Call, name: str = "self") -> CallCut:
    source, cut = call.source(name)
    return CallCut({source: cut}, cut)


def _last_kept(call: Call) -> CallCut:
    """The last dimension becomes part of the type, or comes from it."""
    source, cut = call.source()
    end_if(cut.dim >= min(len(shape(source)), len(call.result())), "it goes over the dimension that is cut")
    return CallCut({source: cut}, cut)


def _slice(call: Call) -> CallCut:
    source, cut = call.source()
    if call.arg("dim") % len(shape(source)) == cut.dim:
        end_if(call.result() != shape(source), "a slice along the dimension that is cut")
        return CallCut({source: cut}, cut, {"start": 0, "end": cut.part(shape(source))[cut.dim]})
    return CallCut({source: cut}, cut)


def _select(call: Call) -> CallCut:
    source, cut = call.source()
    return CallCut({source: cut}, without(cut, [call.arg("dim")], False, len(shape(source))))


def _slice_backward(call: Call) -> CallCut:
    grad, cut = call.source("grad_output")
    end_if(call.arg("dim") % len(call.result()) == cut.dim, "a slice along the dimension that is cut")
    return CallCut({grad: cut}, cut, {"input_sizes": list(cut.part(call.result()))})


def _select_backward(call: Call) -> CallCut:
    grad, cut = call.source("grad_output")
    given = cut.moved(cut.dim + (call.arg("dim") % len(call.result()) <= cut.dim))
    return CallCut({grad: cut}, given, {"input_sizes": list(given.part(call.result()))})


def _new(call: Call) -> CallCut:
    """A tensor of one value: of what it is given it takes the type and the device, and mostly the rows, too."""
    source, cut = call.source()
    size, sizes = call.result(), shape(source)
    if len(size) == len(sizes) and size[cut.dim] == sizes[cut.dim]:
        return CallCut({source: cut}, cut, {"size": list(cut.part(size))})
    return CallCut({source: cut}, Uncut.SAME)


def _split(call: Call) -> CallCut:
    source, cut = call.source()
    dim = call.arg("dim") % len(shape(source))
    sizes = [tuple(value.shape)[dim] for value in call.node.meta["val"]]
    pieces = [piece(cut, dim, size, call.parts) for size in sizes]
    name = "split_size" if call.node.target is _ATEN.split.Tensor else "split_sizes"
    rows = [rows for _, rows in pieces]
    return CallCut({source: cut}, tuple(one for one, _ in pieces), {name: rows[0] if name == "split_size" else rows})


def _unbind(call: Call) -> CallCut:
    source, cut = call.source()
    given = without(cut, [call.arg("dim")], False, len(shape(source)))
    return CallCut({source: cut}, (given,) * len(call.node.meta["val"]))


def _stack(call: Call) -> CallCut:
    """All are cut alike, and joined along a dimension that there was not."""
    _, cut = call.first()
    at = call.arg("dim") % len(call.result())
    return CallCut(dict.fromkeys(call.arg("tensors"), cut), cut.moved(cut.dim + (at <= cut.dim)))


def _cat(call: Call) -> CallCut:
    tensors: Sequence[fx.Node] = call.arg("tensors")
    dim = call.arg("dim") % len(call.result())
    _, cut = call.first()
    cuts, given = joined(cut, dim, [shape(one) for one in tensors], call.parts)
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
    given = cut
    if cut.dim == 0:
        for name in ("output_split_sizes", "input_split_sizes"):
            sizes = call.arg(name)
            end_if(not all(type(size) is int for size in sizes), "how much is sent to whom depends on data")
            changes[name] = [piece(cut, 0, size, call.parts)[1] if size else 0 for size in sizes]
        given = Cut(0, call.result()[0] // (call.parts * cut.inner), cut.inner)
    return CallCut({source: cut}, given, changes)


def pointwise(call: Call) -> CallCut:
    """Each element of the result comes of one element of each operand, broadcast."""
    source, cut = call.first()
    given = broadcast(cut, shape(source), call.result())
    needs = {}
    for node in call.node.all_input_nodes:
        if (needed := operand(given, call.result(), shape(node))) is not None:
            needs[node] = needed
    return CallCut(needs, given)


def _product(call: Call, a: fx.Node, b: fx.Node) -> CallCut:
    """``a @ b``, both of two dimensions, or of three where the first is a batch."""
    batch = len(shape(a)) - 2
    for node, other, contracted, free in ((a, b, batch + 1, batch), (b, a, batch, batch + 1)):
        cut = call.cuts.get(node)
        if cut is None:
            continue
        if cut.dim < batch:
            return CallCut({a: cut, b: cut}, cut)
        if cut.dim == free:
            return CallCut({node: cut}, cut)
        return CallCut({node: cut, other: cut.moved(2 * batch + 1 - contracted)}, Uncut.PARTIAL)
    raise EndsError("no factor is cut")


def _mm(call: Call) -> CallCut:
    return _product(call, call.given("self"), call.given("mat2"))


def _addmm(call: Call) -> CallCut:
    bias = call.given("self")
    found = _product(call, call.given("mat1"), call.given("mat2"))
    if not isinstance(found.gives, Cut):
        raise EndsError("each part would add the bias")
    added = operand(found.gives, call.result(), shape(bias))
    return found if added is None else found._replace(needs={**found.needs, bias: added})


def _reduction(call: Call, *, adds: bool = False, results: int = 1) -> CallCut:
    """Over some dimensions, by the arguments ``dim`` and ``keepdim``; without dimensions: over all."""
    source, cut = call.source()
    sizes = shape(source)
    dims = call.arg("dim")
    dims = [dims] if isinstance(dims, int) else dims
    try:
        given = without(cut, dims or (), bool(call.arg("keepdim")), len(sizes))
    except EndsError:
        if not adds:
            raise
        return CallCut({source: cut}, Uncut.PARTIAL)
    return CallCut({source: cut}, given if results == 1 else (given,) * results)


def _along(call: Call, others: Sequence[str] = (), results: int = 1) -> CallCut:
    """Along the dimension ``dim``, which stays: softmax, cumsum, topk. Other tensors are as large as the first."""
    source, cut = call.source("grad_output" if others else "self")
    end_if(call.arg("dim") % len(shape(source)) == cut.dim, "it goes along the dimension that is cut")
    return CallCut(dict.fromkeys((source, *map(call.given, others)), cut), cut if results == 1 else (cut,) * results)


def _norm(call: Call) -> CallCut:
    """Over the last dimensions; means and deviations keep the others."""
    source, cut = call.source("input")
    _keeps_last(cut, call)
    return CallCut({source: cut}, (cut,) * len(call.node.meta["val"]))


def _norm_backward(call: Call) -> CallCut:
    """Gradients of weights are sums over the rows."""
    cut = call.cut("grad_out")
    _keeps_last(cut, call)
    schema = [argument.name for argument in call.node.target._schema.arguments]
    saved = [name for name in ("grad_out", "input", "mean", "rstd") if name in schema]
    return CallCut(dict.fromkeys(map(call.given, saved), cut), (cut, *summed(call.arg("output_mask")[1:])))


def _keeps_last(cut: Cut, call: Call) -> None:
    if cut.dim >= len(shape(call.given("input"))) - len(call.arg("normalized_shape")):
        raise EndsError("it goes over the dimension that is cut")


def _embedding(call: Call) -> CallCut:
    indices, cut = call.given("indices"), call.cut("indices")
    end_if(call.given("weight") in call.cuts, "the table is cut")
    return CallCut({indices: cut}, cut)


def _embedding_backward(call: Call) -> CallCut:
    grad, indices = call.given("grad_output"), call.given("indices")
    cut = call.cuts.get(indices) or call.cut("grad_output")
    if cut.dim >= len(shape(indices)) or call.arg("scale_grad_by_freq"):
        raise EndsError("it counts all indices, or its columns are cut")
    return CallCut({grad: cut, indices: cut}, Uncut.PARTIAL)


def _index(call: Call) -> CallCut:
    """Rows of a table by one tensor of indices for the first dimension."""
    indices = call.arg("indices")
    if len(indices) != 1 or not isinstance(indices[0], fx.Node) or call.given("self") in call.cuts:
        raise EndsError("more than rows by one tensor of indices")
    end_if(indices[0].meta["val"].dtype in (torch.bool, torch.uint8), "how many rows a mask takes depends on data")
    cut = call.cuts[indices[0]]
    return CallCut({indices[0]: cut}, cut)


def _index_put(call: Call) -> CallCut:
    """Where a mask as large as the tensor's first dimensions is set, one value is written."""
    source, indices, values = call.given("self"), call.arg("indices"), call.given("values")
    cut = call.cut("self")
    mask = indices[0] if len(indices) == 1 else None
    if not isinstance(mask, fx.Node) or mask.meta["val"].dtype is not torch.bool or call.arg("accumulate"):
        raise EndsError("it puts by indices, which name rows of the whole")
    if any(size != 1 for size in shape(values)) or cut.dim >= len(shape(mask)):
        raise EndsError("what it puts is more than one value, or the mask does not reach the dimension that is cut")
    return CallCut({source: cut, mask: cut}, cut)


def _gather_along(call: Call) -> CallCut:
    """Along the dimension ``dim``; the others of the indices are as large as those of the source, or begin there."""
    source, index = call.given("self"), call.given("index")
    cut = call.cuts.get(source) or call.cut("index")
    end_if(call.arg("dim") % len(shape(source)) == cut.dim, "it goes along the dimension that is cut")
    end_if(shape(source)[cut.dim] != shape(index)[cut.dim], "it takes only the first rows of the dimension that is cut")
    return CallCut({source: cut, index: cut}, cut)


def _scatter_along(call: Call) -> CallCut:
    """Along the dimension ``dim``; the others of the indices are as large as those of what is written to."""
    target, index = call.given("self"), call.given("index")
    _, cut = call.first()
    end_if(call.arg("dim") % len(shape(target)) == cut.dim, "it goes along the dimension that is cut")
    if shape(target)[cut.dim] != shape(index)[cut.dim]:
        raise EndsError("it writes only to the first rows of the dimension that is cut")
    needs = {target: cut, index: cut}
    if call.node.target in (_ATEN.scatter_add.default, _ATEN.scatter.src):
        source = call.given("src")
        if shape(source)[cut.dim] != shape(index)[cut.dim]:
            raise EndsError("it takes only the first rows of the dimension that is cut")
        needs[source] = cut
    return CallCut(needs, cut)


_OF_SELF = partial(_by_image, first="grad_output", others=("self",))
_BY_RULE: tuple[tuple[Rule, tuple[Any, ...]], ...] = (
    (_view, (_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default)),
    (_expand, (_ATEN.expand.default,)),
    (_permute, (_ATEN.permute.default,)),
    (_transpose, (_ATEN.transpose.int, _ATEN.t.default)),
    (_unsqueeze, (_ATEN.unsqueeze.default,)),
    (_squeeze, (_ATEN.squeeze.dim, _ATEN.squeeze.dims)),
    (_same, (_ATEN.alias.default, _ATEN.detach.default, _ATEN._conj.default)),
    (_last_kept, (_ATEN.view_as_complex.default, _ATEN.view_as_real.default)),
    (_slice, (_ATEN.slice.Tensor,)),
    (_select, (_ATEN.select.int,)),
    (_slice_backward, (_ATEN.slice_backward.default,)),
    (_select_backward, (_ATEN.select_backward.default,)),
    (_new, tuple(getattr(_ATEN, f"new_{kind}").default for kind in ("empty", "zeros", "ones", "full"))),
    (_split, (_ATEN.split.Tensor, _ATEN.split_with_sizes.default)),
    (_unbind, (_ATEN.unbind.int,)),
    (_stack, (_ATEN.stack.default,)),
    (_cat, (_ATEN.cat.default,)),
    (_gather, (_C10D.all_gather_into_tensor.default,)),
    (partial(_gather, through=through_scatter), (_C10D.reduce_scatter_tensor.default,)),
    (partial(_same, name="input"), (_C10D.all_reduce.default, _C10D.broadcast.default)),
    (_all_to_all, (_C10D.all_to_all_single.default,)),
    (partial(_same, name="tensor"), (_C10D.wait_tensor.default,)),
    (_mm, (_ATEN.mm.default, _ATEN.bmm.default)),
    (_addmm, (_ATEN.addmm.default,)),
    (partial(_reduction, adds=True), (_ATEN.sum.dim_IntList,)),
    (lambda call: CallCut(dict([call.source()]), Uncut.PARTIAL), (_ATEN.sum.default,)),
    (_reduction, (_ATEN.mean.dim, _ATEN.amax.default, _ATEN.amin.default)),
    (_reduction, (_ATEN.logsumexp.default, _ATEN.var.correction)),
    (partial(_reduction, results=2), (_ATEN.max.dim, _ATEN.min.dim, _ATEN.var_mean.correction)),
    (_gather_along, (_ATEN.gather.default,)),
    (_scatter_along, (_ATEN.scatter.src, _ATEN.scatter.value, _ATEN.scatter_.value, _ATEN.scatter_add.default)),
    (_along, (_ATEN._softmax.default, _ATEN._log_softmax.default, _ATEN.cumsum.default)),
    (
        partial(_along, others=("output",)),
        (_ATEN._softmax_backward_data.default, _ATEN._log_softmax_backward_data.default),
    ),
    (partial(_along, results=2), (_ATEN.topk.default, _ATEN.sort.default, _ATEN.sort.stable)),
    (_norm, (_ATEN.native_layer_norm.default, _ATEN._fused_rms_norm.default)),
    (_norm_backward, (_ATEN.native_layer_norm_backward.default, _ATEN._fused_rms_norm_backward.default)),
    (_embedding, (_ATEN.embedding.default,)),
    (_embedding_backward, (_ATEN.embedding_dense_backward.default,)),
    (_index, (_ATEN.index.Tensor,)),
    (_index_put, (_ATEN.index_put.default,)),
    (pointwise, (torch.ops.prims.convert_element_type.default, _ATEN._to_copy.default)),
    (pointwise, (_ATEN.zeros_like.default, _ATEN.ones_like.default, _ATEN.full_like.default)),
    (_convolution, (_ATEN.convolution.default,)),
    (_convolution_backward, (_ATEN.convolution_backward.default,)),
    (_by_image, (_ATEN.max_pool2d_with_indices.default, _ATEN.avg_pool2d.default, _ATEN._adaptive_avg_pool2d.default)),
    (_by_image, (_ATEN.upsample_nearest2d.default, _ATEN.upsample_bilinear2d.default)),
    (partial(_by_image, first="input"), (_ATEN.upsample_nearest2d.vec, _ATEN.upsample_bilinear2d.vec)),
    (partial(_by_image, dims=1), (_ATEN.pixel_shuffle.default,)),
    (_OF_SELF, (_ATEN.avg_pool2d_backward.default, _ATEN._adaptive_avg_pool2d_backward.default)),
    (
        partial(_by_image, first="grad_output", others=("self", "indices")),
        (_ATEN.max_pool2d_with_indices_backward.default,),
    ),
    (_resized_backward, (_ATEN.upsample_nearest2d_backward.default, _ATEN.upsample_bilinear2d_backward.default)),
    (_padded, (_ATEN.constant_pad_nd.default,)),
    (_group_norm, (_ATEN.native_group_norm.default,)),
    (_group_norm_backward, (_ATEN.native_group_norm_backward.default,)),
    (_batch_norm, (_ATEN.native_batch_norm.default, _ATEN._native_batch_norm_legit_functional.default)),
    (_batch_norm, (_ATEN._native_batch_norm_legit_no_training.default,)),
    (_batch_norm_backward, (_ATEN.native_batch_norm_backward.default,)),
    (_nll, (_ATEN.nll_loss_forward.default,)),
    (_nll_backward, (_ATEN.nll_loss_backward.default,)),
    (_squares, (_ATEN.mse_loss.default,)),
    (_squares_backward, (_ATEN.mse_loss_backward.default,)),
    *(
        (rule, (packet.default,))
        for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
        for suffix, rule in (("", _attention), ("_backward", _attention_backward))
        if (packet := getattr(_ATEN, f"_scaled_dot_product_{kind}{suffix}", None)) is not None
    ),
)
RULES: Mapping[Any, Rule] = {target: rule for rule, targets in _BY_RULE for target in targets}


def rule_of(node: fx.Node) -> Rule:
    """The rule of a call."""
    target = node.target
    end_if(node.op != "call_function" or target is operator.getitem, f"{node.name!r} is no call of an operator")
    rule = RULES.get(target)
    if rule is not None:
        return rule
    if is_pure(functional(target)) and torch.Tag.pointwise in functional(target).tags:
        return pointwise
    raise EndsError(f"nothing is known of {target}")
