"""The traits of what a ``call_function`` node calls: found once per operator."""

import math
import operator
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from overlap_sched.fx.collectives import comm_of
from overlap_sched.fx.higher_order import traits_of_higher_order
from overlap_sched.fx.operator_traits import OperatorTraits
from overlap_sched.fx.ordering import Ordering
from overlap_sched.fx.overloads import traits_of_collective, traits_of_overload

_IN_PLACE = {"delitem", "setitem", "iand", "ior"} | {f"i{name}" for name in operator.__all__}
_PURE_FUNCTIONS: frozenset[Any] = frozenset(
    f
    for f in (
        *(getattr(operator, name) for name in operator.__all__ if name not in _IN_PLACE),
        *vars(math).values(),
        *(getattr(torch, name) for name in torch.__all__ if name.startswith("sym_")),
        *(int, float, bool, len, max, min, abs, round, pow, sum),
    )
    if callable(f)
)
"""Functions of numbers and sizes."""
_FENCES: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch.amp._enter_autocast, torch.amp._exit_autocast})


@cache
def traits_of(target: Any) -> OperatorTraits:
    """Traits of the target of a ``call_function`` node."""
    if isinstance(target, OpOverload):
        comm = comm_of(target)
        return traits_of_overload(target) if comm is None else traits_of_collective(target, comm)
    if isinstance(target, HigherOrderOperator):
        return traits_of_higher_order(target)
    name = getattr(target, "__name__", str(target))
    if target is operator.getitem:
        return OperatorTraits(name, free=True, selects=True)
    if target in _PURE_FUNCTIONS:
        return OperatorTraits(name, free=True)
    if target in _FENCES:
        return OperatorTraits(name, Ordering.FENCE)
    if target in fx.node._side_effectful_functions:  # torch._assert and the like: Python functions that only look
        return OperatorTraits(name, Ordering.EFFECT, writes_all=target is operator.setitem)
    return OperatorTraits(name, Ordering.BARRIER, known=False, writes_all=True)
