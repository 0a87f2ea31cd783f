"""Rules of operators on images: convolutions, pools, resizing, padding, group norms, batch norms.

Batches are free, and channels where each is treated alone. A batch norm in training takes its mean over the whole
batch: the dimension ends there.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape, summed
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
    return Told({grad: cut, source: cut}, (cut if wanted[0] else Uncut.SAME, *summed(wanted[1:])))


def _by_image(call: Call, first: str = "self", others: Sequence[str] = (), dims: int = 2) -> Told:
    """Image by image; channel by channel where ``dims`` is 2. Other tensors are cut as the first is."""
    source, cut = call.given(first), call.cut(first)
    if cut.dim >= dims or len(shape(source)) != 4:
        raise EndsError("a window goes over the dimension that is cut")
    value = call.node.meta["val"]
    needs = dict.fromkeys((source, *map(call.given, others)), cut)
    return Told(needs, (cut,) * len(value) if isinstance(value, tuple | list) else cut)


def _resized_backward(call: Call) -> Told:
    told = _by_image(call, "grad_output")
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
    return Told(needs, (cut, *summed(call.arg("output_mask")[1:])), {"N": rows})


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
    return Told({grad: cut, source: cut}, (first, *summed(wanted[1:])))


def _not_channels(cut: Cut) -> None:
    if cut.dim == 1:
        raise EndsError("the channels of a batch norm have weights and means of their own")


IMAGES: dict[Any, Rule] = {
    _ATEN.convolution.default: _convolution,
    _ATEN.convolution_backward.default: _convolution_backward,
    _ATEN.max_pool2d_with_indices.default: _by_image,
    _ATEN.max_pool2d_with_indices_backward.default: partial(_by_image, first="grad_output", others=("self", "indices")),
    _ATEN.avg_pool2d.default: _by_image,
    _ATEN.avg_pool2d_backward.default: partial(_by_image, first="grad_output", others=("self",)),
    _ATEN._adaptive_avg_pool2d.default: _by_image,
    _ATEN._adaptive_avg_pool2d_backward.default: partial(_by_image, first="grad_output", others=("self",)),
    _ATEN.upsample_nearest2d.default: _by_image,
    _ATEN.upsample_nearest2d.vec: partial(_by_image, first="input"),
    _ATEN.upsample_nearest2d_backward.default: _resized_backward,
    _ATEN.upsample_bilinear2d.default: _by_image,
    _ATEN.upsample_bilinear2d.vec: partial(_by_image, first="input"),
    _ATEN.upsample_bilinear2d_backward.default: _resized_backward,
    _ATEN.pixel_shuffle.default: partial(_by_image, dims=1),
    _ATEN.constant_pad_nd.default: _padded,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN.native_group_norm_backward.default: _group_norm_backward,
    _ATEN.native_batch_norm.default: _batch_norm,
    _ATEN._native_batch_norm_legit_functional.default: _batch_norm,
    _ATEN._native_batch_norm_legit_no_training.default: _batch_norm,
    _ATEN.native_batch_norm_backward.default: _batch_norm_backward,
}
