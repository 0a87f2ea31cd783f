"""How an order does when times are not what was predicted: many replays at once, each with errors of its own.

The order stays; the times change. Compute between two events (launches and waits) is added up once for all draws, so
a replay of a thousand draws costs little more than one::

    order           mm  launch  mm  mm  wait  mm
    events              ^               ^            compute done before each: one number per draw
    clock = compute done + standstill so far         standstill grows at waits only
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from overlap_sched.cost.noise import LOG_NORMAL, Floats, Noise
from overlap_sched.errors import OptionsError
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Order, Problem

DRAWS = 1000
_CELLS = 4_000_000
"""Times held at once: 32 MB."""


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
        draws: How many replays.
        seed: Of the errors.

    Raises:
        OptionsError: ``draws`` is not at least 1, or ``seed`` is negative.
    """
    steps = steps_us(problem, order, noise, draws, seed)
    return Robustness(replay(problem, order).step_us, float(steps.mean()), float(np.percentile(steps, 95)))


def check_draws(draws: int, seed: int) -> None:
    """Raise for values that these cannot have."""
    if draws < 1:
        raise OptionsError(f"draws is {draws}; it is a number of replays, 1 or more.")
    if seed < 0:
        raise OptionsError(f"seed is {seed}; it is a whole number, 0 or more.")


def steps_us(problem: Problem, order: Sequence[int], noise: Noise, draws: int, seed: int) -> Floats:
    """The step under each draw; arguments as of :func:`robustness`."""
    check_draws(draws, seed)
    timed = [v for v, node in enumerate(problem.nodes) if node.time_us and node.kind is not Kind.WAIT]
    row = {v: k for k, v in enumerate(timed)}
    nodes = [problem.nodes[v] for v in timed]
    at_once = max(_CELLS // max(len(timed), 1), 1)
    steps = []
    for part, begin in enumerate(range(0, draws, at_once)):
        times = noise.times_us(nodes, min(at_once, draws - begin), (seed, part))
        steps.append(
            _one_by_one(problem, order, times, row) if problem.contention else _replayed(problem, order, times, row)
        )
    return np.concatenate(steps)


def _one_by_one(problem: Problem, order: Sequence[int], times: Floats, row: dict[int, int]) -> Floats:
    """The same by as many replays: with contention, what runs beside what differs from draw to draw."""
    steps = []
    for draw in times.T:
        nodes = (
            node._replace(time_us=float(draw[row[v]])) if v in row else node for v, node in enumerate(problem.nodes)
        )
        steps.append(replay(replace(problem, nodes=tuple(nodes)), order).step_us)
    return np.array(steps)


def _replayed(problem: Problem, order: Sequence[int], times: Floats, row: dict[int, int]) -> Floats:
    """The step of each column of times; ``row``: of a node that takes time, its row."""
    events, computed = _computed_before(problem, order, times, row)
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


def _computed_before(
    problem: Problem, order: Sequence[int], times: Floats, row: dict[int, int]
) -> tuple[Order, Floats]:
    """The launches and waits in order; the compute done before each of them and, in a last row, all compute."""
    events, between = [], [0]  # per event: where in `computing` it stands
    computing: list[int] = []
    for v in order:
        if problem.nodes[v].kind in (Kind.COLLECTIVE, Kind.WAIT):
            events.append(v)
            between.append(len(computing))
        elif v in row:
            computing.append(row[v])
    between.append(len(computing))
    done = np.zeros((len(between), times.shape[1]))
    for k in range(1, len(between)):
        rows = computing[between[k - 1] : between[k]]
        done[k] = done[k - 1] if not rows else done[k - 1] + times[rows].sum(axis=0)
    return tuple(events), done[1:]
