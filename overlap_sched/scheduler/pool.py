"""Orders that were tried for the allocator, with what each breaks of what the original order needs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from overlap_sched.scheduler.candidate import Candidate, SchedulerRun
from overlap_sched.scheduler.needs import NOTHING, Reserve, Tried, held_us
from overlap_sched.scheduler.result import Work

CLOSE, HELD = 1.005, 1.02
"""Parts of the best step. Where an order can be held within the first, nothing more is tried; within the second, no
tighter budgets."""
RETRY = 0.001
"""A retry more loses as much as this part of the step."""
MENDED = 1.03
"""Orders whose step is within this part of the best, or may be taken, are mended, those first that break least."""


@dataclass(frozen=True)
class Pool:
    """Where the search stands.

    Attributes:
        reserve: What an order may need.
        best: The best order by live bytes. original: the original one.
        most_us: A longer step, in microseconds, is not taken.
        made: By runs. tried: all, mended and moved ones, too.
        taken: Of all of them: at first the best order.
        work: What the runs took.
    """

    reserve: Reserve
    best: Candidate
    original: Candidate
    most_us: float
    made: tuple[Tried, ...]
    tried: tuple[Tried, ...]
    taken: Tried
    work: Work

    @classmethod
    def of(cls, reserve: Reserve, best: Candidate) -> "Pool":
        """With the best order alone."""
        original = reserve.task.measured(reserve.task.problem.original_order)
        most_us = min(best.step_us * (1 + reserve.task.options.allocator_cost / 100), original.step_us)
        alone = reserve.overdraft(best.order), best
        return cls(reserve, best, original, most_us, (alone,), (alone,), alone, best.work)

    def at_any_price(self) -> "Pool":
        """The same where a few MiB more may be lacking, and no step up to that of the original order is too long."""
        original = ((NOTHING, self.original),) if self.reserve.task.may_stay else ()
        lenient = self.reserve.lenient
        tried = tuple((lenient.overdraft(found.order), found) for _, found in (*self.tried, *original))
        made = tuple(pair for pair in tried if any(pair[1] is found for _, found in self.made))
        return replace(self, reserve=lenient, most_us=self.original.step_us, made=made, tried=tried)

    @property
    def held_us(self) -> float:
        """The shortest step in microseconds of what breaks nothing; infinite where all do."""
        return held_us(self.tried)

    @property
    def enough_us(self) -> float:
        """A step that is short enough for orders that fragment little."""
        return min(self.most_us, self.best.step_us * HELD)

    @property
    def limit_us(self) -> float:
        """The step beyond which nothing is taken."""
        return min(self.most_us, self.held_us)

    @property
    def mended_us(self) -> float:
        """The step beyond which nothing is worth mending."""
        return min(max(self.best.step_us * MENDED, self.most_us), self.held_us)

    @property
    def close(self) -> bool:
        """Can an order be held that is close to the best?"""
        return self.held_us <= self.best.step_us * CLOSE

    def with_tried(self, tried: Iterable[Tried]) -> "Pool":
        """And others."""
        return replace(self, tried=(*self.tried, *tried))

    def with_made(self, found: Candidate) -> "Pool":
        """And one more, where it is new."""
        if any(found.order == other.order for _, other in self.made):
            return self
        pair = self.reserve.overdraft(found.order), found
        return replace(self, made=(*self.made, pair), tried=(*self.tried, pair))

    def with_run(self, run: SchedulerRun) -> "Pool":
        """And what a run has made; its work counts in either case."""
        after = self if run.made is None else self.with_made(run.made)
        return replace(after, work=self.work.plus(run.work))

    def chosen(self) -> Tried:
        """The shortest order that breaks nothing; where there is none, the one near the best that breaks least."""
        broken, found = chosen(self.tried, self.best.step_us, self.most_us, self.reserve.reserved_bytes)
        return broken, replace(found, work=self.work)


def chosen(tried: Sequence[Tried], best_us: float, most_us: float, reserved_bytes: int) -> Tried:
    """The shortest that breaks nothing; else what runs at all, best without a retry; of that, what loses the least.

    Args:
        tried: Orders, with what each breaks.
        best_us: The shortest step, in microseconds.
        most_us: What takes longer is not taken.
        reserved_bytes: By the original order. A percent of it is worth as much as a percent of the best step.
    """
    far = [pair for pair in tried if pair[1].step_us <= most_us]
    kept = [pair for pair in far if pair[0] == NOTHING]
    if kept:
        return min(kept, key=lambda pair: pair[1].step_us)

    def key(pair: Tried) -> tuple[bool, bool, float]:
        broken, found = pair
        lost = broken.over_bytes / max(reserved_bytes, 1) + found.step_us / (best_us or 1.0) + RETRY * broken.retries
        return broken.out_of_memory, broken.retries > 0, lost

    return min(far, key=key)


def distinct(tried: Iterable[Tried]) -> list[Candidate]:
    """Those that break least first; of all that break as much, the shortest: most of them fail for the same reason."""
    ordered = sorted(tried, key=lambda pair: (pair[0], pair[1].step_us), reverse=True)
    return list(dict(ordered).values())[::-1]


def nearest(pool: Pool, mendable: float) -> list[Candidate]:
    """List what is worth mending: shorter than what can be held already, not far from the best, lacking not too much.

    First what breaks least, to a hundredth of what may be reserved; of those, the shortest, to a thousandth.
    """
    reserved_bytes, best_us = max(pool.reserve.reserved_bytes, 1), pool.best.step_us

    def key(pair: Tried) -> tuple[int, ...]:
        broken, found = pair
        hundredths, thousandths = 100 * broken.over_bytes // reserved_bytes, int(1000 * found.step_us / best_us)
        return broken.out_of_memory, broken.retries, hundredths, thousandths, broken.over_bytes

    worth = [pair for pair in pool.made if pair[0] != NOTHING and pair[1].step_us < pool.mended_us]
    return [found for broken, found in sorted(worth, key=key) if broken.over_bytes <= mendable * reserved_bytes]
