"""The names by which data-dependent sizes can be given: symbols that occur in a dump, and its nodes."""

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from overlap_sched.dump.contradictions import is_unbacked
from overlap_sched.dump.graph import ParsedGraph
from overlap_sched.dump.source import DumpSource
from overlap_sched.errors import DumpError

_SYMBOL = re.compile(r"\b[A-Za-z]+_?\d+\b")
_LISTED = 20
_SUGGESTED = 4


class SizeNames(NamedTuple):
    """Names that a size may have: symbols, and nodes of the graph and of its bodies."""

    symbols: Collection[str]
    nodes: Collection[str]


def size_names(source: DumpSource, graphs: Sequence[ParsedGraph]) -> SizeNames:
    """All names of a dump that a size could be given by."""
    symbols = dict.fromkeys([*source.symbols, *_symbols_of_inputs(source.load_args)])
    for parsed in graphs:
        for text in parsed.annotations.values():
            shape = text[text.find("[") :] if "[" in text else text  # not bf16 and its like
            symbols.update(dict.fromkeys(_SYMBOL.findall(shape)))
    nodes = [node.name for parsed in graphs for node in parsed.graph.nodes if node.op != "output"]
    return SizeNames(list(symbols), nodes)


def _symbols_of_inputs(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names in the sizes of ``load_args``; ``expr="u0"`` among them."""
    for statement in statements:
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and not part.id.startswith(("reader", "buf")):
                if _SYMBOL.fullmatch(part.id) or isinstance(part.ctx, ast.Store):
                    yield part.id
            elif isinstance(part, ast.keyword) and part.arg == "expr" and isinstance(part.value, ast.Constant):
                yield from _SYMBOL.findall(str(part.value.value))


def sizes_to_give(guessed: Mapping[str, int]) -> list[str]:
    """A note on how to give sizes that were guessed, by their symbols where they have one; none where none was."""
    if not guessed:
        return []
    names = sorted(guessed, key=lambda name: not is_unbacked(name))  # symbols first, nodes behind them
    shown = ", ".join(names[1:_SUGGESTED])
    more = f" and {len(names) - _SUGGESTED:,} more" if len(names) > _SUGGESTED else ""
    also = f" (also {shown}{more})" if shown else ""
    give = f"--size {names[0]}={guessed[names[0]]}{also}"
    return [f"data-dependent sizes were guessed, and peak memory rests on them; to give one: {give}"]


def check_sizes(path: str, given: Mapping[str, int], names: SizeNames) -> None:
    """Raise for a size whose name does not occur, with the names that do."""
    for name in given:
        if name in names.symbols or name in names.nodes:
            continue
        listed = ", ".join(map(repr, [*names.symbols][:_LISTED]))
        more = ", ..." if len(names.symbols) > _LISTED else ""
        there = f"Its symbols are {listed}{more}" if listed else "It has no symbols"
        near = difflib.get_close_matches(name, names.nodes, n=3)
        also = f"; of its nodes, {' and '.join(map(repr, near))} may be meant" if near else ""
        raise DumpError(
            f"{path}: a size is given for {name!r} (--size {name}={given[name]} on the command line), but no symbol or "
            f"node has that name. {there}{also}. Correct the name, or leave it out."
        )
