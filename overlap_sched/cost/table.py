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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from overlap_sched.cost.model import FREE, Collective, Compute, ExplainingModel, Price, PricedModel, Roofline
from overlap_sched.errors import CostError, OverlapSchedWarning
from overlap_sched.problem import Group

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

    def collective(self, kind: str, ranks: int, nodes: int) -> Curve:
        """Time over bytes.

        Raises:
            CostError: It was not measured; the message lists what was.
        """
        return self._found(self._collectives, kind, ranks, nodes)

    def launch(self, kind: str, ranks: int, nodes: int) -> Curve:
        """Return the time it takes the launching thread, over bytes; raises as :meth:`collective` does."""
        return self._found(self._launches, kind, ranks, nodes)

    def finish(self, kind: str, ranks: int, nodes: int) -> Curve:
        """Return the least time that a wait takes, over bytes; raises as :meth:`collective` does."""
        return self._found(self._finishes, kind, ranks, nodes)

    def kernel(self, op: str) -> tuple[KernelTime, ...]:
        """Return the times measured of an operator; raises as :meth:`collective` does."""
        found = self.kernels_of.get(op)
        if found is None:
            known = ", ".join(sorted(self.kernels_of)) or "no operator at all"
            raise CostError(f"operator {op!r} was not measured; there is {known}. Calibrate with a graph that has it.")
        return found

    def nodes_of(self, kind: str, group: Group) -> int:
        """On how many nodes a group's ranks are; where it does not say, the fewest above 1 that were measured."""
        if group.intra_node or group.nodes:
            return 1 if group.intra_node else group.nodes
        return min(
            (nodes for of, ranks, nodes in self._grouped if (of, ranks) == (kind, group.size) and nodes > 1), default=2
        )

    def _found(self, curves: dict[tuple[str, int, int], Curve], kind: str, ranks: int, nodes: int) -> Curve:
        found = curves.get((kind, ranks, nodes))
        if found is None:
            known = ", ".join(describe_table(*key) for key in sorted(curves)) or "no collective at all"
            raise CostError(
                f"{describe_table(kind, ranks, nodes)} was not measured; there is {known}. "
                "Calibrate with this group, or leave it to the formulas."
            )
        return found

    @cached_property
    def _collectives(self) -> dict[tuple[str, int, int], Curve]:
        return self._curves(lambda one: one.time_us)

    @cached_property
    def _launches(self) -> dict[tuple[str, int, int], Curve]:
        return self._curves(lambda one: one.launch_us)

    @cached_property
    def _finishes(self) -> dict[tuple[str, int, int], Curve]:
        known = {key: [one for one in ones if one.finish_us > 0] for key, ones in self._grouped.items()}
        return {key: curve_of((one.bytes, one.finish_us) for one in ones) for key, ones in known.items() if ones}

    def _curves(self, figure: Callable[[CollectiveTime], float]) -> dict[tuple[str, int, int], Curve]:
        return {key: curve_of((one.bytes, figure(one)) for one in ones) for key, ones in self._grouped.items()}

    @cached_property
    def _grouped(self) -> dict[tuple[str, int, int], list[CollectiveTime]]:
        grouped: dict[tuple[str, int, int], list[CollectiveTime]] = {}
        for one in self.collectives:
            grouped.setdefault((one.kind, one.ranks, one.nodes), []).append(one)
        return grouped

    @cached_property
    def kernels_of(self) -> Mapping[str, tuple[KernelTime, ...]]:
        """By operator, what was measured of it."""
        grouped: dict[str, list[KernelTime]] = {}
        for one in self.kernels:
            grouped.setdefault(one.op, []).append(one)
        return {op: tuple(ones) for op, ones in grouped.items()}


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
    otherwise: ExplainingModel = field(default_factory=Roofline)
    on_host: bool = False
    name: str = "measured"
    beyond: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def compute_price(self, work: Compute) -> Price:
        """From the ``table``, or as the formulas explain it."""
        if not work.flops and not work.bytes:
            return FREE
        formula = self.otherwise.compute_price(work)
        known = self._known.get(work.op)
        if known is None:
            return self._copied(work, formula)
        exact_us = known.times_us.get((work.flops, work.bytes))
        if exact_us is not None:
            return Price(exact_us, "table")
        return self._along(known.curve, formula.time_us, work.op, scaled=True)

    def collective_price(self, work: Collective) -> Price:
        """From the ``table``, or as the formulas explain it."""
        kind = kind_of(work.op)
        nodes = self.tables.nodes_of(kind, work.group)
        try:
            curve = self.tables.collective(kind, work.group.size, nodes)
        except CostError:
            return self.otherwise.collective_price(work)
        price = self._along(curve, work.bytes, describe_table(kind, work.group.size, nodes))
        launch_us = self.launch_us(work)
        return price._replace(time_us=max(price.time_us - launch_us, 0.0)) if launch_us else price

    def launch_us(self, work: Collective) -> float:
        """Return what starting a collective takes of the compute stream; 0.0 where not measured, or not of it."""
        return self._of_host(self.tables.launch, work)

    def finish_us(self, work: Collective) -> float:
        """Return what the wait for one that is done takes of the compute stream; 0.0 as for :meth:`launch_us`."""
        return self._of_host(self.tables.finish, work)

    def _of_host(self, curve_of_kind: Callable[[str, int, int], Curve], work: Collective) -> float:
        kind = kind_of(work.op)
        if not self.on_host:
            return 0.0
        try:
            return curve_of_kind(kind, work.group.size, self.tables.nodes_of(kind, work.group)).at(work.bytes)
        except CostError:
            return 0.0

    def _copied(self, work: Compute, formula: Price) -> Price:
        if work.flops or self._copies is None:
            return formula
        return self._along(self._copies, work.bytes, "a copy")

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
    def _copies(self) -> Curve | None:
        """Time over bytes moved; ``None``: not measured."""
        ones = self.tables.kernels_of.get(COPY, ())
        return curve_of((one.bytes, one.time_us) for one in ones) if ones else None

    @cached_property
    def _known(self) -> dict[str, "_MeasuredOperator"]:
        known = {}
        for op, ones in self.tables.kernels_of.items():
            asked = [(self.otherwise.compute_us(Compute(op, one.flops, one.bytes)), one.time_us) for one in ones]
            same: dict[tuple[int, int], list[float]] = {}
            for one in ones:
                same.setdefault((one.flops, one.bytes), []).append(one.time_us)
            exact = {work: geometric_mean(times_us) for work, times_us in same.items()}
            known[op] = _MeasuredOperator(exact, curve_of(asked))
        return known


class _MeasuredOperator(NamedTuple):
    """What was measured of an operator: times by (flops, bytes), and over the times of the formulas."""

    times_us: dict[tuple[int, int], float]
    curve: Curve
