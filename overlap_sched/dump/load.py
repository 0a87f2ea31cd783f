"""Load a graph that torch wrote to a file in a real job, without running the file.

``TORCH_TRACE`` and tlparse save one ``fx_graph_runnable`` for each compiled graph; ``save_graph_repro`` in
``torch._dynamo.repro.after_aot`` writes the same. A dump of 64 ranks loads on a laptop: tensors are fake, process
groups are only names and sizes.

The file is never imported or evaluated. It is cut up (``source``), each part is read (``graph``: expressions,
operators, nodes; ``inputs``: ``load_args``, constants, sizes; ``groups``: process groups), and every node gets its
value from fake kernels (``values``). This module puts these together, and chooses the values of data-dependent sizes.
"""

import ast
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
from torch.fx._lazy_graph_module import _LazyGraphModule

from overlap_sched.dump import inputs, values
from overlap_sched.dump.graph import Literals, build_graph
from overlap_sched.dump.groups import DumpGroup, given_groups, group_uses, resolve_groups, stand_ins, written_groups
from overlap_sched.dump.source import DumpSource, listed, one_step, read_source
from overlap_sched.dump.values import Opaque, Values, annotated
from overlap_sched.errors import DumpError
from overlap_sched.fx.calls import GROUPS_KEY
from overlap_sched.fx.sizes import SIZES_KEY, UNBACKED_HINT
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.report.words.graph import AssumedSize
from overlap_sched.scheduler.driver import no_collection

_MOST_TRIES = 8
_CPU = torch.device("cpu")
_aten = torch.ops.aten
_ALIKE = (_aten.lift_fresh_copy.default, _aten.lift_fresh.default, _aten.clone.default, _aten.detach.default)
"""They give what they take: of a constant that torch has not written, the shape is printed with them."""


class SizeNotKnownYetError(Exception):
    """A size was asked for while it is being computed."""


class ParsedDump:
    """A file and what it says, before any value is chosen.

    Args:
        source: Its parts.
        given: Process groups that the caller gives.
        sizes: Sizes that the caller gives, by symbol or node.

    Attributes:
        asked_by_name: Groups that fake kernels look up.
        inputs: What ``load_args`` says, one for each of the placeholders; none where only annotations describe them.
        symbols: Of data-dependent sizes.
        modules: Submodules with a body.
        notes: What was guessed.
    """

    def __init__(self, source: DumpSource, given: Mapping[str, DumpGroup], sizes: Mapping[str, int]) -> None:
        path = self.path = source.path
        self.sizes, self.hints = sizes, source.symbols
        self.parsed = build_graph(path, source.forward)
        self.nodes = list(self.parsed.graph.nodes)
        bodies = {name: build_graph(path, forward) for name, forward in source.submodules.items()}
        self.graphs = [self.parsed, *bodies.values()]
        self.notes: dict[str, None] = {}
        literal = None if source.groups is None else Literals(path, {}).read(source.groups)
        uses = group_uses(self.graphs)
        self.groups = resolve_groups(path, uses, given, written_groups(path, literal), self.notes)
        self.asked_by_name = {use.name: self.groups[use.name] for use in uses if use.looks_up}
        self.attributes = source.attributes
        self.inputs = inputs.read_inputs(path, source.load_args)
        names = inputs.symbols_of(source.symbols, self.inputs, self.graphs)
        inputs.check_sizes(path, sizes, names, [node.name for one in self.graphs for node in one.graph.nodes])
        self.symbols = [name for name in names if inputs.is_unbacked(name)]
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        annotated_only = not source.load_args and any(n.name in self.parsed.annotations for n in self.placeholders)
        if not annotated_only and len(self.inputs.inputs) != len(self.placeholders):
            counts = f"forward takes {len(self.placeholders)} inputs but load_args describes {len(self.inputs.inputs)}"
            raise DumpError(f"{path}: {counts}. Was the file cut short, or edited by hand?")
        opaque = {n: {str(a.target): Opaque() for a in b.graph.find_nodes(op="get_attr")} for n, b in bodies.items()}
        self.modules = {n: fx.GraphModule(opaque[n], body.graph, class_name=n) for n, body in bodies.items()}


class Attempt(Values):
    """Values of all nodes, with one choice of data-dependent sizes.

    Args:
        dump: The file.
        results: Runs operators, and knows those of other attempts.
        limits: How many values the graph may have.
        default: The value of other data-dependent sizes; None: the split of the first all_to_all whose rows are known,
            if spread evenly, else 8192.
        strict: Raise :class:`overlap_sched.dump.values.MisfitError` where such a size does not fit.
        balanced: Leave out what the file says of data-dependent sizes, because it contradicts itself.
        within: Which of the sizes that the graph asserts to take.

    Attributes:
        guessed: Sizes that were, by symbol or node.
    """

    def __init__(
        self,
        dump: ParsedDump,
        results: values.Results,
        limits: Limits = DEFAULT_LIMITS,
        *,
        default: int | None = None,
        strict: bool = False,
        balanced: bool = False,
        within: inputs.Within = "middle",
    ) -> None:
        super().__init__(dump.graphs, dump.groups, results, limits.nodes, strict)
        self.dump = dump
        self.guessed: dict[str, int] = {}
        self._sizes = dict(dump.sizes)
        self._default, self._within = default, within
        self._evenly = default is not None
        self._sizing = False
        self._attributes: dict[str, Any] = {}
        self._splits: dict[str, int] = {}
        given, hints = dump.inputs, dump.hints
        if balanced:
            splits = inputs.splits_of(dump.nodes)
            self._splits = {node.name: count for node, count in splits.items()}
            given, hints = inputs.without_hints(given, dump.placeholders, splits), inputs.backed(hints)
        self._maker = inputs.InputMaker(dump.path, given, {**hints, **dump.sizes}, self.size)
        self.printed_size = self._maker.size_of
        self._inputs: dict[fx.Node, inputs.Input] = dict(zip(dump.placeholders, given.inputs, strict=False))
        self.notes.update(dump.notes)
        if self._maker.matched:
            self.notes["symbols that the file does not define, taken from its inputs' integers, in order"] = None

    def run(self, progress: Callable[[int, int], None] | None) -> "Attempt":
        """Give every node its value."""
        for i, node in enumerate(self.dump.nodes, 1):
            self.evaluate(node)
            if progress is not None and i % 500 == 0:
                progress(i, len(self.dump.nodes))
        return self

    def graph_module(self) -> fx.GraphModule:
        """The graph with its attributes and its values; its code is made when it is asked for."""
        self.write_meta()
        return _LazyGraphModule(self._attributes, self.dump.parsed.graph, class_name="Repro")

    def contradictions(self) -> list[inputs.Contradiction]:
        """Each all_to_all whose splits do not add to its rows."""
        return inputs.contradictions(self.dump.nodes, self.of.get)

    def other_sizes(self, misfit: Sequence[int]) -> list[int]:
        """Sizes to try where the default does not fit: what the inputs of an all_to_all may have been split from.

        ``misfit``: sizes seen at the node that the default does not fit: one of them is right, perhaps.
        """
        ranks = [len(node.args[2]) for node in inputs.uneven(self.dump.nodes)]
        among = Counter(ranks).most_common(1)[0][0] if ranks else 1
        rows: Counter[int] = Counter()
        for node in self.dump.placeholders:
            if node in self.of and not self._maker.unknown(self._inputs.get(node)):
                value = self.of[node]
                shape = list(value.shape) if isinstance(value, torch.Tensor) else [value]
                sizes = [n for n in shape if type(n) is int]
                rows.update([*sizes, math.prod(sizes[:2])])
        likely = [*sorted(misfit, reverse=True), *[n for n, _ in rows.most_common()]]
        parts = [n // among for n in likely if n >= among and n % among == 0]
        return [size for size in dict.fromkeys(parts) if size != self._default][:_MOST_TRIES]

    def placeholder(self, node: fx.Node) -> Any:
        """The value of an input."""
        if node in self._inputs:
            if self._maker.unknown(self._inputs[node]):
                self.guessed_nodes.add(node)
            return self._maker.make(self._inputs[node], node.name)
        text = self.dump.parsed.annotations.get(node.name)
        if text is None:  # no tensor: a device mesh, for example
            return None
        if values.depends_on_symbols(text):
            self.guessed_nodes.add(node)
        value = annotated(text, _CPU, self.printed_size)
        if value is None:
            raise DumpError(f"{self.dump.parsed.place(node)}: the annotation {text!r} describes no tensor or size.")
        if isinstance(value, torch.Tensor):
            self.notes["inputs whose storage the file does not say, each taken to have its own"] = None
        return value

    def attribute(self, node: fx.Node) -> Any:
        """The value of a constant or a submodule."""
        name = str(node.target)
        if name not in self._attributes:
            self._attributes[name] = self._make_attribute(node, name)
        return self._attributes[name]

    def _make_attribute(self, node: fx.Node, name: str) -> Any:
        if name in self.dump.modules:
            return self.dump.modules[name]
        if (value := self.dump.attributes.get(name)) is not None:
            return self._constant(name, value)
        if name in self.dump.groups:
            return name
        annotations = self.dump.parsed.annotations
        alike = [user.name for user in node.users if user.target in _ALIKE]
        printed = [annotated(annotations[n], _CPU, self.printed_size) for n in [node.name, *alike] if n in annotations]
        return next((one for one in printed if one is not None), Opaque())

    def _constant(self, name: str, value: ast.expr) -> torch.Tensor:
        try:
            return inputs.make_attribute(self.dump.path, value)
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DumpError):
                raise
            Literals(self.dump.path, {}).fail(value, f"self.{name} is no tensor ({str(error).splitlines()[0]})")

    def size(self, name: str) -> int:
        """The value of a data-dependent size, by its symbol or the node that reads it."""
        if name not in self._sizes:
            default = self.default_size() * self._splits.get(name, 1)
            size = self.asserted.size(name, default, balanced=self._evenly or name in self._splits)
            self._sizes[name] = self.guessed[name] = size
            self.notes[f"data-dependent sizes, taken as {size}"] = None
        return self._sizes[name]

    @cached_property
    def asserted(self) -> inputs.Asserted:
        """The sizes that the graph asserts."""
        return inputs.Asserted(self.dump.nodes, self._number, self._sizes, self._within)

    def _number(self, node: fx.Node) -> int | str:
        """A size among the inputs, or of one of them; where the file does not say it, its symbol, or the node."""
        source = node if node.op == "placeholder" else node.all_input_nodes[0]
        item = self._inputs.get(source)
        if self._maker.unknown(item):
            return (item.symbol if isinstance(item, inputs.SizeInput) else None) or node.name
        value = self.evaluate(source)
        if source is not node:
            value = value.shape[node.args[1]] if isinstance(value, torch.Tensor) else None
        return value if type(value) is int else node.name

    def bytes(self) -> int:
        """Count the bytes of all values, each storage once."""
        storages = [tensor.untyped_storage() for tensor in values.tensors_in(self.of)]
        return sum({storage._cdata: storage.nbytes() for storage in storages}.values())

    def default_size(self) -> int:
        """Return the value of sizes of which nothing is known."""
        if self._sizing:
            raise SizeNotKnownYetError
        if self._default is None:
            self._sizing = True
            splits = ((self._rows(node.args[0]), len(node.args[2])) for node in inputs.uneven(self.dump.nodes))
            even = next((rows // parts for rows, parts in splits if rows is not None), None)
            self._default, self._evenly = UNBACKED_HINT if even is None else even, even is not None
            self._sizing = False
        return self._default

    def _rows(self, node: fx.Node) -> int | None:
        """Rows of a node's value, or None where they are data-dependent."""
        before = {node} | find_reachable([node], lambda one: one.all_input_nodes)
        try:
            for ancestor in self.dump.nodes:
                if ancestor in before:
                    self.evaluate(ancestor)
        except (SizeNotKnownYetError, DumpError):
            return None
        value = self.of[node]
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
    with no_collection():
        source = read_source(path, limits, graph)
        if backward is not None:
            source = one_step(source, read_source(backward, limits))
        dump = ParsedDump(source, given_groups(groups), sizes or {})
        make = partial(Attempt, dump, values.Results(), limits)
        with warnings.catch_warnings(), stand_ins(dump.asked_by_name), values.fake_execution():
            warnings.simplefilter("ignore")  # what fake kernels say of the dump's own graph
            loaded = _load(make, progress)
            gm = loaded.graph_module()
    for node in gm.graph.nodes:
        if module := source.modules.get(dump.parsed.lines.get(node.name, 0)):
            node.meta["nn_module_stack"] = {"": module}
    gm.meta[GROUPS_KEY] = dict(dump.groups)
    gm.meta[SIZES_KEY] = tuple(AssumedSize(name, "", size, False) for name, size in loaded.guessed.items())
    count, take = f"{len(source.graphs):,} graphs are in the file", "--graph N (in Python graph=N) takes another"
    choice = f"{count}, graph {source.chosen} was read; {take}: {listed(source.graphs)}" if source.graphs[1:] else ""
    return Dump(gm, Path(path).name.split(".")[0], dump.groups, tuple(sorted(loaded.notes)), loaded.guessed, choice)


def _load(make: Callable[..., Attempt], progress: Callable[[int, int], None] | None) -> Attempt:
    """The attempt whose sizes contradict each other least; of those that the graph asserts, with most bytes."""
    attempt = _run(make, progress)
    if found := attempt.contradictions():
        balanced = _run(partial(make, balanced=True), progress)
        repaired = len(balanced.contradictions()) < len(found)
        attempt = balanced if repaired else attempt
        taken = attempt.default_size() if repaired else None  # the same for all splits
        attempt.notes[inputs.note_on(found[0], taken, attempt.dump.symbols)] = None
    elif attempt.asserted.chosen:  # asserts left a choice
        others = [_run(partial(make, within=within), None) for within in ("least", "most")]
        attempt = max([attempt, *others], key=Attempt.bytes)
    return attempt


def _run(make: Callable[..., Attempt], progress: Callable[[int, int], None] | None) -> Attempt:
    """Run an attempt, or one with the first other value of data-dependent sizes with which every node fits."""
    attempt = make(strict=True)
    try:
        return attempt.run(progress)
    except values.MisfitError as error:
        others = attempt.other_sizes(error.args)
    for size in others:
        with contextlib.suppress(values.MisfitError):
            return make(default=size, strict=True).run(progress)
    return make().run(progress)
