"""Load a graph that torch wrote to a file in a real job, without running the file.

``TORCH_TRACE`` and tlparse save one ``fx_graph_runnable`` for each compiled graph; ``save_graph_repro`` in
``torch._dynamo.repro.after_aot`` writes the same. A dump of 64 ranks loads on a laptop: tensors are fake, process
groups are only names and sizes.

The file is never imported or evaluated. It is parsed, and its parts are read by modules of one idea each:
``dump_source`` (cut it up), ``dump_literals`` (arguments), ``dump_graph`` (nodes), ``dump_inputs`` (``load_args``),
``dump_attributes`` (constants), ``dump_groups`` (process groups), ``dump_values`` (fake execution), ``dump_hops``
(higher-order operators) and ``dump_guess`` (sizes that only the data knows).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx

from overlap_sched.errors import DumpError, DumpInputError, DumpStatementError
from overlap_sched.fx import dump_guess
from overlap_sched.fx.dump_attributes import make_attribute, read_attributes
from overlap_sched.fx.dump_graph import ParsedGraph, build_graph
from overlap_sched.fx.dump_groups import (
    DumpGroup,
    given_groups,
    named_groups,
    resolve_groups,
    stand_ins,
    written_groups,
)
from overlap_sched.fx.dump_inputs import InputMaker, read_inputs
from overlap_sched.fx.dump_literals import Literals, shorten
from overlap_sched.fx.dump_source import DumpSource, read_source
from overlap_sched.fx.dump_values import Opaque, Values, fake_execution

GROUPS_KEY = "overlap_sched_groups"
"""Key of ``gm.meta`` under which a loaded graph carries its process groups, ``{name: (size, ranks or None)}``."""


@dataclass(frozen=True)
class Dump:
    """A loaded graph.

    Attributes:
        gm: The graph. Every node that has a value holds it in ``meta["val"]``: fake tensors on the devices of the dump,
            views on the storage that they look at; integers for symbolic sizes. ``gm.meta["overlap_sched_groups"]``
            holds ``{group name: (size, ranks or None)}``.
        name: The file's name without its endings.
        groups: The process groups that collectives of the graph name, in the order of first use.
        notes: What was guessed, and how often.
    """

    gm: fx.GraphModule
    name: str
    groups: Mapping[str, DumpGroup]
    notes: Mapping[str, int]


def load_dump(
    path: str | Path,
    *,
    groups: Mapping[str, int | Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Dump:
    """Load a dump, plain or gzipped.

    Args:
        path: A file as torch writes it: ``class Repro``, ``load_args(reader)``.
        groups: Size of a process group, or its ranks, by name. Needed only where the file does not say it.
        sizes: Sizes that only the data knows, by the name of the symbol (``u0``) or of the node that reads it.
            Without it, splits of an all_to_all are taken to be equal, and other sizes are 8192 or what the input has.
        progress: Called with (nodes done, nodes in all) now and then.

    Raises:
        DumpError: One of its subclasses, with file, line, what is not understood, and how to mend it.
    """
    source = read_source(path)
    name = Path(path).name.split(".")[0]
    loader = _Loader(source, given_groups(groups), dict(sizes or {}))
    with warnings.catch_warnings(), stand_ins(loader.groups_asked_by_name()), fake_execution():
        warnings.simplefilter("ignore")  # what fake kernels say of the dump's own graph
        loader.run(progress)
        gm = loader.graph_module()
    gm.meta[GROUPS_KEY] = dict(loader.groups)
    return Dump(gm, name, loader.groups, dict(sorted(loader.notes.items())))


class _SizeNotKnownYetError(Exception):
    """A size was asked for while it is being computed."""


class _Loader:
    """One file being loaded: puts the parts together."""

    def __init__(self, source: DumpSource, given: Mapping[str, DumpGroup], sizes: dict[str, int]) -> None:
        self.source = source
        self.notes: dict[str, int] = {}
        self.parsed = build_graph(source.path, source.forward)
        literal = None if source.groups is None else Literals(source.path, {}).read(source.groups)
        self.groups = resolve_groups(self.parsed, given, written_groups(source.path, literal), self.notes)
        self._sizes = sizes
        self._default: int | None = None
        self._sizing = False
        self._bodies = {name: build_graph(source.path, forward) for name, forward in source.submodules.items()}
        self._attribute_values = read_attributes(source.path, source.attributes)
        self._attributes: dict[str, Any] = {}
        inputs = read_inputs(source.path, source.load_args)
        self._maker = InputMaker(inputs, {**source.symbols, **sizes}, self._default_symbol)
        self._inputs = self._match_inputs(inputs.inputs)
        self.values = self._values_of(self.parsed, self._placeholder, self._attribute)

    def _values_of(
        self, parsed: ParsedGraph, placeholder: Callable[[fx.Node], Any], attribute: Callable[[fx.Node], Any]
    ) -> Values:
        return Values(parsed, placeholder, attribute, self._run_body, self._size, self.groups, self.notes)

    def groups_asked_by_name(self) -> dict[str, DumpGroup]:
        """The groups that fake kernels may look up: all but those of ``_c10d_functional``, whose kernels never do."""
        asked = {
            name
            for node in self.parsed.graph.nodes
            for name, _ in named_groups(node)
            if not (isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "_c10d_functional")
        }
        return {name: group for name, group in self.groups.items() if name in asked}

    def _match_inputs(self, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
        placeholders = [node for node in self.parsed.graph.nodes if node.op == "placeholder"]
        if not self.source.load_args and all(node.name in self.parsed.annotations for node in placeholders):
            return {}
        if len(inputs) != len(placeholders):
            raise DumpInputError(
                f"{self.source.path}: forward takes {len(placeholders)} inputs but load_args describes {len(inputs)}. "
                "Was the file cut short, or edited by hand?"
            )
        return dict(zip(placeholders, inputs, strict=True))

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Give every node its value."""
        nodes = list(self.parsed.graph.nodes)
        for i, node in enumerate(nodes):
            self.values.evaluate(node)
            if progress is not None and i % 500 == 499:
                progress(i + 1, len(nodes))

    def graph_module(self) -> fx.GraphModule:
        """The graph with its attributes."""
        return fx.GraphModule(self._attributes, self.parsed.graph, class_name="Repro")

    def _placeholder(self, node: fx.Node) -> Any:
        if node in self._inputs:
            return self._maker.make(self._inputs[node], node.name)
        text = self.parsed.annotations[node.name]
        value = dump_guess.annotated(text, torch.device("cpu"), self._default_symbol)
        if value is None:
            raise DumpInputError(
                f"{self.parsed.place(node)}: the annotation {text!r} does not describe a tensor or a size."
            )
        return value

    def _attribute(self, node: fx.Node) -> Any:
        name = str(node.target)
        if name not in self._attributes:
            self._attributes[name] = self._make_attribute(node, name)
        return self._attributes[name]

    def _make_attribute(self, node: fx.Node, name: str) -> Any:
        if name in self._bodies:
            return fx.GraphModule({}, self._bodies[name].graph, class_name=name)
        value = self._attribute_values.get(name)
        if value is not None:
            try:
                return make_attribute(self.source.path, value)
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, DumpError):
                    raise
                raise DumpStatementError(
                    f"{self.source.path}, line {value.lineno}: self.{name} is no tensor "
                    f"({str(error).splitlines()[0]}): `{shorten(value)}`. Write the dump again with torch."
                ) from None
        if name in self._attribute_values or self._only_for_higher_order(node):
            return Opaque()
        raise DumpStatementError(
            f"{self.parsed.place(node)}: __init__ does not set self.{name}. torch does not write every attribute: add "
            f"`self.register_buffer('{name}', torch.randn([SHAPE], dtype=...))` there."
        )

    @staticmethod
    def _only_for_higher_order(node: fx.Node) -> bool:
        return all(isinstance(user.target, torch._ops.HigherOrderOperator) for user in node.users)

    def _run_body(self, module: Any, operands: Sequence[Any]) -> Any:
        """Run the printed body of a submodule; None where there is none."""
        body = next(
            (b for b in self._bodies.values() if isinstance(module, fx.GraphModule) and b.graph is module.graph), None
        )
        name = next((n for n, a in self._attributes.items() if a is module), None)
        parsed = body or (self._bodies.get(name) if name is not None else None)
        return None if parsed is None else self._run_graph(parsed, operands)

    def _run_graph(self, parsed: ParsedGraph, operands: Sequence[Any]) -> Any:
        given = iter(operands)
        values = self._values_of(parsed, lambda _: next(given, None), lambda _: Opaque())
        result = None
        for node in parsed.graph.nodes:
            result = values.evaluate(node)
        return tuple(result) if isinstance(result, list) else result

    def _size(self, node: fx.Node) -> int:
        """The size to take for what only the data knows, at `node`."""
        return self._sizes[node.name] if node.name in self._sizes else self._default_size()

    def _default_symbol(self, symbol: str) -> int:
        if symbol in self._sizes:
            return self._sizes[symbol]
        size = self._default_size()
        self._sizes[symbol] = size
        self.values.note(f"sizes that only the data knows, taken as {size}")
        return size

    def _default_size(self) -> int:
        if self._sizing:
            raise _SizeNotKnownYetError
        if self._default is None:
            self._sizing = True
            split = dump_guess.balanced_split(list(self.parsed.graph.nodes), self._rows)
            self._default = dump_guess.FALLBACK_SIZE if split is None else split
            self._sizing = False
        return self._default

    def _rows(self, node: fx.Node) -> int | None:
        """Rows of a node's value, or None where they depend on the data."""
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
        except (_SizeNotKnownYetError, DumpError):
            return None
        value = self.values.of[node]
        return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else None
