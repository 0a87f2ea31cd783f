"""What a dump says of its inputs, constants and sizes. Read, never run.

- ``load_args(reader)``: storages, tensors on them, sizes, as ``torch._dynamo.debug_utils.InputWriter`` writes them.
  Symbolic sizes become integers: by their hint where the file has one, otherwise by the default that the caller
  computes.
- ``Repro.__init__``: constants as fake tensors of their shape, submodules as opaque modules.
- Sizes that contradict each other, where splits of an all_to_all do not add to its rows: someone filled in what torch
  did not know (``u8 = u9 = 512``), or traced with other tokens. Then no data-dependent size in the file counts, and
  tokens are taken to be spread evenly over ranks and experts, by the first all_to_all whose rows are known.
- Sizes that the graph asserts: ``item <= rows``. Where asserts leave a choice, the dump is loaded with the smallest,
  the largest and the middle sizes, and the one counts that holds most bytes: ``rows - item`` is largest where ``item``
  is smallest.
- The names by which data-dependent sizes can be given: symbols that occur in the dump, and its nodes.
"""

import ast
import contextlib
import difflib
import math
import operator
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sympy
import torch
from torch import fx

from overlap_sched.dump.graph import Literals, ParsedGraph, device_named, dotted
from overlap_sched.dump.source import BY_SIZE
from overlap_sched.dump.values import fake_tensor
from overlap_sched.errors import DumpError
from overlap_sched.fx.sizes import RANGES, Interval, SizeLimits

_BACKED = re.compile(r"^s\d+$")
_SYMBOL = re.compile(r"^[A-Za-z]+_?\d+$")


@dataclass(frozen=True)
class TensorInput:
    """A tensor on a storage of so many bytes on a device; sizes are expressions until symbols have values."""

    line: int
    shape: ast.expr
    stride: ast.expr | None
    offset: ast.expr | None
    dtype: torch.dtype
    storage: str
    nbytes: ast.expr
    device: torch.device
    names: tuple[str, ...]
    """Of the symbols in its sizes."""


@dataclass(frozen=True)
class SizeInput:
    """A number; `value` is None where torch knew no hint, `symbol` is its name where it has one."""

    value: int | float | None
    symbol: str | None


Input = TensorInput | SizeInput | None
"""None: without a tensor, as a constant that is filtered out, or a generator."""


@dataclass(frozen=True)
class Inputs:
    """The inputs in the order of the placeholders, and sizes set by hand (``u8 = u9 = 512``)."""

    inputs: Sequence[Input]
    symbols: Mapping[str, int]


def read_inputs(path: str, statements: Sequence[ast.stmt]) -> Inputs:
    """Understand the statements of ``load_args``.

    Raises:
        DumpError: A statement is none of reader.storage, tensor, symint, const, unsupported, generator,
            opaque, and no size set by hand.
    """
    symbols: dict[str, int] = {}
    storages: dict[str, tuple[ast.expr, torch.device]] = {}
    inputs: list[Input] = []
    literals = Literals(path, symbols)
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call(args=args, keywords=keywords) as call) if (
                dotted(call.func) == "reader.storage"
            ):
                device = literals.read(_keyword(keywords, "device") or ast.Constant("cpu"))
                try:
                    _, nbytes = args
                    storages[name] = nbytes, device_named(device)
                except (RuntimeError, TypeError, ValueError):
                    literals.fail(call, "not a hash, a number of bytes and a device")
            case ast.Assign(targets=targets, value=value) if all(isinstance(t, ast.Name) for t in targets):
                size = literals.read(value)
                if type(size) is not int:
                    literals.fail(statement, _NOT_UNDERSTOOD)
                symbols.update({target.id: size for target in targets if isinstance(target, ast.Name)})
            case ast.Expr(value=ast.Call() as call):
                inputs.append(_input(literals, call, storages))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass  # what torch says of an input that it cannot write, as a string
            case ast.If(test=ast.Call(func=ast.Name(id="hasattr"))):
                pass  # torch's fix-up of the values of repeat_interleave's input
            case _:
                literals.fail(statement, _NOT_UNDERSTOOD)
    return Inputs(inputs, symbols)


_NOT_UNDERSTOOD = "this statement of load_args is not understood"


def _keyword(keywords: Sequence[ast.keyword], name: str) -> ast.expr | None:
    return next((keyword.value for keyword in keywords if keyword.arg == name), None)


def _input(literals: Literals, call: ast.Call, storages: Mapping[str, tuple[ast.expr, torch.device]]) -> Input:
    match dotted(call.func), call.args:
        case "reader.tensor", [ast.Name(id=storage), shape, *strides]:
            dtype = literals.read(_keyword(call.keywords, "dtype") or ast.parse("torch.float32", mode="eval").body)
            if len(strides) > 1 or not isinstance(dtype, torch.dtype):
                literals.fail(call, "reader.tensor takes a storage, a shape, strides and a dtype")
            if storage not in storages:
                literals.fail(call, f"its storage {storage!r} is not defined before it")
            stride, offset = next(iter(strides), None), _keyword(call.keywords, "storage_offset")
            sizes = [part for part in (shape, stride, offset) if part is not None]
            names = tuple([n.id for part in sizes for n in ast.walk(part) if isinstance(n, ast.Name)])
            return TensorInput(call.lineno, shape, stride, offset, dtype, storage, *storages[storage], names)
        case "reader.symint", [value]:
            expression = literals.read(_keyword(call.keywords, "expr") or ast.Constant(None))
            symbol = value.id if isinstance(value, ast.Name) else expression
            hint = None if isinstance(value, ast.Name) else literals.read(value)
            if not (hint is None or isinstance(hint, int | float)) or not isinstance(symbol, str | None):
                literals.fail(call, "reader.symint takes a number")
            return SizeInput(hint, symbol)
        case (("reader.const" | "reader.unsupported" | "reader.generator" | "reader.opaque"), _):
            return None
    literals.fail(call, _NOT_UNDERSTOOD)


class InputMaker:
    """Makes the value of each input: fake tensors that share storages as the file says, and integers.

    Args:
        path: The file, for messages.
        inputs: What the file says.
        symbols: Values of symbols by name, from the file and from the caller.
        default: Called with the name of a symbol without a value; gives one, and may note it.

    Attributes:
        matched: Symbols that the file does not define, by the integers among the inputs, in order.
    """

    def __init__(self, path: str, inputs: Inputs, symbols: Mapping[str, int], default: Callable[[str], int]) -> None:
        self._path = path
        self._symbols = {**inputs.symbols, **symbols}
        for item in inputs.inputs:
            if isinstance(item, SizeInput) and isinstance(item.value, int) and item.symbol is not None:
                self._symbols.setdefault(item.symbol, item.value)
        self.matched: dict[str, int] = {}
        integers: deque[int] = deque()  # up to torch 2.11 without their symbols, in front of the first tensor with them
        for item in inputs.inputs:
            if isinstance(item, SizeInput) and item.symbol is None and type(item.value) is int:
                integers.append(item.value)
            for name in item.names if isinstance(item, TensorInput) else ():
                if integers and _BACKED.match(name) and name not in {**self._symbols, **self.matched}:
                    self.matched[name] = integers.popleft()
        self._symbols.update(self.matched)
        self._default = default
        self._storages: dict[str, torch.UntypedStorage] = {}
        self._literals = Literals(path, self._symbols, lambda name: default(name) if _SYMBOL.match(name) else None)

    def unknown(self, item: Input) -> bool:
        """Tell whether making `item` needs a symbol without a value."""
        match item:
            case SizeInput(value, symbol):
                return value is None and self._symbols.get(symbol or "") is None
            case TensorInput(names=names):
                return any(_SYMBOL.match(name) and name not in self._symbols for name in names)
        return False

    def make(self, item: Input, name: str) -> Any:
        """Make the value for the placeholder `name`, under the fake mode."""
        match item:
            case SizeInput(value, symbol):
                given = self._symbols.get(name, self._symbols.get(symbol or "", value))
                if given is not None:  # by the caller, whatever the file says
                    return given
                computed = None if symbol is None else self.size_of(symbol)
                return self._default(name) if computed is None else computed
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

    def _tensor(self, item: TensorInput, name: str) -> torch.Tensor:
        read = self._literals.read
        shape, nbytes = read(item.shape), read(item.nbytes)
        offset = 0 if item.offset is None else read(item.offset)
        stride = None if item.stride is None else read(item.stride)
        try:
            if min([nbytes, offset, *shape, *(stride or ())]) < 0:
                raise ValueError("negative")
            if item.storage not in self._storages:
                self._storages[item.storage] = torch.UntypedStorage(nbytes, device="meta")
            storage = self._storages[item.storage]
            made = fake_tensor(shape, stride, item.dtype, item.device, storage, offset)
            if storage.nbytes() != nbytes:  # one that the job has freed: the tensor has made room
                storage.resize_(nbytes)
            return made
        except (RuntimeError, TypeError, ValueError) as error:
            what = f"shape {shape}, strides {stride} and offset {offset} do not fit its storage of {nbytes} bytes"
            fault = f"{self._path}, line {item.line}: input {name!r}: {what} ({str(error).splitlines()[0]})"
            raise DumpError(f"{fault}. Was the line edited?") from None


def make_attribute(path: str, value: ast.expr) -> torch.Tensor:
    """Make a fake tensor as the expression describes it; to be called under the fake mode."""
    literals = Literals(path, {"Ellipsis": ...})
    match value:
        case ast.Call(ast.Attribute(value=inner, attr="to"), [device]):
            return torch.empty_like(make_attribute(path, inner), device=device_named(literals.read(device)))
        case ast.Call(func, [inner]) if dotted(func) in ("torch.nn.Parameter", "Parameter"):
            return make_attribute(path, inner)
        case ast.Call(func):
            args = [literals.read(arg) for arg in value.args]
            kwargs = {keyword.arg or "**": literals.read(keyword.value) for keyword in value.keywords}
            shape, dtype = _described(dotted(func) or "", args, kwargs)
            dtype = kwargs["dtype"] if isinstance(kwargs.get("dtype"), torch.dtype) else dtype
            if shape is not None:
                return torch.empty(shape, dtype=dtype, device=device_named(kwargs.get("device", "cpu")))
    literals.fail(value, "this constant is not understood")


def _described(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[int] | None, torch.dtype | None]:
    """The shape that a call makes, and the type where none is printed; no shape: it is not understood."""
    default = torch.int64 if name == "torch.randint" else torch.float32
    if "size" in kwargs:
        return list(kwargs["size"]), default
    if name in ("tensor", "torch.tensor") and len(args) == 1:
        data = torch.tensor(args[0])
        return data.shape, data.dtype
    sizes = list(args[0]) if args and isinstance(args[0], list | tuple) else list(args)
    known = name.removeprefix("torch.") in BY_SIZE and args and all(isinstance(size, int) for size in sizes)
    return (sizes if known else None), default


_LISTED = 4
_aten = torch.ops.aten
_MAKERS = frozenset({_aten.full.default, _aten.empty.memory_format, _aten.zeros.default})
_ROWS_KEPT = frozenset({_aten.slice.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten.clone.default})
"""What gives a tensor like its first argument, perhaps shorter."""


def is_unbacked(symbol: str) -> bool:
    """Tell whether a symbol is of a data-dependent size: ``u0``."""
    return re.fullmatch(r"u\d+", symbol) is not None


class Contradiction(NamedTuple):
    """An all_to_all node, its rows, and the splits that it sends, in rows."""

    node: fx.Node
    rows: int
    splits: tuple[int, ...]


def contradictions(nodes: Sequence[fx.Node], value_of: Callable[[fx.Node], Any]) -> list[Contradiction]:
    """Each all_to_all with data-dependent splits that do not add to its rows."""
    found = []
    for node in uneven(nodes):
        tensor: Any = value_of(node.args[0])
        splits = [value_of(split) if isinstance(split, fx.Node) else split for split in node.args[2]]
        known = isinstance(tensor, torch.Tensor) and tensor.dim() and all(type(n) is int for n in splits)
        if known and sum(splits) != tensor.shape[0]:
            found.append(Contradiction(node, tensor.shape[0], tuple(splits)))
    return found


def splits_of(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Nodes that are sizes for an all_to_all with data-dependent splits, and of how many splits each is the sum.

    Splits themselves are one; that to which its input is cut, and what that was cut from, are all that it sends.
    """
    found: dict[fx.Node, int] = {}
    for node in uneven(nodes):
        lists = [splits for splits in node.args[1:3] if isinstance(splits, list | tuple)]
        found.update({split: 1 for splits in lists for split in splits if isinstance(split, fx.Node)})
        source = node.args[0]
        while isinstance(source, fx.Node):
            if isinstance((size := _rows_given(source)), fx.Node):
                found.setdefault(size, len(lists[-1]))
            source = source.args[0] if source.target in _ROWS_KEPT else None
    return found


def _rows_given(node: fx.Node) -> Any:
    """The argument that says how many rows a node gives; ``None``: it has none, or cuts another dimension."""
    if node.target is _aten.slice.Tensor:
        return node.args[3] if len(node.args) > 3 and node.args[1:3] == (0, 0) else None
    shape = node.args[0] if node.target in _MAKERS else None
    return shape[0] if isinstance(shape, list | tuple) and shape else None


def without_hints(inputs: Inputs, placeholders: Sequence[fx.Node], splits: Collection[fx.Node]) -> Inputs:
    """The inputs as if the file said nothing of data-dependent sizes: symbols ``u0``, and ``splits`` of all_to_alls."""
    kept = list(inputs.inputs)
    for i, (node, item) in enumerate(zip(placeholders, kept, strict=False)):
        if isinstance(item, SizeInput) and (node in splits or is_unbacked(item.symbol or "")):
            kept[i] = SizeInput(None, item.symbol)
    return Inputs(kept, backed(inputs.symbols))


def backed(symbols: Mapping[str, int]) -> dict[str, int]:
    """Symbols but for data-dependent ones."""
    return {name: size for name, size in symbols.items() if not is_unbacked(name)}


def note_on(first: Contradiction, taken: int | None, symbols: Sequence[str]) -> str:
    """Say what the contradictions are: by the first, with names by which sizes can be given.

    ``taken``: the rows of each split that were taken instead; ``None``: the caller's own sizes contradict each other.
    """
    added = f"{first.node.name}: splits add to {sum(first.splits):,} of {first.rows:,} rows"
    names = symbols or list(dict.fromkeys(split.name for split in first.node.args[2] if isinstance(split, fx.Node)))
    even = first.rows // len(first.splits) if taken is None else taken
    more = f" and so on for {', '.join(names[1:_LISTED])}{', ...' if len(names) > _LISTED else ''}" if names[1:] else ""
    give = f"--size {names[0]}={even}{more}" if names else ""
    if taken is None:
        return f"all_to_all whose splits do not add to its rows ({added}); spread evenly: {give}"
    return (
        f"all_to_all whose splits, by the sizes in the file, do not add to its rows ({added}); these sizes are left "
        f"out and experts taken as balanced, {taken:,} rows a split; to give your own: {give}"
    )


def uneven(nodes: Iterable[fx.Node]) -> Iterator[Any]:
    """Each all_to_all whose splits are data-dependent."""
    target = torch.ops._c10d_functional.all_to_all_single.default
    for node in nodes:
        if node.target is target and len(node.args) >= 3 and isinstance(node.args[0], fx.Node):
            sent = node.args[2]
            if isinstance(sent, list | tuple) and any(isinstance(split, fx.Node) for split in sent):
                yield node


Within = Literal["middle", "least", "most"]
"""Which of the sizes that asserts admit."""

_RELATIONS = {**{one: one for one in (operator.le, operator.lt, operator.ge, operator.gt)}, operator.eq: sympy.Eq}
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.neg)


class Asserted:
    """Sizes within what a graph asserts of them.

    Args:
        nodes: The graph.
        number: The value of a placeholder, or of the size of one; its name where it is data-dependent.
        given: Sizes that are known, by node.
        within: Which sizes to take.
    """

    def __init__(
        self, nodes: Sequence[fx.Node], number: Callable[[fx.Node], int | str], given: Mapping[str, int], within: Within
    ) -> None:
        self._number, self._within = number, within
        self._limits = SizeLimits.of({}, [one for node in nodes for one in self._understood(node)])
        self._limited = {s.name for s, interval in self._limits.intervals.items() if interval.high < math.inf}
        self.chosen = 0
        for name, size in given.items():
            self._fix(name, size)

    def size(self, name: str, default: int, *, balanced: bool) -> int:
        """The size to take of a node; ``balanced``: rather the default than one of the limits."""
        low, high = self._limits.intervals.get(_symbol(name), Interval())
        wanted: Any = default
        if name in self._limited and not balanced:
            self.chosen += 1
            low = max(low, 0)
            wanted = {"middle": (low + high) // 2, "least": low, "most": high}[self._within]
        taken = int(max(low, min(wanted, high)))
        self._fix(name, taken)
        return taken

    def _fix(self, name: str, size: int) -> None:
        if _symbol(name) in self._limits.intervals:
            self._limits.narrow(_symbol(name), size, size)

    def _understood(self, node: fx.Node) -> list[sympy.Basic]:
        """Parse what one node asserts; nothing where it is not understood."""
        with contextlib.suppress(AttributeError, IndexError, TypeError, ValueError):  # told where it is evaluated
            if node.target is _aten._assert_scalar.default:
                asserted: Any = node.args[0]
                sides = [self._expr(arg) for arg in asserted.args]
                known = asserted.target in _RELATIONS and None not in sides
                return [_RELATIONS[asserted.target](*sides)] if known else []
            if node.target in RANGES and (expr := self._expr(node.args[0])) is not None:
                low, high = node.kwargs.get("min"), node.kwargs.get("max")
                return [sympy.Ge(expr, 0 if low is None else low), *([] if high is None else [sympy.Le(expr, high)])]
        return []

    def _expr(self, argument: Any) -> sympy.Expr | None:
        if isinstance(argument, int):
            return sympy.Integer(argument)
        if not isinstance(argument, fx.Node):
            return None
        if argument.target in _ARITHMETIC:
            parts = [self._expr(part) for part in argument.args]
            return None if None in parts else argument.target(*parts)
        sized = argument.target is _aten.sym_size.int
        of: Any = argument.args[0] if sized else argument
        if of.op == "placeholder":
            known = self._number(argument)
            return _symbol(known) if isinstance(known, str) else sympy.Integer(known)
        return _symbol(of.name) if not sized or argument.args[1] == 0 else None


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True)


_SYMBOL_IN_TEXT = re.compile(r"\b[A-Za-z]+_?\d+\b")
_MOST_LISTED = 20
_SUGGESTED = 4


def symbols_of(symbols: Mapping[str, int], inputs: Inputs, graphs: Iterable[ParsedGraph]) -> list[str]:
    """The symbols of a dump by which a size could be given."""
    found = dict.fromkeys([*symbols, *inputs.symbols])
    for item in inputs.inputs:
        if isinstance(item, TensorInput):
            found.update(dict.fromkeys(filter(_SYMBOL.match, item.names)))
        elif item is not None:
            found.update(dict.fromkeys(_SYMBOL_IN_TEXT.findall(item.symbol or "")))
    for text in (text for parsed in graphs for text in parsed.annotations.values()):
        found.update(dict.fromkeys(_SYMBOL_IN_TEXT.findall(text[max(text.find("["), 0) :])))  # not bf16 and its like
    return list(found)


def sizes_to_give(guessed: Mapping[str, int]) -> list[str]:
    """A note on how to give sizes that were guessed, by their symbols where they have one; none where none was."""
    names = sorted(guessed, key=lambda name: not is_unbacked(name))  # symbols first, nodes behind them
    more = f" and {len(names) - _SUGGESTED:,} more" if len(names) > _SUGGESTED else ""
    also = f" (also {', '.join(names[1:_SUGGESTED])}{more})" if names[1:] else ""
    why = "data-dependent sizes were guessed, and peak memory rests on them; to give one"
    return [f"{why}: --size {name}={guessed[name]}{also}" for name in names[:1]]


def check_sizes(path: str, given: Mapping[str, int], symbols: Sequence[str], nodes: Sequence[str]) -> None:
    """Raise for a size whose name does not occur, with the names that do."""
    for name in (name for name in given if name not in {*symbols, *nodes}):
        listed = ", ".join(map(repr, symbols[:_MOST_LISTED])) + (", ..." if len(symbols) > _MOST_LISTED else "")
        near = difflib.get_close_matches(name, nodes, n=3)
        also = f"; of its nodes, {' and '.join(map(repr, near))} may be meant" if near else ""
        there = f"{f'Its symbols are {listed}' if listed else 'It has no symbols'}{also}"
        fault = (
            f"a size is given for {name!r} (--size {name}={given[name]} on the command line), but nothing is so named"
        )
        raise DumpError(f"{path}: {fault}. {there}. Correct the name, or leave it out.")
