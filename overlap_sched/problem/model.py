"""What is scheduled: pure data, integer ids, no torch.

The words, on one small backward graph (it is ``EXAMPLE`` below; docs and tests use the same one)::

      id  node   kind        us   allocates     uses           deps
       0  w      input            w (pinned)                           a sharded weight
       1  x      input            x                                    an activation, given up by the caller
       2  gather collective  40   full          w              0       all_gather: w -> full
       3  full   wait                           w full         2
       4  mm     compute     50   g             x              1       needs no weight: can hide the gather
       5  dgrad  compute     30   dx            full g         3 4     needs the gathered weight
       6  wgrad  compute     30   dw            x g            1 4
       7  scatter collective 40   ds            dw             6       reduce_scatter: dw -> ds
       8  grad   wait                           dw ds          7
       9  output output                         dx ds          5 8

    original order    compute |........40|   mm 50    | dgrad 30 | wgrad 30 |........40|    190 us, 80 exposed
    peak 21 MiB       fsdp    |gather 40 |                                  |scatter 40|

    reordered         compute |   mm 50    | dgrad 30 | wgrad 30 |........40|               150 us, 40 exposed
    peak 21 MiB       fsdp    |gather 40 |                       |scatter 40|

    5 MiB headroom    compute |   mm 50    | wgrad 30 | dgrad 30 |..10|                     120 us, 10 exposed
    peak 26 MiB       fsdp    |gather 40 |            |  scatter 40   |

Ids: a node's id is its index in ``Problem.nodes``, a storage's its index in ``Problem.storages``; the
original order is 0, 1, 2, ... . Units: microseconds and bytes.

Aliases share one storage: a view allocates nothing and uses what it looks at; a wait returns its
collective's output. Which memory model a problem is in is decided where it is made (:data:`MemoryModel`):
it shows in what waits allocate and use, never in the code that counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from overlap_sched.problem.check import check_problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.node import PART, Group, Kind, Node, NodeId, Storage

Order = tuple[NodeId, ...]
"""A permutation of a problem's node ids."""

MemoryModel = Literal["runtime", "tracker"]
"""``runtime``: what NCCL and the allocator do (a collective's inputs stay live until its wait; a wait allocates
nothing). ``tracker``: torch's own ``MemoryTracker`` (inputs freed at launch; a wait allocates again)."""


@dataclass(frozen=True)
class Problem:
    """Nodes in their original order, their storages and process groups; checked when made.

    Raises:
        ProblemError: One of its subclasses, for the first rule that is broken.
    """

    name: str
    nodes: tuple[Node, ...]
    storages: tuple[Storage, ...]
    groups: Mapping[str, Group] = field(default_factory=dict)
    memory_model: MemoryModel = "runtime"
    contention: Contention = NO_CONTENTION
    """What compute and communication cost each other at the same time; by default nothing."""

    def __post_init__(self) -> None:
        check_problem(self)

    @property
    def original_order(self) -> Order:
        """The identity: nodes are listed in their original order."""
        return tuple(range(len(self.nodes)))

    @cached_property
    def maker(self) -> tuple[NodeId, ...]:
        """Per storage, the id of the node that allocates it (-1: nobody does, and nobody uses it)."""
        made_by = [-1] * len(self.storages)
        for v, node in enumerate(self.nodes):
            for s in node.alloc:
                made_by[s] = v
        return tuple(made_by)

    @cached_property
    def predecessors(self) -> tuple[tuple[NodeId, ...], ...]:
        """Per node, everything that must run before it, ascending and without repeats.

        Its ``deps``; whoever allocates what it uses; of a wait, its collective; of an output, every node
        listed before it (an FX graph ends with its output).
        """
        maker = self.maker
        result: list[tuple[int, ...]] = []
        last_output = 0
        for v, node in enumerate(self.nodes):
            before = set(node.deps)
            before.update([maker[s] for s in node.use])
            if node.collective is not None:
                before.add(node.collective)
            if node.kind is Kind.OUTPUT:
                before.update(range(last_output, v))
                last_output = v
            before.discard(v)
            result.append(tuple(sorted(before)))
        return tuple(result)

    @cached_property
    def successors(self) -> tuple[tuple[NodeId, ...], ...]:
        """Per node, the nodes that have it among their :attr:`predecessors`, ascending."""
        after: list[list[int]] = [[] for _ in self.nodes]
        for v, before in enumerate(self.predecessors):
            for u in before:
                after[u].append(v)
        return tuple(map(tuple, after))

    @cached_property
    def waits(self) -> Mapping[NodeId, tuple[NodeId, ...]]:
        """Per collective that has any, its waits in the original order."""
        waits: dict[int, tuple[int, ...]] = {}
        for v, node in enumerate(self.nodes):
            if node.collective is not None:
                waits[node.collective] = (*waits.get(node.collective, ()), v)
        return waits

    @cached_property
    def ends(self) -> Mapping[NodeId, tuple[NodeId, ...]]:
        """Per collective that has any, the nodes where the program waits for it: its waits, and what has parts."""
        nodes, after = self.nodes, self.successors
        return {
            v: tuple([*after[w], w][0] if nodes[w].op == PART else w for w in waits) for v, waits in self.waits.items()
        }

    @cached_property
    def collectives(self) -> tuple[NodeId, ...]:
        """Ids of all collectives, in the original order."""
        return tuple(v for v, node in enumerate(self.nodes) if node.kind is Kind.COLLECTIVE)

    @cached_property
    def compute_us(self) -> tuple[float, ...]:
        """Per node, its time on the compute stream in microseconds: 0 for collectives and waits.

        For the scheduler; the judges make their own.
        """
        return tuple(0.0 if node.kind in (Kind.COLLECTIVE, Kind.WAIT) else node.time_us for node in self.nodes)

    def renumbered(self, order: Order, pairs: Iterable[tuple[NodeId, NodeId]] = ()) -> "Problem":
        """The same with another original order, a valid one; storages keep their ids.

        Args:
            order: It keeps the pairs.
            pairs: Of nodes that now depend on each other: the second on the first.
        """
        at = dict(zip(order, range(len(order)), strict=True))
        more: dict[NodeId, list[NodeId]] = {}
        for u, v in pairs:
            more.setdefault(v, []).append(u)
        return replace(
            self,
            nodes=tuple(
                self.nodes[v]._replace(
                    deps=tuple(dict.fromkeys(at[u] for u in (*self.nodes[v].deps, *more.get(v, ())))),
                    collective=None if (launch := self.nodes[v].collective) is None else at[launch],
                )
                for v in order
            ),
        )

    def names(self, order: Order) -> list[str]:
        """The order as node names: what ``--out`` writes and the judge reads."""
        return [self.nodes[v].name for v in order]


def _example() -> Problem:
    mib = 2**20
    w, x, full, g, dx, dw, ds = range(7)
    node, kind = Node, Kind
    return Problem(
        name="example",
        nodes=(
            node("w", kind.INPUT, alloc=(w,)),
            node("x", kind.INPUT, alloc=(x,)),
            node("gather", kind.COLLECTIVE, (0,), (full,), (w,), 40.0, "all_gather_into_tensor", "fsdp", bytes=8 * mib),
            node("full", kind.WAIT, (2,), (), (w, full), collective=2),
            node("mm", kind.COMPUTE, (1,), (g,), (x,), 50.0, "aten.mm"),
            node("dgrad", kind.COMPUTE, (3, 4), (dx,), (full, g), 30.0, "aten.mm"),
            node("wgrad", kind.COMPUTE, (1, 4), (dw,), (x, g), 30.0, "aten.mm"),
            node("scatter", kind.COLLECTIVE, (6,), (ds,), (dw,), 40.0, "reduce_scatter_tensor", "fsdp", bytes=8 * mib),
            node("grad", kind.WAIT, (7,), (), (dw, ds), collective=7),
            node("output", kind.OUTPUT, (5, 8), (), (dx, ds)),
        ),
        storages=(
            Storage(mib, pinned=True),  # w
            Storage(4 * mib),  # x
            Storage(8 * mib),  # full
            Storage(4 * mib),  # g
            Storage(4 * mib),  # dx
            Storage(8 * mib),  # dw
            Storage(mib),  # ds
        ),
        groups={"fsdp": Group(8, intra_node=True)},
    )


EXAMPLE = _example()
