"""Two dumps as one step: a forward graph, and the backward graph that uses what it saves.

torch compiles them apart: what forward saves is among its results, and among backward's inputs, by the same names in
the same order (``torch._functorch.partitioners``)::

    forward(primals_1, primals_2) -> (loss, primals_2, mm)       saved: primals_2, mm
    backward(primals_2, mm, tangents_1) -> (mm_1, None)
    one step(primals_1, primals_2, tangents_1) -> (loss, mm_1, None)

The joined graph is put together as text: names that both have for different values get ``_backward`` behind them.
"""

import ast
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from overlap_sched.dump.source import Attribute, DumpSource
from overlap_sched.errors import DumpError

TANGENT = "tangents"


def one_step(forward: DumpSource, backward: DumpSource) -> DumpSource:
    """The graph of both, forward first.

    Raises:
        DumpError: They do not belong together: backward's inputs are not what forward saves.
    """
    inputs, results = _inputs(forward), _results(forward)
    names = [ast.unparse(result) for result in results]
    saved = _saved(forward, backward, names)
    renamed = _free([*_inputs(backward), *_defined(backward.forward)], [*inputs, *_defined(forward.forward)])
    own = _free(_storages(backward), _storages(forward))
    inside = _free(_attributes_of(backward), _attributes_of(forward))
    rename = _Rename({**renamed, **saved, **own}, inside)
    body, head = rename.all(backward.forward.body), deepcopy(forward.forward)
    kept = [k for k, name in enumerate(_inputs(backward)) if name not in saved]
    head.args.args += [rename.argument(backward.forward.args.args[1 + k]) for k in kept]
    last = body.pop()
    assert isinstance(last, ast.Return)
    dropped = {len(names) - 1 - names[::-1].index(name) for name in saved.values() if name in names}
    left = [result for k, result in enumerate(results) if k not in dropped]
    both = ast.copy_location(ast.Tuple([*left, *_elements(last.value)], ast.Load()), last)
    head.body = [*head.body[:-1], *body, ast.copy_location(ast.Return(both), last)]
    return replace(
        forward,
        forward=head,
        attributes=[*forward.attributes, *map(rename.attribute, backward.attributes)],
        submodules={**forward.submodules, **{inside.get(name, name): f for name, f in backward.submodules.items()}},
        load_args=[*forward.load_args, *rename.all(_arguments(backward.load_args, kept))],
        symbols={**backward.symbols, **forward.symbols},
        groups=_groups(forward.groups, backward.groups),
    )


def _saved(forward: DumpSource, backward: DumpSource, names: Sequence[str]) -> dict[str, str]:
    """Per input of backward that forward saves, the result that it is: by name, else by position from the end."""
    needed = [name for name in _inputs(backward) if not name.startswith(TANGENT)]
    if len(needed) == len(_inputs(backward)) or any(name.startswith(TANGENT) for name in _inputs(forward)):
        raise DumpError(
            f"{forward.path} and {backward.path} are not the forward and the backward graph of one step: the second "
            f"must have inputs that are called {TANGENT}_1 and so on, the first must not. Give the forward graph first."
        )
    if set(needed) <= set(names):
        return {name: name for name in needed}
    by_place = dict(zip(needed, names[len(names) - len(needed) :], strict=False))
    if len(needed) > len(names) or any(name in names and other != name for name, other in by_place.items()):
        missing = next(name for name in needed if name not in names)
        raise DumpError(
            f"{backward.path}: its input {missing!r} is no result of {forward.path}, so the two are not of one step. "
            "Give the two graphs of one compiled function, from one rank and one compilation."
        )
    return by_place


def _inputs(source: DumpSource) -> list[str]:
    return [argument.arg for argument in source.forward.args.args[1:]]


def _results(source: DumpSource) -> list[ast.expr]:
    last = source.forward.body[-1]
    return _elements(last.value) if isinstance(last, ast.Return) else []


def _elements(value: ast.expr | None) -> list[ast.expr]:
    return list(value.elts) if isinstance(value, ast.Tuple | ast.List) else [] if value is None else [value]


def _defined(function: ast.FunctionDef) -> list[str]:
    return [part.id for part in ast.walk(function) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _storages(source: DumpSource) -> list[str]:
    """Names of ``load_args``' own: storages, not sizes, which both files mean alike."""
    return [
        target.id
        for statement in source.load_args
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]


def _attributes_of(source: DumpSource) -> list[str]:
    return [*(one.name for one in source.attributes if one.name is not None), *source.submodules]


def _free(names: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Per name itself, or another one where it is taken."""
    before, used, found = set(taken), {*taken, *names}, dict[str, str]()
    for name in dict.fromkeys(names):
        found[name] = name
        while found[name] in before or (found[name] != name and found[name] in used):
            found[name] += "_backward"
        used.add(found[name])
    return found


def _arguments(statements: Sequence[ast.stmt], kept: Sequence[int]) -> list[ast.stmt]:
    """``load_args`` without the calls for inputs that are not kept: each call of its own is for one input, in turn."""
    found, at = [], 0
    for statement in statements:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            at += 1
            if at - 1 not in kept:
                continue
        found.append(statement)
    return found


def _groups(first: ast.expr | None, second: ast.expr | None) -> ast.expr | None:
    if isinstance(first, ast.Dict) and isinstance(second, ast.Dict):
        return ast.copy_location(ast.Dict([*first.keys, *second.keys], [*first.values, *second.values]), first)
    return second if first is None else first


class _Rename(ast.NodeTransformer):
    """Values, storages, and attributes of ``self`` under other names."""

    def __init__(self, names: Mapping[str, str], attributes: Mapping[str, str]) -> None:
        self._names, self._attributes = names, attributes

    def all(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Copies of statements."""
        return [self.visit(deepcopy(statement)) for statement in statements]

    def argument(self, argument: ast.arg) -> ast.arg:
        """A copy of one argument of a function."""
        copied = deepcopy(argument)
        copied.arg = self._names.get(argument.arg, argument.arg)
        return copied

    def attribute(self, one: Attribute) -> Attribute:
        """Return an attribute that ``__init__`` sets."""
        statement = None if one.statement is None else self.visit(deepcopy(one.statement))
        return replace(one, statement=statement, name=self._attributes.get(one.name or "", one.name))

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """A value or a storage."""
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``self.x``; what else has a dot is no value's."""
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = self._attributes.get(node.attr, node.attr)
        return node
