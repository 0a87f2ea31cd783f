"""How an order does when times are not what was predicted: many replays at once, each with errors of its own.

The order stays; the times change. Compute between two events (launches and waits) is added up once for all draws, so
a replay of a thousand draws costs little more than one::

    order           mm  launch  mm  mm  wait  mm
    events              ^               ^            compute done before each: one number per draw
    clock = compute done + stalls so far             stalls grow at waits only
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlap_sched.cost.noise import LOG_NORMAL, Floats, Noise
from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.judge.replay import ContendedClock, replay
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.sizes import show_number

DRAWS = 1000
MAX_DRAWS = 1_000_000
"""More would not change a digit that anybody reads."""
_CELLS = 4_000_000
"""Times in memory at once: 32 MB."""
_SHARE = 0.95
"""Of the draws that do not exceed ``p95_us``."""


@dataclass(frozen=True)
class Robustness:
    """The step of one order under errors, in microseconds.

    Attributes:
        predicted_us: Without errors.
        mean_us, p95_us: Over the draws: the mean, and the step that 95 % of them do not exceed.
    """

    predicted_us: float
    mean_us: float
    p95_us: float

    @property
    def rise_percent(self) -> float:
        """The mean above the prediction."""
        return 100 * (self.mean_us / self.predicted_us - 1) if self.predicted_us else 0.0


def robustness(
    problem: Problem, order: Sequence[int], noise: Noise = LOG_NORMAL, draws: int = DRAWS, seed: int = 0
) -> Robustness:
    """Replay an order under errors. All orders of a problem meet the same errors under the same seed.

    Args:
        problem: What the order is of.
        order: A valid order.
        noise: How wrong times are.
        draws: How many replays. Memory is for the slowest twentieth of them.
        seed: Of the errors.

    Raises:
        OptionsError: ``draws`` is not 1 to 1,000,000, or ``seed`` is negative.
        ProblemError: Times are so large that their sum is not finite.
    """
    check_draws(draws, seed)
    rank = _SHARE * (draws - 1)  # as of numpy.percentile: between two draws, both among the largest
    keep = draws - math.floor(rank)
    total_us, largest = 0.0, np.empty(0)
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        for steps in _parts(problem, order, noise, draws, seed):
            total_us += float(steps.sum())
            largest = np.sort(np.concatenate([largest, steps]))[-keep:]
        p95_us = float(np.quantile(largest[:2], rank - math.floor(rank)))
    if not math.isfinite(total_us + p95_us):
        raise ProblemError(
            f"the steps of {problem.name!r} under errors add up to infinity. Are its times in microseconds?"
        )
    return Robustness(replay(problem, order).step_us, total_us / draws, p95_us)


def check_draws(draws: int, seed: int) -> None:
    """Raise for values that these cannot have."""
    if not 1 <= draws <= MAX_DRAWS:
        raise OptionsError(f"draws is {show_number(draws)}; it is a number of replays, 1 to {MAX_DRAWS}.")
    if seed < 0:
        raise OptionsError(f"seed is {show_number(seed)}; it is a whole number, 0 or more.")


def steps_us(problem: Problem, order: Sequence[int], noise: Noise, draws: int, seed: int) -> Floats:
    """The step under each draw; arguments as of :func:`robustness`."""
    check_draws(draws, seed)
    return np.concatenate(list(_parts(problem, order, noise, draws, seed)))


def _parts(problem: Problem, order: Sequence[int], noise: Noise, draws: int, seed: int) -> Iterator[Floats]:
    """The step under each draw, some draws at a time."""
    timed = [v for v, node in enumerate(problem.nodes) if node.time_us and node.kind is not Kind.WAIT]
    row = {v: k for k, v in enumerate(timed)}
    nodes = [problem.nodes[v] for v in timed]
    at_once = max(_CELLS // max(len(timed), 1), 1)
    for part, begin in enumerate(range(0, draws, at_once)):
        times = noise.times_us(nodes, min(at_once, draws - begin), (seed, part))
        yield _one_by_one(problem, order, times, row) if problem.contention else _replayed(problem, order, times, row)


def _one_by_one(problem: Problem, order: Sequence[int], times: Floats, row: dict[int, int]) -> Floats:
    """The same by as many replays: with contention, what runs beside what differs from draw to draw."""
    stretches = _stretches(problem, order, row)
    computed = _computed(stretches, times).T
    launched = [(v, row[v]) for v in problem.collectives if v in row]
    steps = []
    for draw, works in zip(times.T, computed.tolist(), strict=True):
        clock = ContendedClock(problem, {v: float(draw[k]) for v, k in launched})
        for work_us, (_, share, event) in zip(works, stretches, strict=True):
            clock.compute(work_us, share)
            if event is not None and problem.nodes[event].kind is Kind.COLLECTIVE:
                clock.launch(event)
            elif event is not None and (collective := problem.nodes[event].collective) is not None:
                clock.wait(collective)
        steps.append(clock.drain())
    return np.array(steps)


class _Stretch(NamedTuple):
    """Compute that is slowed alike, by rows of the times, and the launch or wait behind it; ``None``: more compute."""

    rows: tuple[int, ...]
    share: float
    event: int | None


def _stretches(problem: Problem, order: Sequence[int], row: dict[int, int]) -> list[_Stretch]:
    """An order as its events, with what is computed before each, and at its end."""
    found, rows, share = [], list[int](), 1.0
    for v in order:
        node = problem.nodes[v]
        if node.kind in (Kind.COLLECTIVE, Kind.WAIT):
            found.append(_Stretch(tuple(rows), share, v))
            rows = []
        elif v in row:
            own = problem.contention.share_of(node.flops, node.bytes)
            if rows and own != share:
                found.append(_Stretch(tuple(rows), share, None))
                rows = []
            rows.append(row[v])
            share = own
    return [*found, _Stretch(tuple(rows), share, None)]


def _computed(stretches: Sequence[_Stretch], times: Floats) -> Floats:
    """Add up what each stretch computes: a row per stretch, a column per draw."""
    return np.array([times[list(stretch.rows)].sum(axis=0) for stretch in stretches])


def _replayed(problem: Problem, order: Sequence[int], times: Floats, row: dict[int, int]) -> Floats:
    """The step of each column of times; ``row``: of a node that takes time, its row. Nothing is slowed by anything."""
    stretches = _stretches(problem, order, row)
    events, computed = [s.event for s in stretches if s.event is not None], _computed(stretches, times).cumsum(axis=0)
    draws = times.shape[1]
    stalled = np.zeros(draws)
    free: dict[str | None, Floats] = {}
    finish: dict[int, Floats] = {}
    for v, done in zip(events, computed, strict=False):
        node = problem.nodes[v]
        clock = done + stalled
        if node.kind is Kind.COLLECTIVE:
            if node.group in free:
                np.maximum(clock, free[node.group], out=clock)
            if v in row:
                clock += times[row[v]]
            finish[v] = free[node.group] = clock
        elif node.collective is not None:
            np.maximum(clock, finish[node.collective], out=clock)
            np.subtract(clock, done, out=stalled)
    step = computed[-1] + stalled
    for end in free.values():
        np.maximum(step, end, out=step)
    return step
