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

import graphlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple, get_args

from overlap_sched.errors import ProblemError
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.sizes import MAX_FLOAT, show_number

NodeId = int
"""Index of a node in ``Problem.nodes``."""
StorageId = int
"""Index of a storage in ``Problem.storages``."""
Position = int
"""Index in an order."""

MAX_TOTAL_BYTES = 2**60
"""All storages together: sums stay exact in 64 bits."""
MAX_RANKS = 2**31 - 1
"""Of one process group: ranks are 32-bit integers everywhere."""


class Kind(StrEnum):
    """What a node is."""

    INPUT = "input"
    COMPUTE = "compute"
    COLLECTIVE = "collective"
    WAIT = "wait"
    OUTPUT = "output"


LAUNCH = "launch"
"""Operator of *launch nodes*: compute in front of a collective that stands for what launching it takes of the compute
stream. Its name is the collective's with ``.launch`` behind it."""
FINISH = "finish"
"""Operator of *finish nodes*: the same in front of a wait, for what it takes where its collective has long been done.
Its name is the wait's with ``.finish`` behind it."""
OF_HOST = (LAUNCH, FINISH)
"""Both: they hold nothing, and go and come with what they stand for."""

PART = "part"
"""Operator of a wait for one of the collectives that a node waits for. It stands in front of that node, holds nothing,
and the program waits only where the node is."""

ANY_GROUP = "*"
"""In ``Node.launches``: on a process group that is not known, so perhaps on each."""


class Storage(NamedTuple):
    """One buffer. Pinned ones (parameters, what the caller keeps) are never freed."""

    bytes: int
    pinned: bool = False


class Group(NamedTuple):
    """A process group: how many ranks, whether they sit in one node, and if not, on how many nodes (0: not known).

    ``ranks``: which ones; empty: not known. Each rank of a job has groups of its own, so no order may depend on more
    than how many ranks two of them share.
    """

    size: int
    intra_node: bool
    nodes: int = 0
    ranks: tuple[int, ...] = ()


class Node(NamedTuple):
    """One step of the graph (a named tuple: ten thousand are made within the few milliseconds a pass may take).

    Attributes:
        name: Unique in the problem.
        kind: See :class:`Kind`.
        deps: Ids of nodes that must run before it: data and hazards alike, all smaller than its own id. Of the output,
            values in the order in which they are given.
        alloc: Ids of the storages that it brings to life.
        use: Ids of the storages that it needs alive, each once (a wait: its collective's inputs and output).
        time_us: Time on the compute stream; of a collective, on its group's stream. 0 for inputs, waits and outputs.
        op: Operator, for people and cost models; ``""`` where there is none.
        group: A collective's process group; ``None`` for other kinds.
        collective: Of a wait, the id of the collective; ``None`` where that was launched before this graph.
        flops: Floating-point operations of a compute node.
        bytes: Bytes read and written by a compute node; the larger side of a collective.
        launches: Of a compute node that communicates itself, or may: per launch its process group, or
            :data:`ANY_GROUP`. Where a launch order is kept, its place among the launches is.
        module: The module of the model that it comes from, ``"layers.3.attention"``; ``""``: not known.
        marks: Pins that it has itself (:mod:`overlap_sched.problem.pins`).
    """

    name: str
    kind: Kind
    deps: tuple[NodeId, ...] = ()
    alloc: tuple[StorageId, ...] = ()
    use: tuple[StorageId, ...] = ()
    time_us: float = 0.0
    op: str = ""
    group: str | None = None
    collective: NodeId | None = None
    flops: int = 0
    bytes: int = 0
    launches: tuple[str, ...] = ()
    module: str = ""
    marks: tuple[str, ...] = ()


Order = tuple[NodeId, ...]
"""A permutation of a problem's node ids."""

MemoryModel = Literal["runtime", "tracker"]
"""``runtime``: what NCCL and the allocator do (a collective's inputs stay live until its wait; a wait allocates
nothing). ``tracker``: torch's own ``MemoryTracker`` (inputs freed at launch; a wait allocates again)."""


@dataclass(frozen=True)
class Problem:
    """Nodes in their original order, their storages and process groups; checked when made.

    Raises:
        ProblemError: For the first rule that is broken.
    """

    name: str
    nodes: tuple[Node, ...]
    storages: tuple[Storage, ...]
    groups: Mapping[str, Group] = field(default_factory=dict)
    memory_model: MemoryModel = "runtime"
    contention: Contention = NO_CONTENTION
    """What compute and communication cost each other at the same time; by default nothing."""

    def __post_init__(self) -> None:
        _check_problem(self)

    @property
    def original_order(self) -> Order:
        """The identity: nodes are listed in their original order."""
        return tuple(range(len(self.nodes)))

    def with_comm_scale(self, factor: float) -> "Problem":
        """The same with the time of each collective multiplied by a factor of 0 or more."""
        nodes = (n._replace(time_us=n.time_us * factor) if n.kind is Kind.COLLECTIVE else n for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    @cached_property
    def maker(self) -> tuple[NodeId, ...]:
        """Per storage, the id of the node that allocates it (-1: nobody does, and nobody uses it)."""
        made_by = {s: v for v, node in enumerate(self.nodes) for s in node.alloc}
        return tuple(made_by.get(s, -1) for s in range(len(self.storages)))

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


def check_group(where: str, group: Group) -> None:
    """Validate a process group; ``where`` names it in the error.

    Raises:
        ProblemError: Its size is out of range, or its nodes or ranks do not fit its size.
    """
    size, nodes, ranks = group.size, group.nodes, group.ranks
    if not 1 <= size <= MAX_RANKS:
        fault = f"has size {show_number(size)}; it is a number of ranks, 1 to {MAX_RANKS}. Correct it."
    elif nodes and (group.intra_node or not 2 <= nodes <= size):
        fault = f"has {size} ranks on {nodes} nodes, intra_node {group.intra_node}: correct them, or leave nodes out."
    elif ranks and (len(set(ranks)) != size or len(ranks) != size or min(ranks) < 0):
        fault = f"has {size} ranks and lists {len(ranks)}: list each once, from 0 on, or leave ranks out."
    else:
        return
    raise ProblemError(f"{where} {fault}")


def _check_problem(problem: Problem) -> None:
    """Raise the error for the first rule that is broken: linear, without recursion."""
    for fault in _faults(problem):
        raise ProblemError(fault)
    for name, group in problem.groups.items():
        check_group(f"group {name!r}", group)
    total_us = sum(float(node.time_us) for node in problem.nodes)
    if not math.isfinite(total_us * problem.contention.slowest):
        raise ProblemError("the times of all nodes, slowed down by contention, add up to infinity. Are they in us?")


def _faults(problem: Problem) -> Iterator[str]:
    nodes, groups = problem.nodes, sorted(problem.groups)
    if not nodes:
        yield f"problem {problem.name!r} has no nodes to schedule. Was the graph empty when it was captured?"
    if (model := problem.memory_model) not in get_args(MemoryModel):
        yield f"problem {problem.name!r}: memory_model is {model!r}; it is 'runtime' or 'tracker'."
    seen: dict[str, int] = {}
    for v, node in enumerate(nodes):
        if (first := seen.setdefault(node.name, v)) != v:
            yield f"nodes {first} and {v} are both named {node.name!r}. Orders are lists of names: give each its own."
    for v, node in enumerate(nodes):
        if fault := _fault(problem, node):
            yield f"{node.kind.value} {v} ({node.name!r}) {fault}"
    if any(max(node.deps, default=-1) >= v or (node.collective or 0) > v for v, node in enumerate(nodes)):
        yield _forward_dependency(nodes)
    yield from _storage_faults(problem)
    for name, link in problem.contention.links.items():
        if name not in groups:
            yield f"contention: group {name!r} has link {link!r}, but the problem's groups are {groups}. Correct it."


def _fault(problem: Problem, node: Node) -> str:
    """Say what is wrong with a node by itself; ``""``: nothing."""
    nodes, kind, n, launch = problem.nodes, node.kind, len(problem.nodes), node.collective
    for u in node.deps:
        if not 0 <= u < n:
            return f"depends on node {u}, but ids go from 0 to {n - 1}. Was the list of nodes cut short?"
    if kind is Kind.COLLECTIVE and node.group not in problem.groups:
        known = sorted(problem.groups)
        return f"runs on group {node.group!r}, which is not among the groups {known}. Add it to `groups` with its size."
    if node.launches and kind is not Kind.COMPUTE:
        return "has `launches`: process groups on which compute communicates. Make it a compute node or drop them."
    if kind is Kind.INPUT and node.deps:
        return f"has dependencies {list(node.deps)}, but inputs are there from the start. Make it a compute node."
    if not 0.0 <= node.time_us <= MAX_FLOAT:
        return f"takes {show_number(node.time_us)} us: times are finite and 0 or more. Check its cost."
    if node.time_us and kind not in (Kind.COMPUTE, Kind.COLLECTIVE):
        return f"takes {node.time_us} us, as only compute and collectives do. Make it a compute node, or drop its time."
    for what, count in (("flops", node.flops), ("bytes", node.bytes)):
        if not 0 <= count < 2**63:
            return f"has {show_number(count)} {what}: counts are 0 or more, and below 2**63. Check its cost."
    if launch is not None and kind is not Kind.WAIT:
        return "names a collective to wait for. Only waits do: make it a wait or drop `collective`."
    if launch is not None and not (0 <= launch < n and nodes[launch].kind is Kind.COLLECTIVE):
        return f"waits for node {launch}, which is not a collective. Leave it out where an earlier graph launched that."
    return ""


def _forward_dependency(nodes: Sequence[Node]) -> str:
    """Some node depends on one listed after it: a cycle if one exists, else a bad original order."""
    before = [{*node.deps} | ({node.collective} if node.collective is not None else set()) for node in nodes]
    try:
        graphlib.TopologicalSorter(dict(enumerate(before))).prepare()
    except graphlib.CycleError as error:
        ring = error.args[1]
        first = ring.index(min(ring))
        names = [nodes[v].name for v in (*ring[first:-1], *ring[: first + 1])]
        shown = " -> ".join([*names[:8], *(["..."] if len(names) > 8 else [])])
        return f"nodes wait for each other in a ring of {len(ring) - 1}: {shown}. Remove one of these dependencies."
    v, u = next((v, max(b)) for v, b in enumerate(before) if b and max(b) >= v)
    return f"node {v} ({nodes[v].name!r}) is listed before node {u} ({nodes[u].name!r}), on which it depends: swap."


def _storage_faults(problem: Problem) -> Iterator[str]:
    nodes, storages = problem.nodes, problem.storages
    for s, storage in enumerate(storages):
        if storage.bytes < 0:
            yield f"storage {s} has {show_number(storage.bytes)} bytes: sizes are 0 or more."
    if (total := sum(storage.bytes for storage in storages)) > MAX_TOTAL_BYTES:
        yield f"all storages together have {show_number(total)} bytes, more than 2**60. Are the sizes in bytes?"
    made_by: dict[StorageId, NodeId] = {}
    for v, node in enumerate(nodes):
        for s in node.alloc:
            if (first := made_by.setdefault(s, v)) != v or node.alloc.count(s) > 1:
                names = f"{nodes[first].name!r} and by {node.name!r}"
                yield f"storage {s} is allocated twice, by {names}. Let the second use it, or have one of its own."
    for v, node in enumerate(nodes):
        where, twice = f"node {v} ({node.name!r})", len(set(node.use)) < len(node.use)
        for s in (*node.alloc, *node.use):
            if not 0 <= s < len(storages):
                last = len(storages) - 1
                yield f"{where} names storage {s}, but storages go from 0 to {last}. Was their list cut short?"
            if twice and node.use.count(s) > 1:
                yield f"{where} lists storage {s} twice in `use`. List it once."
            if (maker := made_by.get(s)) is None:
                yield f"{where} uses storage {s}, which no node allocates. Add it to the `alloc` of its maker."
            elif maker > v:
                name = nodes[maker].name
                yield f"{where} uses storage {s} before {name!r} (node {maker}) allocates it. List that node first."


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
        storages=(Storage(mib, pinned=True), *(Storage(n * mib) for n in (4, 8, 4, 4, 8, 1))),  # w, then x to ds
        groups={"fsdp": Group(8, intra_node=True)},
    )


EXAMPLE = _example()
