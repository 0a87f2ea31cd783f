"""What Inductor's kernels cost: from the FX nodes that they came from, and the bytes that they really move.

An extern kernel costs what its FX node costs. A fused kernel does not write what stays inside it, so its bytes are
those of the buffers that it reads and writes, and its operations those of the nodes that it was made for. A collective
costs what its FX node costs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sympy import Mul
from torch import fx

from overlap_sched.cost import Compute, CostModel
from overlap_sched.cost.model import ask_model
from overlap_sched.cost.placement import Nodes
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.costs import Cost, Costs, costs_of
from overlap_sched.fx.lifting import groups_of
from overlap_sched.fx.operators import Role
from overlap_sched.fx.reading import Reading
from overlap_sched.fx.sizes import Sizes
from overlap_sched.inductor.private import MemoryDep, NopKernelSchedulerNode, V, ir, is_wait, members, size_of
from overlap_sched.problem import Group


class KernelCost(NamedTuple):
    """Costs of one scheduler node.

    Attributes:
        op: For people: the FX operators that it came from.
        flops, bytes, time_us: As in :class:`overlap_sched.problem.Node`.
        launch: Of a collective, the position of its FX node in the reading; else ``None``.
    """

    op: str
    flops: int
    bytes: int
    time_us: float
    launch: int | None = None


class KernelCosts:
    """Costs of the scheduler nodes of one graph.

    Attributes:
        groups: The process groups of its collectives, by name.
        group_of: Per FX collective (its position in the reading), the name of its group.
    """

    def __init__(
        self, reading: Reading, model: CostModel, cost: Cost | None, nodes: Nodes, notes: Counter[str]
    ) -> None:
        self._reading, self._model, self._notes = reading, model, notes
        self._cost = None if cost is None else cache(cost)
        self._index = {node: v for v, node in enumerate(reading.nodes)}
        comms = [v for v, t in enumerate(reading.traits) if t.comm is not None and t.comm.role is not Role.WAIT]
        self.group_of: Mapping[int, str]
        self.groups: Mapping[str, Group]
        self.group_of, placements = groups_of(reading, comms, {}, {}, nodes)
        self.groups = {name: placement.group for name, placement in placements.items()}
        self._fx: Costs = costs_of(reading, model, self._cost, self.groups)

    def origins(self, member: Any) -> list[int]:
        """Positions of the FX nodes that a scheduler node came from, in the order of the graph."""
        found = {self._index[node] for node in getattr(member.node, "origins", ()) or () if node in self._index}
        return sorted(found)

    def metas(self, snode: Any) -> list[Mapping[str, Any]]:
        """The metadata of the FX nodes that a scheduler node came from, in the order of the graph."""
        found = {v for member in members(snode) if member.node is not None for v in self.origins(member)}
        return [self._reading.nodes[v].meta for v in sorted(found)]

    def of_collective(self, snode: Any, launch: Any) -> KernelCost:
        """The cost of a scheduler node that launches ``launch``.

        Raises:
            UnsupportedError: It came from no FX collective.
        """
        found = [v for v in self.origins(launch) if self._role(v) is Role.LAUNCH]
        if len(found) != 1:
            raise UnsupportedError(
                f"collective {snode.get_name()!r} comes from {len(found)} collectives of the FX graph, not from one."
            )
        v = found[0]
        comm = self._reading.traits[v].comm
        return KernelCost(comm.op if comm else "", 0, self._fx.bytes[v], self._fx.prices[v].time_us, v)

    def of_compute(self, snode: Any) -> KernelCost:
        """The cost of a scheduler node that computes."""
        parts = [member for member in members(snode) if member.node is not None and not is_wait(member.node)]
        origins = list(dict.fromkeys(v for part in parts for v in self.origins(part)))
        op = "+".join(dict.fromkeys(self._name(v) for v in origins if not self._reading.traits[v].free))
        if parts and all(_no_kernel(part) for part in parts):
            return KernelCost(op, 0, 0, 0.0)
        if len(parts) == 1 and (snode.is_extern() or self._blocking(origins)):
            return self._of_extern(op, parts[0], origins)
        nbytes = self._moved(snode)
        flops = sum(self._fx.flops[v] for v in self._exact(parts))
        given = [us for us in map(self._given, origins) if us is not None]
        us = sum(given) if given else ask_model(self._model.compute_us, Compute(op, flops, nbytes))
        return KernelCost(op, flops, nbytes, us)

    def _of_extern(self, op: str, part: Any, origins: Sequence[int]) -> KernelCost:
        """Price what it calls, or, where torch does not say what that is, its last origin: others made its inputs."""
        called = getattr(part.node, "op_overload", None)
        exact = [v for v in origins if called is not None and self._reading.nodes[v].target is called]
        exact = exact or [v for v in self._exact([part]) if self._fx.prices[v].time_us > 0.0]
        ours = [v for v in origins if self._role(v) in (None, Role.BLOCKING) and self._fx.prices[v].time_us > 0.0]
        chosen = [v for v in exact if self._role(v) in (None, Role.BLOCKING)] or ours[-1:]
        flops, nbytes = sum(self._fx.flops[v] for v in chosen), sum(self._fx.bytes[v] for v in chosen)
        return KernelCost(op, flops, nbytes, sum(self._fx.prices[v].time_us for v in chosen))

    def _exact(self, parts: Sequence[Any]) -> list[int]:
        """The FX node that each part computes, where torch says so."""
        nodes = [getattr(part.node, "origin_node", None) for part in parts]
        return list(dict.fromkeys(self._index[node] for node in nodes if node in self._index))

    def _given(self, v: int) -> float | None:
        node: fx.Node = self._reading.nodes[v]
        return None if self._cost is None or self._role(v) is not None else self._cost(node)

    def _role(self, v: int) -> Role | None:
        comm = self._reading.traits[v].comm
        return None if comm is None else comm.role

    def _blocking(self, origins: Sequence[int]) -> bool:
        return any(self._role(v) is Role.BLOCKING for v in origins)

    def _name(self, v: int) -> str:
        return self._reading.traits[v].op

    def _moved(self, snode: Any) -> int:
        """Bytes of the buffers that a kernel reads and writes; of those that are indexed by data, what is picked."""
        try:
            return _moved_and_picked(snode, self._reading.storages.sizes(V.graph.sizevars.shape_env))
        except Exception:  # before torch 2.13 some of what it asks has other names
            pass
        try:
            return max(0, int(snode.get_read_write_buffers_sizes()))
        except Exception:  # torch's own estimate; a wrong cost must not stop a pass
            self._notes["bytes_failed"] += 1
            return 0


def _moved_and_picked(snode: Any, sizes: Sizes) -> int:
    """Torch counts a buffer that is indexed by data as a whole; this counts what is picked out of it or written to it.

    Sizes that only the data knows are 0 for torch; here they have their hints.
    A kernel that writes into a buffer that exists depends on all of it, but reads none of it by that.
    """
    deps: dict[str, list[Any]] = {}
    for dep in (*snode.read_writes.reads, *snode.read_writes.writes):
        if isinstance(dep, MemoryDep):
            deps.setdefault(dep.name, []).append(dep)
    written_into = {name for buffer in snode.get_outputs() for name in buffer.get_mutations()}
    total = 0
    for name, nbytes in snode.get_read_write_buffer_accesses(include_reads=True, include_writes=True).items():
        known = deps.get(name, [])
        if not known and name in written_into:
            continue
        if known and all(dep.is_indirect() for dep in known):
            picked = sum([sizes.hint(_elements(dep)) for dep in known])
            nbytes = min(nbytes, picked * V.graph.get_dtype(name).itemsize)
        elif any(sizes.unknown(_elements(dep)) for dep in known):
            nbytes = max([sizes.hint(_elements(dep)) for dep in known]) * V.graph.get_dtype(name).itemsize
        total += max(0, nbytes)
    return int(total)


def _elements(dep: Any) -> Any:
    return size_of(Mul(*dep.size))


def _no_kernel(part: Any) -> bool:
    """One output of a kernel that has several, whose cost the kernel has; a whole that its parts have written."""
    return isinstance(part.node, ir.MultiOutput) or isinstance(part, NopKernelSchedulerNode)
