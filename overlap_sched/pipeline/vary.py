"""A job as it is and changed: other micro-batches, other ranks, links between stages of another bandwidth.

Stages, their times and bytes stay: with more micro-batches a step does more, and takes longer.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from overlap_sched.errors import OptionsError
from overlap_sched.options import close_to
from overlap_sched.pipeline.job import PipelineJob, PipelineLink

WHOLE = ("micro_batches", "ranks")
AXES = (*WHOLE, "links")
MOST_CHANGES = 64
_LEAST, _MOST = 2.0**-20, 2.0**60


@dataclass(frozen=True)
class ChangedJob:
    """What is changed: by name, in the order in which it was asked for."""

    values: tuple[tuple[str, float], ...] = ()

    @property
    def instead(self) -> dict[str, int]:
        """Values that take the place of those in the file."""
        return {name: int(value) for name, value in self.values if name in WHOLE}

    def linked(self, job: PipelineJob) -> PipelineJob:
        """The job with links of another bandwidth."""
        factor = dict(self.values).get("links", 1.0)
        links = {ends: _times(link, factor) for ends, link in job.links.items()}
        return replace(job, link=_times(job.link, factor), links=links)


UNCHANGED = ChangedJob()


def _times(link: PipelineLink, factor: float) -> PipelineLink:
    return replace(link, bytes_per_s=link.bytes_per_s * factor)


def read_axes(
    texts: Iterable[str],
    axes: Collection[str] = AXES,
    whole: Collection[str] = WHOLE,
    example: str = "micro_batches=8,16,32 links=0.5,2",
    most: int = MOST_CHANGES,
    read: Callable[[str, str], float] = lambda name, text: float(text),
    from_zero: Collection[str] = (),
) -> dict[str, tuple[float, ...]]:
    """Read what ``--vary`` was given: ``micro_batches=8,16,32``, ``links=0.25..4``, ``headroom=0..2GiB``.

    Args:
        texts: One per axis.
        axes: Names that may be varied.
        whole: Those whose values are whole numbers.
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
        found[name] = _values(shown, name, values, most, partial(read, name), 0.0 if name in from_zero else _LEAST)
        if name in whole and not all(value == int(value) for value in found[name]):
            raise OptionsError(f"--vary {shown}: {name} are whole numbers.")
    if (count := prod(map(len, found.values()))) > most:
        raise OptionsError(f"--vary: that makes {count} combinations, {most} at most. Give fewer values.")
    return found


def _values(
    shown: str, name: str, text: str, most: int, read: Callable[[str], float], least: float
) -> tuple[float, ...]:
    first, dots, last = text.partition("..")
    if last.startswith("."):
        raise OptionsError(f"--vary {shown}: has three dots. Did you mean {name}={first}..{last.lstrip('.')}?")
    found: list[float] = []
    try:
        low, *others = [read(value.strip()) for value in ([first, last] if dots else text.split(","))]
        if dots and others[0] > low == least == 0:
            found = [0.0, *(others[0] / 2**k for k in range(4, -1, -1))]
        elif dots:
            found = [value for value in (low * 2**k for k in range(most + 1)) if value <= others[0] * (1 + 1e-9)]
        else:
            found = [low, *others]
    except OptionsError:  # says more
        raise
    except ValueError:
        pass
    if not found or not all(least <= value <= _MOST for value in found) or len(set(found)) != len(found):
        above = "0 or more" if least == 0 else "above 0"
        raise OptionsError(
            f"--vary {shown}: values are numbers {above}, each once: FIRST..LAST in powers of two, or A,B,C."
        )
    return tuple(found)


def changes(found: Mapping[str, tuple[float, ...]]) -> list[ChangedJob]:
    """List all combinations of values."""
    combined = product(*found.values()) if found else ()
    return [ChangedJob(tuple(zip(found, values, strict=True))) for values in combined]
