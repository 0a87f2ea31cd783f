"""What a search for rewrites has found so far, and whether to go on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from overlap_sched.problem import Order
from overlap_sched.scheduler.policies import Policy
from overlap_sched.transform.rewrites import Rewrite
from overlap_sched.transform.trial import POLICIES, Trial

POLICIES_AFTERWARDS = 2
"""The first try runs all policies; those after it so many: a graph stays with what suits it."""


@dataclass
class Found:
    """What was found.

    Attributes:
        best_us, best: The best so far. enough_us: what is good enough. runs_left: how many more runs pay.
        trials: All that was tried, in this order. winners: policies that have won, the last first.
        known: What was scheduled, and from where: other caps make the same buckets at times.
    """

    best_us: float
    enough_us: float
    runs_left: int
    best: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    winners: list[Policy] = field(default_factory=list)
    known: set[tuple[tuple[Rewrite, ...], Order]] = field(default_factory=set)

    def see(self, trial: Trial) -> bool:
        """Note a try; is it the best now?"""
        self.trials.append(trial)
        self.runs_left -= trial.work.runs
        if trial.step_us >= self.best_us:
            return False
        self.best_us, self.best = trial.step_us, trial
        self.winners = list(dict.fromkeys((*trial.policies, *self.winners)))
        return True

    def join(self, other: "Found") -> None:
        """Note what another search has found that began with what this one may still spend."""
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
