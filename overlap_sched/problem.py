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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple

from overlap_sched import errors
from overlap_sched.contention import NO_CONTENTION, Contention, check_contention

Order = tuple[int, ...]
"""A permutation of a problem's node ids."""

MemoryModel = Literal["runtime", "tracker"]
"""``runtime``: what NCCL and the allocator do (a collective's inputs are held until its wait; a wait allocates
nothing). ``tracker``: torch's own ``MemoryTracker`` (inputs freed at launch; a wait allocates again)."""

MAX_TOTAL_BYTES = 2**60
"""All storages together: sums stay exact in 64 bits."""


class Kind(StrEnum):
    """What a node is."""

    INPUT = "input"
    COMPUTE = "compute"
    COLLECTIVE = "collective"
    WAIT = "wait"
    OUTPUT = "output"


class Storage(NamedTuple):
    """One buffer. Pinned ones (parameters, what the caller keeps) are never freed."""

    bytes: int
    pinned: bool = False


class Group(NamedTuple):
    """A process group: how many ranks, and whether they sit in one node."""

    size: int
    intra_node: bool


class Node(NamedTuple):
    """One step of the graph (a named tuple: ten thousand are made within the few milliseconds a pass may take).

    Attributes:
        name: Unique in the problem.
        kind: See :class:`Kind`.
        deps: Ids of nodes that must run before it: data and hazards alike, all smaller than its own id.
        alloc: Ids of the storages that it brings to life.
        use: Ids of the storages that it needs alive, each once (a wait: its collective's inputs and output).
        time_us: Time on the compute stream; of a collective, on its group's stream.
        op: Operator, for people and cost models; ``""`` where there is none.
        group: A collective's process group; ``None`` for other kinds.
        collective: Of a wait, the id of the collective; ``None`` where that was launched before this graph.
        flops: Floating-point operations of a compute node.
        bytes: Bytes read and written by a compute node; the larger side of a collective.
    """

    name: str
    kind: Kind
    deps: tuple[int, ...] = ()
    alloc: tuple[int, ...] = ()
    use: tuple[int, ...] = ()
    time_us: float = 0.0
    op: str = ""
    group: str | None = None
    collective: int | None = None
    flops: int = 0
    bytes: int = 0


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
    def allocator(self) -> tuple[int, ...]:
        """Per storage, the id of the node that allocates it (-1: nobody does, and nobody uses it)."""
        made_by = [-1] * len(self.storages)
        for v, node in enumerate(self.nodes):
            for s in node.alloc:
                made_by[s] = v
        return tuple(made_by)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per node, everything that must run before it, ascending and without repeats.

        Its ``deps``; whoever allocates what it uses; of a wait, its collective; of an output, every node
        listed before it (an FX graph ends with its output).
        """
        allocator = self.allocator
        result: list[tuple[int, ...]] = []
        last_output = 0
        for v, node in enumerate(self.nodes):
            before = set(node.deps)
            before.update([allocator[s] for s in node.use])
            if node.collective is not None:
                before.add(node.collective)
            if node.kind is Kind.OUTPUT:
                before.update(range(last_output, v))
                last_output = v
            before.discard(v)
            result.append(tuple(sorted(before)))
        return tuple(result)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Per node, the nodes that have it among their :attr:`predecessors`, ascending."""
        after: list[list[int]] = [[] for _ in self.nodes]
        for v, before in enumerate(self.predecessors):
            for u in before:
                after[u].append(v)
        return tuple(map(tuple, after))

    @cached_property
    def waits(self) -> Mapping[int, tuple[int, ...]]:
        """Per collective that has any, its waits in the original order."""
        waits: dict[int, tuple[int, ...]] = {}
        for v, node in enumerate(self.nodes):
            if node.collective is not None:
                waits[node.collective] = (*waits.get(node.collective, ()), v)
        return waits

    @cached_property
    def collectives(self) -> tuple[int, ...]:
        """Ids of all collectives, in the original order."""
        return tuple(v for v, node in enumerate(self.nodes) if node.kind is Kind.COLLECTIVE)

    def names(self, order: Order) -> list[str]:
        """The order as node names: what ``--out`` writes and the judge reads."""
        return [self.nodes[v].name for v in order]


def check_problem(problem: Problem) -> None:
    """Raise the error for the first rule that the problem breaks; linear, no recursion."""
    if not problem.nodes:
        raise errors.EmptyProblemError(
            f"problem {problem.name!r} has no nodes: there is nothing to schedule. "
            "Was the graph empty when it was captured?"
        )
    if problem.memory_model not in ("runtime", "tracker"):
        raise errors.MemoryModelError(
            f"problem {problem.name!r}: memory_model is {problem.memory_model!r}; it is 'runtime' or 'tracker'."
        )
    _check_names(problem)
    _check_nodes(problem)
    _check_storages(problem)
    _check_quantities(problem)
    check_contention(problem.contention, problem.groups)


def _check_names(problem: Problem) -> None:
    seen: dict[str, int] = {}
    for v, node in enumerate(problem.nodes):
        first = seen.setdefault(node.name, v)
        if first != v:
            raise errors.DuplicateNameError(
                f"nodes {first} and {v} are both named {node.name!r}. "
                "Orders are lists of names: give each node its own."
            )


def _check_nodes(problem: Problem) -> None:
    nodes, n = problem.nodes, len(problem.nodes)
    forward = False
    for v, node in enumerate(nodes):
        for u in node.deps:
            if not 0 <= u < n:
                raise errors.UnknownIdError(
                    f"node {v} ({node.name!r}) depends on node {u}, but ids go from 0 to {n - 1}. "
                    "Was the list of nodes cut short?"
                )
            forward = forward or u >= v
        if node.kind is Kind.COLLECTIVE:
            if node.group not in problem.groups:
                raise errors.UnknownIdError(
                    f"collective {v} ({node.name!r}) runs on group {node.group!r}, which is not among the groups "
                    f"{sorted(problem.groups)}. Add it to `groups` with its size."
                )
        elif node.kind is Kind.INPUT and node.deps:
            raise errors.ProblemError(
                f"input {v} ({node.name!r}) has dependencies {list(node.deps)}, but inputs are there from the start. "
                "Make it a compute node or drop them."
            )
        if node.collective is not None:
            _check_wait(problem, v)
            forward = forward or node.collective > v
    if forward:
        _raise_for_forward_dependency(problem)


def _check_wait(problem: Problem, v: int) -> None:
    nodes, node = problem.nodes, problem.nodes[v]
    launch = node.collective
    if node.kind is not Kind.WAIT:
        raise errors.ProblemError(
            f"node {v} ({node.name!r}) is of kind {node.kind.value!r} but names a collective to wait for. "
            "Only waits do: make it a wait or drop `collective`."
        )
    if launch is None or not 0 <= launch < len(nodes) or nodes[launch].kind is not Kind.COLLECTIVE:
        raise errors.UnknownIdError(
            f"wait {v} ({node.name!r}) waits for node {launch}, which is not a collective of this problem. "
            "Leave `collective` out where it was launched before this graph."
        )


def _raise_for_forward_dependency(problem: Problem) -> None:
    """Some node depends on one listed after it: a cycle if one exists, else a bad original order."""
    nodes = problem.nodes
    before = [{*node.deps} | ({node.collective} if node.collective is not None else set()) for node in nodes]
    left = [len(b) for b in before]
    after: list[list[int]] = [[] for _ in nodes]
    for v, b in enumerate(before):
        for u in b:
            after[u].append(v)
    ready = [v for v, count in enumerate(left) if count == 0]
    while ready:
        for w in after[ready.pop()]:
            left[w] -= 1
            if left[w] == 0:
                ready.append(w)
    stuck = next((v for v, count in enumerate(left) if count), None)
    if stuck is None:
        v = next(v for v, b in enumerate(before) if b and max(b) >= v)
        raise errors.OriginalOrderError(
            f"node {v} ({nodes[v].name!r}) is listed before node {max(before[v])} ({nodes[max(before[v])].name!r}), "
            "on which it depends. List the nodes in an order that can run."
        )
    seen: dict[int, int] = {}  # node -> when it was met
    at = stuck
    while at not in seen:  # walk backward among the stuck until a node repeats: that is a ring
        seen[at] = len(seen)
        at = min(u for u in before[at] if left[u])
    ring = [*list(seen)[seen[at] :], at][::-1]
    shown = [nodes[v].name for v in (ring if len(ring) <= 8 else ring[:8])]
    raise errors.CycleError(
        f"nodes wait for each other in a ring of {len(ring) - 1}: {' -> '.join(shown)}"
        f"{' -> ...' if len(ring) > 8 else ''}. No order can run it: remove one of these dependencies."
    )


def _check_storages(problem: Problem) -> None:
    nodes, count = problem.nodes, len(problem.storages)
    made_by: list[int | None] = [None] * count
    # inputs are live from the start, wherever they are listed
    listed = sorted(range(len(nodes)), key=lambda v: nodes[v].kind is not Kind.INPUT)
    for v in listed:
        node = nodes[v]
        for s in (*node.alloc, *node.use):
            if not 0 <= s < count:
                raise errors.UnknownIdError(
                    f"node {v} ({node.name!r}) names storage {s}, but storages go from 0 to {count - 1}. "
                    "Was the list of storages cut short?"
                )
        for s in node.alloc:
            first = made_by[s]
            if first is not None:
                raise errors.StorageError(
                    f"storage {s} is allocated twice, by {nodes[first].name!r} and by {node.name!r}. "
                    "A storage has one allocation: let the second only use it, or give it a storage of its own."
                )
            made_by[s] = v
    for v, node in enumerate(nodes):
        if len(node.use) > 1 and len(set(node.use)) < len(node.use):
            s = next(s for at, s in enumerate(node.use) if s in node.use[:at])
            raise errors.StorageError(
                f"node {v} ({node.name!r}) lists storage {s} twice in `use` and would count as two users of it. "
                "List it once."
            )
        for s in node.use:
            maker = made_by[s]
            if maker is None:
                raise errors.StorageError(
                    f"node {v} ({node.name!r}) uses storage {s}, which no node allocates. "
                    "Add it to the `alloc` of the node that makes it (an input, if it comes from outside)."
                )
            if maker > v:
                raise errors.StorageError(
                    f"node {v} ({node.name!r}) uses storage {s} before {nodes[maker].name!r} (node {maker}) "
                    "allocates it. "
                    "List the allocating node first."
                )


def _check_quantities(problem: Problem) -> None:
    for s, storage in enumerate(problem.storages):
        if storage.bytes < 0:
            raise errors.QuantityError(f"storage {s} has {storage.bytes} bytes: sizes are 0 or more.")
    total = sum(storage.bytes for storage in problem.storages)
    if total > MAX_TOTAL_BYTES:
        raise errors.QuantityError(
            f"all storages together have {total} bytes, more than {MAX_TOTAL_BYTES} (2**60). Are the sizes in bytes?"
        )
    for v, node in enumerate(problem.nodes):
        if not 0.0 <= node.time_us < math.inf:
            raise errors.QuantityError(
                f"node {v} ({node.name!r}) takes {node.time_us} us: times are finite and 0 or more. Check its cost."
            )
    if not math.isfinite(sum(node.time_us for node in problem.nodes)):
        raise errors.QuantityError("the times of all nodes add up to infinity. Are they in microseconds?")


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
