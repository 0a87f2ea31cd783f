"""The numbers that tune the search for a schedule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Counts, per unit of effort where it says so."""

    improved: int = 3
    """So many cuts, and schedules of each, are improved, the shortest first: the price of each is a walk."""
    timed_actions: int = 1_300_000
    """Actions in all schedules that are timed while one is improved, per unit of effort: the price of a walk."""
    most_trials: int = 2_000
    """Schedules that are timed then at most, per unit of effort: the price of a walk of a small job."""
    solved_actions: int = 192
    """Forwards, input and weight gradients of jobs that are solved exactly, per unit of effort: the price of proofs."""
    solver_work: float = 3.0
    """OR-tools' deterministic time for a cut, per unit of effort (about seconds): the price of proofs."""


TUNING = Tuning()
