"""The numbers that tune the search for low peaks and for addresses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """All are counts, doubled with each unit of effort."""

    steps: int = 20_000
    window_steps: int = 8_000
    looks: int = 130_000
    look_cells: int = 2**15
    longer_run: float = 1.05
    blame: float = 0.3
    climb_boxes: int = 30_000
    close: float = 1e-3


TUNING = Tuning()
