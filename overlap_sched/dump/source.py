"""Cut a torch graph dump (``fx_graph_runnable``) into its parts, as text, without running any of it.

It may be gzipped, coloured, or logged.
A line that torch logs begins with its rank, time, process and origin::

    [rank0]:V1126 10:00:00.000000 17 torch/_functorch/aot.py:5] [0/0] [__aot_graphs] class GraphModule(torch.nn.Module):

Ranks of one job write into one file, line by line. Each graph is given with the lines of its process alone, where they
are in the file, so that errors name its lines.

Implements the layout that ``torch._dynamo.repro.after_aot.generate_compiler_repro_string`` and
``torch._dynamo.debug_utils.NNModuleToString`` write, torch 2.3 to 2.13: hints of symbols, a preamble (environment,
configuration, Triton kernels), ``class Repro`` with ``__init__`` and ``forward``, ``load_args(reader)``, and a main
block that may name process groups. The preamble is not read: it may hold anything, also text that is not Python.
Graphs that torch prints for reading (``GraphModule.print_readable``: ``class GraphModule``, shapes and devices in
annotations, bodies of subgraphs, no ``load_args``) are cut up the same way, and so are those in logs.

Two dumps as one step: a forward graph, and the backward graph that uses what it saves.

torch compiles them apart: what forward saves is among its results, and among backward's inputs, by the same names in
the same order (``torch._functorch.partitioners``)::

    forward(primals_1, primals_2) -> (loss, primals_2, mm)       saved: primals_2, mm
    backward(primals_2, mm, tangents_1) -> (mm_1, None)
    one step(primals_1, primals_2, tangents_1) -> (loss, mm_1, None)

The joined graph is put together as text: names that both have for different values get ``_backward`` behind them.
"""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from overlap_sched.dump.graph import Literals, dotted
from overlap_sched.errors import DumpError
from overlap_sched.problem.file import DEFAULT_LIMITS, DamagedError, Limits, read_bytes

_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\^\[\[[0-9;]*m")
"""As terminals read them, and as ``cat -v`` shows them."""
_PREFIX = re.compile(
    r"^(?:\[[A-Za-z_]+\d*\]:)*?(?:\[rank(?P<rank>\d+)\]:)?[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ (?P<process>\d+) [^\]]+\] ?"
    r"(?:\[[!\d/_-]+\] ?)?(?:\[__\w+\] ?)?"
)
_TITLE = re.compile(r"^ *===== *(.+?) *=====")
_CLASS = re.compile(r"^(?: ?\S.*\s)?class +([^\s(]+)\(torch\.nn\.Module\):\s*$")
"""torch logs the file of a class in front of it."""
_FORWARD, _HEAD = "    def forward(", "class {}(torch.nn.Module):"
_OVERLOAD = re.compile(r"torch\.ops\.\w+\.\w+\.\w+[(\]]")
_LISTED = 20
_MODULE = re.compile(r"#.*(?:\bParamAOTInput\(target=|'module_fqn': )'([^']+)'")
"""What torch prints of a parameter, and what torchtitan annotates."""


@dataclass(frozen=True)
class GraphText:
    """One graph in a file.

    Attributes:
        title: What torch calls it: ``"Forward graph 0"``; else the name of its class.
        rank: That wrote it; ``None``: the file does not say.
        lines: By their indices in the file, from the first on.
    """

    title: str
    rank: int | None
    lines: Mapping[int, str]

    @property
    def start(self) -> int:
        """The index of its first line."""
        return next(iter(self.lines))

    @property
    def lowered(self) -> bool:
        """Tell whether it calls operators with their overloads, as AOTAutograd's graphs do and Dynamo's do not."""
        return any(map(_OVERLOAD.search, self.lines.values()))

    def __str__(self) -> str:
        """``Forward graph 0 (rank 0, line 133)``."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"{self.title} ({rank}line {self.start + 1:,})"


def read_lines(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The lines of a file, whatever ends them.

    Bytes that are not UTF-8 are let through where the file is a dump all the same: torch copies environment variables
    and comments into it as they are.

    Raises:
        DumpError: It cannot be read, or is not text.
        InputTooLargeError: It is larger than the limit.
    """
    try:
        data = read_bytes(path, limits)
        text = data.decode("utf-8-sig", "replace" if b"class Repro" in data else "strict")
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror or error}). Check the path.") from None
    except DamagedError:
        raise DumpError(f"{path}: the gzip data is cut short or damaged. Fetch the file again.") from None
    except UnicodeDecodeError as error:
        raise DumpError(f"{path}: is not text (byte {error.start} is not UTF-8). Save it as UTF-8.") from None
    return re.split(r"\r\n|\r|\n", _COLOUR.sub("", text) if "[" in text else text)


def graphs_in(lines: Sequence[str]) -> list[GraphText]:
    """The graphs that are printed to be read, in the order of the file."""
    found = []
    for rank, own in _streams(lines):
        numbers, texts = list(own), list(own.values())
        begins = [(i, _CLASS.match(text)) for i, text in enumerate(texts)]
        starts = [(i, match[1]) for i, match in begins if match and "".join(texts[i + 1 : i + 2]).startswith(_FORWARD)]
        for (start, name), (end, _) in pairwise([*starts, (len(texts), "")]):
            titled = _TITLE.match(texts[start - 1]) if start else None
            graph = {**dict(zip(numbers[start:end], texts[start:end], strict=True)), numbers[start]: _HEAD.format(name)}
            found.append(GraphText(titled[1] if titled else name, rank, graph))
    return sorted(found, key=lambda graph: graph.start)


def listed(graphs: Sequence[GraphText]) -> str:
    """``1 Forward graph 0 (rank 0, line 133), 2 ...``."""
    shown = ", ".join(f"{i} {graph}" for i, graph in enumerate(graphs[:_LISTED], 1))
    return shown + (f" and {len(graphs) - _LISTED:,} more" if len(graphs) > _LISTED else "")


def _streams(lines: Sequence[str]) -> list[tuple[int | None, dict[int, str]]]:
    """Per process its rank and its lines by index, without their prefixes; one for all where none has any."""
    streams: dict[tuple[str | None, str], dict[int, str]] = {}
    for i, line in enumerate(lines):
        if match := _PREFIX.match(line):
            streams.setdefault((match["rank"], match["process"]), {})[i] = line[match.end() :]
    if not streams:
        return [(None, dict(enumerate(lines)))]
    return [(None if rank is None else int(rank), own) for (rank, _), own in streams.items()]


_SYMBOL_HINT = re.compile(r"^((?:[A-Za-z_]\w* *= *)+)(-?\d+)\s*$")
_ATTRIBUTE = re.compile(r"^        self\.([A-Za-z_]\w*) *=")
BY_SIZE = ("zeros", "ones", "empty", "randn", "rand", "full")
_TENSORS = {"tensor", "torch.tensor", "torch.nn.Parameter", "Parameter", "FakeTensor", "torch.randint"}
_TENSORS |= {*BY_SIZE, *(f"torch.{name}" for name in BY_SIZE)}


@dataclass(frozen=True)
class DumpSource:
    """The parts of a dump, parsed, with the line numbers of the file.

    Attributes:
        path: The file, for messages.
        attributes: What ``Repro.__init__`` sets, by name; None: a submodule.
        forward: ``Repro.forward``.
        submodules: ``forward`` of the classes nested in ``Repro``, by name.
        load_args: The statements of ``load_args(reader)``; empty where the file has none.
        symbols: Integer hints of symbolic sizes (``s0 = 8`` before ``load_args``).
        chosen: The number of the graph, from 1.
        graphs: All graphs in the file.
        modules: By line of ``forward``, the module or parameter that a comment names.
        groups: The expression given to ``setup_fake_process_groups``, or else returned by ``get_pg_config``, if any.
    """

    path: str
    attributes: Mapping[str, ast.expr | None]
    forward: ast.FunctionDef
    submodules: Mapping[str, ast.FunctionDef]
    load_args: Sequence[ast.stmt]
    symbols: Mapping[str, int]
    groups: ast.expr | None
    modules: Mapping[int, str]
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
    chosen = graph or next((i for i, text in enumerate(graphs, 1) if text.lowered), 1)
    if not 1 <= chosen <= max(len(graphs), 1):
        there = f"its graphs are {listed(graphs)}" if len(graphs) > 1 else "it has one graph"
        raise DumpError(f"{name}: there is no graph {graph}: {there}.")
    if graphs:
        lines = [graphs[chosen - 1].lines.get(i, "") for i in range(len(lines))]
    start = graphs[chosen - 1].start if graphs else _last(lines, r"^class Repro\b")
    if start is None:
        if any(line.startswith("\tclass Repro") for line in lines):
            raise DumpError(f"{name}: a log of TORCH_TRACE. Run tlparse on it, and take a file `fx_graph_runnable`.")
        written = next((line.strip() for line in lines if line.strip()), "nothing")
        raise DumpError(
            f"{name}: there is no `class Repro` in it (it starts with {written[:80]!r}). Take `fx_graph_runnable` from "
            "tlparse (`fx_graph_readable` where torch made none), or print a graph with "
            "gm.print_readable(include_stride=True, include_device=True); str(graph) has no shapes."
        )
    forward = _first(lines, r"^    def forward\(", start)
    if forward is None:
        fault = f"{name}, line {start + 1}: `class Repro` has no `def forward(`"
        raise DumpError(f"{fault}. Was the file cut short, or edited by hand?")
    end = _block_end(lines, forward, indent=4)
    loader = _last(lines, r"^def load_args\(")
    return DumpSource(
        path=name,
        attributes=_attributes(name, lines, start, forward),
        forward=_function(name, lines, forward, indent=4),
        submodules=_submodules(name, lines, start, forward, end),
        load_args=() if loader is None else _function(name, lines, loader, indent=0).body,
        symbols=_symbols(lines[: start if loader is None else loader]),
        groups=_groups(name, lines, end),
        chosen=chosen,
        graphs=graphs,
        modules=_modules(lines, forward, end),
    )


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
    text = "\n" * start + "\n".join(line[indent:] for line in lines[start:end])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the dump's own strings, such as invalid escapes
        try:
            return ast.parse(text).body
        except SyntaxError as error:
            line, reason = error.lineno or start + 1, error.msg
        except (ValueError, RecursionError, MemoryError) as error:
            line, reason = start + 1, str(error) or type(error).__name__
    shown = lines[line - 1].strip()[:80] if line <= len(lines) else ""
    fault = f"{path}, line {line}: this is not Python ({reason}): {shown!r}"
    raise DumpError(f"{fault}. Was the file cut short, or edited by hand?")


def _function(path: str, lines: Sequence[str], start: int, indent: int) -> ast.FunctionDef:
    match _parse(path, lines, start, _block_end(lines, start, indent), indent):
        case [ast.FunctionDef() as function]:
            return function
    raise DumpError(f"{path}, line {start + 1}: expected one function here: {lines[start].strip()[:80]!r}.")


def _attributes(path: str, lines: Sequence[str], start: int, end: int) -> dict[str, ast.expr | None]:
    """Read what ``__init__`` sets each attribute to, by name; None: a submodule.

    torch writes (``torch._dynamo.debug_utils.NNModuleToString``) ``register_buffer('name', tensor(...))`` for up to
    four elements, ``torch.randn`` or ``torch.randint`` for more, ``torch.nn.Parameter(torch.randn(...))``, each perhaps
    with ``.to("cuda:0")``; and the repr of a submodule, which need not be Python.
    """
    inside = _first(lines, r"^    def __init__\(", start)
    if inside is None or inside > end:
        return {}
    heads = [i for i in range(inside + 1, end) if lines[i].startswith("        self.")]
    found: dict[str, ast.expr | None] = {}
    for i, after in pairwise([*heads, end]):
        try:
            statement = _parse(path, lines, i, after, indent=8)[0]
        except DumpError:
            if (named := _ATTRIBUTE.match(lines[i])) is None:
                raise
            found[named[1]] = None
            continue
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                found[name] = value if _is_tensor(value) else None
            case ast.Expr(value=ast.Call(ast.Attribute(attr="register_buffer"), [ast.Constant(str() as name), value])):
                found[name] = value
            case _:
                Literals(path, {}).fail(statement, "this statement of __init__ is not understood")
    return found


def _is_tensor(value: ast.expr) -> bool:
    """Tell whether it is a tensor that torch prints, not the repr of a module."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "to":
        value = value.func.value
    return isinstance(value, ast.Call) and dotted(value.func) in _TENSORS


def _submodules(path: str, lines: Sequence[str], start: int, forward: int, end: int) -> dict[str, ast.FunctionDef]:
    """``forward`` of classes nested in ``Repro``: the bodies of higher-order operators, as torch prints them."""
    found = {}
    limit = _block_end(lines, start, indent=0)
    for i in [*range(start + 1, min(forward, limit)), *range(end, limit)]:
        match = re.match(r"^    class +([^\s(]+) *\(", lines[i])
        if match and (inner := _first(lines[:limit], r"^        def forward\(", i)) is not None:
            found[match[1]] = _function(path, lines, inner, indent=8)
    return found


def _modules(lines: Sequence[str], start: int, end: int) -> dict[int, str]:
    """A comment on a line of its own is about all lines up to the next one."""
    found, current = {}, ""
    for i in range(start, end):
        named = _MODULE.search(lines[i])
        if lines[i].lstrip().startswith("#"):
            current = named[1] if named else ""
        found[i + 1] = named[1] if named else current
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
    call = _first(lines, r"^\s*setup_fake_process_groups\(", start)
    if call is not None:
        statement = _parse(path, lines, call, call + 1, len(lines[call]) - len(lines[call].lstrip()))[0]
        value = statement.value if isinstance(statement, ast.Expr) else None
        return value.args[0] if isinstance(value, ast.Call) and value.args else None
    function = _first(lines, r"^def get_pg_config\(", start)
    if function is None:
        return None
    last = _function(path, lines, function, indent=0).body[-1]
    return last.value if isinstance(last, ast.Return) and isinstance(last.value, ast.Dict) else None


TANGENT = "tangents"


def one_step(forward: DumpSource, backward: DumpSource) -> DumpSource:
    """The graph of both, forward first.

    Raises:
        DumpError: They do not belong together: backward's inputs are not what forward saves.
    """
    inputs, results = _inputs(backward), _elements(forward.forward.body[-1])
    saving = [ast.unparse(result) for result in results]
    saved = _saved(forward, backward, saving)
    taken, own = _names(forward), _names(backward)
    renamed, used = dict(saved), taken | own
    for name in sorted((taken & own) - saved.keys()):
        renamed[name] = next(new for k in count(1) if (new := name + "_backward" * k) not in used)
        used.add(renamed[name])
    kept = [k for k, name in enumerate(inputs) if name not in saved]
    body, head = _renamed(backward.forward.body, renamed), deepcopy(forward.forward)
    head.args.args += _renamed([backward.forward.args.args[1 + k] for k in kept], renamed)
    last = body.pop()
    dropped = {len(saving) - 1 - saving[::-1].index(name) for name in saved.values() if name in saving}
    left = [result for k, result in enumerate(results) if k not in dropped]
    value = ast.copy_location(ast.Tuple([*left, *_elements(last)], ast.Load()), last)
    head.body = [*head.body[:-1], *body, ast.copy_location(ast.Return(value), last)]
    groups = forward.groups or backward.groups
    if isinstance(groups, ast.Dict) and groups is forward.groups and isinstance(backward.groups, ast.Dict):
        names, sizes = [*groups.keys, *backward.groups.keys], [*groups.values, *backward.groups.values]
        groups = ast.copy_location(ast.Dict(names, sizes), forward.groups)
    return replace(
        forward,
        forward=head,
        attributes={**forward.attributes, **{renamed.get(n, n): value for n, value in backward.attributes.items()}},
        submodules={**forward.submodules, **{renamed.get(n, n): f for n, f in backward.submodules.items()}},
        load_args=[*forward.load_args, *_renamed(_arguments(backward.load_args, kept), renamed)],
        symbols={**backward.symbols, **forward.symbols},
        groups=groups,
        modules={},  # lines of two files
    )


def _saved(forward: DumpSource, backward: DumpSource, names: Sequence[str]) -> dict[str, str]:
    """Per input of backward that forward saves, the result that it is: by name, else by position from the end."""
    needed = [name for name in _inputs(backward) if not name.startswith(TANGENT)]
    if len(needed) == len(_inputs(backward)) or any(name.startswith(TANGENT) for name in _inputs(forward)):
        fault = f"{forward.path} and {backward.path} are not the forward and the backward graph of one step"
        raise DumpError(f"{fault}: only the second has inputs called {TANGENT}_1. Give the forward graph first.")
    if set(needed) <= set(names):
        return {name: name for name in needed}
    by_place = dict(zip(needed, names[len(names) - len(needed) :], strict=False))
    if len(needed) > len(names) or any(name in names and other != name for name, other in by_place.items()):
        missing = next(name for name in needed if name not in names)
        fault = f"{backward.path}: its input {missing!r} is no result of {forward.path}"
        raise DumpError(f"{fault}. Give the two graphs of one compiled function, from one rank and one compilation.")
    return by_place


def _inputs(source: DumpSource) -> list[str]:
    return [argument.arg for argument in source.forward.args.args[1:]]


def _elements(statement: ast.stmt) -> list[ast.expr]:
    value = statement.value if isinstance(statement, ast.Return) else None
    return list(value.elts) if isinstance(value, ast.Tuple | ast.List) else [] if value is None else [value]


def _names(source: DumpSource) -> set[str]:
    """Names of inputs, values, storages and attributes; not of sizes, which both files mean alike."""
    loads = [one for one in source.load_args if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call)]
    parts = [part for one in (source.forward, *loads) for part in ast.walk(one) if isinstance(part, ast.Name)]
    stored = {part.id for part in parts if isinstance(part.ctx, ast.Store)}
    return stored | {*source.attributes, *_inputs(source), *source.submodules}


def _arguments(statements: Sequence[ast.stmt], kept: Sequence[int]) -> list[ast.stmt]:
    """``load_args`` without the calls for inputs that are not kept: each call of its own is for one input, in turn."""
    calls = (one for one in statements if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call))
    gone = [one for k, one in enumerate(calls) if k not in kept]
    return [one for one in statements if one not in gone]


def _renamed(parts: Sequence[Any], names: Mapping[str, str]) -> list[Any]:
    """Copies with values, storages, inputs and ``self.x`` under other names; what else has a dot is no value's."""
    copies = deepcopy(list(parts))
    for node in (node for part in copies for node in ast.walk(part)):
        match node:
            case ast.Name(id=name):
                node.id = names.get(name, name)
            case ast.arg(arg=name):
                node.arg = names.get(name, name)
            case ast.Attribute(ast.Name(id="self"), name):
                node.attr = names.get(name, name)
    return copies
