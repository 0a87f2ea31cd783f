"""Load a graph that torch wrote to a file in a real job, without running the file.

``TORCH_TRACE`` and tlparse save one ``fx_graph_runnable`` for each compiled graph; ``save_graph_repro`` in
``torch._dynamo.repro.after_aot`` writes the same. A dump of 64 ranks loads on a laptop: tensors are fake, process
groups are only names and sizes.

The file is never imported or evaluated. It is cut up (``source``), each part is read (``graph``: expressions,
operators, nodes; ``inputs``: ``load_args``, constants, sizes; ``groups``: process groups), and every node gets its
value from fake kernels (``values``). This module puts these together, and chooses the values of data-dependent sizes.
"""

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from overlap_sched.dump.graph import Literals, ParsedGraph, build_graph, shorten
from overlap_sched.dump.groups import DumpGroup, given_groups, named_groups, resolve_groups, stand_ins, written_groups
from overlap_sched.dump.inputs import (
    Asserted,
    Contradiction,
    InputMaker,
    SizeInput,
    Within,
    backed,
    balanced_split,
    check_sizes,
    contradictions,
    is_unbacked,
    make_attribute,
    note_on,
    read_attributes,
    read_inputs,
    splits_of,
    symbols_of,
    uneven,
    without_hints,
)
from overlap_sched.dump.source import DumpSource, listed, one_step, read_source
from overlap_sched.dump.values import (
    FALLBACK_SIZE,
    MisfitError,
    Opaque,
    Results,
    ValueCount,
    Values,
    annotated,
    depends_on_symbols,
    fake_execution,
)
from overlap_sched.errors import DumpError
from overlap_sched.fx.calls import GROUPS_KEY
from overlap_sched.fx.sizes import SIZES_KEY
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.report.words.graph import AssumedSize
from overlap_sched.scheduler.driver import no_collection

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
        results: Results,
        default: int | None = None,
        strict: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        balanced: bool = False,
        within: Within = "middle",
    ) -> None:
        self.source = source
        self._running = ValueCount(limits.nodes), results
        self.notes: dict[str, None] = {}
        self.parsed = build_graph(source.path, source.forward)
        self.nodes = list(self.parsed.graph.nodes)
        literal = None if source.groups is None else Literals(source.path, {}).read(source.groups)
        self._bodies = {name: build_graph(source.path, forward) for name, forward in source.submodules.items()}
        graphs = [self.parsed, *self._bodies.values()]
        self.groups = resolve_groups(graphs, given, written_groups(source.path, literal), self.notes)
        named = [(node, name) for parsed in graphs for node in parsed.graph.nodes for name, _ in named_groups(node)]
        self.asked_by_name = {name: self.groups[name] for node, name in named if not _is_functional(node.target)}
        self._sizes = dict(sizes)
        self.guessed: dict[str, int] = {}
        self._default, self._within = default, within
        self._evenly = default is not None
        self._strict = strict
        self._sizing = False
        names = symbols_of(source, graphs)
        check_sizes(source.path, sizes, names, [node.name for one in graphs for node in one.graph.nodes])
        self._attribute_values = read_attributes(source.path, source.attributes)
        self._attributes: dict[str, Any] = {}
        inputs = read_inputs(source.path, source.load_args)
        symbols = source.symbols
        self._splits: dict[str, int] = {}
        if balanced:
            splits = splits_of(self.nodes)
            self._splits = {node.name: count for node, count in splits.items()}
            inputs = without_hints(inputs, self._match_inputs(inputs.inputs), splits)
            symbols = backed(symbols)
        self.symbols = [name for name in names if is_unbacked(name)]
        self._maker = InputMaker(inputs, {**symbols, **sizes}, self._default_symbol)
        if self._maker.matched:
            note = "symbols that the file does not define, taken from the integers among its inputs, in order"
            self.notes.setdefault(note)
        self._inputs = self._match_inputs(inputs.inputs)
        self.values = self._values_of(self.parsed, self._placeholder, self._attribute)

    def _values_of(
        self, parsed: ParsedGraph, placeholder: Callable[[fx.Node], Any], attribute: Callable[[fx.Node], Any]
    ) -> Values:
        sizes = (self._size, self._maker.size_of)
        run = partial(Values, parsed, placeholder, attribute, self._run_body, *sizes)
        return run(self.groups, self.notes, self._strict, *self._running)

    def _match_inputs(self, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
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
        if not self.source.shapes:
            self.values.note(NO_SHAPES)
            return
        for i, node in enumerate(self.nodes, 1):
            self.values.evaluate(node)
            if not whole and contradictions([node], self.values.of.get):
                return
            if progress is not None and i % 500 == 0:
                progress(i, len(self.nodes))

    def graph_module(self) -> fx.GraphModule:
        """The graph with its attributes."""
        return fx.GraphModule(self._attributes, self.parsed.graph, class_name="Repro")

    def contradictions(self) -> list[Contradiction]:
        """Each all_to_all whose splits do not add to its rows."""
        return contradictions(self.nodes, self.values.of.get)

    def note_contradiction(self, first: Contradiction, *, repaired: bool) -> None:
        """Say what was contradictory, and whether another size was taken for all; it is the same for all splits."""
        self.values.note(note_on(first, self._default_size() if repaired else None, self.symbols))

    def other_sizes(self, misfit: Sequence[int]) -> list[int]:
        """Sizes to try where the default does not fit: what the inputs of an all_to_all may have been split from.

        ``misfit``: sizes seen at the node that the default does not fit: one of them is right, perhaps.
        """
        ranks = [len(node.args[2]) for node in uneven(self.nodes)]
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
        if depends_on_symbols(text):
            self.values.mark_guessed(node)
        value = annotated(text, torch.device("cpu"), self._maker.size_of)
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
            printed = annotated(text, torch.device("cpu"), self._maker.size_of)
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
        return Asserted(self.nodes, self._number, self._sizes, self._within)

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
            split = balanced_split(self.nodes, self._rows)
            self._default = FALLBACK_SIZE if split is None else split
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


@dataclass(frozen=True)
class Dump:
    """A loaded graph.

    Attributes:
        gm: The graph. Every node that has a value holds it in ``meta["val"]``: fake tensors on the devices of the dump,
            views on the storage that they look at; integers for symbolic sizes. ``gm.meta["overlap_sched_groups"]``
            holds ``{group name: (size, ranks or None)}``.
        name: The file's name without its endings.
        groups: The process groups that collectives of the graph name, in the order of first use.
        notes: What was guessed.
        guessed: Data-dependent sizes that were guessed, by symbol where it has one, else by node.
        choice: Where the file has several graphs: which one was read, and which there are; else ``""``.
    """

    gm: fx.GraphModule
    name: str
    groups: Mapping[str, DumpGroup]
    notes: tuple[str, ...]
    guessed: Mapping[str, int] = field(default_factory=dict)
    choice: str = ""


def load_dump(
    path: str | Path,
    *,
    groups: Mapping[str, int | Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    graph: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    backward: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dump:
    """Load a dump, plain or gzipped.

    Args:
        path: A file as torch writes it: ``class Repro``, ``load_args(reader)``. Or a graph as torch prints it to read
            (tlparse: ``aot_forward_graph``), shapes and devices in annotations: each input then has its own storage.
        groups: Size of a process group, or its ranks, by name. Needed only where the file does not say it.
        sizes: Values of data-dependent (unbacked) sizes, by the name of the symbol (``u0``) or of the node that reads
            it. Others all get one value: that of an all_to_all spread evenly, the first found with which every node
            fits. Where there is none, the value with which the graph holds most bytes, of those that it asserts; 8192
            where it asserts no limit. What the file says of such sizes counts only where the splits of each
            all_to_all add to its rows by it; else it is left out, and a note says so.
        graph: Which of several graphs in the file, from 1: logs of ``TORCH_LOGS`` have many. ``None``: the first that
            calls operators with their overloads (Dynamo's do not); ``Dump.choice`` lists them.
        limits: How large the file and the graph may be.
        backward: The backward graph of the same step: both are joined into one graph.
        progress: Called with (nodes done, nodes in all) now and then.

    Raises:
        DumpError: One of its subclasses, with file, line, what is not understood, and how to repair it.
        InputTooLargeError: The file or the graph is larger than the limits.
    """
    source = read_source(path, limits, graph)
    if backward is not None:
        source = one_step(source, read_source(backward, limits))
    name = Path(path).name.split(".")[0]
    given = given_groups(groups)
    make = partial(Loader, source, given, sizes or {}, Results(), limits=limits)
    first = make(strict=True)
    with warnings.catch_warnings(), no_collection(), stand_ins(first.asked_by_name), fake_execution():
        warnings.simplefilter("ignore")  # what fake kernels say of the dump's own graph
        loader = _run(first, make, progress, whole=False)
        if found := loader.contradictions():
            anew = partial(make, balanced=True)
            balanced = _run(anew(strict=True), anew, progress, whole=False)
            if left := balanced.contradictions():  # compare all of them
                loader, balanced = (_run(other(strict=True), other, progress) for other in (make, anew))
                found, left = loader.contradictions(), balanced.contradictions()
            repaired = len(left) < len(found)
            loader = balanced if repaired else loader
            loader.note_contradiction(found[0], repaired=repaired)
        elif loader.chooses:
            others = [_run(make(strict=True, within=within), make, None) for within in ("least", "most")]
            loader = max([loader, *others], key=Loader.bytes)
        gm = loader.graph_module()
    gm.meta[GROUPS_KEY] = dict(loader.groups)
    gm.meta[SIZES_KEY] = tuple(AssumedSize(name, "", size, False) for name, size in loader.guessed.items())
    choice = (
        f"{len(source.graphs):,} graphs are in the file, graph {source.chosen} was read; --graph N (in Python graph=N) "
        f"takes another: {listed(source.graphs)}"
    )
    several = choice if len(source.graphs) > 1 else ""
    return Dump(gm, name, loader.groups, tuple(sorted(loader.notes)), loader.guessed, several)


def _is_functional(target: Any) -> bool:
    """Tell whether a fake kernel never looks its group up by name."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "_c10d_functional"


def _run(
    loader: Loader, make: Callable[..., Loader], progress: Callable[[int, int], None] | None, *, whole: bool = True
) -> Loader:
    """Run a loader, or one with the first other value of data-dependent sizes with which every node fits.

    Not ``whole``: up to the first sizes that contradict each other.
    """
    try:
        loader.run(progress, whole=whole)
        return loader
    except MisfitError as error:
        others = loader.other_sizes(error.sizes)
    for size in others:
        with contextlib.suppress(MisfitError):
            other = make(default=size, strict=True)
            other.run(progress, whole=whole)
            return other
    loader = make()
    loader.run(progress)
    return loader
