"""What a search for rewrites has found so far, and whether to go on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from overlap_sched.problem import Order
from overlap_sched.scheduler.list_scheduler import Policy
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.trial import POLICIES, Trial

POLICIES_AFTERWARDS = 2
"""The first try runs all policies; those after it so many: a graph stays with what suits it."""

RunsPaid = Callable[[float], int]
"""Of a step in microseconds: how many runs of the scheduler pay for what it can still become shorter by."""


@dataclass
class Found:
    """What was found.

    Attributes:
        best_us, best: The best so far. enough_us: what is good enough.
        runs_paid: How many runs of the scheduler pay for what a step can still become shorter by.
        runs_left: How many more are made: the shorter the best, the fewer.
        trials: All that was tried, in this order. winners: policies that have won, the last first.
        known: What was scheduled, and from where: other caps make the same buckets at times.
    """

    best_us: float
    enough_us: float
    runs_paid: RunsPaid
    runs_left: int = field(init=False)
    best: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    winners: list[Policy] = field(default_factory=list)
    known: set[tuple[tuple[Rewrite, ...], Order]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Nothing is spent yet."""
        self.runs_left = self.runs_paid(self.best_us)

    def see(self, trial: Trial) -> bool:
        """Note a try; is it the best now?"""
        self.trials.append(trial)
        self.runs_left -= trial.work.runs
        if trial.step_us >= self.best_us:
            return False
        self.best_us, self.best = trial.step_us, trial
        self.runs_left = min(self.runs_left, self.runs_paid(trial.step_us))
        self.winners = list(dict.fromkeys((*trial.policies, *self.winners)))
        return True

    def without_best(self, step_us: float) -> "Found":
        """For another search from a step (microseconds), with what this one may still spend."""
        alone = Found(step_us, self.enough_us, self.runs_paid)
        alone.runs_left = self.runs_left
        return alone

    def join(self, other: "Found") -> None:
        """Note what such a search has found."""
        self.trials += other.trials
        self.runs_left = other.runs_left
        if other.best is not None and other.best_us < self.best_us:
            self.best_us, self.best, self.winners = other.best_us, other.best, other.winners

    @property
    def enough(self) -> bool:
        """Is the best good enough, or all spent that pays?"""
        return self.best_us <= self.enough_us or self.runs_left <= 0

    def policies(self) -> Sequence[Policy]:
        """Those for the next try: all at first; then those that have won last."""
        if not any(trial.work.runs for trial in self.trials):
            return POLICIES
        return tuple(dict.fromkeys((*self.winners, *POLICIES)))[:POLICIES_AFTERWARDS]
