"""From the expressions of a dump to an ``fx.Graph``: the reverse of ``torch.fx.graph.CodeGen``. Nothing is ever run.

Expressions are read by their shape: constants, containers, slices, dtypes, layouts, memory formats, devices, operators
of ``torch.ops``, and names of nodes; anything else is an error with its place. Each statement that torch prints is one
node: a call, ``x[0]``, ``a + b``, ``self.name``. ``x = None`` is a deletion and makes none. Names of nodes, their order
and their arguments come out as they were.

Operators of a newer torch, or of vLLM, have stand-ins. They are registered under this package's own name, when a dump
first asks for one: the other namespaces say what is installed here.
"""

import ast
import contextlib
import importlib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import torch
from torch import fx

from overlap_sched.errors import DumpError

_REGISTERING_MODULES = (
    "torch._dynamo.variables.streams", "torch._higher_order_ops.triton_kernel_wrap", "torch._inductor.inductor_prims",
    "torch._inductor.fx_passes.bucketing", "torch._inductor.fx_passes.control_dependencies", "torch._prims.rng_prims",
    "torch.ao.quantization.fx._decomposed", "torch.distributed._functional_collectives",
    "torch.distributed._symmetric_memory", "torch.distributed.fsdp._fully_shard._fsdp_collectives",
    "torch.distributed.tensor._collective_utils",
)  # fmt: skip
"""Where operators of torch itself are registered that are not there after `import torch`."""
_SCHEMAS = {
    ("_c10d_functional", "wait_tensors"): "wait_tensors(Tensor[] tensors) -> Tensor[]",  # torch 2.15
    ("vllm", "all_reduce"): "vllm_all_reduce(Tensor tensor, str group_name) -> Tensor",
    ("vllm", "all_gather"): "vllm_all_gather(Tensor tensor, int dim, int world_size, str group_name) -> Tensor",
    ("vllm", "reduce_scatter"): "vllm_reduce_scatter(Tensor tensor, int dim, int world_size, str group_name) -> Tensor",
}


class UnknownOp:
    """Stands in a graph for an operator that this torch build does not have; it cannot be called."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "torch.ops"

    def __repr__(self) -> str:
        return f"torch.ops.{self.__name__}"  # Python: torch compiles what it prints of a graph

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise: there is no kernel."""
        raise NotImplementedError(f"{self.__name__} is not known to this torch build")


def operator_named(parts: Sequence[str]) -> Any:
    """The operator called ``torch.ops.`` and these parts, or an :class:`UnknownOp`."""
    if (found := _in_torch(*parts)) is None:
        _import_all()
        found = _in_torch(*parts) or stand_in(*parts)
    return UnknownOp(".".join(parts)) if found is None else found


@cache
def _import_all() -> None:
    for module in _REGISTERING_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _in_torch(namespace: str, name: str, overload: str | None = None) -> Any:
    """An operator of the dispatcher, or a higher-order one, or None.

    Operators that only TorchScript's interpreter has (``aten::save`` writes files) are not operators here: fake
    tensors do not guard them.
    """
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    if namespace == "higher_order" and overload is None and isinstance(packet, torch._ops.HigherOrderOperator):
        return packet
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overloads = packet.overloads() if overload is None else [overload]
    try:
        for one in overloads:
            torch._C._dispatch_find_schema_or_throw(f"{namespace}::{name}", "" if one == "default" else one)
    except RuntimeError:
        return None
    found = packet if overload is None else getattr(packet, overload, None)
    return found if overloads and isinstance(found, torch._ops.OpOverload | torch._ops.OpOverloadPacket) else None


def stand_in(namespace: str, name: str, overload: str | None = None) -> Any:
    """Return what stands for an operator that this torch does not have; ``None``: nothing does."""
    if (namespace, name) not in _SCHEMAS or overload not in (None, "default"):
        return None
    _register()
    packet = getattr(torch.ops.overlap_sched, _SCHEMAS[namespace, name].partition("(")[0])
    return packet if overload is None else packet.default


@cache
def _register() -> torch.library.Library:
    """Define them all; they exist as long as what this returns, which the cache keeps."""
    library = torch.library.Library("overlap_sched", "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    library.impl("wait_tensors", list, "Meta")  # as torch 2.15 has it: the tensors themselves
    library.impl("vllm_all_reduce", lambda tensor, _: torch.empty_like(tensor), "Meta")
    library.impl("vllm_all_gather", lambda tensor, dim, ranks, _: torch.cat([tensor] * ranks, dim), "Meta")
    library.impl("vllm_reduce_scatter", lambda tensor, dim, ranks, _: tensor.chunk(ranks, dim)[0].clone(), "Meta")
    return library


_CONSTANTS: Mapping[str, Any] = {
    name: value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.qscheme)
}
_NAMES: Mapping[str, Any] = {"inf": math.inf, "nan": math.nan, "NoneType": type(None)}
_ARITHMETIC: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
"""Done with numbers where they are read."""
_SIZE_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
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
        self._operators: dict[str, Any] = {}

    def read(self, expr: ast.expr, depth: int = 0) -> Any:
        """The value of `expr`."""
        if depth > _DEEPEST:
            self.fail(expr, "this expression is nested too deeply")
        deeper = depth + 1
        match expr:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                for known in (self.names, _NAMES):
                    if name in known:
                        return known[name]
                value = None if self.name_of is None else self.name_of(name)
                return self.fail(expr, f"the name {name!r} is not defined before this line") if value is None else value
            case ast.Tuple(items):
                return tuple([self.read(item, deeper) for item in items])
            case ast.List(items):
                return [self.read(item, deeper) for item in items]
            case ast.Dict(keys, values) if all(isinstance(key, ast.Constant) for key in keys):
                return {self.read(k, deeper): self.read(v, deeper) for k, v in zip(keys, values, strict=True) if k}
            case ast.Slice(lower, upper, step):
                return slice(*(None if part is None else self.read(part, deeper) for part in (lower, upper, step)))
            case ast.UnaryOp(op, operand):
                return self._arithmetic(expr, op, [self.read(operand, deeper)])
            case ast.BinOp(left, op, right):
                return self._arithmetic(expr, op, [self.read(left, deeper), self.read(right, deeper)])
            case ast.Attribute() if (name := dotted(expr) or "").startswith("torch."):
                if name.startswith("torch.ops."):
                    return self.operator(expr, name)
                if (constant := _CONSTANTS.get(name.removeprefix("torch."))) is not None:
                    return constant
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

    def _arithmetic(self, expr: ast.expr, kind: ast.AST, values: Sequence[Any]) -> Any:
        function = _ARITHMETIC.get(type(kind))
        numbers = all(isinstance(value, int | float | complex) for value in values)
        if not numbers or function is None or (function is operator.pow and not _computable(*values)):
            self.fail(expr)
        try:
            return function(*values)
        except (ArithmeticError, TypeError) as error:
            self.fail(expr, f"this cannot be computed ({error})")

    def operator(self, where: ast.AST, name: str) -> Any:
        """The operator called `name` (``torch.ops.aten.mm.default``), or an ``UnknownOp``."""
        if name not in self._operators:
            parts = name.split(".")[2:]
            if not 2 <= len(parts) <= 3 or any(part.startswith("__") and part.endswith("__") for part in parts[:2]):
                self.fail(where, "this is not an operator")
            self._operators[name] = operator_named(parts)
        return self._operators[name]

    def _call(self, expr: ast.Call, depth: int) -> Any:
        args = [self.read(arg, depth) for arg in expr.args]
        kwargs = {k.arg: self.read(k.value, depth) for k in expr.keywords if k.arg is not None}
        name = dotted(expr.func) or ""
        if name != "slice" and any(isinstance(value, fx.Node) for value in (*args, *kwargs.values())):
            self.fail(expr)
        try:
            if name in ("device", "torch.device"):
                return device_named(*args, **kwargs)
            refused = name == "PowByNatural" and not (args[1] >= 0 and _computable(args[0], args[1]))
            if name in _SIZE_FUNCTIONS and not kwargs and not refused:
                return _SIZE_FUNCTIONS[name](*args)
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


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    **_ARITHMETIC,
    **{ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.MatMult: operator.matmul},
    **{ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Invert: operator.invert},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.Gt: operator.gt},
    **{ast.LtE: operator.le, ast.GtE: operator.ge},
}


def _functions() -> dict[str, Callable[..., Any]]:
    """Plain functions that appear in graphs with symbolic sizes, by the names that torch prints."""
    found: dict[str, Callable[..., Any]] = {one.__name__: one for one in (max, min, abs, int, float, bool)}
    for name in ("sym_max", "sym_min", "sym_not", "sym_ite", "sym_float", "sym_int", "sym_sum", "_sym_sqrt"):
        found[f"torch.{name}"] = getattr(torch, name)
    for name in ("floor", "ceil", "trunc", "sqrt"):
        found[f"math.{name}"] = found[f"math_{name}"] = getattr(math, name)
    others: tuple[Callable[..., Any], ...] = (operator.not_, operator.truth, operator.index, operator.getitem)
    for function in (*_OPERATORS.values(), *others):
        for prefix in ("_operator.", "_operator_", "operator."):
            found[prefix + function.__name__] = function
    return found


_FUNCTIONS = _functions()
MODES: Mapping[str, Callable[..., Any]] = {
    "torch._C._set_grad_enabled": torch._C._set_grad_enabled,
    "torch.amp.autocast_mode._enter_autocast": torch.amp.autocast_mode._enter_autocast,
    "torch.amp.autocast_mode._exit_autocast": torch.amp.autocast_mode._exit_autocast,
}
"""Calls that switch something for what follows them. They are kept as they are, and never made."""


@dataclass
class ParsedGraph:
    """A graph without values, and where its nodes are in the file.

    Attributes:
        path: The file.
        graph: Placeholders, one node for each statement, and an output.
        lines: Line number of each node, by name.
        annotations: What is printed after a node's name (``bf16[8, 4]``), by name; few dumps have any.
        text: The statement of each node, shortened, by name.
    """

    path: str
    graph: fx.Graph
    lines: dict[str, int] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    text: dict[str, ast.stmt] = field(default_factory=dict)

    def place(self, node: fx.Node) -> str:
        """``file, line N: node 'x' (`x = ...`)``, for messages."""
        statement = self.text.get(node.name)
        shown = f" (`{shorten(statement)}`)" if statement is not None else ""
        return f"{self.path}, line {self.lines.get(node.name, '?')}: node {node.name!r}{shown}"


def build_graph(path: str, forward: ast.FunctionDef) -> ParsedGraph:
    """The graph that the printed function computes.

    Raises:
        DumpError: A statement is not one that torch prints for a graph.
    """
    return _GraphBuilder(path, forward).parsed


class _GraphBuilder(Literals):
    def __init__(self, path: str, forward: ast.FunctionDef) -> None:
        self.nodes: dict[str, fx.Node] = {}
        super().__init__(path, self.nodes)
        self.parsed = ParsedGraph(path, fx.Graph())
        arguments = forward.args
        if stars := arguments.vararg or arguments.kwarg or [*arguments.kwonlyargs, *arguments.posonlyargs]:
            self.fail(stars if isinstance(stars, ast.arg) else forward, "the arguments of forward have stars")
        for argument in _flattened(forward) or arguments.args[1:]:
            name = argument.arg if isinstance(argument, ast.arg) else argument.id
            self._name(self.parsed.graph.create_node("placeholder", name, name=name), name, argument)
            self._annotate(name, getattr(argument, "annotation", None))
        for statement in forward.body:
            try:
                self._statement(statement)
            except (TypeError, ValueError, RuntimeError, AttributeError) as error:
                if isinstance(error, DumpError):
                    raise
                self.fail(statement, f"this makes no node ({str(error).splitlines()[0]})")
        if not self.parsed.graph.nodes or next(iter(reversed(self.parsed.graph.nodes))).op != "output":
            self.fail(forward.body[-1], "the graph ends without `return`; was the file cut short?")

    def _annotate(self, name: str, annotation: ast.expr | None) -> None:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            self.parsed.annotations[name] = annotation.value

    def _name(self, node: fx.Node, name: str, where: ast.stmt | ast.arg | ast.Name) -> None:
        if name in self.nodes:
            self.fail(where, f"{name!r} is already the name of a node")
        node.name = name
        self.nodes[name] = node
        self.parsed.lines[name] = where.lineno
        if isinstance(where, ast.stmt):
            self.parsed.text[name] = where

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)) if all(isinstance(t, ast.Name) for t in statement.targets):
                return  # torch deletes values after their last use
            case ast.Assign(value=value) if _is_call(value, "fx_pytree.tree_flatten_spec"):
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._name(self._define(name, value), name, statement)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                self._name(self._define(name, value), name, statement)
                self._annotate(name, annotation)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Constant(str()) as annotation, value=None):
                self._annotate(name, annotation)  # of an input that is unpacked further down
            case ast.Return(value):
                if isinstance(value, ast.Call) and _is_call(value, "pytree.tree_unflatten"):
                    value = value.args[0]
                self._name(self.parsed.graph.output(value and self.read(value)), "output", statement)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return  # a string in the body: a comment
            case _:
                self.fail(statement)

    def _define(self, name: str, value: ast.expr) -> fx.Node:
        """The node that a statement makes, or renames."""
        graph = self.parsed.graph
        match value:
            case ast.Name(id=argument) if argument in self.nodes and self.nodes[argument].op == "placeholder":
                # ``arg_1 = arg`` right after the signature: the node has another name than the argument
                source = self.nodes[argument]
                if source.name in self.parsed.annotations:
                    self.parsed.annotations[name] = self.parsed.annotations[source.name]
                return source
            case ast.Attribute() if (attribute := dotted(value) or "").startswith("self."):
                return graph.create_node("get_attr", attribute.removeprefix("self."))
            case ast.Call(args=args, keywords=keywords):
                target = self._target(value)
                if any(keyword.arg is None for keyword in keywords):
                    self.fail(value, "a call with `**` is not understood")
                given = tuple([self.read(arg) for arg in args])
                named = {str(keyword.arg): self.read(keyword.value) for keyword in keywords}
                return graph.create_node("call_function", target, given, named)
            case ast.Subscript(source, at):
                return graph.create_node("call_function", operator.getitem, (self.read(source), self.read(at)))
            case ast.UnaryOp(op, operand) if type(op) in _OPERATORS:
                return graph.create_node("call_function", _OPERATORS[type(op)], (self.read(operand),))
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
                return graph.create_node("call_function", _OPERATORS[type(op)], (self.read(left), self.read(right)))
        self.fail(value)

    def _target(self, call: ast.Call) -> Callable[..., Any]:
        name = dotted(call.func) or ""
        if name.startswith("torch.ops."):
            found: Callable[..., Any] = self.operator(call.func, name)
            if isinstance(found, torch._ops.OpOverloadPacket) and len(found.overloads()) == 1:
                return getattr(found, found.overloads()[0])  # printed without its only overload
            return found
        known = _FUNCTIONS.get(name) or MODES.get(name)
        return known or self.fail(call, "this call is not of an operator of torch.ops")


def _flattened(forward: ast.FunctionDef) -> list[ast.Name]:
    """The leaves of ``a, b, = fx_pytree.tree_flatten_spec([x, y], self._in_spec)`` in joint graphs."""
    for statement in forward.body:
        if isinstance(statement, ast.Assign) and _is_call(statement.value, "fx_pytree.tree_flatten_spec"):
            target = statement.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            return [name for name in names if isinstance(name, ast.Name)]
        if not isinstance(statement, ast.AnnAssign):
            break
    return []


def _is_call(value: ast.expr | None, name: str) -> bool:
    return isinstance(value, ast.Call) and bool(value.args) and dotted(value.func) == name
