"""One program through its ways in: each is judged against the same way without the package."""

import copy
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from tests.support.programs.execution import Part, Run, World, functions_of, run
from tests.support.programs.program import Program, read_by, reads_by_older_names

# The ways in: a program captured once, then executed as it is, or scheduled by the package in one of many ways.


ROOM = "64MiB"
"""Far more than any program has: memory forbids nothing."""
_FREE = Options(headroom=ROOM, rewrites=(), strict=True, effort=2)
_KEPT = replace(_FREE, preserve_collective_order="all")
SCHEDULED: dict[str, Options] = {
    "none": _FREE,
    "group": replace(_FREE, preserve_collective_order="group"),
    "all": _KEPT,
    "rewrites": replace(_FREE, rewrites=Options().rewrites),
    "all rewrites": replace(_FREE, rewrites=("bucket", "coalesce_gathers", "keep", "regather")),
    "memory": replace(_FREE, base="memory", headroom=0),
    "random times": _FREE,
    "random times, all": _KEPT,
}
"""Options of ``schedule_graph`` by name; with random times a node's is drawn by its place."""
LAUNCHES_KEPT = ("all", "random times, all")
"""With these ranks that differ in compute are safe without agreement."""


@dataclass
class Captured:
    """A program whose graphs are at hand: by ``make_fx``, or by Dynamo and AOTAutograd."""

    seed: int
    parts: list[Part] = field(default_factory=list)
    graphs: list[fx.GraphModule] = field(default_factory=list)
    running: list[fx.GraphModule] = field(default_factory=list)

    def graph(self, gm: fx.GraphModule, example_inputs: object = None) -> Callable[..., Any]:
        """What runs in place of a graph: it, or its copy that was scheduled last."""
        number = len(self.graphs)
        self.graphs.append(gm)
        self.running.append(gm)
        return lambda *args: self.running[number](*args)

    def schedule(self, how: str) -> int:
        """Schedule copies of all graphs, which run from now on; how many have another order."""
        self.running = copy.deepcopy(self.graphs)
        moved = 0
        for gm in self.running:
            arguments: dict[str, Any] = {}
            if how.startswith("random times"):
                rng = random.Random(f"times {self.seed}")
                times = {node.name: rng.choice((1.0, 5.0, 20.0, 80.0)) for node in gm.graph.nodes}
                arguments["cost"] = lambda node, t=times: t.get(node.name, 1.0) if node.op == "call_function" else 0.0
            moved += overlap_sched.schedule_graph(gm, SCHEDULED[how], **arguments).changed
            gm.recompile()
        return moved


def by_make_fx(program: Program, functions: Sequence[Part], registers: dict[int, Any]) -> Captured:
    """Captured as ``make_fx`` does: mutations and all; ``registers``: of a run, for their shapes."""
    captured = Captured(program.seed)
    for number, function in enumerate(functions):
        takes = [registers[v] for v in read_by(program, program.parts[number])]
        gm = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*takes)
        captured.parts.append(captured.graph(gm))
    return captured


def by_dynamo(program: Program, functions: Sequence[Part], cut: Callable[..., Any]) -> Captured:
    """Captured by ``torch.compile``; graphs come as the parts are first called.

    ``cut``: a partitioner. torch's default one leaves launches in their order; that which Inductor and the package's
    backend have does not always.
    """
    captured = Captured(program.seed)
    both = {"fw_compiler": captured.graph, "bw_compiler": captured.graph}
    backend = aot_autograd(**both, partition_fn=cut, keep_inference_input_mutations=True)
    captured.parts = compiled(functions, backend=backend)
    return captured


def compiled(functions: Sequence[Part], **how: Any) -> list[Part]:
    """``torch.compile`` as it is, where the plug-in may be on around the run; or with a backend."""
    torch._dynamo.reset()
    return [torch.compile(function, fullgraph=True, **how) for function in functions]


@contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings are collected, those of torch and ours."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


Status = Literal["ok", "fault", "torch"]
"""``"torch"``: the same way without the package fails, too, or differs from eager execution: nothing can be learnt."""
PLUGINS = ("backend", "inductor", "post_grad")
_BUG = re.compile(r"\b(AssertionError|AttributeError|IndexError|KeyError|RecursionError|TypeError|ValueError)\b")
"""In a warning: the package has failed at what it should understand."""


@dataclass
class Outcome:
    """What came of one program by one way.

    Attributes:
        way: ``"make_fx: all"``, ``"dynamo: none"``, or one of :data:`PLUGINS`.
        status: See :data:`Status`.
        detail: What is wrong, on each rank.
        moved: Graphs with another order than without the package.
    """

    way: str
    status: Status = "ok"
    detail: tuple[str, ...] = ()
    moved: int = 0


@dataclass
class Trial:
    """A program on its way through the ways; both ranks do the same."""

    program: Program
    world: World
    rank: int
    reference: Run = field(init=False)

    def __post_init__(self) -> None:
        self.functions = functions_of(self.program, self.world, self.rank == 1 and bool(self.program.odd))
        self.reference = self._run(self.functions)
        self.works = self.world.all_do(self.reference.sound)
        self.captures: dict[str, tuple[Captured, Run] | str] = {}

    def _run(self, parts: list[Any], hold_back: bool = True) -> Run:
        return run(self.program, parts, self.world, self.rank, hold_back)

    def outcome(self, way: str) -> Outcome:
        """Of one way."""
        if not self.works:
            return Outcome(way, "torch", self._said(repr(self.reference.error), *self.reference.faults))
        if way in PLUGINS:
            return self._plugin(way)
        capture, how = way.split(": ")
        return self._scheduled(capture, how)

    def _judged(self, way: str, wrong: str, moved: int) -> Outcome:
        """A fault where something is wrong on a rank."""
        if self.world.all_do(not wrong):
            return Outcome(way, "ok", (), moved)
        return Outcome(way, "fault", self._said(wrong), moved)

    def _captured(self, capture: str) -> tuple[Captured, Run] | str:
        """A capture with its run without the package; or why there is none."""
        captured, why = None, ""
        try:
            with quiet():
                if capture == "make_fx":
                    captured = by_make_fx(self.program, self.functions, self.reference.registers)
                else:
                    cut = min_cut_rematerialization_partition if capture == "backend" else default_partition
                    captured = by_dynamo(self.program, self.functions, cut)
        except Exception as error:
            why = f"capture: {error!r}"
        if not self.world.all_do(captured is not None) or captured is None:
            return why or "capture fails on the other rank"
        with quiet():
            plain = self._run(captured.parts)
        differs = repr(plain.error)
        if plain.sound:  # gradients are added up in another order
            differs = plain.differs_from(self.reference, close=self.program.grad)
        if not self.world.all_do(differs is None and not plain.faults):
            return f"as captured: {differs} {plain.faults}"
        return captured, plain

    def _scheduled(self, capture: str, how: str) -> Outcome:
        way = f"{capture}: {how}"
        if capture not in self.captures:
            self.captures[capture] = self._captured(capture)
        held = self.captures[capture]
        if isinstance(held, str):
            return Outcome(way, "torch", self._said(held))
        captured, plain = held
        wrong, moved = "", 0
        try:
            with quiet():
                moved = captured.schedule(how)
        except Exception as error:
            wrong = f"raises {error!r} from {error.__cause__!r}"
        outcome = self._judged(way, wrong, moved)
        for hold_back in (True, False) if plain.ended and self._asynchronous_too(how) else (True,):
            if outcome.status == "ok":
                with quiet():
                    found = self._run(captured.parts, hold_back)
                outcome = self._judged(way, self._against(plain, found) or moved_launches(how, plain, found), moved)
        return outcome

    def _asynchronous_too(self, how: str) -> bool:
        """Several functional gathers in flight over gloo may damage memory on some versions of torch."""
        gathers = any("gather" in step.kind for step in self.program.steps)
        return not gathers and (self.program.seed + len(how)) % 3 == 0

    @staticmethod
    def _against(plain: Run, found: Run) -> str:
        if found.unlike:
            return f"ranks launch differently: {found.error}; launched {found.launched}, without us {plain.launched}"
        if found.error is not None:
            return f"running raises {found.error!r}"
        if found.faults:
            return "; ".join(found.faults)
        differs = found.differs_from(plain)
        return "" if differs is None else f"results differ in {differs}"

    def _plugin(self, way: str) -> Outcome:
        options = {"headroom": ROOM, "effort": 2}
        with quiet():
            if way == "backend":
                captured = self._captured("backend")
                usable = not isinstance(captured, str)
                why, plain = ("", captured[1]) if not isinstance(captured, str) else (captured, self.reference)
            else:
                plain = self._run(compiled(self.functions))
                usable = plain.sound and plain.effects == self.reference.effects
                why = f"as compiled: {plain.error!r} {plain.faults} effects {plain.effects}"
        if not self.world.all_do(usable):
            return Outcome(way, "torch", self._said(why))
        overlap_sched.clear_reports()
        with quiet() as seen:
            if way == "backend":
                found = self._run(compiled(self.functions, backend=overlap_sched.backend, options=options))
            else:
                with overlap_sched.enabled(Options(**options), stage=way, timeout_s=20):  # type: ignore[arg-type]
                    found = self._run(compiled(self.functions))
        moved = sum(report.report.changed for report in overlap_sched.reports())
        texts = [str(w.message) for w in seen if issubclass(w.category, OverlapSchedWarning)]
        wrong = self._against(plain, found) or "; ".join(text for text in texts if _BUG.search(text))
        return self._judged(way, wrong, moved)

    def _said(self, *texts: str) -> tuple[str, ...]:
        """What the ranks say, on both."""
        all_texts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_texts, "; ".join(filter(None, texts)), group=self.world.control)
        return tuple(str(text)[:1500] for text in all_texts)


def moved_launches(how: str, plain: Run, found: Run) -> str:
    """Launches that have moved although they had to stay."""
    groups = {None} if how in LAUNCHES_KEPT else {group for group, *_ in plain.launched} if how == "group" else set()
    for group in groups:
        before, after = ([one for one in ran.launched if group in (None, one[0])] for ran in (plain, found))
        if before != after:
            return f"launches move: {before} -> {after}"
    return ""


def ways_of(program: Program, inductor_share: float) -> list[str]:
    """The ways that a program goes, drawn from its seed."""
    rng = random.Random(f"ways {program.seed}")
    possible = {"make_fx", "dynamo"}.intersection(*(set(step.is_of.ways) for step in program.steps))
    possible -= {"make_fx"} if program.grad else set()
    capture = "make_fx" if "make_fx" in possible and (rng.random() < 0.9 or "dynamo" not in possible) else "dynamo"
    fitting = [how for how in SCHEDULED if not program.odd or how in LAUNCHES_KEPT]
    found = [f"{capture}: {how}" for how in rng.sample(fitting, 2)]
    if "dynamo" in possible:
        if rng.random() < (0.3 if capture == "dynamo" else 0.05):
            found.append("backend")
        if rng.random() < inductor_share and not reads_by_older_names(program):
            found.append(("inductor", "post_grad")[program.seed % 2])
    return found
