"""Cut a torch graph dump (``fx_graph_runnable``) into its parts, as text, without running any of it.

Implements the layout that ``torch._dynamo.repro.after_aot.generate_compiler_repro_string`` and
``torch._dynamo.debug_utils.NNModuleToString`` write, torch 2.3 to 2.13: hints of symbols, a preamble (environment,
configuration, Triton kernels), ``class Repro`` with ``__init__`` and ``forward``, ``load_args(reader)``, and a main
block that may name process groups. The preamble is not read: it may hold anything, also text that is not Python.
Graphs that torch prints for reading (``GraphModule.print_readable``: ``class GraphModule``, shapes and devices in
annotations, bodies of subgraphs, no ``load_args``) are cut up the same way, and so are those in logs
(:mod:`overlap_sched.dump.text`) and lists of nodes (:mod:`overlap_sched.dump.node_list`).
"""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from overlap_sched.dump.node_list import as_function
from overlap_sched.dump.text import GraphText, graphs_in, listed, read_lines
from overlap_sched.errors import DumpError
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits

_SYMBOL_HINT = re.compile(r"^((?:[A-Za-z_]\w* *= *)+)(-?\d+)\s*$")
_ATTRIBUTE = re.compile(r"^        self\.([A-Za-z_]\w*) *=")
_NESTED_CLASS = re.compile(r"^    class +([^\s(]+) *\(")
_GROUPS = r"^\s*setup_fake_process_groups\("
_GROUPS_FUNCTION = r"^def get_pg_config\("


@dataclass(frozen=True)
class Attribute:
    """One statement of ``Repro.__init__``; ``statement`` is None where its text is not Python (a module's repr)."""

    line: int
    statement: ast.stmt | None
    name: str | None


@dataclass(frozen=True)
class DumpSource:
    """The parts of a dump, parsed, with the line numbers of the file.

    Attributes:
        path: The file, for messages.
        attributes: What ``Repro.__init__`` sets.
        forward: ``Repro.forward``.
        submodules: ``forward`` of the classes nested in ``Repro``, by name.
        load_args: The statements of ``load_args(reader)``; empty where the file has none.
        symbols: Integer hints of symbolic sizes (``s0 = 8`` before ``load_args``).
        shapes: Whether the file says any: ``str(graph)`` does not.
        chosen: The number of the graph, from 1.
        graphs: All graphs in the file.
        groups: The expression given to ``setup_fake_process_groups``, or else returned by ``get_pg_config``, if any.
    """

    path: str
    attributes: Sequence[Attribute]
    forward: ast.FunctionDef
    submodules: Mapping[str, ast.FunctionDef]
    load_args: Sequence[ast.stmt]
    symbols: Mapping[str, int]
    groups: ast.expr | None
    shapes: bool = True
    chosen: int = 1
    graphs: Sequence[GraphText] = ()


def read_source(path: str | Path, limits: Limits = DEFAULT_LIMITS, graph: int | None = None) -> DumpSource:
    """Read and cut a dump, plain or gzipped.

    Args:
        path: The file.
        limits: How large it may be.
        graph: Which of several graphs in it, from 1; ``None``: the first that calls operators with their overloads.

    Raises:
        DumpError: There is no graph of that number.
        DumpError: It cannot be read, or holds no ``class Repro`` with a ``forward``.
        DumpError: ``forward`` or ``load_args`` is not Python.
    """
    lines = read_lines(path, limits)
    name = str(path)
    runnable = _last(lines, r"^def load_args\(") is not None and _last(lines, r"^class Repro\b") is not None
    graphs = [] if runnable else graphs_in(lines)
    chosen = _chosen(name, graphs, graph)
    start: int | None
    if graphs:
        text = graphs[chosen - 1]
        lines, start = text.lines, text.start
        if not text.texts[0].startswith("class"):
            return _of_nodes(name, text, chosen, graphs)
    else:
        start = _last(lines, r"^class Repro\b")
    if start is None:
        if any(line.startswith("\tclass Repro") for line in lines):
            raise DumpError(
                f"{name}: this is a log that TORCH_TRACE wrote, with dumps in it. Run tlparse on it, and take one of "
                "the files `fx_graph_runnable` that it makes."
            )
        written = next((line.strip() for line in lines if line.strip()), "nothing")
        raise DumpError(
            f"{name}: there is no `class Repro` in it, so it is not a dump that torch wrote "
            f"(it starts with {written[:80]!r}). Take `fx_graph_runnable` from tlparse (`fx_graph_readable` where "
            "torch made none), or write one with torch._dynamo.repro.after_aot.save_graph_repro."
        )
    forward = _first(lines, r"^    def forward\(", start)
    if forward is None:
        raise DumpError(
            f"{name}, line {start + 1}: `class Repro` has no `def forward(`. Was the file cut short, or edited by hand?"
        )
    end = _block_end(lines, forward, indent=4)
    loader = _last(lines, r"^def load_args\(")
    return DumpSource(
        path=name,
        attributes=_attributes(name, lines, start, forward),
        forward=_function(name, lines, forward, end, indent=4),
        submodules=_submodules(name, lines, start, forward, end),
        load_args=()
        if loader is None
        else _function(name, lines, loader, _block_end(lines, loader, indent=0), indent=0).body,
        symbols=_symbols(lines[: start if loader is None else loader]),
        groups=_groups(name, lines, end),
        chosen=chosen,
        graphs=graphs,
    )


def _chosen(name: str, graphs: Sequence[GraphText], graph: int | None) -> int:
    """The number of the graph to read."""
    if graph is None:
        return next((i for i, text in enumerate(graphs, 1) if text.lowered), 1)
    there = max(len(graphs), 1)
    if not 1 <= graph <= there:
        one = "its graphs are" if there > 1 else "it has one graph"
        raise DumpError(f"{name}: there is no graph {graph}: {one}{f' {listed(graphs)}' if there > 1 else ''}.")
    return graph


def _of_nodes(name: str, text: GraphText, chosen: int, graphs: Sequence[GraphText]) -> DumpSource:
    """The source of a graph that is a list of nodes, without shapes."""
    lines = as_function(text.lines, text.start)
    forward = _function(name, lines, text.start, len(lines), indent=4)
    return DumpSource(name, (), forward, {}, (), {}, None, shapes=False, chosen=chosen, graphs=graphs)


def _first(lines: Sequence[str], pattern: str, start: int) -> int | None:
    return next((i for i in range(start, len(lines)) if re.match(pattern, lines[i])), None)


def _last(lines: Sequence[str], pattern: str) -> int | None:
    return next((i for i in reversed(range(len(lines))) if re.match(pattern, lines[i])), None)


def _block_end(lines: Sequence[str], start: int, indent: int) -> int:
    """The first line after `start` that is indented by at most `indent` columns: comments and `)` do not count."""
    for i in range(start + 1, len(lines)):
        text = lines[i].lstrip()
        if text and text[0] not in "#)" and len(lines[i]) - len(text) <= indent:
            return i
    return len(lines)


def _parse(path: str, lines: Sequence[str], start: int, end: int, indent: int) -> list[ast.stmt]:
    """Parse lines [start, end) with `indent` columns taken off; line numbers are those of the file."""
    text = "\n".join(line[indent:] for line in lines[start:end])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the dump's own strings, such as invalid escapes
        try:
            tree = ast.parse(text)
            ast.increment_lineno(tree, start)
            return tree.body
        except SyntaxError as error:
            line, reason = start + (error.lineno or 1), error.msg
        except (ValueError, RecursionError, MemoryError) as error:
            line, reason = start + 1, str(error) or type(error).__name__
    shown = lines[line - 1].strip()[:80] if line <= len(lines) else ""
    raise DumpError(
        f"{path}, line {line}: this is not Python ({reason}): {shown!r}. Was the file cut short, or edited by hand?"
    )


def _function(path: str, lines: Sequence[str], start: int, end: int, indent: int) -> ast.FunctionDef:
    body = _parse(path, lines, start, end, indent)
    if len(body) == 1 and isinstance(body[0], ast.FunctionDef):
        return body[0]
    raise DumpError(f"{path}, line {start + 1}: expected one function here: {lines[start].strip()[:80]!r}.")


def _attributes(path: str, lines: Sequence[str], start: int, end: int) -> tuple[Attribute, ...]:
    """The statements of ``__init__``, each parsed on its own: the repr of a submodule need not be Python."""
    inside = _first(lines, r"^    def __init__\(", start)
    if inside is None or inside > end:
        return ()
    heads = [i for i in range(inside + 1, end) if lines[i].startswith("        self.")]
    found = []
    for i, after in pairwise([*heads, end]):
        match = _ATTRIBUTE.match(lines[i])
        try:
            statement = _parse(path, lines, i, after, indent=8)[0]
        except DumpError:
            if match is None:
                raise
            statement = None
        found.append(Attribute(i + 1, statement, match[1] if match else None))
    return tuple(found)


def _submodules(path: str, lines: Sequence[str], start: int, forward: int, end: int) -> dict[str, ast.FunctionDef]:
    """``forward`` of classes nested in ``Repro``: the bodies of higher-order operators, as torch prints them."""
    found = {}
    limit = _block_end(lines, start, indent=0)
    for i in [*range(start + 1, min(forward, limit)), *range(end, limit)]:
        match = _NESTED_CLASS.match(lines[i])
        inner = _first(lines[:limit], r"^        def forward\(", i) if match else None
        if match and inner is not None:
            found[match[1]] = _function(path, lines, inner, _block_end(lines, inner, indent=8), indent=8)
    return found


def _symbols(lines: Sequence[str]) -> dict[str, int]:
    """``s0 = 8`` at the margin, and ``u0 = u1 = 512`` as people write who fill in what torch did not know."""
    found = {}
    for match in filter(None, map(_SYMBOL_HINT.match, lines)):
        found.update({name.strip(): int(match[2]) for name in match[1].split("=") if name.strip()})
    return found


def _groups(path: str, lines: Sequence[str], start: int) -> ast.expr | None:
    """Find what torch's main block gives to ``setup_fake_process_groups``, else what ``get_pg_config`` returns.

    The latter is how the public dumps in meta-pytorch/autoparallel name their groups, which have lost their main block.
    """
    call = _first(lines, _GROUPS, start)
    if call is not None:
        indent = len(lines[call]) - len(lines[call].lstrip())
        statement = _parse(path, lines, call, call + 1, indent)[0]
        value = statement.value if isinstance(statement, ast.Expr) else None
        return value.args[0] if isinstance(value, ast.Call) and value.args else None
    function = _first(lines, _GROUPS_FUNCTION, start)
    if function is None:
        return None
    last = _function(path, lines, function, _block_end(lines, function, indent=0), indent=0).body[-1]
    return last.value if isinstance(last, ast.Return) and isinstance(last.value, ast.Dict) else None
