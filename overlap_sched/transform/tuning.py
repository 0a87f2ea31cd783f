"""The numbers that tune which rewrites are tried."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """What is tried, and what a try may cost.

    Behind them, where measured: how much longer the step is with another value, on how many of 38 rows (Llama-3-8B
    backward x4 and 12 small FSDP steps, by three sets of kinds).
    """

    caps: tuple[int, ...] = (32, 48, 96, 8)
    """Of buckets of neighbours, in latencies. None: +12.9 and +1.8 %, 2 rows; without 48: +3.8 %; seven: none."""
    small_bytes: int = 2**16
    """What a collective of 64 KiB takes is latency."""
    large_bytes: int = 2**28
    """What a collective of 256 MiB takes has next to no latency in it."""
    policies: int = 2
    """The first try runs all policies; those after it so many: the price of a try."""
    payback_nodes: float = 50.0
    """Nodes scheduled for a microsecond that can be gained: 1,000 steps pay for the search at 20 us a node."""
    close: float = 0.99
    """Ranges of memory limits are halved until they are as narrow as this: 7 halvings."""
    regions: int = 4
    """Regions of a graph that are grown to find fissions: the price of fissions."""
    inputs: int = 8
    """Inputs from which the batch is followed, at most: the price of parts along the batch."""
    least_part: float = 0.2
    """Of the compute; what runs in parts along the batch is at least so much: the price of parts of less."""
    fission_nodes: int = 100_000
    """Nodes that a graph in parts may have: the price of scheduling it."""


TUNING = Tuning()
