"""What a problem is made of: nodes, storages and process groups; the words are drawn in :mod:`overlap_sched.problem`.

Import them from there: here they stand apart so that the checks can know them without knowing the whole.
"""

from enum import StrEnum
from typing import NamedTuple

NodeId = int
"""Index of a node in ``Problem.nodes``."""
StorageId = int
"""Index of a storage in ``Problem.storages``."""
Position = int
"""Index in an order."""

MAX_TOTAL_BYTES = 2**60
"""All storages together: sums stay exact in 64 bits."""


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

TIMED = (Kind.COMPUTE, Kind.COLLECTIVE)
"""Kinds of nodes that take time."""


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
