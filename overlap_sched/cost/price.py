"""A price: the time of a node, where that time comes from, and what limits it."""

from typing import Literal, NamedTuple

Source = Literal["roofline", "fusion", "nccl", "table", "profile", "user", "file", "free"]
"""Where a time comes from.

``roofline``: the device's rates (:class:`overlap_sched.cost.Roofline`); ``fusion``: the same, of the kernel that a
compiler makes of several nodes; ``nccl``: a model of NCCL's algorithms; ``table``: interpolated between measurements;
``profile``: a trace of a real step; ``user``: a cost function or a cost model of the user's own; ``file``: a problem
file; ``free``: nothing is computed or moved.
"""


class Price(NamedTuple):
    """The time of a node, and why it is what it is.

    Attributes:
        time_us: Microseconds, finite, 0 or more.
        source: See :data:`Source`.
        bound: What limits it: ``"flops"``, ``"bytes"``, ``"kernel"`` (the shortest that a kernel takes),
            ``"latency"``, ``"bandwidth"``; ``""`` where the source does not know.
        part_of: Of a node that is compiled into one kernel with others, the name of that group; ``""`` else. The
            group's time is on one of its nodes, the others have 0.
    """

    time_us: float
    source: Source
    bound: str = ""
    part_of: str = ""


FREE = Price(0.0, "free")
"""Views, inputs, waits, outputs."""
