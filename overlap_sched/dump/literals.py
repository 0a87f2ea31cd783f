"""Turn an expression of a dump into a value, by looking at its shape: nothing of the file is ever run.

Understood is what ``torch.fx.graph.CodeGen`` writes for arguments: constants, containers, slices, dtypes, layouts,
memory formats, devices, operators of ``torch.ops``, and names of nodes. Anything else is an error with its place.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import fx

from overlap_sched.dump.operators import operator_named
from overlap_sched.errors import DumpError

_CONSTANTS: Mapping[str, Any] = {
    name: value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.qscheme)
}
_NAMES: Mapping[str, Any] = {"inf": math.inf, "nan": math.nan, "NoneType": type(None)}
ARITHMETIC: Mapping[type[ast.operator], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "slice": slice,
    "torch.Size": torch.Size,
    **dict.fromkeys(("Max", "max"), max),
    **dict.fromkeys(("Min", "min"), min),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), operator.floordiv),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), operator.truediv),
    **dict.fromkeys(("CeilToInt", "ceiling"), math.ceil),
    **dict.fromkeys(("TruncToInt", "floor", "FloorToInt", "Identity"), math.floor),
    "ModularIndexing": lambda index, divisor, modulus: index // divisor % modulus,
    "PowByNatural": operator.pow,
}
"""As torch's printer of sizes (sympy) calls them."""
_DEVICE = re.compile(r"[a-z]+(?::(\d{1,3}))?$")
_DEEPEST, _WIDTH = 200, 100
_LARGEST_EXPONENT = 64
_LARGEST_BASE_BITS = 64


class Literals:
    """Reads the expressions of one file.

    Args:
        path: The file, for messages.
        names: What a bare name stands for: nodes by name. The caller adds to it as it goes.
        name_of: Called for names that are not in `names`; symbols of sizes are looked up here.
    """

    def __init__(self, path: str, names: Mapping[str, Any], name_of: Callable[[str], Any] | None = None) -> None:
        self.path = path
        self.names = names
        self.name_of = name_of

    def read(self, expr: ast.expr, depth: int = 0) -> Any:
        """The value of `expr`."""
        if depth > _DEEPEST:
            self.fail(expr, "this expression is nested too deeply")
        deeper = depth + 1
        match expr:
            case ast.Constant():
                return expr.value
            case ast.Name():
                return self._name(expr)
            case ast.Tuple():
                return tuple([self.read(item, deeper) for item in expr.elts])
            case ast.List():
                return [self.read(item, deeper) for item in expr.elts]
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in expr.keys):
                return {
                    self.read(k, deeper): self.read(v, deeper) for k, v in zip(expr.keys, expr.values, strict=True) if k
                }
            case ast.Slice():
                parts = (expr.lower, expr.upper, expr.step)
                return slice(*(None if part is None else self.read(part, deeper) for part in parts))
            case ast.UnaryOp() | ast.BinOp():
                return self._arithmetic(expr, deeper)
            case ast.Attribute():
                return self._dotted(expr)
            case ast.Call():
                return self._call(expr, deeper)
        self.fail(expr)

    def fail(self, where: ast.AST, what: str = "this is not understood") -> NoReturn:
        """Raise the error for `where`, with its line and text."""
        raise DumpError(
            f"{self.path}, line {getattr(where, 'lineno', '?')}: {what}: `{shorten(where)}`. Only torch.ops calls, "
            "constants, getitem and tensor metadata are read, as torch writes them; nothing in the file is run. "
            "Write the dump again with torch, or take this statement out."
        )

    def _name(self, expr: ast.Name) -> Any:
        if expr.id in self.names:
            return self.names[expr.id]
        if expr.id in _NAMES:
            return _NAMES[expr.id]
        if self.name_of is not None and (value := self.name_of(expr.id)) is not None:
            return value
        self.fail(expr, f"the name {expr.id!r} is not defined before this line")

    def _arithmetic(self, expr: ast.UnaryOp | ast.BinOp, depth: int) -> Any:
        if isinstance(expr, ast.UnaryOp):
            value = self.read(expr.operand, depth)
            if not isinstance(value, int | float | complex):
                self.fail(expr)
            if isinstance(expr.op, ast.USub | ast.UAdd):
                return -value if isinstance(expr.op, ast.USub) else +value
            self.fail(expr)
        left, right = self.read(expr.left, depth), self.read(expr.right, depth)
        if not (isinstance(left, int | float | complex) and isinstance(right, int | float | complex)):
            self.fail(expr)
        function = ARITHMETIC.get(type(expr.op))
        if function is None or (function is operator.pow and not _computable(left, right)):
            self.fail(expr)
        try:
            return function(left, right)
        except (ArithmeticError, TypeError) as error:
            self.fail(expr, f"this cannot be computed ({error})")

    def _dotted(self, expr: ast.Attribute) -> Any:
        name = dotted(expr)
        if name is None or not name.startswith("torch."):
            self.fail(expr)
        if name.startswith("torch.ops."):
            return self.operator(expr, name)
        constant = _CONSTANTS.get(name.removeprefix("torch."))
        if constant is None:
            self.fail(expr)
        return constant

    def operator(self, where: ast.AST, name: str) -> Any:
        """The operator called `name` (``torch.ops.aten.mm.default``), or an ``UnknownOp``."""
        parts = name.split(".")[2:]
        if not 2 <= len(parts) <= 3 or any(part.startswith("__") and part.endswith("__") for part in parts[:2]):
            self.fail(where, "this is not an operator")
        return operator_named(parts)

    def device(self, where: ast.AST, value: Any) -> torch.device:
        """A device given as one, or by its name (``cuda:0``)."""
        try:
            return device_named(value)
        except (RuntimeError, TypeError):
            self.fail(where, "this device is not understood")

    def _call(self, expr: ast.Call, depth: int) -> Any:
        args = [self.read(arg, depth) for arg in expr.args]
        kwargs = {k.arg: self.read(k.value, depth) for k in expr.keywords if k.arg is not None}
        if any(isinstance(value, fx.Node) for value in (*args, *kwargs.values())):
            if dotted(expr.func) == "slice" and not kwargs and 1 <= len(args) <= 3:
                return slice(*args)
            self.fail(expr)
        try:
            name = dotted(expr.func) or ""
            if name in ("device", "torch.device"):
                return device_named(*args, **kwargs)
            refused = name == "PowByNatural" and not (args[1] >= 0 and _computable(args[0], args[1]))
            if name in _FUNCTIONS and not kwargs and not refused:
                return _FUNCTIONS[name](*args)
        except (TypeError, ValueError, RuntimeError, ArithmeticError, IndexError) as error:
            self.fail(expr, f"this cannot be computed ({str(error).splitlines()[0]})")
        self.fail(expr)


def _computable(base: Any, exponent: Any) -> bool:
    """Tell whether a power is a number of ordinary size: powers of powers of powers would fill the memory."""
    small = not isinstance(base, int) or base.bit_length() <= _LARGEST_BASE_BITS
    return bool(abs(exponent) <= _LARGEST_EXPONENT) and small


def device_named(type: str | torch.device, index: int | None = None) -> torch.device:
    """A device; ``cuda`` in the place of an accelerator that this torch build has no name for (``npu``, ``neuron``).

    Raises:
        RuntimeError, TypeError: It does not look like a device.
    """
    if isinstance(type, torch.device):
        return type
    try:
        return torch.device(type) if index is None else torch.device(type, index)
    except RuntimeError:
        match = _DEVICE.match(type) if isinstance(type, str) else None
        if match is None:
            raise
        return torch.device("cuda", int(match[1] or 0) if index is None else index)


def dotted(expr: ast.expr) -> str | None:
    """``a.b.c`` as text, or None where it is not just names and dots."""
    parts: list[str] = []
    while isinstance(expr, ast.Attribute):
        parts.append(expr.attr)
        expr = expr.value
    return ".".join([expr.id, *reversed(parts)]) if isinstance(expr, ast.Name) else None


def shorten(where: ast.AST) -> str:
    """The text of a piece of the file, on one line."""
    try:
        text = re.sub(r"\s+", " ", ast.unparse(where))
    except (ValueError, RecursionError, AttributeError):
        text = type(where).__name__
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
