"""``--vary WHAT=VALUES`` of ``sweep`` and ``pipeline``."""

from collections.abc import Callable, Collection, Iterable
from math import prod

from overlap_sched.errors import OptionsError
from overlap_sched.options import close_to

_LEAST, _MOST = 2.0**-20, 2.0**60


def read_axes(
    texts: Iterable[str],
    axes: Collection[str],
    example: str,
    most: int,
    read: Callable[[str, str], float] = lambda _, text: float(text),
    from_zero: Collection[str] = (),
) -> dict[str, tuple[float, ...]]:
    """Read what was given: ``micro_batches=8,16,32``, ``links=0.25..4``, ``headroom=0..2GiB``.

    Args:
        texts: One per axis.
        axes: Names that may be varied.
        example: For messages.
        most: Combinations.
        read: Reads a value of an axis; raises ``ValueError`` where it is none.
        from_zero: Names whose values may be 0.

    Raises:
        OptionsError: One is not written so, something is varied twice, or there are more than ``most`` combinations.
    """
    found: dict[str, tuple[float, ...]] = {}
    for text in texts:
        shown = text if len(text) <= 40 else text[:37] + "..."
        name, _, values = (part.strip() for part in text.partition("="))
        if name not in axes or not values:
            near = "" if name in axes else close_to(name, axes)
            raise OptionsError(f"--vary {shown}: is not WHAT=VALUES, WHAT one of {', '.join(axes)}: {example}.{near}")
        if name in found:
            raise OptionsError(f"--vary {shown}: {name} is varied already. Give it once.")
        first, dots, last = values.partition("..")
        try:
            numbers = [read(name, value.strip()) for value in ([first, last] if dots else values.split(","))]
        except OptionsError:  # says more
            raise
        except ValueError:
            numbers = []
        if dots and numbers:
            numbers = _powers_of_two(numbers[0], numbers[1], most)
        least, above = (0.0, "0 or more") if name in from_zero else (_LEAST, "above 0")
        if not numbers or not all(least <= one <= _MOST for one in numbers) or len(set(numbers)) < len(numbers):
            raise OptionsError(
                f"--vary {shown}: values are numbers {above}, each once: FIRST..LAST in powers of two, or A,B,C."
            )
        found[name] = tuple(numbers)
    if (count := prod(map(len, found.values()))) > most:
        raise OptionsError(f"--vary: that makes {count} combinations, {most} at most. Give fewer values.")
    return found


def _powers_of_two(first: float, last: float, most: int) -> list[float]:
    """From the first to the last; from 0, the last five."""
    if not first < last or first:
        return [one for k in range(most + 1) if (one := first * 2**k) <= last * (1 + 1e-9)]
    return [0.0, *(last / 2**k for k in range(4, -1, -1))]
