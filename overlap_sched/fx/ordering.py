"""The ordering constraints that an operator can have besides its data."""

from enum import IntEnum


class Ordering(IntEnum):
    """The ordering constraint of an operator, besides its data; the weakest first."""

    NONE = 0
    RANDOM = 1
    """Draws random numbers: ordered among those that do."""
    EFFECT = 2
    """Asserts, prints, reads a value on the host: ordered among those that do."""
    BARRIER = 3
    """Unknown: ordered against everything impure and everything that touches its storages."""
    FENCE = 4
    """Changes how what follows it runs (streams, autograd mode): ordered against everything."""
