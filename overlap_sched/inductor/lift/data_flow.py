"""What every scheduler node is, takes, writes and holds in memory, in the terms of storages."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from overlap_sched.errors import UnsupportedError
from overlap_sched.inductor.lift.buffers import Buffers
from overlap_sched.inductor.private import (
    GroupedSchedulerNode,
    V,
    WeakDep,
    contains_collective,
    contains_wait,
    ir,
    is_async_collective,
    is_nonfreeable_buffers,
    members,
)
from overlap_sched.problem import Kind


class DataFlow:
    """The data flow of a graph, per position of its scheduler nodes.

    Attributes:
        launches, waits: Whether a node launches a collective (one that blocks, too), or waits for one.
        kinds: Collective, wait or compute.
        takes: Storages that a node reads; of a wait for what an earlier graph has launched, all inputs: that may read
            any of them.
        writes: Storages that it writes and did not make: mutations, what it writes over, a wait's output.
        uses: Storages that must live while it runs; of a wait, those of its collective.
        launch_of: Per wait, the position of its collective, of several the last; not in it where that was launched
            elsewhere.
        ends: Per wait in ``launch_of``, the positions of all collectives that it waits for.
        made: Storages that it allocates.
        freeable: Input storages that die after their last use: saved activations of a backward graph, by the names that
            AOTAutograd gives (``is_nonfreeable_buffers``), unless the graph writes them or others hold them on.
        kept: Storages that live to the end: outputs, and what collectives without a wait still use.
    """

    def __init__(self, snodes: Sequence[Any], buffers: Buffers, notes: Counter[str]) -> None:
        self.launches = [contains_collective(snode) for snode in snodes]
        self.waits = [contains_wait(snode) for snode in snodes]
        self.kinds = [_kind_of(*each) for each in zip(snodes, self.launches, self.waits, strict=True)]
        self.takes: list[tuple[str, ...]] = []
        self.writes: list[tuple[str, ...]] = []
        self.uses: list[tuple[str, ...]] = []
        self.launch_of: dict[int, int] = {}
        self.ends: dict[int, tuple[int, ...]] = {}
        self.freeable: set[str] = set()
        self.made: defaultdict[int, list[str]] = defaultdict(list)
        for s, maker in buffers.maker.items():
            self.made[maker].append(s)
        in_flight: dict[str, int] = {}
        inputs, removed = frozenset(buffers.inputs), V.graph.removed_buffers
        for at, snode in enumerate(snodes):
            self._read(at, snode, buffers, inputs, removed)
            if self.kinds[at] is Kind.COLLECTIVE:
                in_flight.update(dict.fromkeys([*self.writes[at], *self.made[at]], at))
            elif self.kinds[at] is Kind.WAIT:
                self._wait(at, in_flight, buffers.inputs)
        self.freeable.difference_update(s for roots in self.writes for s in roots)
        waited = {launch for launches in self.ends.values() for launch in launches}
        never_waited = [at for at, kind in enumerate(self.kinds) if kind is Kind.COLLECTIVE and at not in waited]
        notes["collective_without_wait"] = len(never_waited)
        # a gradient that is None, or a size: outputs, but no buffers
        no_buffers = (ir.NoneAsConstantBuffer, ir.ShapeAsConstantBuffer)
        tensors = (out for out in V.graph.graph_outputs if not isinstance(out, no_buffers))
        outputs = (s for out in tensors for s in buffers.of(out.get_name()))
        held = (s for at in never_waited for s in (*self.uses[at], *self.made[at]))
        self.kept = _distinct([*outputs, *held])

    def _read(self, at: int, snode: Any, buffers: Buffers, inputs: Collection[str], removed: Collection[str]) -> None:
        takes: list[str] = []
        for dep in snode.read_writes.reads:
            if isinstance(dep, WeakDep) and dep.is_fake:
                continue
            roots = () if dep.name in removed else buffers.of(dep.name)
            takes += roots
            if dep.name in inputs and dep.name not in buffers.held and not is_nonfreeable_buffers(dep):
                self.freeable.update(roots)
        writes = list(buffers.in_place.get(at, ()))
        shared: list[str] = []
        for member in members(snode):
            for out in member.get_outputs():
                for name in out.get_mutations():
                    writes += buffers.of(name)
                shared += (s for s in buffers.roots[out.get_name()] if buffers.maker.get(s) != at)
        writes = [s for s in writes if buffers.maker.get(s) != at]
        self.takes.append(_distinct(takes))
        self.writes.append(_distinct(writes))
        self.uses.append(_distinct([*takes, *shared, *self.writes[-1]]))

    def _wait(self, at: int, in_flight: dict[str, int], inputs: Sequence[str]) -> None:
        if not all(s in in_flight for s in self.writes[at]):
            self.takes[at] = _distinct([*self.takes[at], *inputs])
        launches = sorted({in_flight[s] for s in self.writes[at] if s in in_flight})
        if launches:
            self.launch_of[at], self.ends[at] = launches[-1], tuple(launches)
            self.uses[at] = _distinct([*self.uses[at], *(s for launch in launches for s in self.uses[launch])])


def _kind_of(snode: Any, launches: bool, waits: bool) -> Kind:
    """Return the kind of a scheduler node.

    Raises:
        UnsupportedError: Several nodes were grouped, and communication is among them.
    """
    if isinstance(snode, GroupedSchedulerNode) and (launches or waits):
        raise UnsupportedError(
            f"{snode.get_name()!r} groups communication with other nodes. Another pass has grouped them: "
            "turn that pass off."
        )
    if launches and is_async_collective(snode):
        return Kind.COLLECTIVE
    return Kind.WAIT if waits else Kind.COMPUTE


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
