"""What ``Repro.__init__`` sets: constants as fake tensors of their shape, submodules as opaque modules.

Implements what ``torch._dynamo.debug_utils.NNModuleToString`` writes: ``register_buffer('name', tensor(...))``
for up to four elements, ``torch.randn`` or ``torch.randint`` for more, ``torch.nn.Parameter(torch.randn(...))``,
each perhaps with ``.to("cuda:0")``; and the repr of a submodule, which need not be Python.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from overlap_sched.dump.literals import Literals, dotted
from overlap_sched.dump.source import Attribute

_BY_SIZE = ("zeros", "ones", "empty", "randn", "rand", "full")


def read_attributes(path: str, attributes: Sequence[Attribute]) -> dict[str, ast.expr | None]:
    """Read what each attribute is set to, by name; None where it is a submodule."""
    found: dict[str, ast.expr | None] = {}
    literals = Literals(path, {})
    for attribute in attributes:
        match attribute.statement:
            case None:
                assert attribute.name is not None
                found[attribute.name] = None
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                found[name] = value if _is_tensor(value) else None
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=str() as name), value]
                )
            ):
                found[name] = value
            case statement:
                literals.fail(statement, "this statement of __init__ is not understood")
    return found


def _is_tensor(value: ast.expr) -> bool:
    """Tell whether it is a tensor that torch prints, not the repr of a module."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        return _is_tensor(value.func.value)
    name = dotted(value.func) or ""
    known = ("tensor", "torch.tensor", "torch.nn.Parameter", "Parameter", "FakeTensor", "torch.randint")
    return name in known or name.removeprefix("torch.") in _BY_SIZE


def make_attribute(path: str, value: ast.expr) -> torch.Tensor:
    """Make a fake tensor as the expression describes it; to be called under the fake mode."""
    literals = Literals(path, {"Ellipsis": ...})
    if not isinstance(value, ast.Call):
        literals.fail(value, "this constant is not understood")
    name = dotted(value.func) or ""
    if isinstance(value.func, ast.Attribute) and value.func.attr == "to" and len(value.args) == 1:
        inner = make_attribute(path, value.func.value)
        return torch.empty_like(inner, device=literals.device(value, literals.read(value.args[0])))
    if name in ("torch.nn.Parameter", "Parameter") and len(value.args) == 1:
        return make_attribute(path, value.args[0])
    args = [literals.read(arg) for arg in value.args]
    kwargs = {keyword.arg or "**": literals.read(keyword.value) for keyword in value.keywords}
    described = _described(name, args, kwargs)
    if described is None:
        literals.fail(value, "this constant is not understood")
    shape, default = described
    dtype = kwargs.get("dtype")
    dtype = dtype if isinstance(dtype, torch.dtype) else default
    return torch.empty(shape, dtype=dtype, device=literals.device(value, kwargs.get("device", "cpu")))


def _described(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[int], torch.dtype] | None:
    """The shape that a call makes, and the type where none is printed; None: it is not understood."""
    default = torch.int64 if name == "torch.randint" else torch.float32
    if "size" in kwargs:
        return list(kwargs["size"]), default
    if name in ("tensor", "torch.tensor") and len(args) == 1:
        data = torch.tensor(args[0])
        return data.shape, data.dtype
    if name.removeprefix("torch.") in _BY_SIZE and args:
        sizes = list(args[0]) if isinstance(args[0], list | tuple) else list(args)
        return (sizes, default) if all(isinstance(size, int) for size in sizes) else None
    return None
