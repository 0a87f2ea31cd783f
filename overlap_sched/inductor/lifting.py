"""Lift Inductor's scheduler nodes into a problem: what fusion has left, with its exact buffers.

The nodes come after fusion and after torch's peak-memory pass; their order is the original one. Inputs and the output
are added, so that the problem has the same form as one lifted from FX.

What must keep its order are torch's own dependencies, and hazards found from the storages. torch chains all
collectives in the order of the FX graph by dependencies that carry no data; since a wait renames what it waits for,
each launch even comes after the wait of the one before, and nothing can overlap. These alone are left out; whatever
they may have covered besides is found again from the storages: read after write, write after read, write after write,
as they are in the order given.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch._inductor.dependencies import WeakDep
from torch._inductor.virtualized import V

from overlap_sched.cost import CostModel, Roofline
from overlap_sched.cost.cluster import Cluster, contention_of
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import nodes_of_ranks
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx import hazards
from overlap_sched.fx.calls import Communication, joined
from overlap_sched.fx.costs import Cost
from overlap_sched.fx.graphs import marks_of, module_of
from overlap_sched.fx.lifting import LiftedNodes, with_company
from overlap_sched.fx.operators import Ordering
from overlap_sched.fx.reading import Reading, read_graph
from overlap_sched.inductor.kernels import Buffers, DataFlow, KernelCosts, members, read_buffers, runs
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.precedence import launched_on


@dataclass(frozen=True)
class LiftedKernels(LiftedNodes[Any]):
    """A problem in the ``runtime`` memory model, and its scheduler nodes; inputs and the output stand for none.

    Attributes:
        notes: Counts, as in :class:`overlap_sched.fx.lifting.Lifted`; besides: ``buffers``; ``in_place``: kernels that
            write over an input in every order; ``comm_order``: torch's dependencies that keep collectives in the order
            of the FX graph, and each after the wait of the one before: these are what we are here to replace;
            ``bytes_failed``: torch's estimate of a kernel's bytes raised.
        buffers: What stands behind the names of buffers.
    """

    buffers: Buffers


def lift_kernels(
    snodes: Sequence[Any],
    *,
    cost: Cost | None = None,
    model: CostModel | None = None,
    ranks_per_node: int = 8,
    cluster: Cluster | None = None,
    name: str = "inductor",
) -> LiftedKernels:
    """Lift scheduler nodes, in the order in which they would run. They are only read.

    To be called where torch calls the passes of ``reorder_for_compute_comm_overlap_passes``. Arguments are those of
    :func:`overlap_sched.fx.lift`; of a fused kernel, ``cost`` adds up the times of the nodes that it came from.

    Raises:
        UnsupportedError: Something in the graph has an order that we do not know.
        CostError, ProblemError: As for :func:`overlap_sched.fx.lift`.
    """
    reading = read_graph(V.graph.graph)
    notes: Counter[str] = reading.notes
    buffers = read_buffers(snodes, reading, notes)
    model = model or (Roofline() if cluster is None else model_of(cluster))
    costs = KernelCosts(reading, model, cost, nodes_of_ranks(cluster, ranks_per_node), notes)
    kernels = Kernels(snodes, buffers, DataFlow(snodes, buffers, notes), reading, costs)
    after, flow, shift = kernels.dependencies(notes), kernels.flow, len(buffers.inputs)
    numbers = {name: s for s, name in enumerate([*buffers.inputs, *buffers.maker])}
    listed = [Node(name, Kind.INPUT, alloc=(numbers[name],)) for name in buffers.inputs]
    listed += [kernels.node(at, after[at], numbers) for at in range(len(snodes))]
    listed.append(Node("output", Kind.OUTPUT, use=tuple(numbers[s] for s in flow.kept)))
    inside, outside = kernels.waits_inside()
    ends = {at + shift: [u + shift for u in launches] for at, launches in (flow.ends | inside).items()}
    nodes, stands_for = with_company(listed, ends, [at + shift for at in outside], costs.groups, model)
    storages = tuple(Storage(buffers.nbytes[s], s not in buffers.maker and s not in flow.freeable) for s in numbers)
    used = {group for node in nodes for group in launched_on(node)}
    groups = {k: g for k, g in costs.groups.items() if k in used}
    beside = NO_CONTENTION if cluster is None else contention_of(cluster, groups)
    problem = Problem(name, nodes, storages, groups, "runtime", beside)
    snodes_of = [*[None] * shift, *snodes, None]
    told = {k: n for k, n in sorted(notes.items()) if n}
    nodes_of = tuple([snodes_of[v] for v in stands_for])
    return LiftedKernels(problem, nodes_of, told, reading.storages.assumed, reading.undeclared, buffers)


@dataclass(frozen=True)
class Kernels:
    """The scheduler nodes of a graph, by their positions, and what has been read of them."""

    snodes: Sequence[Any]
    buffers: Buffers
    flow: DataFlow
    reading: Reading
    costs: KernelCosts

    @cached_property
    def called(self) -> list[list[int]]:
        """Per scheduler node, the FX nodes that it runs as they are."""
        return [[v for one in members(snode) if runs(one) for v in self.costs.origins(one)] for snode in self.snodes]

    def node(self, at: int, after: Iterable[int], numbers: Mapping[str, int]) -> Node:
        """Return the problem's node; inputs are in front of these. ``numbers``: of the storages."""
        snode, kind, shift = self.snodes[at], self.flow.kinds[at], len(self.buffers.inputs)
        metas = self.costs.metas(snode)
        inside = self.communication(at) if kind is Kind.COMPUTE else None
        return Node(
            name=snode.get_name(),
            kind=kind,
            deps=tuple(sorted(u + shift for u in after)),
            alloc=tuple(numbers[s] for s in self.flow.made[at]),
            use=tuple(numbers[s] for s in self.flow.uses[at]),
            collective=self.flow.ends[at][-1] + shift if at in self.flow.ends else None,
            launches=() if inside is None else inside.kept,
            module=module_of(metas[0]) if metas else "",
            marks=tuple(sorted({mark for meta in metas for mark in marks_of(meta)})),
            **self.costs.of(snode, kind),
        )

    def dependencies(self, notes: Counter[str]) -> dict[int, set[int]]:
        """Per scheduler node, the positions of those that must run before it.

        Counts ``comm_order``, ``hazard`` and ``point_to_point`` in ``notes``.

        Raises:
            UnsupportedError: A dependency names nothing, or comes later.
        """
        flow = self.flow
        after = {at: self._of_torch(at, snode, notes) for at, snode in enumerate(self.snodes)}
        known = sum(map(len, after.values()))
        # what is written although no schema says so: Inductor does not know
        unseen = [flow.takes[at] if self.reading.unseen.intersection(vs) else () for at, vs in enumerate(self.called)]
        writes = [(*seen, *more) for seen, more in zip(flow.writes, unseen, strict=True)]
        launches = list(self._launches())
        for pairs in (
            hazards.storage_hazards(zip(range(len(self.snodes)), flow.takes, writes, strict=True)),
            hazards.impurity_hazards(self._impure()),
            hazards.chain_hazards(launches, notes),
            hazards.blocking_hazards(self._steps({launch.at: (launch.group,) for launch in launches})),
        ):
            hazards.add_hazards(after, pairs)
        notes["hazard"] = sum(map(len, after.values())) - known
        return after

    def _of_torch(self, at: int, snode: Any, notes: Counter[str]) -> set[int]:
        before: set[int] = set()
        # by this name ``decide_global_ordering_of_comms`` marks the dependencies that it gives to a collective
        chain = next(iter(snode.get_buffer_names()), None) if self.flow.launches[at] else None
        for dep in snode.unmet_dependencies:
            u = self.buffers.producer.get(dep.name)
            if u is None:
                if dep.name in V.graph.removed_buffers or dep.name in V.graph.graph_inputs:
                    continue
                raise UnsupportedError(
                    f"{snode.get_name()!r} depends on {dep.name!r}, which nothing in this graph produces."
                )
            if u == at:
                continue
            if isinstance(dep, WeakDep) and dep.is_fake and chain == dep.mutating_buf:
                notes["comm_order"] += 1  # torch's pass for CUDA graphs does not keep to it either
                continue
            if u > at:
                raise UnsupportedError(f"{snode.get_name()!r} runs before {dep.name!r}, on which it depends.")
            before.add(u)
        return before

    def _impure(self) -> Iterator[tuple[int, Ordering]]:
        """Yield what draws random numbers, has effects or communicates.

        Communication is ordered against barriers, and where the FX graph says that it has effects, among those.
        """
        for at, snode in enumerate(self.snodes):
            if self.flow.launches[at] or self.flow.waits[at]:
                found = [self._ordering(member) for member in members(snode) if member.is_extern()]
                effect = any(ordering >= Ordering.EFFECT for ordering in found)
                yield at, Ordering.EFFECT if effect else Ordering.NONE
            elif (ordering := self._ordering_of(snode)) is not Ordering.NONE:
                yield at, ordering

    def _ordering(self, member: Any) -> Ordering:
        """The ordering that the FX graph gives."""
        found = (self.reading.ordering.get(v, Ordering.NONE) for v in self.costs.origins(member))
        return max(found, default=Ordering.NONE)

    def _ordering_of(self, snode: Any) -> Ordering:
        ordering = Ordering.NONE
        for member in members(snode):
            if member.node is None or not (member.is_extern() or member.has_side_effects()):
                continue
            if getattr(member.node, "subgraphs", None) or getattr(member.node, "subgraph", None):
                return Ordering.BARRIER
            effect = Ordering.EFFECT if member.has_side_effects() else Ordering.NONE
            ordering = max(ordering, effect, self._ordering(member))
        if ordering is Ordering.FENCE:
            raise UnsupportedError(
                f"{snode.get_name()!r} changes the mode in which later nodes run (streams, autograd mode)."
            )
        return ordering

    def _launches(self) -> Iterator[hazards.Launch]:
        group_of, traits = self.costs.group_of, self.reading.traits
        for at, launches in enumerate(self.flow.launches):
            comms = [(group_of[v], traits[v].comm) for v in self.called[at] if v in group_of] if launches else []
            if comms:
                both_ways = any(comm is not None and comm.point_to_point for _, comm in comms)
                yield hazards.Launch(at, comms[-1][0], both_ways)

    def _steps(self, launches: Mapping[int, tuple[str, ...]]) -> Iterator[tuple[int, tuple[str, ...], bool]]:
        """As :func:`overlap_sched.fx.hazards.launch_steps`; ``launches``: their groups."""
        for at in range(len(self.snodes)):
            inside = self.communication(at)
            if at in launches:
                yield at, launches[at], False
            elif inside is not None and (groups := inside.groups if launches else inside.kept):
                yield at, groups, True

    def waits_inside(self) -> tuple[dict[int, list[int]], list[int]]:
        """Return the nodes whose sub-graphs wait, with the launches they wait for; and those that wait for others."""
        launched = {v: at for at, found in enumerate(self.called) if self.flow.launches[at] for v in found}
        ends, outside = dict[int, list[int]](), list[int]()
        for at, found in enumerate(self.called):
            inside = [v for v in found if v in self.reading.inner and self.flow.kinds[at] is Kind.COMPUTE]
            if any(v in self.reading.outside for v in inside):
                outside.append(at)
            if waited := [launched[u] for v in inside for u in self.reading.ends.get(v, ()) if u in launched]:
                ends[at] = waited
        return ends, outside

    def communication(self, at: int) -> Communication | None:
        """Return what a scheduler node communicates, or may, that is no collective on a stream of its own."""
        found = [self.reading.communicates[v] for v in self.called[at] if v in self.reading.communicates]
        return joined(found) if found else None
