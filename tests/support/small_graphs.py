"""Three hundred small graphs that look like parts of real ones, by seed.

Times are whole microseconds and sizes whole MiB, so that solvers which count in integers see the same graph.

The three hundred graphs, measured: the scheduler at headroom 0 beside the true optimum; committed figures.

``scripts/small_graphs.py`` prints the table and writes the file; the tests hold both against each other.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.scheduler.driver import schedule
from tests.support.exact_search import shortest_step
from tests.support.graphs import Maker

SEEDS = range(300)
MOST_NODES = 25
MIB = 2**20


@dataclass(frozen=True)
class _Value:
    """A tensor: who made it last, and its storage."""

    node: int
    storage: int
    mib: int


class _Builder:
    """Layers out of gathers, matmuls and reductions; all sizes and times by one random generator."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.graph = Maker()
        self.compute_us = self.draw.choice((20, 40, 80))
        self.comm_us = self.draw.choice((10, 20, 40, 80))  # from well hidden to network bound
        self.groups = ("dp", "tp", "ep")[: self.draw.choice((1, 2, 2, 3))]
        self.late_waits = self.draw.random() < 0.3  # reductions are waited for at the end of the graph
        self.in_flight: list[tuple[int, _Value, _Value]] = []
        self.results: list[_Value] = []

    def add(self, name: str, kind: Kind, **fields: Any) -> int:
        return self.graph.add(Node(f"{name}{len(self.graph.nodes)}", kind, **fields))

    def us(self, mean: int) -> float:
        return float(max(1, round(mean * self.draw.choice((0.25, 0.5, 1, 1, 1.5, 3)))))

    def mib(self) -> int:
        return self.draw.choice((1, 2, 4, 4, 8, 8, 16))

    def input(self, name: str, mib: int, pinned: bool) -> _Value:
        s = self.graph.storage(mib * MIB, pinned)
        return _Value(self.add(name, Kind.INPUT, alloc=(s,)), s, mib)

    def compute(self, name: str, *values: _Value, mib: int | None = None) -> _Value:
        mib = self.mib() if mib is None else mib
        s = self.graph.storage(mib * MIB)
        v = self.add(
            name, Kind.COMPUTE, deps=tuple(sorted({value.node for value in values})), alloc=(s,),
            use=tuple(sorted({value.storage for value in values})), time_us=self.us(self.compute_us),
        )  # fmt: skip
        return _Value(v, s, mib)

    def launch(self, op: str, value: _Value, mib: int, group: str) -> tuple[int, _Value, _Value]:
        s = self.graph.storage(mib * MIB)
        v = self.add(
            op, Kind.COLLECTIVE, deps=(value.node,), alloc=(s,), use=(value.storage,), op=op, group=group,
            time_us=self.us(self.comm_us),
        )  # fmt: skip
        return v, value, _Value(v, s, mib)

    def wait(self, in_flight: tuple[int, _Value, _Value]) -> _Value:
        launch, source, result = in_flight
        use = tuple(sorted((source.storage, result.storage)))
        return _Value(
            self.add("wait", Kind.WAIT, deps=(launch,), use=use, collective=launch), result.storage, result.mib
        )

    def gather(self, value: _Value, group: str = "dp") -> _Value:
        return self.wait(self.launch("all_gather", value, value.mib * self.draw.choice((2, 4)), group))

    def reduce(self, value: _Value, op: str, group: str) -> _Value:
        small = value.mib if op != "reduce_scatter" else max(1, value.mib // 4)
        return self.wait(self.launch(op, value, small, group))

    def scatter(self, gradient: _Value) -> None:
        """The reduce_scatter of a weight gradient; its wait here, or at the end of the graph."""
        in_flight = self.launch("reduce_scatter", gradient, max(1, gradient.mib // 4), "dp")
        if self.late_waits:
            self.in_flight.append(in_flight)
        else:
            self.results.append(self.wait(in_flight))

    def problem(self, name: str) -> Problem:
        """The graph with its output; the original order is the order of making."""
        self.results += [self.wait(in_flight) for in_flight in self.in_flight]
        self.add(
            "output", Kind.OUTPUT, deps=tuple(sorted({value.node for value in self.results})),
            use=tuple(sorted({value.storage for value in self.results})),
        )  # fmt: skip
        sizes = {"dp": Group(64, False), "tp": Group(8, True), "ep": Group(8, True)}
        used = {node.group for node in self.graph.nodes}
        nodes = self.graph.nodes if self.draw.random() < 0.7 else _shuffled(self.graph.nodes, self.draw)
        return Problem(
            name=name,
            nodes=tuple(nodes),
            storages=tuple(self.graph.storages),
            groups={group: sizes[group] for group in sizes if group in used},
        )


def _shuffled(nodes: list[Node], draw: random.Random) -> list[Node]:
    """The same graph listed in another order that can run, drawn step by step with a liking for the newest or not."""
    before = [set(node.deps) for node in nodes]
    order: list[int] = []
    liking = draw.random()
    while len(order) < len(nodes) - 1:  # the output stays last
        ready = [v for v in range(len(nodes) - 1) if v not in order and before[v] <= set(order)]
        order.append(draw.choice(ready) if draw.random() < liking else ready[0])
    order.append(len(nodes) - 1)
    place = {v: at for at, v in enumerate(order)}
    return [
        nodes[v]._replace(
            name=nodes[v].name.rstrip("0123456789") + str(at),
            deps=tuple(sorted(place[u] for u in nodes[v].deps)),
            collective=None if (launch := nodes[v].collective) is None else place[launch],
        )
        for at, v in enumerate(order)
    ]


def _forward(build: _Builder) -> None:
    """Sharded layers: gather, matmul, sometimes an all_reduce of the activations; weights stay until the end or not."""
    x = build.input("x", build.mib(), False)
    for _ in range(build.draw.choice((3, 4))):
        full = build.gather(build.input("w", build.draw.choice((1, 2, 4)), True))
        x = build.compute("mm", x, full)
        if "tp" in build.groups and build.draw.random() < 0.5:
            x = build.reduce(x, "all_reduce", "tp")
        if build.draw.random() < 0.3:
            build.results.append(x)  # saved for the backward graph
    build.results.append(x)


def _backward(build: _Builder) -> None:
    """Layers from the last: the gathered weight, the gradient handed on, the weight's gradient reduced."""
    layers = build.draw.choice((2, 3, 3))
    weights = [build.input("w", build.draw.choice((1, 2, 4)), True) for _ in range(min(layers, 2))]
    saved = [build.input("x", build.mib(), False) for _ in range(layers)]
    g = build.input("g", build.mib(), False)
    for w, x in zip(weights, saved, strict=False):
        full = build.gather(w)
        if build.draw.random() < 0.5:
            dw = build.compute("wgrad", x, g)
            dx = build.compute("dgrad", full, g)
        else:
            dx = build.compute("dgrad", full, g)
            dw = build.compute("wgrad", x, g)
        if "tp" in build.groups and build.draw.random() < 0.5:
            dx = build.reduce(dx, "all_reduce", "tp")
        build.scatter(dw)
        g = dx
    if layers > len(weights):  # the first layer hands nothing on
        build.scatter(build.compute("wgrad", saved[-1], g))
    else:
        build.results.append(g)


def _experts(build: _Builder) -> None:
    """Tokens sent to experts and back, beside a branch that needs no network."""
    group = "ep" if "ep" in build.groups else build.groups[-1]
    x = build.input("x", build.mib(), False)
    w = build.input("w", build.draw.choice((1, 2, 4)), True)
    beside = build.compute("shared", x)
    sent = build.reduce(build.compute("route", x, mib=x.mib), "all_to_all", group)
    full = build.gather(w)
    y = build.compute("expert", sent, full)
    back = build.reduce(y, "all_to_all", group)
    out = build.compute("add", back, beside)
    build.scatter(build.compute("wgrad", sent, y))
    if build.draw.random() < 0.5:
        out = build.compute("mm", out, build.gather(build.input("w", build.draw.choice((1, 2)), True)))
    build.results.append(out)


def _both(build: _Builder) -> None:
    """Forward and backward of two or three layers, the gathered weights used twice or gathered again."""
    x = build.input("x", build.mib(), False)
    weights = [build.input("w", build.draw.choice((1, 2, 4)), True) for _ in range(build.draw.choice((2, 3)))]
    again = build.draw.random() < 0.3
    inputs, fulls = [], []
    for w in weights:
        inputs.append(x)
        fulls.append(build.gather(w))
        x = build.compute("mm", x, fulls[-1])
    g = x
    for k in reversed(range(len(weights))):
        if k:
            full = build.gather(weights[k]) if again else fulls[k]
            dx = build.compute("dgrad", full, g)
        build.scatter(build.compute("wgrad", inputs[k], g))
        g = dx if k else g


def _any(build: _Builder) -> None:
    """Nothing but chance: compute and collectives on what there is, in any order that can run."""
    values = [build.input("x", build.mib(), build.draw.random() < 0.3) for _ in range(build.draw.choice((2, 3)))]
    fly: list[tuple[int, _Value, _Value]] = []
    goal = build.draw.randint(14, MOST_NODES - 1)
    while len(build.graph.nodes) + len(fly) < goal:
        what = build.draw.random()
        if what < 0.35 and len(build.graph.nodes) + len(fly) + 2 <= goal:
            value = build.draw.choice(values)
            mib = max(1, int(value.mib * build.draw.choice((0.25, 1, 4))))
            op = "all_gather" if mib > value.mib else "all_to_all" if mib == value.mib else "reduce_scatter"
            fly.append(build.launch(op, value, mib, build.draw.choice(build.groups)))
        elif what < 0.6 and fly:
            values.append(build.wait(fly.pop(build.draw.randrange(len(fly)))))
        else:
            values.append(build.compute("op", *build.draw.sample(values, min(len(values), build.draw.choice((1, 2))))))
    values += [build.wait(in_flight) for in_flight in fly]
    build.results += [values[-1], build.draw.choice(values)]


FAMILIES = {"forward": _forward, "backward": _backward, "experts": _experts, "both": _both, "any": _any}


def small_graph(seed: int) -> Problem:
    """The graph of a seed: families take turns; one draw too large is drawn again."""
    names = list(FAMILIES)
    family = names[seed % len(names)]
    for attempt in range(1000):
        build = _Builder(seed * 1000 + attempt)
        FAMILIES[family](build)
        problem = build.problem(f"{family}-{seed}")
        if len(problem.nodes) <= MOST_NODES and problem.collectives:
            return problem
    raise AssertionError(f"seed {seed}: no graph of {family} has at most {MOST_NODES} nodes")


def small_graphs() -> Iterator[Problem]:
    """All of them."""
    return map(small_graph, SEEDS)


DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "small_graphs.json"


@dataclass(frozen=True)
class Row:
    """One graph; steps in microseconds.

    Attributes:
        reachable_us: The optimum of what can be reached with the original order to fall back on at every step.
    """

    name: str
    nodes: int
    original_us: float
    scheduled_us: float
    reachable_us: float
    optimal_us: float

    @property
    def gap_percent(self) -> float:
        """Scheduled above optimal."""
        return 100 * (self.scheduled_us / self.optimal_us - 1)


def measure(problem: Problem) -> Row:
    """Schedule it, and solve it exactly, within the original peak."""
    budget, _ = peak_memory(problem, problem.original_order)
    optimal, reachable = shortest_step(problem, budget), shortest_step(problem, budget, completed_as_listed=True)
    assert optimal is not None, "the original order is within its own peak"
    assert reachable is not None, "it is reached from itself"
    original = replay(problem, problem.original_order).step_us
    scheduled = schedule(problem).scheduled.step_us
    return Row(problem.name, len(problem.nodes), original, scheduled, reachable.step_us, optimal.step_us)


@dataclass(frozen=True)
class Summary:
    """Gaps of several graphs to their optimum, in percent; how many have none."""

    graphs: int
    optimal: int
    mean_percent: float
    worst_percent: float
    reachable_percent: float
    original_percent: float


def summary(rows: Sequence[Row]) -> Summary:
    """Means over the graphs."""
    return Summary(
        graphs=len(rows),
        optimal=sum(row.gap_percent < 1e-6 for row in rows),
        mean_percent=fmean(row.gap_percent for row in rows),
        worst_percent=max(row.gap_percent for row in rows),
        reachable_percent=fmean(100 * (row.reachable_us / row.optimal_us - 1) for row in rows),
        original_percent=fmean(100 * (row.original_us / row.optimal_us - 1) for row in rows),
    )


@dataclass(frozen=True)
class Golden:
    """The committed figures: no gap may grow; optima, by name of graph, never change."""

    mean_percent: float
    worst_percent: float
    optimal_us: dict[str, float]


def read_golden(path: Path = GOLDEN) -> Golden:
    """Of the file that ``scripts/small_graphs.py --update`` writes."""
    return Golden(**json.loads(path.read_text()))


def write_golden(rows: Iterable[Row], path: Path = GOLDEN) -> None:
    """One line per graph; gaps rounded up to what is printed."""
    rows = list(rows)
    total = summary(rows)
    optima = ",\n".join(f"  {json.dumps(row.name)}: {row.optimal_us:g}" for row in rows)
    path.write_text(
        f'{{\n "mean_percent": {total.mean_percent + 5e-4:.3f},\n "worst_percent": {total.worst_percent + 5e-3:.2f},\n'
        f' "optimal_us": {{\n{optima}\n }}\n}}\n'
    )
