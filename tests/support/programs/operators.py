"""Custom operators that programs call, with and without communication inside, and one with an effect.

They belong to programs, not to the package: nothing is declared of them but what their schemas say.
"""

from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

_C10D = torch.ops._c10d_functional
_library = torch.library.Library("progs", "DEF")
world = ""
"""The group of those that communicate without naming one."""
notes: list[tuple[int, float]] = []
"""What the operator with an effect has seen, in order."""


def _plain(x: Tensor) -> Tensor:
    return torch.sin(x) + 0.1


def _plain_into(out: Tensor, x: Tensor) -> None:
    out.add_(torch.cos(x), alpha=0.1)


def _hidden(x: Tensor, group: Any) -> Tensor:
    result = _C10D.wait_tensor.default(_C10D.all_reduce.default(x.contiguous(), "sum", group))
    return result * 0.5


def _hidden_mute(x: Tensor) -> Tensor:
    return _hidden(x, world)


def _hidden_into(out: Tensor, x: Tensor, group: Any) -> None:
    out.copy_(_hidden(x, group))


def _noted(x: Tensor, number: int) -> Tensor:
    notes.append((number, float(x.double().sum())))
    return x * 1.5


def _like(x: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(x)


def _nothing(*others: Any) -> None:
    return None


for _schema, _kernel, _fake in (
    ("plain(Tensor x) -> Tensor", _plain, _like),
    ("plain_into(Tensor(a!) out, Tensor x) -> ()", _plain_into, _nothing),
    ("hidden(Tensor x, str group_name) -> Tensor", _hidden, _like),
    ("hidden_mute(Tensor x) -> Tensor", _hidden_mute, _like),
    ("hidden_into(Tensor(a!) out, Tensor x, str group_name) -> ()", _hidden_into, _nothing),
    ("noted(Tensor x, int number) -> Tensor", _noted, _like),
):
    _name = _library.define(_schema)
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"progs::{_name}", _fake, lib=_library)
_register_effectful_op(torch.ops.progs.noted.default, _EffectType.ORDERED)
