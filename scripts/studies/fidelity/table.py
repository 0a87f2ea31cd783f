"""Rounds of predictions and measurements as rows, a table, and what misses its aim."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

STEP_AIM, EXPOSED_AIM = 0.15, 0.20
"""How far a prediction may be from the measurement, as a part of it."""


class Row(NamedTuple):
    """One case and order; microseconds, medians over the rounds, each round calibrated anew.

    Attributes:
        case: See ``CASES``. order: ``"original"`` or ``"ours"``.
        step_us, exposed_us: Measured: inside the graphs of a step, and of that at waits.
        skew_us: Of the exposed time, waiting for ranks that came later: no replay of one rank knows it.
        predicted_step_us, predicted_exposed_us: By the calibration of the same round.
        launch_us: Of the predicted step, what launches take.
        processor_us: Measured: inside graphs, not at waits, that the thread had a processor. Less than step minus
            exposed where others use the machine.
        busy_us: Predicted: step minus exposed, which is what the thread computes and launches.
        errors: Per round, predicted / measured - 1 of the step without skew. exposed_errors: of the exposed time
            without skew.
    """

    case: str
    order: str
    step_us: float
    exposed_us: float
    skew_us: float
    predicted_step_us: float
    predicted_exposed_us: float
    launch_us: float
    processor_us: float
    busy_us: float
    errors: tuple[float, ...]
    exposed_errors: tuple[float, ...]

    @property
    def step_error(self) -> float:
        """The median round's."""
        return statistics.median(self.errors)

    @property
    def exposed_error(self) -> float:
        """The median round's."""
        return statistics.median(self.exposed_errors)


def rows_of(case: str, found: Mapping[str, Any]) -> list[Row]:
    """A row per order of what a rank wrote."""
    rounds: Sequence[Mapping[str, Any]] = found["rounds"]
    return [_row(case, order, [one[order] for one in rounds]) for order in rounds[0]]


_HEADS = (
    "step",
    "of it skew",
    "the rest",
    "predicted",
    "error",
    "exposed",
    "predicted",
    "error",
    "processor",
    "predicted",
)


def fidelity_table(rows: Iterable[Row]) -> Table:
    """Predicted beside measured, in milliseconds; exposed time is without skew."""
    table = Table(title="Predicted and measured (ms; medians of rounds that are each calibrated anew)")
    for name in ("case", "order"):
        table.add_column(name)
    for name in _HEADS:
        table.add_column(name, justify="right")
    for row in rows:
        step, exposed = (row.step_us - row.skew_us, row.exposed_us - row.skew_us)
        table.add_row(
            row.case,
            row.order,
            *_ms(row.step_us, row.skew_us, step, row.predicted_step_us),
            f"{100 * row.step_error:+.0f} %",
            *_ms(exposed, row.predicted_exposed_us),
            f"{100 * row.exposed_error:+.0f} %",
            *_ms(row.processor_us, row.busy_us),
        )
    return table


def _ms(*times_us: float) -> list[str]:
    return [f"{us / 1e3:,.1f}" for us in times_us]


def failures(rows: Iterable[Row]) -> list[str]:
    """What is further off than it should be."""
    found = []
    for row in rows:
        for what, error, aim in (("step", row.step_error, STEP_AIM), ("exposed", row.exposed_error, EXPOSED_AIM)):
            if abs(error) > aim:
                found.append(f"{row.case}, {row.order}: {what} is predicted {100 * error:+.0f} % off; aim {aim:.0%}")
    return found


def _row(case: str, order: str, rounds: Sequence[Mapping[str, Any]]) -> Row:
    def median(of: str, figure: str) -> float:
        return statistics.median(one[of][figure] for one in rounds)

    def errors(figure: str) -> tuple[float, ...]:
        without_skew = [one["measured"][figure] - one["measured"]["skew_us"] for one in rounds]
        pairs = zip(rounds, without_skew, strict=True)
        return tuple(one["predicted"][figure] / max(measured, 1e-3) - 1 for one, measured in pairs)

    return Row(
        case,
        order,
        median("measured", "step_us"),
        median("measured", "exposed_us"),
        median("measured", "skew_us"),
        median("predicted", "step_us"),
        median("predicted", "exposed_us"),
        median("predicted", "launch_us"),
        median("measured", "processor_us"),
        statistics.median(one["predicted"]["step_us"] - one["predicted"]["exposed_us"] for one in rounds),
        errors("step_us"),
        errors("exposed_us"),
    )
