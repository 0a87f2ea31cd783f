"""What ``load_args(reader)`` says of the inputs: storages, tensors on them, sizes. Read, not run.

Implements the calls that ``torch._dynamo.debug_utils.InputWriter`` writes. Symbolic sizes become integers: by their
hint where the file has one, otherwise by the default that the caller computes.
"""

import ast
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from overlap_sched.dump.literals import Literals, dotted
from overlap_sched.dump.values import fake_tensor
from overlap_sched.errors import DumpError

_BACKED = re.compile(r"^s\d+$")
_SYMBOL = re.compile(r"^[A-Za-z]+_?\d+$")


@dataclass(frozen=True)
class TensorInput:
    """A tensor on a storage; sizes are expressions until symbols have values."""

    line: int
    storage: str
    shape: ast.expr
    stride: ast.expr | None
    offset: ast.expr | None
    dtype: torch.dtype


@dataclass(frozen=True)
class StorageInput:
    """A storage of so many bytes on a device."""

    line: int
    nbytes: ast.expr
    device: torch.device


@dataclass(frozen=True)
class SizeInput:
    """An integer; `value` is None where torch knew no hint, `symbol` is its name where it has one."""

    line: int
    value: int | float | None
    symbol: str | None


@dataclass(frozen=True)
class NoInput:
    """Something without a tensor: a constant filtered out, a generator, an opaque object."""

    line: int
    kind: str


Input = TensorInput | SizeInput | NoInput


@dataclass(frozen=True)
class Inputs:
    """The inputs in the order of the placeholders, the storages by their name in the file, and sizes set by hand."""

    path: str
    inputs: Sequence[Input]
    storages: Mapping[str, StorageInput]
    symbols: Mapping[str, int]


def read_inputs(path: str, statements: Sequence[ast.stmt]) -> Inputs:
    """Understand the statements of ``load_args``.

    Raises:
        DumpError: A statement is none of reader.storage, tensor, symint, const, unsupported, generator,
            opaque, and no size set by hand (``u8 = u9 = 512``).
    """
    symbols: dict[str, int] = {}
    literals = Literals(path, symbols)
    inputs: list[Input] = []
    storages: dict[str, StorageInput] = {}
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if _method(call) == "storage":
                storages[name] = _storage(literals, call)
            case ast.Assign(targets=targets, value=value) if all(isinstance(t, ast.Name) for t in targets):
                size = literals.read(value)
                if type(size) is not int:
                    literals.fail(statement, "this statement of load_args is not understood")
                symbols.update({target.id: size for target in targets if isinstance(target, ast.Name)})
            case ast.Expr(value=ast.Call() as call):
                inputs.append(_input(literals, call))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass  # what torch says of an input that it cannot write, as a string
            case ast.If(test=ast.Call(func=ast.Name(id="hasattr"))):
                pass  # torch's fix-up of the values of repeat_interleave's input
            case _:
                literals.fail(statement, "this statement of load_args is not understood")
    return Inputs(path, inputs, storages, symbols)


def _method(call: ast.Call) -> str | None:
    name = dotted(call.func)
    return name.removeprefix("reader.") if name is not None and name.startswith("reader.") else None


def _storage(literals: Literals, call: ast.Call) -> StorageInput:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    device = literals.read(keywords["device"]) if "device" in keywords else "cpu"
    if len(call.args) != 2:
        literals.fail(call, "reader.storage takes a hash, a number of bytes and a device")
    return StorageInput(call.lineno, call.args[1], literals.device(call, device))


def _input(literals: Literals, call: ast.Call) -> Input:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    match _method(call), call.args:
        case "tensor", [ast.Name(id=storage), shape, *stride]:
            dtype = literals.read(keywords["dtype"]) if "dtype" in keywords else torch.float32
            if len(stride) > 1 or not isinstance(dtype, torch.dtype):
                literals.fail(call, "reader.tensor takes a storage, a shape, strides and a dtype")
            offset = keywords.get("storage_offset")
            return TensorInput(call.lineno, storage, shape, stride[0] if stride else None, offset, dtype)
        case "symint", [value]:
            expression = literals.read(keywords["expr"]) if "expr" in keywords else None
            hint = None if isinstance(value, ast.Name) else literals.read(value)
            if not (hint is None or isinstance(hint, int | float)) or not isinstance(expression, str | None):
                literals.fail(call, "reader.symint takes a number")
            return SizeInput(call.lineno, hint, value.id if isinstance(value, ast.Name) else expression)
        case ("const" | "unsupported" | "generator" | "opaque") as kind, _:
            return NoInput(call.lineno, kind)
    literals.fail(call, "this statement of load_args is not understood")


def _names(item: Input | None) -> list[str]:
    """The names in the sizes of a tensor."""
    parts = [item.shape, item.stride, item.offset] if isinstance(item, TensorInput) else []
    return [n.id for part in parts if part for n in ast.walk(part) if isinstance(n, ast.Name)]


class InputMaker:
    """Makes the value of each input: fake tensors that share storages as the file says, and integers.

    Args:
        inputs: What the file says.
        symbols: Values of symbols by name, from the file and from the caller.
        default: Called with the name of a symbol without a value; gives one, and may note it.

    Attributes:
        matched: Symbols that the file does not define, by the integers among the inputs, in order.
    """

    def __init__(self, inputs: Inputs, symbols: Mapping[str, int], default: Callable[[str], int]) -> None:
        self._inputs = inputs
        self._symbols = {**inputs.symbols, **symbols}
        for item in inputs.inputs:
            if isinstance(item, SizeInput) and isinstance(item.value, int) and item.symbol is not None:
                self._symbols.setdefault(item.symbol, item.value)
        self.matched = self._matched()
        self._symbols.update(self.matched)
        self._default = default
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._literals = Literals(inputs.path, {}, self._size_of)

    def _matched(self) -> dict[str, int]:
        """Up to torch 2.11 an integer is written without its symbol, in front of the first tensor that has it."""
        integers: deque[int] = deque()
        found: dict[str, int] = {}
        for item in self._inputs.inputs:
            if isinstance(item, SizeInput) and item.symbol is None and type(item.value) is int:
                integers.append(item.value)
            for name in _names(item):
                if integers and _BACKED.match(name) and name not in self._symbols and name not in found:
                    found[name] = integers.popleft()
        return found

    def unknown(self, item: Input | None) -> bool:
        """Tell whether making `item` needs a symbol without a value."""
        if isinstance(item, SizeInput):
            return item.value is None and self._symbols.get(item.symbol or "") is None
        return any(_SYMBOL.match(name) and name not in self._symbols for name in _names(item))

    def make(self, item: Input, name: str) -> Any:
        """Make the value for the placeholder `name`, under the fake mode."""
        match item:
            case SizeInput():
                return self._size(item, name)
            case TensorInput():
                return self._tensor(item, name)
        return None

    def size_of(self, text: str) -> int | None:
        """The value of a printed size, ``s0`` or ``8*((u0 + 71)//8)``; None: it is not understood."""
        try:
            value = self._literals.read(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError, DumpError):
            return None
        return value if type(value) is int else None

    def _size_of(self, name: str) -> int | None:
        if name in self._symbols:
            return self._symbols[name]
        return self._default(name) if _SYMBOL.match(name) else None

    def _size(self, item: SizeInput, name: str) -> int | float:
        given = self._symbols.get(name, self._symbols.get(item.symbol or ""))
        if given is not None:  # by the caller, whatever the file says
            return given
        if item.value is not None:
            return item.value
        value = None if item.symbol is None else self.size_of(item.symbol)
        return self._default(name) if value is None else value

    def _tensor(self, item: TensorInput, name: str) -> torch.Tensor:
        where = f"{self._inputs.path}, line {item.line}: input {name!r}"
        storage = self._inputs.storages.get(item.storage)
        if storage is None:
            raise DumpError(f"{where}: its storage {item.storage!r} is not defined before it. Was a line taken out?")
        read = self._literals.read
        shape, stride, nbytes = (
            read(item.shape),
            None if item.stride is None else read(item.stride),
            read(storage.nbytes),
        )
        offset = 0 if item.offset is None else read(item.offset)
        try:
            if min([0, offset, *shape, *(stride or ())]) < 0:
                raise ValueError("negative")
            if stride is None:
                stride = torch.empty(shape, device="meta").stride()
            if item.storage not in self._storages and offset == 0:
                made = fake_tensor(shape, stride, item.dtype, storage.device)
                if made.untyped_storage().nbytes() == nbytes:
                    self._storages[item.storage] = made.untyped_storage()
                    return made
            if item.storage not in self._storages:
                made = torch.empty(nbytes, dtype=torch.uint8, device=storage.device)
                self._storages[item.storage] = made.untyped_storage()
            made = torch.empty(0, dtype=item.dtype, device=storage.device)
            made.set_(self._storages[item.storage], offset, shape, stride)
            if made.untyped_storage().nbytes() != nbytes:  # one that the job has freed: set_ makes room
                made.untyped_storage().resize_(nbytes)
            return made
        except (RuntimeError, TypeError, ValueError) as error:
            raise DumpError(
                f"{where}: shape {shape}, strides {stride} and offset {offset} do not fit its storage of {nbytes} "
                f"bytes ({str(error).splitlines()[0]}). Was the line edited?"
            ) from None
