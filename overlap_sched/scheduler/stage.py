"""What a stage is: a named step from candidate to candidate that can be left out, and what each is given.

Which there are, in which order, and what each is for: :mod:`overlap_sched.scheduler.stages`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from overlap_sched.scheduler.candidate import Candidate, Task
from overlap_sched.scheduler.reference import Reference


@dataclass(frozen=True)
class Stage:
    """One of the steps.

    Attributes:
        name: By which it is left out.
        purpose: What it is for, in one line.
        run: The step: what it cannot improve stays as it was.
    """

    name: str
    purpose: str
    run: Callable[["Context", Candidate], Candidate]


@dataclass(frozen=True)
class Stages:
    """All that is done, in this order."""

    all: tuple[Stage, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each."""
        return tuple(stage.name for stage in self.all)

    def without(self, *names: str) -> "Stages":
        """All but those of such names.

        Raises:
            ValueError: There is no such stage.
        """
        unknown = set(names).difference(self.names)
        if unknown:
            raise ValueError(f"no stage is called {', '.join(sorted(unknown))}; there are {', '.join(self.names)}")
        return Stages(tuple(stage for stage in self.all if stage.name not in names))

    def each(self, change: Callable[[Stage], Stage]) -> "Stages":
        """With another in the place of each."""
        return Stages(tuple(map(change, self.all)))

    def run(self, context: "Context", found: Candidate) -> Candidate:
        """Return what comes of a candidate behind all of them."""
        for stage in self.all:
            found = stage.run(context, found)
        return found


@dataclass(frozen=True)
class Context:
    """What stages are given besides a candidate.

    Attributes:
        task: What is asked for. reference: a valid order within the budget, which runs start from.
    """

    task: Task
    reference: Reference
