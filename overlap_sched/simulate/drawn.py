"""How long orders take at many drawn times at once: all draws of an order go side by side, in arrays.

The rules are those of the other clocks. Every draw launches and waits at the same nodes, only at other times; compute
between two of those is added up first. What is in flight on a stream, and what is left of it, is each draw's own::

    order       launch g, compute, launch s, compute, wait for g, ...
    draw 0      clock 52, in flight g: 4 left; s is behind it
    draw 1      clock 61, in flight s: 33 left; g is done
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from overlap_sched.problem import NodeId, Problem
from overlap_sched.problem.contention import slowed_factor
from overlap_sched.simulate.clock import LAUNCH, StepTimes

Floats = npt.NDArray[np.float64]


def drawn_steps(problem: Problem, orders: Sequence[Sequence[NodeId]], factors: Floats) -> Floats:
    """Return the steps of valid orders in microseconds, a row per order and a column per draw.

    ``factors``: by what the times of nodes are multiplied, a row per node and a column per draw.
    """
    times = StepTimes(problem)
    if problem.contention.lanes > 1:
        return np.array([[times.multiplied(column).of(order) for column in factors.T.tolist()] for order in orders])
    times_us = np.array(times.collective_us)[:, None] * factors
    return np.array([_DrawnClock(times, times_us).run(order) for order in orders])


class _DrawnClock:
    """A row per stream, a column per draw; streams of one lane."""

    def __init__(self, times: StepTimes, times_us: Floats) -> None:
        nodes, contention = times.problem.nodes, times.problem.contention
        shape = len(times.streams), times_us.shape[1]
        # per node, and last what stands for nothing in flight
        self._of, self._times_us = times, np.vstack([times_us, np.full(shape[1], np.inf)])
        self._slowdown = np.array([*(times.slowdown.get(v, 1.0) for v in range(len(nodes))), 1.0])
        self._stretch = np.array([*(contention.stretch_of(node.op) for node in nodes), 1.0])
        links = [contention.link_of(group) for group in times.streams]
        self._same_link = np.array([[one == other for other in links] for one in links], dtype=float)
        self._queues: list[list[NodeId]] = [[] for _ in links]
        self._clock_us, self._left_us = np.zeros(shape[1]), np.full(shape, np.inf)
        self._finished, self._in_flight = np.zeros(shape, dtype=int), np.full(shape, -1)

    def run(self, order: Sequence[NodeId]) -> Floats:
        """Return the steps of the draws."""
        of, place = self._of, dict[NodeId, int]()
        share = of.share or [1.0] * len(order)
        timed = (v for v in order if of.compute_us[v])
        for (kind, part), nodes in groupby(timed, lambda v: (min(of.compute_us[v], 0.0), share[v])):
            if kind == 0.0:
                self._compute(self._times_us[list(nodes)].sum(axis=0), part)
                continue
            for v in nodes:
                if kind == LAUNCH:
                    queue = self._queues[of.stream[v]]
                    place[v] = len(queue)
                    queue.append(v)
                    self._start(of.stream[v], self._finished[of.stream[v]] == place[v])
                else:
                    self._wait(of.stream[of.waited_for[v]], place[of.waited_for[v]])
        for stream, queue in enumerate(self._queues):
            self._wait(stream, len(queue) - 1)
        return self._clock_us

    def _wait(self, stream: int, place: int) -> None:
        while (waits := self._finished[stream] <= place).any():
            self._pass(np.where(waits, np.inf, 0.0), self._paces())

    def _compute(self, work_us: Floats, share: float) -> None:
        while work_us.any():
            factor = slowed_factor(self._slowdown[self._in_flight].max(axis=0), share)
            spent_us = self._pass(work_us * factor, self._paces() * self._stretch[self._in_flight])
            work_us = np.where(spent_us < work_us * factor, work_us - spent_us / factor, 0.0)

    def _paces(self) -> Floats:
        """How many times as long as alone each collective takes: as many as there are groups on its link."""
        return np.maximum(self._same_link @ (self._in_flight >= 0), 1.0)

    def _pass(self, most_us: Floats, paces: Floats) -> Floats:
        """Let each draw come to the next finish, but only so far; returns by how much."""
        ends_us = self._left_us * paces
        spent_us = np.minimum(ends_us.min(axis=0), most_us)
        self._clock_us += spent_us
        self._left_us -= spent_us / paces
        ended = ends_us <= spent_us
        for stream in np.flatnonzero(ended.any(axis=1)):
            self._finished[stream] += ended[stream]
            self._start(stream, ended[stream])
        return spent_us

    def _start(self, stream: int, draws: npt.NDArray[np.bool_]) -> None:
        """In these draws the stream is free for its next collective, where there is one."""
        queue = self._queues[stream]
        found = np.array([queue[k] if k < len(queue) else -1 for k in self._finished[stream, draws]], dtype=int)
        self._in_flight[stream, draws], self._left_us[stream, draws] = found, self._times_us[found, draws]
