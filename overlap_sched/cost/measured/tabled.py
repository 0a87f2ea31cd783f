"""A cost model that knows what was measured, and asks another one for the rest."""

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from overlap_sched.cost.measured.table import Curve, Tables, curve_of, geometric_mean, kind_of, placed
from overlap_sched.cost.model import Collective, Compute, ExplainingModel, PricedModel, Roofline
from overlap_sched.cost.price import FREE, Price
from overlap_sched.errors import CostError, OverlapSchedWarning

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
        price = self._along(curve, work.bytes, placed(kind, work.group.size, nodes))
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
