"""What a stage is: a named step from candidate to candidate that can be left out, and what each is given.

Which there are, in which order, and what each is for: :mod:`overlap_sched.scheduler.stages`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.needs import Reserve
from overlap_sched.scheduler.pool import Pool
from overlap_sched.scheduler.reference import Reference

Found = TypeVar("Found")


@dataclass(frozen=True)
class Stage(Generic[Found]):
    """One of the steps.

    Attributes:
        name: By which it is left out; what is done at several places has one name.
        purpose: What it is for, in one line.
        run: The step: what it cannot improve stays as it was.
    """

    name: str
    purpose: str
    run: Callable[["Context", Found], Found]


@dataclass(frozen=True)
class Stages:
    """All that is done, in this order.

    Attributes:
        live: From the order that runs start from, to the best one by live bytes.
        fitting: Where the allocator cannot hold that one: to orders that it can, collected in a pool.
        at_any_price: Where none of them would run where the original order does: to those that do.
        fitted: Of the one that is taken from the pool.
        last: Of the best that can be held.
    """

    live: tuple[Stage[Candidate], ...]
    fitting: tuple[Stage[Pool], ...]
    at_any_price: tuple[Stage[Pool], ...]
    fitted: tuple[Stage[Pool], ...]
    last: tuple[Stage[Candidate], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Each once, in the order in which they first run."""
        return tuple(dict.fromkeys(stage.name for part in fields(self) for stage in getattr(self, part.name)))

    def without(self, *names: str) -> "Stages":
        """All but those of such names.

        Raises:
            ValueError: There is no such stage.
        """
        unknown = set(names).difference(self.names)
        if unknown:
            raise ValueError(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(self.names)}")
        return self.each(lambda stage: () if stage.name in names else (stage,))

    def each(self, change: Callable[[Stage[Any]], Iterable[Stage[Any]]]) -> "Stages":
        """With others in the place of each."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return Stages(**{part: tuple(new for old in stages for new in change(old)) for part, stages in parts.items()})


@dataclass(frozen=True)
class Context:
    """What stages are given besides a candidate.

    Attributes:
        task: What is asked for. reference: a valid order within the budget, which runs start from.
        stages: All that is done.
        reserve: What orders may need of the allocator; ``None``: live bytes alone count.
        seed: Of what is tried at random.
    """

    task: Task
    reference: Reference
    stages: Stages
    reserve: Reserve | None = None
    seed: int = 0

    def has(self, name: str) -> bool:
        """Is a stage one of those that are done? For what one does inside of another."""
        return name in self.stages.names

    def through(self, stages: Iterable[Stage[Found]], found: Found) -> Found:
        """Return what comes of it behind some stages."""
        for stage in stages:
            found = stage.run(self, found)
        return found
