"""One dump being loaded: puts its parts together, and chooses the values of data-dependent sizes."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from overlap_sched.dump import guess
from overlap_sched.dump.asserted import Asserted, Within
from overlap_sched.dump.attributes import make_attribute, read_attributes
from overlap_sched.dump.contradictions import (
    Contradiction,
    backed,
    contradictions,
    is_unbacked,
    note_on,
    splits_of,
    without_hints,
)
from overlap_sched.dump.counting import ValueCount
from overlap_sched.dump.graph import ParsedGraph, build_graph
from overlap_sched.dump.groups import DumpGroup, named_groups, resolve_groups, written_groups
from overlap_sched.dump.inputs import InputMaker, SizeInput, read_inputs
from overlap_sched.dump.literals import Literals, shorten
from overlap_sched.dump.size_names import check_sizes, size_names
from overlap_sched.dump.source import DumpSource
from overlap_sched.dump.values import Opaque, Results, Values
from overlap_sched.errors import DumpError
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits

NO_SHAPES = (
    "nodes without a shape, as str(graph) prints none: they have no memory and their times mean nothing; take what "
    "gm.print_readable(include_stride=True, include_device=True) prints"
)
_MOST_TRIES = 8
_aten = torch.ops.aten
_ALIKE = (_aten.lift_fresh_copy.default, _aten.lift_fresh.default, _aten.clone.default, _aten.detach.default)
"""They give what they take: of a constant that torch has not written, the shape is printed with them."""


class SizeNotKnownYetError(Exception):
    """A size was asked for while it is being computed."""


class Loader:
    """One attempt at a file.

    Args:
        source: Its parts.
        given: Process groups that the caller gives.
        sizes: Sizes that the caller gives, by symbol or node.
        default: The value of other data-dependent sizes; None: the split of the first all_to_all whose rows are known,
            if spread evenly, else 8192.
        strict: Raise :class:`overlap_sched.dump.values.MisfitError` where such a size does not fit.
        limits: How many values the graph may have.
        balanced: Leave out what the file says of data-dependent sizes, because it contradicts itself.
        within: Which of the sizes that the graph asserts to take.
        results: Runs operators, and knows those of other attempts.
    """

    def __init__(
        self,
        source: DumpSource,
        given: Mapping[str, DumpGroup],
        sizes: Mapping[str, int],
        default: int | None = None,
        strict: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        balanced: bool = False,
        within: Within = "middle",
        results: Results | None = None,
    ) -> None:
        self.source = source
        self._results = Results() if results is None else results
        self._count = ValueCount(limits.nodes)
        self.notes: dict[str, int] = {}
        self.parsed = build_graph(source.path, source.forward)
        literal = None if source.groups is None else Literals(source.path, {}).read(source.groups)
        self._bodies = {name: build_graph(source.path, forward) for name, forward in source.submodules.items()}
        self._all = [self.parsed, *self._bodies.values()]
        self.groups = resolve_groups(self._all, given, written_groups(source.path, literal), self.notes)
        self._sizes = dict(sizes)
        self.guessed: dict[str, int] = {}
        self._default, self._within = default, within
        self._evenly = default is not None
        self._strict = strict
        self._sizing = False
        names = size_names(source, self._all)
        check_sizes(source.path, sizes, names)
        self._attribute_values = read_attributes(source.path, source.attributes)
        self._attributes: dict[str, Any] = {}
        inputs = read_inputs(source.path, source.load_args)
        symbols = dict(source.symbols)
        nodes = list(self.parsed.graph.nodes)
        self._splits: dict[str, int] = {}
        if balanced:
            self._splits = {node.name: count for node, count in splits_of(nodes).items()}
            of = self._match_inputs(inputs.inputs)
            inputs = without_hints(inputs, of, [node for node in nodes if node.name in self._splits])
            symbols = backed(symbols)
        self.symbols = [name for name in names.symbols if is_unbacked(name)]
        self._maker = InputMaker(inputs, {**symbols, **sizes}, self._default_symbol)
        if self._maker.matched:
            note = "symbols that the file does not define, taken from the integers among its inputs, in order"
            self.notes[note] = len(self._maker.matched)
        self._inputs = self._match_inputs(inputs.inputs)
        self.values = self._values_of(self.parsed, self._placeholder, self._attribute)

    def _values_of(
        self, parsed: ParsedGraph, placeholder: Callable[[fx.Node], Any], attribute: Callable[[fx.Node], Any]
    ) -> Values:
        sizes = (self._size, self._maker.size_of)
        groups, notes = self.groups, self.notes
        return Values(
            parsed,
            placeholder,
            attribute,
            self._run_body,
            *sizes,
            groups,
            notes,
            self._strict,
            self._count,
            self._results,
        )

    def groups_asked_by_name(self) -> dict[str, DumpGroup]:
        """The groups that fake kernels may look up: all but those of ``_c10d_functional``, whose kernels never do."""
        asked = {
            name
            for parsed in self._all
            for node in parsed.graph.nodes
            for name, _ in named_groups(node)
            if not (isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "_c10d_functional")
        }
        return {name: group for name, group in self.groups.items() if name in asked}

    def _match_inputs(self, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
        placeholders = [node for node in self.parsed.graph.nodes if node.op == "placeholder"]
        if not self.source.shapes:
            return {}
        if not self.source.load_args and any(node.name in self.parsed.annotations for node in placeholders):
            return {}  # one that has no annotation is no tensor: a device mesh, for example
        if len(inputs) != len(placeholders):
            raise DumpError(
                f"{self.source.path}: forward takes {len(placeholders)} inputs but load_args describes {len(inputs)}. "
                "Was the file cut short, or edited by hand?"
            )
        return dict(zip(placeholders, inputs, strict=True))

    def run(self, progress: Callable[[int, int], None] | None, *, whole: bool = True) -> None:
        """Give every node its value; not ``whole``: up to the first all_to_all whose splits do not add to its rows."""
        nodes = list(self.parsed.graph.nodes)
        if not self.source.shapes:
            self.values.note(NO_SHAPES, len(nodes))
            return
        for i, node in enumerate(nodes):
            self.values.evaluate(node)
            if not whole and contradictions([node], self.values.of.get):
                return
            if progress is not None and i % 500 == 499:
                progress(i + 1, len(nodes))

    def graph_module(self) -> fx.GraphModule:
        """The graph with its attributes."""
        return fx.GraphModule(self._attributes, self.parsed.graph, class_name="Repro")

    def contradictions(self) -> list[Contradiction]:
        """Each all_to_all whose splits do not add to its rows."""
        return contradictions(list(self.parsed.graph.nodes), self.values.of.get)

    def count_uneven(self) -> int:
        """Count the all_to_alls with data-dependent splits."""
        return len(list(guess.uneven(self.parsed.graph.nodes)))

    def note_contradictions(self, first: Contradiction, count: int, *, mended: bool) -> None:
        """Say what was contradictory, and whether another size was taken for all; it is the same for all splits."""
        taken = self._default_size() if mended else None
        self.values.note(note_on(first, taken, self.symbols), count)

    def other_sizes(self, misfit: Sequence[int]) -> list[int]:
        """Sizes to try where the default does not fit: what the inputs of an all_to_all may have been split from.

        ``misfit``: sizes seen at the node that the default does not fit: one of them is right, perhaps.
        """
        ranks = [len(node.args[2]) for node in guess.uneven(self.parsed.graph.nodes)]
        among = Counter(ranks).most_common(1)[0][0] if ranks else 1
        rows: Counter[int] = Counter()
        for node, value in self.values.of.items():
            if node.op == "placeholder" and not self._maker.unknown(self._inputs.get(node)):
                shape = list(value.shape) if isinstance(value, torch.Tensor) else [value]
                sizes = [n for n in shape if type(n) is int]
                rows.update([*sizes, math.prod(sizes[:2])])
        likely = [*sorted(misfit, reverse=True), *[n for n, _ in rows.most_common()]]
        parts = [n // among for n in likely if n >= among and n % among == 0]
        return [size for size in dict.fromkeys(parts) if size != self._default][:_MOST_TRIES]

    def _placeholder(self, node: fx.Node) -> Any:
        if node in self._inputs:
            if self._maker.unknown(self._inputs[node]):
                self.values.mark_guessed(node)
            return self._maker.make(self._inputs[node], node.name)
        text = self.parsed.annotations.get(node.name)
        if text is None:
            return None
        if guess.depends_on_symbols(text):
            self.values.mark_guessed(node)
        value = guess.annotated(text, torch.device("cpu"), self._maker.size_of)
        if value is None:
            raise DumpError(f"{self.parsed.place(node)}: the annotation {text!r} does not describe a tensor or a size.")
        if isinstance(value, torch.Tensor):
            self.values.note("inputs whose storage the file does not say, each taken to have its own")
        return value

    def _attribute(self, node: fx.Node) -> Any:
        name = str(node.target)
        if name not in self._attributes:
            self._attributes[name] = self._make_attribute(node, name)
        return self._attributes[name]

    def _make_attribute(self, node: fx.Node, name: str) -> Any:
        if name in self._bodies:
            graph = self._bodies[name].graph
            unknown = {str(inner.target): Opaque() for inner in graph.nodes if inner.op == "get_attr"}
            return fx.GraphModule(unknown, graph, class_name=name)
        value = self._attribute_values.get(name)
        if value is not None:
            try:
                return make_attribute(self.source.path, value)
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, DumpError):
                    raise
                raise DumpError(
                    f"{self.source.path}, line {value.lineno}: self.{name} is no tensor "
                    f"({str(error).splitlines()[0]}): `{shorten(value)}`. Write the dump again with torch."
                ) from None
        if name in self.groups:
            return name
        alike = [user.name for user in node.users if user.target in _ALIKE]
        for text in filter(None, map(self.parsed.annotations.get, [node.name, *alike])):
            printed = guess.annotated(text, torch.device("cpu"), self._maker.size_of)
            if printed is not None:
                return printed
        return Opaque()

    def _run_body(self, module: Any, operands: Sequence[Any]) -> Any:
        """Run the printed body of a submodule; None where there is none."""
        graph = module.graph if isinstance(module, fx.GraphModule) else None
        parsed = next((body for body in self._bodies.values() if body.graph is graph), None)
        if parsed is None:
            return None
        given = iter(operands)
        values = self._values_of(parsed, lambda _: next(given, None), lambda _: Opaque())
        result = None
        for node in parsed.graph.nodes:
            result = values.evaluate(node)
        return tuple(result) if isinstance(result, list) else result

    def _size(self, node: fx.Node) -> int:
        """The value of a data-dependent size at `node`."""
        if node.name in self._sizes:
            return self._sizes[node.name]
        if node.name not in self.guessed:
            default = self._default_size()
            self.guessed[node.name] = self._asserted.size(node.name, default, balanced=self._evenly)
        return self.guessed[node.name]

    @property
    def chooses(self) -> bool:
        """Tell whether asserts left a choice of sizes."""
        return self._asserted.chosen > 0

    @cached_property
    def _asserted(self) -> Asserted:
        return Asserted(list(self.parsed.graph.nodes), self._number, self._sizes, self._within)

    def _number(self, node: fx.Node) -> int | str:
        """A size among the inputs, or of one of them; where the file does not say it, its symbol, or the node."""
        source = node if node.op == "placeholder" else node.all_input_nodes[0]
        item = self._inputs.get(source)
        if self._maker.unknown(item):
            return (item.symbol if isinstance(item, SizeInput) else None) or node.name
        value = self.values.evaluate(source)
        if source is not node:
            value = value.shape[node.args[1]] if isinstance(value, torch.Tensor) else None
        return value if type(value) is int else node.name

    def bytes(self) -> int:
        """Count the bytes of all values, each storage once."""
        tensors = [leaf for leaf in tree_leaves(list(self.values.of.values())) if isinstance(leaf, torch.Tensor)]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
        return sum(storage.nbytes() for storage in storages.values())

    def _default_symbol(self, symbol: str) -> int:
        if symbol in self._sizes:
            return self._sizes[symbol]
        default = self._default_size() * self._splits.get(symbol, 1)
        size = self._asserted.size(symbol, default, balanced=self._evenly or symbol in self._splits)
        self._sizes[symbol] = self.guessed[symbol] = size
        self.values.note(f"data-dependent sizes, taken as {size}")
        return size

    def _default_size(self) -> int:
        if self._sizing:
            raise SizeNotKnownYetError
        if self._default is None:
            self._sizing = True
            split = guess.balanced_split(list(self.parsed.graph.nodes), self._rows)
            self._default = guess.FALLBACK_SIZE if split is None else split
            self._evenly = split is not None
            self._sizing = False
        return self._default

    def _rows(self, node: fx.Node) -> int | None:
        """Rows of a node's value, or None where they are data-dependent."""
        before, pending = {node}, [node]
        while pending:
            for source in pending.pop().all_input_nodes:
                if source not in before:
                    before.add(source)
                    pending.append(source)
        try:
            for ancestor in self.parsed.graph.nodes:
                if ancestor in before:
                    self.values.evaluate(ancestor)
        except (SizeNotKnownYetError, DumpError):
            return None
        value = self.values.of[node]
        return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else None
