"""Rules of operators on images: convolutions, pools, resizing, padding, group norms, batch norms.

Batches are free, and channels where each is treated alone. A batch norm in training takes its mean over the whole
batch: the dimension ends there.
"""

from typing import Any

import torch

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Given, Uncut

_ATEN = torch.ops.aten


def _convolution(call: Call) -> Told:
    source, cut = call.given("input"), call.cut("input")
    if cut.dim != 0 or len(shape(source)) != len(shape(call.given("weight"))):
        raise EndsError("only the batch of a convolution is cut")
    return Told({source: cut}, cut)


def _convolution_backward(call: Call) -> Told:
    grad, source = call.given("grad_output"), call.given("input")
    cut = call.cut("grad_output")
    if cut.dim != 0 or len(shape(source)) != len(shape(call.given("weight"))):
        raise EndsError("only the batch of a convolution is cut")
    wanted = call.arg("output_mask")
    return Told({grad: cut, source: cut}, (cut if wanted[0] else Uncut.SAME, *_summed(wanted[1:])))


def _summed(wanted: Any) -> tuple[Uncut, ...]:
    """Gradients of weights and biases, where they are asked for: sums over the batch."""
    return tuple(Uncut.PARTIAL if one else Uncut.SAME for one in wanted)


def _by_image(*others: str, first: str = "self", dims: int = 2) -> Rule:
    """Image by image; channel by channel where ``dims`` is 2. Other tensors are cut as the first is."""

    def rule(call: Call) -> Told:
        source, cut = call.given(first), call.cut(first)
        if cut.dim >= dims or len(shape(source)) != 4:
            raise EndsError("a window goes over the dimension that is cut")
        value = call.node.meta["val"]
        needs = dict.fromkeys((source, *map(call.given, others)), cut)
        return Told(needs, (cut,) * len(value) if isinstance(value, tuple | list) else cut)

    return rule


def _resized_backward(call: Call) -> Told:
    told = _by_image(first="grad_output")(call)
    assert isinstance(told.gives, Cut)
    return told._replace(changes={"input_size": list(told.gives.part(call.result()))})


def _padded(call: Call) -> Told:
    source, cut = call.given("self"), call.cut("self")
    pad = call.arg("pad")
    from_behind = len(shape(source)) - 1 - cut.dim
    if any(pad[2 * from_behind : 2 * from_behind + 2]):
        raise EndsError("the dimension that is cut is padded")
    return Told({source: cut}, cut)


def _group_norm(call: Call) -> Told:
    source, cut = call.given("input"), call.cut("input")
    if cut.dim:
        raise EndsError("a group norm goes over the dimension that is cut")
    return Told({source: cut}, (cut, cut, cut), {"N": cut.part(shape(source))[0]})


def _group_norm_backward(call: Call) -> Told:
    cut = call.cut("grad_out")
    if cut.dim:
        raise EndsError("a group norm goes over the dimension that is cut")
    needs = dict.fromkeys(map(call.given, ("grad_out", "input", "mean", "rstd")), cut)
    rows = cut.part(shape(call.given("input")))[0]
    return Told(needs, (cut, *_summed(call.arg("output_mask")[1:])), {"N": rows})


def _batch_norm(call: Call) -> Told:
    """With the running mean and deviation, each element for itself; what it saves for backward is empty then."""
    source = call.given("input")
    if call.node.target is not _ATEN._native_batch_norm_legit_no_training.default and call.arg("training"):
        raise EndsError("a batch norm in training takes the mean of the whole batch")
    cut = call.cut("input")
    _not_channels(cut)
    return Told({source: cut}, (cut, *(Uncut.SAME,) * (len(call.node.meta["val"]) - 1)))


def _batch_norm_backward(call: Call) -> Told:
    if call.arg("train"):
        raise EndsError("a batch norm in training takes the mean of the whole batch")
    grad, source, cut = call.given("grad_out"), call.given("input"), call.cut("grad_out")
    _not_channels(cut)
    wanted = call.arg("output_mask")
    first: Given = cut if wanted[0] else Uncut.SAME
    return Told({grad: cut, source: cut}, (first, *_summed(wanted[1:])))


def _not_channels(cut: Cut) -> None:
    if cut.dim == 1:
        raise EndsError("the channels of a batch norm have weights and means of their own")


IMAGES: dict[Any, Rule] = {
    _ATEN.convolution.default: _convolution,
    _ATEN.convolution_backward.default: _convolution_backward,
    _ATEN.max_pool2d_with_indices.default: _by_image(),
    _ATEN.max_pool2d_with_indices_backward.default: _by_image("self", "indices", first="grad_output"),
    _ATEN.avg_pool2d.default: _by_image(),
    _ATEN.avg_pool2d_backward.default: _by_image("self", first="grad_output"),
    _ATEN._adaptive_avg_pool2d.default: _by_image(),
    _ATEN._adaptive_avg_pool2d_backward.default: _by_image("self", first="grad_output"),
    _ATEN.upsample_nearest2d.default: _by_image(),
    _ATEN.upsample_nearest2d.vec: _by_image(first="input"),
    _ATEN.upsample_nearest2d_backward.default: _resized_backward,
    _ATEN.upsample_bilinear2d.default: _by_image(),
    _ATEN.upsample_bilinear2d.vec: _by_image(first="input"),
    _ATEN.upsample_bilinear2d_backward.default: _resized_backward,
    _ATEN.pixel_shuffle.default: _by_image(dims=1),
    _ATEN.constant_pad_nd.default: _padded,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN.native_group_norm_backward.default: _group_norm_backward,
    _ATEN.native_batch_norm.default: _batch_norm,
    _ATEN._native_batch_norm_legit_functional.default: _batch_norm,
    _ATEN._native_batch_norm_legit_no_training.default: _batch_norm,
    _ATEN.native_batch_norm_backward.default: _batch_norm_backward,
}
