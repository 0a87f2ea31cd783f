"""Sizes that only the data knows, on which memory figures rest: in few words."""

from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = 4


class AssumedSize(NamedTuple):
    """What a size that only the data knows was taken as, for memory.

    Attributes:
        name: Its symbol.
        node: The first node whose value shows it; ``""``: none does, or it is the name.
        taken: The number: figures hold for sizes up to it.
        limited: Whether the graph's asserts admit no larger one; else it is a guess.
    """

    name: str
    node: str
    taken: int
    limited: bool


def sizes_assumed(sizes: Sequence[AssumedSize]) -> str:
    """``peak rests on guessed sizes: u1 (nonzero) = 8,192, u0 (item) <= 4,096 as asserted``; ``""`` for none.

    Those that no assert limits come first.
    """
    if not sizes:
        return ""
    ranked = sorted(sizes, key=lambda size: size.limited)
    more = f" and {len(sizes) - _SHOWN:,} more" if len(sizes) > _SHOWN else ""
    return f"peak rests on guessed sizes: {', '.join(map(_shown, ranked[:_SHOWN]))}{more}"


def _shown(size: AssumedSize) -> str:
    node = f" ({size.node})" if size.node else ""
    return f"{size.name}{node} {f'<= {size.taken:,} as asserted' if size.limited else f'= {size.taken:,}'}"
