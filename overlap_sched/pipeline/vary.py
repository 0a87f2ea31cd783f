"""A job as it is and changed: other micro-batches, other ranks, links between stages of another bandwidth.

Stages, their times and bytes stay: with more micro-batches a step does more, and takes longer.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from overlap_sched.errors import OptionsError
from overlap_sched.pipeline.job import PipelineJob, PipelineLink

WHOLE = ("micro_batches", "ranks")
AXES = (*WHOLE, "links")
MOST_CHANGES = 64
_MOST = 2**20


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


def read_axis(text: str) -> tuple[str, tuple[float, ...]]:
    """Read ``micro_batches=8,16,32``.

    Raises:
        OptionsError: It is not written so.
    """
    shown = text if len(text) <= 40 else text[:37] + "..."
    name, _, values = (part.strip() for part in text.partition("="))
    if name not in AXES or not values:
        raise OptionsError(
            f"--vary {shown}: is not WHAT=VALUES, WHAT one of {', '.join(AXES)}: micro_batches=8,16,32, links=0.5,2."
        )
    try:
        found = tuple(float(value) for value in values.split(","))
    except ValueError:
        found = ()
    if not found or not all(2.0**-20 <= value <= _MOST for value in found) or len(set(found)) != len(found):
        raise OptionsError(f"--vary {shown}: values are numbers above 0, each once: A,B,C.")
    if name in WHOLE and not all(value == int(value) for value in found):
        raise OptionsError(f"--vary {shown}: {name} are whole numbers.")
    return name, found


def changes(axes: Iterable[tuple[str, tuple[float, ...]]]) -> list[ChangedJob]:
    """List all combinations of values.

    Raises:
        OptionsError: Something is varied twice, or there are more than :data:`MOST_CHANGES`.
    """
    found: dict[str, tuple[float, ...]] = {}
    for name, values in axes:
        if name in found:
            raise OptionsError(f"--vary {name}: is varied already. Give it once.")
        found[name] = values
    count = prod(map(len, found.values()))
    if count > MOST_CHANGES:
        raise OptionsError(f"--vary: that makes {count} combinations, {MOST_CHANGES} at most. Give fewer values.")
    combined = product(*found.values()) if found else ()
    return [ChangedJob(tuple(zip(found, values, strict=True))) for values in combined]
