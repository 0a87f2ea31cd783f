"""Measured times, and times between them: what ``calibrate`` has found out about a machine, as a cost model.

Between two measured sizes a time is interpolated on logarithmic axes, and a larger size never takes less: where
measurements say so (noise), they are averaged (pool adjacent violators: Ayer and others, An empirical distribution
function for sampling with incomplete information, 1955). Beyond what was measured a small size takes as long as the
smallest, a large one grows in proportion::

    us  |              . /    in proportion to the size
        |          .--*
        |     .--*
        | ..*                 as long as the smallest
        +-----------------> bytes
"""

import math
import warnings
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from overlap_sched.cost.compute import Compute
from overlap_sched.cost.model import FREE, Collective, Price, PricedModel, Roofline
from overlap_sched.errors import CostError, OverlapSchedWarning

K = TypeVar("K", bound=Hashable)

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Kinds of collectives that have tables: what their operators begin with."""


class CollectiveTime(NamedTuple):
    """A collective that was timed.

    Attributes:
        kind: One of :data:`KINDS`.
        ranks: Of the group. nodes: on how many nodes they are.
        bytes: The larger of its input and its output, on each rank.
        time_us: From the moment that the last rank comes until it is done: a mean of the repetitions (the median of
            those of ten in a row).
        launch_us: What the call that starts it takes of the thread that calls.
        finish_us: What the wait for it takes when it has long been done (a copy, the call itself); 0.0: not measured.
    """

    kind: str
    ranks: int
    nodes: int
    bytes: int
    time_us: float
    launch_us: float
    finish_us: float = 0.0


class KernelTime(NamedTuple):
    """An operator that was timed: a matmul, attention, a copy.

    Attributes:
        op: As in ``Node.op``: ``"aten.mm.default"``.
        shapes: What of it was timed, for people and to find it again: ``"bfloat16 512x512 512x1536"``.
        flops, bytes: As in :class:`overlap_sched.problem.Node`.
        time_us: The median.
    """

    op: str
    shapes: str
    flops: int
    bytes: int
    time_us: float


@dataclass(frozen=True)
class Curve:
    """Time over size; made by :func:`curve_of`.

    Attributes:
        sizes: Ascending, above 0. times_us: Of each; not falling, above 0.
    """

    sizes: tuple[float, ...]
    times_us: tuple[float, ...]

    def at(self, size: float) -> float:
        """Microseconds at a size of 0 or more; O(log points)."""
        sizes, times_us = self.sizes, self.times_us
        if size <= sizes[0]:
            return times_us[0]
        if size > sizes[-1]:
            return times_us[-1] * size / sizes[-1]
        k = bisect_left(sizes, size)
        if sizes[k] == size:
            return times_us[k]
        part = math.log(size / sizes[k - 1]) / math.log(sizes[k] / sizes[k - 1])
        return times_us[k - 1] * (times_us[k] / times_us[k - 1]) ** part

    def covers(self, size: float) -> bool:
        """Tell whether it was measured on both sides of this size."""
        return self.sizes[0] <= size <= self.sizes[-1]


def curve_of(points: Iterable[tuple[float, float]]) -> Curve:
    """The curve through (size, microseconds); those that fall are averaged with their neighbours, on the log axis.

    Raises:
        CostError: There is no point, or a size or a time is not above 0 and finite.
    """
    by_size: dict[float, list[float]] = {}
    for size, time_us in points:
        if not (0 < size < math.inf and 0 < time_us < math.inf):
            raise CostError(f"a measured size of {size} took {time_us} us; both are finite and above 0.")
        by_size.setdefault(size, []).append(time_us)
    if not by_size:
        raise CostError("a curve needs one measured point at least.")
    pools: list[tuple[list[float], list[float]]] = []  # sizes, the time of each
    for size, times_us in sorted(by_size.items()):
        sizes, times = [size], [geometric_mean(times_us)]
        while pools and geometric_mean(pools[-1][1]) > geometric_mean(times):
            earlier_sizes, earlier_times = pools.pop()
            sizes, times = earlier_sizes + sizes, earlier_times + times
        pools.append((sizes, times))
    flat = [(size, geometric_mean(times)) for sizes, times in pools for size in sizes]
    return Curve(tuple(size for size, _ in flat), tuple(time_us for _, time_us in flat))


def geometric_mean(times_us: Sequence[float]) -> float:
    """Return the geometric mean; of one value it is that one, to the last bit."""
    return times_us[0] if len(times_us) == 1 else math.exp(sum(map(math.log, times_us)) / len(times_us))


@dataclass(frozen=True)
class Tables:
    """All that was measured; any part may be empty."""

    collectives: tuple[CollectiveTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()

    def __bool__(self) -> bool:
        """Is there anything?"""
        return bool(self.collectives or self.kernels)


def kind_of(op: str) -> str:
    """The kind of a collective's operator: ``"all_gather"`` of ``"all_gather_into_tensor_coalesced"``.

    ``""``: none of :data:`KINDS` (broadcasts, sends).
    """
    op = "all_reduce" + op.removeprefix("allreduce") if op.startswith("allreduce") else op
    return next((kind for kind in KINDS if op.startswith(kind)), "")


def describe_table(kind: str, ranks: int, nodes: int) -> str:
    """A table of collectives, in words."""
    return f"{kind} of {ranks} ranks on {nodes} node{'' if nodes == 1 else 's'}"


COPY = "aten.clone.default"
"""What is measured for kernels that move bytes and do no matrix product."""


@dataclass(frozen=True)
class TableModel(PricedModel):
    """Times by measured tables; by formulas where there is no table.

    compute: the measured time where the operator was measured with as many operations and bytes. Else along the
    operator's curve, whose sizes are the times that the formulas give: one number in which shapes compare. A kernel
    without matrix products that was not measured takes as long as a copy that moves as many bytes.
    collective: along the curve of its kind, its ranks and its nodes; where launching it takes time of its own, without
    that.

    Attributes:
        tables: What was measured.
        otherwise: The formulas.
        on_host: Whether the thread that launches collectives computes, too: on a CPU, not on a GPU.
        name: For people.
        beyond: What was asked of each table beyond its ends, and how often; the first time there is a warning.
    """

    tables: Tables
    otherwise: PricedModel = field(default_factory=Roofline)
    on_host: bool = False
    name: str = "measured"
    beyond: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def compute_price(self, work: Compute) -> Price:
        """From the ``table``, or as the formulas explain it."""
        if not work.flops and not work.bytes:
            return FREE
        formula = self.otherwise.compute_price(work)
        known = Compute(*work[:3])  # what tables have
        exact_us = self._exact_us.get(known)
        if exact_us is not None:
            return Price(exact_us, "table")
        if (curve := self._kernels.get(work.op)) is not None:
            return self._along(curve, self.otherwise.compute_us(known), work.op, scaled=True)
        return formula if work.flops or self._copies is None else self._along(self._copies, work.bytes, "a copy")

    def collective_price(self, work: Collective) -> Price:
        """From the ``table``, or as the formulas explain it."""
        key = self._key(work)
        curve = self._collectives.get(("time_us", *key))
        if curve is None:
            return self.otherwise.collective_price(work)
        price = self._along(curve, work.bytes, describe_table(*key))
        launch_us = self.launch_us(work)
        return price._replace(time_us=max(price.time_us - launch_us, 0.0)) if launch_us else price

    def launch_us(self, work: Collective) -> float:
        """Return what starting a collective takes of the compute stream; 0.0 where not measured, or not of it."""
        return self._on_host_us("launch_us", work)

    def finish_us(self, work: Collective) -> float:
        """Return what the wait for one that is done takes of the compute stream; 0.0 as for :meth:`launch_us`."""
        return self._on_host_us("finish_us", work)

    def _on_host_us(self, figure: str, work: Collective) -> float:
        curve = self._collectives.get((figure, *self._key(work))) if self.on_host else None
        return 0.0 if curve is None else curve.at(work.bytes)

    def _key(self, work: Collective) -> tuple[str, int, int]:
        """Kind, ranks and nodes; where the group does not say on how many it is, the fewest above 1 with a table."""
        kind, group = kind_of(work.op), work.group
        if group.intra_node or group.nodes:
            return kind, group.size, 1 if group.intra_node else group.nodes
        known = [nodes for _, *one, nodes in self._collectives if one == [kind, group.size] and nodes > 1]
        return kind, group.size, min(known, default=2)

    def _along(self, curve: Curve, size: float, what: str, *, scaled: bool = False) -> Price:
        """``scaled``: below its start, too, the curve is in proportion to the size."""
        if not curve.covers(size):
            self.beyond[what] += 1
            if self.beyond[what] == 1:
                warnings.warn(
                    f"{what} is asked for beyond the sizes that were measured: its time is extrapolated. "
                    "Calibrate with this graph (--graph).",
                    OverlapSchedWarning,
                    stacklevel=3,
                )
        if scaled and size < curve.sizes[0]:
            return Price(curve.times_us[0] * size / curve.sizes[0], "table")
        return Price(curve.at(size), "table")

    @cached_property
    def _collectives(self) -> Mapping[tuple[str, str, int, int], Curve]:
        """Time over bytes, by figure, kind, ranks and nodes."""
        return _curves(
            ((figure, one.kind, one.ranks, one.nodes), (one.bytes, getattr(one, figure)))
            for one in self.tables.collectives
            for figure in ("time_us", "launch_us", "finish_us")
            if getattr(one, figure) > 0.0
        )

    @cached_property
    def _copies(self) -> Curve | None:
        """Time over bytes moved; ``None``: not measured."""
        return _curves((COPY, (one.bytes, one.time_us)) for one in self.tables.kernels if one.op == COPY).get(COPY)

    @cached_property
    def _exact_us(self) -> Mapping[Compute, float]:
        same: dict[Compute, list[float]] = defaultdict(list)
        for one in self.tables.kernels:
            same[Compute(one.op, one.flops, one.bytes)].append(one.time_us)
        return {work: geometric_mean(times_us) for work, times_us in same.items()}

    @cached_property
    def _kernels(self) -> Mapping[str, Curve]:
        """By operator, time over the time of the formulas."""
        works = ((Compute(one.op, one.flops, one.bytes), one.time_us) for one in self.tables.kernels)
        return _curves((work.op, (self.otherwise.compute_us(work), us)) for work, us in works)


def _curves(points: Iterable[tuple[K, tuple[float, float]]]) -> dict[K, Curve]:
    grouped: dict[K, list[tuple[float, float]]] = defaultdict(list)
    for key, point in points:
        grouped[key].append(point)
    return {key: curve_of(of_key) for key, of_key in grouped.items()}
