"""Build an ``fx.Graph`` from the body of a printed ``forward``: the reverse of ``torch.fx.graph.CodeGen``.

Each statement that torch prints is one node: a call, ``x[0]``, ``a + b``, ``self.name``. ``x = None`` is a deletion
and makes none. Names of nodes, their order and their arguments come out as they were.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from overlap_sched.dump.literals import ARITHMETIC, Literals, dotted, shorten
from overlap_sched.errors import DumpError

_BINARY: Mapping[type[ast.operator], Callable[..., Any]] = {
    **ARITHMETIC,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}
_UNARY: Mapping[type[ast.unaryop], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: Mapping[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.GtE: operator.ge,
}


def _functions() -> dict[str, Callable[..., Any]]:
    """Plain functions that appear in graphs with symbolic sizes, by the names that torch prints."""
    found: dict[str, Callable[..., Any]] = {one.__name__: one for one in (max, min, abs, int, float, bool)}
    for name in ("sym_max", "sym_min", "sym_not", "sym_ite", "sym_float", "sym_int", "sym_sum", "_sym_sqrt"):
        if hasattr(torch, name):
            found[f"torch.{name}"] = getattr(torch, name)
    for name in ("floor", "ceil", "trunc", "sqrt"):
        found[f"math.{name}"] = found[f"math_{name}"] = getattr(math, name)
    for function in (operator.not_, operator.truth, operator.index, *_BINARY.values(), *_UNARY.values()):
        found[f"_operator.{function.__name__}"] = found[f"_operator_{function.__name__}"] = function
        found[f"operator.{function.__name__}"] = function
    found["_operator.getitem"] = found["operator.getitem"] = operator.getitem
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
    return _GraphBuilder(path, forward).build()


class _GraphBuilder:
    def __init__(self, path: str, forward: ast.FunctionDef) -> None:
        self.forward = forward
        self.parsed = ParsedGraph(path, fx.Graph())
        self.nodes: dict[str, fx.Node] = {}
        self.literals = Literals(path, self.nodes)

    def build(self) -> ParsedGraph:
        arguments = self.forward.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            self.literals.fail(
                arguments.vararg or arguments.kwarg or self.forward, "the arguments of forward have stars"
            )
        flattened = self._flattened()
        for argument in flattened or arguments.args[1:]:
            self._placeholder(argument)
        for statement in self.forward.body:
            try:
                self._statement(statement)
            except (TypeError, ValueError, RuntimeError, AttributeError) as error:
                if isinstance(error, DumpError):
                    raise
                self.literals.fail(statement, f"this makes no node ({str(error).splitlines()[0]})")
        if not self.parsed.graph.nodes or next(iter(reversed(self.parsed.graph.nodes))).op != "output":
            self.literals.fail(self.forward.body[-1], "the graph ends without `return`; was the file cut short?")
        return self.parsed

    def _flattened(self) -> list[ast.Name]:
        """The leaves of ``a, b, = fx_pytree.tree_flatten_spec([x, y], self._in_spec)`` in joint graphs."""
        for statement in self.forward.body:
            if isinstance(statement, ast.Assign) and _is_call(statement.value, "fx_pytree.tree_flatten_spec"):
                target = statement.targets[0]
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                return [name for name in names if isinstance(name, ast.Name)]
            if not isinstance(statement, ast.AnnAssign):
                break
        return []

    def _placeholder(self, argument: ast.arg | ast.Name) -> None:
        name = argument.arg if isinstance(argument, ast.arg) else argument.id
        node = self.parsed.graph.create_node("placeholder", name, name=name)
        self._name(node, name, argument, None)
        annotation = getattr(argument, "annotation", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            self.parsed.annotations[name] = annotation.value

    def _name(self, node: fx.Node, name: str, where: ast.AST, statement: ast.stmt | None) -> None:
        if name in self.nodes:
            self.literals.fail(where, f"{name!r} is already the name of a node")
        node.name = name
        self.nodes[name] = node
        self.parsed.lines[name] = getattr(where, "lineno", 0)
        if statement is not None:
            self.parsed.text[name] = statement

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)) if all(isinstance(t, ast.Name) for t in statement.targets):
                return  # torch deletes values after their last use
            case ast.Assign(value=value) if _is_call(value, "fx_pytree.tree_flatten_spec"):
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._define(name, value, statement)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                self._define(name, value, statement)
                if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                    self.parsed.annotations[name] = annotation.value
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Constant(value=str() as text), value=None):
                self.parsed.annotations[name] = text  # of an input that is unpacked further down
            case ast.Return():
                self._output(statement)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                return  # a string in the body: a comment
            case _:
                self.literals.fail(statement)

    def _define(self, name: str, value: ast.expr, statement: ast.stmt) -> None:
        if isinstance(value, ast.Name) and (source := self.nodes.get(value.id)) and source.op == "placeholder":
            self._rename(source, name, statement)
            return
        node = self._attribute(value) or self._call(value)
        self._name(node, name, statement, statement)

    def _rename(self, placeholder: fx.Node, name: str, statement: ast.stmt) -> None:
        """``arg_1 = arg`` right after the signature: a placeholder whose node has another name than its argument."""
        if name in self.nodes:
            self.literals.fail(statement, f"{name!r} is already the name of a node")
        self.parsed.lines[name] = statement.lineno
        if placeholder.name in self.parsed.annotations:
            self.parsed.annotations[name] = self.parsed.annotations[placeholder.name]
        placeholder.name = name
        self.nodes[name] = placeholder

    def _attribute(self, value: ast.expr) -> fx.Node | None:
        name = dotted(value)
        if name is None or not name.startswith("self."):
            return None
        return self.parsed.graph.create_node("get_attr", name.removeprefix("self."))

    def _call(self, value: ast.expr) -> fx.Node:
        read = self.literals.read
        match value:
            case ast.Call():
                target = self._target(value)
                args = tuple([read(arg) for arg in value.args])
                if any(keyword.arg is None for keyword in value.keywords):
                    self.literals.fail(value, "a call with `**` is not understood")
                kwargs = {str(keyword.arg): read(keyword.value) for keyword in value.keywords}
                return self._function(target, args, kwargs)
            case ast.Subscript():
                return self._function(operator.getitem, (read(value.value), read(value.slice)))
            case ast.BinOp():
                return self._function(_BINARY[type(value.op)], (read(value.left), read(value.right)))
            case ast.UnaryOp(op=op) if type(op) in _UNARY:
                return self._function(_UNARY[type(op)], (read(value.operand),))
            case ast.Compare(ops=[op]) if type(op) in _COMPARE:
                return self._function(_COMPARE[type(op)], (read(value.left), read(value.comparators[0])))
        self.literals.fail(value)

    def _target(self, call: ast.Call) -> Callable[..., Any]:
        name = dotted(call.func)
        if name is not None and name.startswith("torch.ops."):
            found: Callable[..., Any] = self.literals.operator(call.func, name)
            if isinstance(found, torch._ops.OpOverloadPacket) and len(found.overloads()) == 1:
                return getattr(found, found.overloads()[0])  # printed without its only overload
            return found
        known = _FUNCTIONS.get(name or "") or MODES.get(name or "")
        if known is None:
            self.literals.fail(call, "this call is not of an operator of torch.ops")
        return known

    def _function(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> fx.Node:
        return self.parsed.graph.create_node("call_function", target, args, kwargs or {})

    def _output(self, statement: ast.Return) -> None:
        value = statement.value
        if isinstance(value, ast.Call) and _is_call(value, "pytree.tree_unflatten"):
            value = value.args[0]
        result = None if value is None else self.literals.read(value)
        self._name(self.parsed.graph.output(result), "output", statement, statement)


def _is_call(value: ast.expr | None, name: str) -> bool:
    return isinstance(value, ast.Call) and bool(value.args) and dotted(value.func) == name
