"""The list scheduler's schedules of a job that fit: by the same policy on all ranks, and by one of each rank's own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from overlap_sched.pipeline.durations import least_part
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.validate import violation
from overlap_sched.pipeline.memory import pipeline_peaks
from overlap_sched.pipeline.replay import replay_pipeline
from overlap_sched.pipeline.schedule import PipelineSchedule
from overlap_sched.pipeline.search.greedy import PipelinePolicy, greedy_schedule
from overlap_sched.pipeline.updates import with_updates

POLICIES = tuple(
    PipelinePolicy(ahead, waiting, patient=patient)
    for ahead, waiting, patient in product((-1, 0, 1, 2, 4, 8), (0, 1, 2, 4, 8, 64), (False, True))
)
"""On all ranks; the best :data:`BENT` of them also with the first stage's forwards before the last one's."""
BENT = 8
WORTH = 1.05
"""What is longer than the best that is known by more is not looked at for memory."""
TIGHTENED = 3
"""So many times a policy has another go with less room, where what it made did not fit."""
LEAST_AHEAD = -6
SEED = 0


@dataclass(frozen=True)
class MadeSchedule:
    """A schedule of a layout that fits; ``made_from``: for people."""

    step_us: float
    schedule: PipelineSchedule
    made_from: str


class PolicySearch:
    """Schedules of one job.

    Attributes:
        made: Those that fit, with the policies of all ranks.
        best_us: The shortest that is known, of other cuts, too.
    """

    def __init__(self, job: PipelineJob, best_us: float) -> None:
        self._job, self.best_us = job, best_us
        self._seen: dict[tuple[object, ...], float] = {}
        self._pairs = least_part(job) < 1.0
        self.made: list[tuple[MadeSchedule, tuple[PipelinePolicy, ...]]] = []

    def same_on_all(self) -> None:
        """Try each of some policies on all ranks."""
        for policy, pairs in product(POLICIES, (False, True) if self._pairs else (False,)):
            made_from = f"{policy.ahead} ahead, {policy.waiting} waiting{', pairs' * pairs}"
            self._try((replace(policy, pairs=pairs),) * self._job.ranks, made_from)
        for made, (policy, *_) in sorted(self.made, key=lambda one: one[0].step_us)[:BENT]:
            self._try((replace(policy, deepest=False),) * self._job.ranks, made.made_from)

    def one_for_each(self, count: int) -> None:
        """Change the best policies on some ranks, so many times, and keep to what is no longer."""
        if not self.made:
            return
        rng = random.Random(SEED)
        best, policies = min(self.made, key=lambda one: one[0].step_us)
        best_us = best.step_us
        for _ in range(count):
            changed = self._changed(policies, rng)
            step_us = self._try(changed, "a policy for each rank")
            if step_us is not None and step_us <= best_us:
                best_us, policies = step_us, changed

    def _changed(self, policies: Sequence[PipelinePolicy], rng: random.Random) -> tuple[PipelinePolicy, ...]:
        one = rng.randrange(len(policies))
        ranks = rng.choice(([one], [one], range(one, len(policies)), range(len(policies))))
        policy = policies[one]
        changes: list[PipelinePolicy] = [
            replace(policy, ahead=max(policy.ahead + rng.choice((-2, -1, 1, 2)), LEAST_AHEAD)),
            replace(policy, waiting=max(policy.waiting + rng.choice((-2, -1, 1, 2, 4)), 0)),
            replace(policy, deepest=not policy.deepest, patient=policy.patient != (rng.random() < 0.5)),
        ]
        if self._pairs:
            changes.append(replace(policy, pairs=not policy.pairs))
        changed = rng.choice(changes)
        return tuple(changed if rank in ranks else kept for rank, kept in enumerate(policies))

    def _try(self, policies: tuple[PipelinePolicy, ...], made_from: str) -> float | None:
        """The step of what policies make; ``None``: it does not fit, or they come to a stop."""
        job, limits = self._job, self._job.memory_limit_bytes
        spare = [0] * job.ranks
        for _ in range(TIGHTENED + 1):
            found = greedy_schedule(job, policies, spare)
            if found is None or found.orders in self._seen:
                return None if found is None else self._seen[found.orders]
            schedule = with_updates(job, found)
            replay = replay_pipeline(job, schedule)
            if replay.step_us > self.best_us * WORTH:
                return None
            lacks = [0] * job.ranks
            if limits is not None:
                peaks = pipeline_peaks(job, replay)
                lacks = [max(peak.bytes - limit, 0) for peak, limit in zip(peaks, limits, strict=True)]
            if not any(lacks):
                self._seen[found.orders] = replay.step_us
                self.best_us = min(self.best_us, replay.step_us)
                if violation(job, schedule) is None:
                    self.made.append((MadeSchedule(replay.step_us, schedule, made_from), policies))
                return replay.step_us
            spare = [one + lack for one, lack in zip(spare, lacks, strict=True)]
        return None
