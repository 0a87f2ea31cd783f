"""Rules of losses: sums over the batch come in parts; a mean would have to know the whole batch, and ends it."""

from typing import Any

import torch

from overlap_sched.fx.dimensions.call import Call, Rule, Told, shape
from overlap_sched.transform.dimension_graph.cut import Cut, EndsError, Uncut

_ATEN = torch.ops.aten
_NONE, _SUM = 0, 2
"""Of ``reduction``; 1 is the mean."""


def _not_a_mean(call: Call) -> int:
    reduction = int(call.arg("reduction"))
    if reduction not in (_NONE, _SUM):
        raise EndsError("the mean over a batch is not that of its parts")
    return reduction


def _rows(call: Call, source: str) -> Cut:
    """The cut of the rows of likelihoods, or of their targets."""
    rows = call.cuts.get(call.given(source)) or call.cut("target")
    if rows.dim != 0 or len(shape(call.given(source))) < 2:
        raise EndsError("only the batch of a loss is cut")
    return rows


def _nll(call: Call) -> Told:
    cut = _rows(call, "self")
    gives = cut if _not_a_mean(call) == _NONE else Uncut.PARTIAL
    return Told(dict.fromkeys((call.given("self"), call.given("target")), cut), (gives, Uncut.PARTIAL))


def _nll_backward(call: Call) -> Told:
    """Without a mean, it looks at no total of weights."""
    cut = _rows(call, "self")
    needs = dict.fromkeys((call.given("self"), call.given("target")), cut)
    if _not_a_mean(call) == _NONE:
        needs[call.given("grad_output")] = cut
    return Told(needs, cut, idle=(call.given("total_weight"),))


def _squares(call: Call) -> Told:
    cut = call.cuts.get(call.given("self")) or call.cut("target")
    if shape(call.given("self")) != shape(call.given("target")):
        raise EndsError("its target is broadcast")
    gives = cut if _not_a_mean(call) == _NONE else Uncut.PARTIAL
    return Told(dict.fromkeys((call.given("self"), call.given("target")), cut), gives)


def _squares_backward(call: Call) -> Told:
    told = _squares(call)
    cut = next(iter(told.needs.values()))
    grad = {call.given("grad_output"): cut} if _not_a_mean(call) == _NONE else {}
    return Told({**told.needs, **grad}, cut)


LOSSES: dict[Any, Rule] = {
    _ATEN.nll_loss_forward.default: _nll,
    _ATEN.nll_loss_backward.default: _nll_backward,
    _ATEN.mse_loss.default: _squares,
    _ATEN.mse_loss_backward.default: _squares_backward,
}
