"""Hypothesis strategies for random collective graphs; they shrink to small, readable ones.

A graph is grown from a list of steps. Every choice is an index taken modulo what there is to choose from, so
that any list of integers gives a valid graph and a shorter or smaller one a simpler graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from overlap_sched.problem import Group, Kind, MemoryModel, Node, Problem, Storage

STEPS = ("compute", "view", "gather", "reduce", "coalesced", "wait", "mutate", "outside", "source", "dead")
Value = tuple[int, int]
"""A node, and the storage of what it gives."""


class Maker:
    """Adds nodes and storages one by one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []

    def storage(self, nbytes: int, pinned: bool = False) -> int:
        self.storages.append(Storage(nbytes, pinned))
        return len(self.storages) - 1

    def add(self, node: Node) -> int:
        self.nodes.append(node._replace(deps=tuple(sorted(set(node.deps)))))
        return len(self.nodes) - 1

    def given(self, name: str, nbytes: int, pinned: bool = False) -> Value:
        s = self.storage(nbytes, pinned)
        return self.add(Node(name, Kind.INPUT, (), (s,))), s

    def compute(self, name: str, us: float, nbytes: int, *used: Value, **more: Any) -> Value:
        s, use = self.storage(nbytes), tuple(dict.fromkeys(taken for _, taken in used))
        return self.add(Node(name, Kind.COMPUTE, tuple(v for v, _ in used), (s,), use, us, **more)), s

    def launched(
        self, name: str, source: Value, nbytes: int, us: float, op: str, group: str, wait: str, larger: int = 0
    ) -> Value:
        """Launch and wait."""
        (v, taken), s = source, self.storage(nbytes)
        launch = self.add(Node(name, Kind.COLLECTIVE, (v,), (s,), (taken,), us, op, group, bytes=larger))
        return self.add(Node(wait, Kind.WAIT, (launch,), (), (taken, s), collective=launch)), s

    def problem(self, name: str, ends: Sequence[Value], groups: Mapping[str, Group]) -> Problem:
        """All of it, with an output of these."""
        self.add(Node("output", Kind.OUTPUT, tuple(v for v, _ in ends), (), tuple(s for _, s in ends)))
        return Problem(name, tuple(self.nodes), tuple(self.storages), groups)


SIZES = (0, 1, 2, 4, 8, 2**40)
TIMES_US = (0.0, 1.0, 2.0, 5.0, 10.0, 1e9)


@dataclass
class Grower:
    """Adds nodes one by one and remembers what later ones may refer to."""

    model: MemoryModel
    nodes: list[Node] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    values: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # (node, storages it stands for)
    in_flight: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)  # (collective, output, inputs)
    readers: dict[int, list[int]] = field(default_factory=dict)  # storage -> nodes that touched it

    def storage(self, size: int, pinned: bool = False) -> int:
        self.storages.append(Storage(SIZES[size % len(SIZES)], pinned))
        return len(self.storages) - 1

    def add(self, kind: Kind, deps: list[int], alloc: list[int], use: list[int], **more: object) -> int:
        v = len(self.nodes)
        self.nodes.append(
            Node(f"{kind.value}{v}", kind, tuple(sorted({*deps})), tuple(alloc), tuple(sorted({*use})), **more)  # type: ignore[arg-type]
        )
        for s in (*alloc, *use):
            self.readers.setdefault(s, []).append(v)
        return v

    def input(self, size: int, pinned: bool) -> None:
        s = self.storage(size, pinned)
        self.values.append((self.add(Kind.INPUT, [], [s], []), (s,)))

    def step(self, what: int, a: int, b: int, size: int, time: int, group: int) -> None:
        us = TIMES_US[time % len(TIMES_US)]
        name = f"g{group}"
        (u, su), (w, sw) = self.values[a % len(self.values)], self.values[b % len(self.values)]
        kind = STEPS[what % len(STEPS)]
        if kind == "wait" and self.in_flight:
            self.wait(a)
        elif kind in ("gather", "reduce", "coalesced"):
            outs = [self.storage(size) for _ in range(2 if kind == "coalesced" else 1)]
            op = {"gather": "all_gather_into_tensor", "reduce": "reduce_scatter_tensor"}.get(kind, "all_to_all")
            v = self.add(Kind.COLLECTIVE, [u], outs, list(su), time_us=us, op=op, group=name)
            self.in_flight += [(v, s, su) for s in outs]
        elif kind == "view":
            self.values.append((self.add(Kind.COMPUTE, [u], [], list(su)), su))
        elif kind == "mutate":  # writes into su: after everything that has touched it
            deps = [r for s in su for r in self.readers[s]]
            self.values.append((self.add(Kind.COMPUTE, [u, w, *deps], [], [*su, *sw], time_us=us), su))
        elif kind == "outside":
            self.values.append((self.add(Kind.WAIT, [u], [], list(su)), su))
        elif kind == "source":
            s = self.storage(size)
            self.values.append((self.add(Kind.COMPUTE, [], [s], [], time_us=us), (s,)))
        elif kind == "dead":
            self.add(Kind.COMPUTE, [u], [self.storage(size)], list(su), time_us=us)
        else:
            s = self.storage(size)
            self.values.append((self.add(Kind.COMPUTE, [u, w], [s], [*su, *sw], time_us=us), (s,)))

    def wait(self, which: int) -> None:
        launch, out, inputs = self.in_flight.pop(which % len(self.in_flight))
        if self.model == "runtime":
            v = self.add(Kind.WAIT, [launch], [], [out, *inputs], collective=launch)
            self.values.append((v, (out,)))
        else:
            fresh = self.storage(0)
            self.storages[fresh] = self.storages[out]
            v = self.add(Kind.WAIT, [launch], [fresh], [out], collective=launch)
            self.values.append((v, (fresh,)))

    def output(self, picks: list[int]) -> None:
        chosen = [self.values[p % len(self.values)] for p in picks]
        self.add(Kind.OUTPUT, [v for v, _ in chosen], [], [s for _, storages in chosen for s in storages])


_small = st.integers(0, 15)


@st.composite
def problems(draw: st.DrawFn, max_steps: int = 14, models: tuple[MemoryModel, ...] = ("runtime", "tracker")) -> Problem:
    """Several groups, aliases, pinned and donated inputs, coalesced waits, hazards, odd sizes and times."""
    groups = draw(st.integers(1, 3))
    grower = Grower(draw(st.sampled_from(models)))
    for size, pinned in draw(st.lists(st.tuples(_small, st.booleans()), min_size=1, max_size=3)):
        grower.input(size, pinned)
    for step in draw(
        st.lists(st.tuples(_small, _small, _small, _small, _small, st.integers(0, groups - 1)), max_size=max_steps)
    ):
        grower.step(*step)
    while grower.in_flight and draw(st.booleans()):  # some collectives end without a wait
        grower.wait(0)
    if draw(st.booleans()):
        grower.output(draw(st.lists(_small, min_size=1, max_size=3)))
    return Problem(
        name="random",
        nodes=tuple(grower.nodes),
        storages=tuple(grower.storages),
        groups={f"g{k}": Group(8, True) for k in range(groups)},
        memory_model=grower.model,
    )
