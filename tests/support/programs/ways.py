"""The ways in: a program captured once, then executed as it is, or scheduled by the package in one of many ways."""

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import default_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import overlap_sched
from overlap_sched import Options
from tests.support.programs.execution import Part
from tests.support.programs.program import Program, read_by

ROOM = "64MiB"
"""Far more than any program has: memory forbids nothing."""
SCHEDULED: dict[str, Options] = {
    "none": Options(headroom=ROOM, rewrites=(), strict=True, effort=2),
    "group": Options(headroom=ROOM, preserve_collective_order="group", strict=True, effort=2),
    "all": Options(headroom=ROOM, preserve_collective_order="all", strict=True, effort=2),
    "rewrites": Options(headroom=ROOM, strict=True, effort=2),
    "all rewrites": Options(
        headroom=ROOM,
        rewrites=("bucket", "coalesce_gathers", "keep", "regather"),
        strict=True,
        effort=2,
    ),
    "memory": Options(base="memory", rewrites=(), strict=True, effort=2),
    "random times": Options(headroom=ROOM, rewrites=(), strict=True, effort=2),
    "random times, all": Options(headroom=ROOM, preserve_collective_order="all", strict=True, effort=2),
}
"""Options of ``schedule_graph`` by name; with random times a node's is drawn by its place."""
LAUNCHES_KEPT = ("all", "random times, all")
"""With these ranks that differ in compute are safe without agreement."""


def schedule_copy(gm: fx.GraphModule, how: str, seed: int) -> tuple[fx.GraphModule, bool]:
    """A copy of a graph, scheduled, and whether that has another order."""
    copied = copy.deepcopy(gm)
    arguments: dict[str, Any] = {}
    if how.startswith("random times"):
        rng = random.Random(f"times {seed}")
        times = {node.name: rng.choice((1.0, 5.0, 20.0, 80.0)) for node in copied.graph.nodes}
        arguments["cost"] = lambda node: times.get(node.name, 1.0) if node.op == "call_function" else 0.0
    report = overlap_sched.schedule_graph(copied, SCHEDULED[how], **arguments)
    copied.recompile()
    return copied, report.changed


@dataclass
class Captured:
    """A program whose graphs are at hand: by ``make_fx``, or by Dynamo and AOTAutograd."""

    parts: list[Part]
    seed: int
    how: str | None = None
    moved: int = 0
    _scheduled: dict[tuple[int, str], fx.GraphModule] = field(default_factory=dict)
    _graphs: list[fx.GraphModule] = field(default_factory=list)

    def graph(self, gm: fx.GraphModule) -> Callable[..., Any]:
        """What runs in place of a graph: it, or its copy that is scheduled as is asked for now."""
        number = len(self._graphs)
        self._graphs.append(gm)

        def call(*args: Any) -> Any:
            return self._now(number)(*args)

        return call

    def _now(self, number: int) -> fx.GraphModule:
        if self.how is None:
            return self._graphs[number]
        key = number, self.how
        if key not in self._scheduled:
            self._scheduled[key], moved = schedule_copy(self._graphs[number], self.how, self.seed)
            self.moved += moved
        return self._scheduled[key]

    def prepare(self, how: str | None) -> None:
        """Schedule what is there; raises what the package raises."""
        self.how = how
        for number in range(len(self._graphs)):
            self._now(number)

    def graphs(self) -> list[fx.GraphModule]:
        """As they are asked for now."""
        return [self._now(number) for number in range(len(self._graphs))]


def by_make_fx(program: Program, functions: Sequence[Part], registers: dict[int, Any]) -> Captured:
    """Captured as ``make_fx`` does: mutations and all; ``registers``: of a run, for their shapes."""
    captured = Captured([], program.seed)
    for number, function in enumerate(functions):
        takes = [registers[v] for v in read_by(program, program.parts[number])]
        gm = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*takes)
        captured.parts.append(captured.graph(gm))
    return captured


def by_dynamo(program: Program, functions: Sequence[Part], cut: Callable[..., Any] = default_partition) -> Captured:
    """Captured by ``torch.compile``; graphs come as the parts are first called.

    ``cut``: a partitioner. torch's default one leaves launches in their order; that which Inductor and the package's
    backend have does not always.
    """
    torch._dynamo.reset()
    captured = Captured([], program.seed)

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return captured.graph(gm)

    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        partition_fn=cut,
        keep_inference_input_mutations=True,
    )
    captured.parts = [torch.compile(function, backend=backend, fullgraph=True) for function in functions]
    return captured


def by_backend(functions: Sequence[Part]) -> list[Part]:
    """``torch.compile(backend=overlap_sched.backend)``."""
    torch._dynamo.reset()
    options = {"headroom": ROOM, "effort": 2}
    return [
        torch.compile(function, backend=overlap_sched.backend, options=options, fullgraph=True)
        for function in functions
    ]


def by_inductor(functions: Sequence[Part]) -> list[Part]:
    """``torch.compile`` as it is; the plug-in is on around the run, or not."""
    torch._dynamo.reset()
    return [torch.compile(function, fullgraph=True) for function in functions]


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings are collected, those of torch and ours."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen
