"""The numbers that tune which rewrites are tried."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Parts and counts."""

    caps: tuple[int, ...] = (32, 48, 64, 96, 16, 8, 4)
    small_bytes: int = 2**16
    large_bytes: int = 2**28
    policies: int = 2
    payback_nodes: float = 50.0
    close: float = 0.99
    regions: int = 4
    inputs: int = 8
    fission_nodes: int = 100_000


TUNING = Tuning()
