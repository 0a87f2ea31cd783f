"""The numbers that tune the choice of values that are not kept."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Parts and counts."""

    aims: tuple[float, ...] = (1.0, 0.97, 0.92)
    overshoot: int = 3
    weights: tuple[float, ...] = (0.05, 0.5)
    high: tuple[float, ...] = (0.0, 0.5)
    little: int = 8
    large_nodes: int = 4_000
    halved_nodes: int = 175_000
    lowered: int = 3
    slack: float = 0.1
    longer: float = 0.1
    least_us: float = 0.5
    longest: int = 60
    joint_cuts: int = 6


TUNING = Tuning()
