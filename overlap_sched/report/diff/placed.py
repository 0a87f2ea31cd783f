"""An order, replayed: where each collective is in it, and what exposes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from overlap_sched.judge.liveness import peak_memory
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import Order, Problem
from overlap_sched.report.causes import TAIL, Cause, causes_of, last_compute_us
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.explain import decisions
from overlap_sched.scheduler.result import Decision

ROUNDING = 1e-9
"""Relative to the step: a stall below this comes from adding up floating-point numbers."""


@dataclass(frozen=True)
class CollectivePlace:
    """Where one collective is in an order.

    Attributes:
        position: Of its launch.
        launch_us: When the compute stream reached it.
        wait_position, wait_us: The same of its first wait; ``None``: the graph has none.
        exposed_us: Stall at its waits.
        cause: Of most of that, as in :mod:`overlap_sched.report.causes`; ``nothing``: it is hidden.
    """

    position: int
    launch_us: float
    wait_position: int | None
    wait_us: float | None
    exposed_us: float
    cause: str


@dataclass(frozen=True)
class ReplayedOrder:
    """An order, replayed.

    Attributes:
        problem: Of which problem.
        order: Node ids.
    """

    problem: Problem
    order: Order

    @cached_property
    def timeline(self) -> Replay:
        """When everything runs."""
        return replay(self.problem, self.order)

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes live at once."""
        return peak_memory(self.problem, self.order)[0]

    @cached_property
    def position(self) -> Mapping[int, int]:
        """The position of each node."""
        return {v: at for at, v in enumerate(self.order)}

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """The cause that exposes each collective. Nobody scheduled here, so memory is never the reason."""
        candidate = Candidate(self.order, self.timeline.step_us, self.peak_bytes)
        return decisions(self.problem, self.timeline, candidate)

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of its exposed time."""
        return causes_of(self.problem, self.timeline, self.decisions)

    @cached_property
    def tail_us(self) -> float:
        """From when on no compute is left."""
        return last_compute_us(self.problem, self.timeline)

    @cached_property
    def places(self) -> Mapping[int, CollectivePlace]:
        """The place of each collective."""
        return {decision.collective: self._place(decision) for decision in self.decisions}

    def _place(self, decision: Decision) -> CollectivePlace:
        timeline = self.timeline
        waits = self.problem.waits.get(decision.collective, ())
        first = min(waits, key=self.position.__getitem__, default=None)
        exposed = decision.exposed_us > ROUNDING * timeline.step_us
        worst = max(waits, key=lambda w: (timeline.stall_us[w], -self.position[w]), default=None)
        tail = worst is not None and timeline.at_us[worst] >= self.tail_us
        return CollectivePlace(
            position=decision.position,
            launch_us=decision.launch_us,
            wait_position=None if first is None else self.position[first],
            wait_us=None if first is None else timeline.at_us[first],
            exposed_us=decision.exposed_us if exposed else 0.0,
            cause=(TAIL if tail else decision.held_by) if exposed else "nothing",
        )
