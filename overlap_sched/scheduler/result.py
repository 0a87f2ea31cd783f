"""What scheduling returns: figures before and after, the order, and a record of each decision."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from overlap_sched.judge.budget_bound import raised_by_budget_us
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem


@dataclass(frozen=True)
class Figures:
    """One order of one problem, measured by the judges.

    Attributes:
        step_us: Step time in the replay.
        exposed_us: Part of it that the compute stream stalls at waits.
        peak_bytes: Most bytes live at once.
        peak_at: First position of the order at which they are.
        groups_together: Pairs of collectives of groups that share more than one rank, in flight together.
    """

    step_us: float
    exposed_us: float
    peak_bytes: int
    peak_at: int
    groups_together: int = 0


Reason = Literal[
    "reference", "latest start", "frees memory", "beside another", "no stall", "searched", "deferred", "original"
]
"""Why a collective was launched where it was:

- ``reference``: it was the next node of the order that the scheduler started from, or of one that it followed;
- ``latest start``: its latest start would have passed while the next compute ran;
- ``frees memory``: the same, and it frees memory once it has completed (a reduce_scatter);
- ``beside another``: under contention, a collective of another link is in flight, so that it slows compute no more;
- ``no stall``: every other ready node would have stalled;
- ``deferred``: its compute was deferred behind a launch that it hides;
- ``searched``: of all orders of a small graph that were searched, the best has it there;
- ``original``: the original order was kept.
"""

Holder = Literal["nothing", "dependency", "memory", "stream", "start", "choice"]
"""What kept a collective from being hidden better: nothing (it is hidden), a dependency (it could not be launched
sooner), memory (its storage did not fit), its stream (another collective was still on it), the start of the graph (it
was launched at once), or the scheduler's own choice (dependencies and live bytes allow an earlier launch). A launch
order, pins and groups apart, where asked for, count as dependencies."""


@dataclass(frozen=True)
class Decision:
    """Where one collective went, why, and what it cost.

    Attributes:
        collective: Node id.
        position: Position of its launch in the order. original_position: in the original order.
        reason: Why it was launched there.
        launch_us: When the compute stream reached its launch. start_us, finish_us: when it ran on its stream.
        wait_us: When the compute stream reached its first wait (the end of the step if it has none).
        hidden_us: Part of its time during which compute ran. exposed_us: stalls at its waits.
        under: Ids of up to three compute nodes that hide most of it, longest first.
        held_by: What held it back.
        held_node: The dependency that finished last, or the collective that was on the stream; else ``None``.
        over_bytes: By how many bytes the first refused launch would have broken the budget (0: never refused).
        over_position: At which node's step, as its position in the original order; ``None``: never refused.
    """

    collective: int
    position: int
    original_position: int
    reason: Reason
    launch_us: float
    start_us: float
    finish_us: float
    wait_us: float
    hidden_us: float
    exposed_us: float
    under: tuple[int, ...]
    held_by: Holder
    held_node: int | None
    over_bytes: int
    over_position: int | None


class Work(NamedTuple):
    """Effort, counted rather than timed: the same on every machine."""

    runs: int = 0
    rescored: int = 0
    """Nodes put into the sorted sets."""
    updates: int = 0
    """Range queries and updates on the completion profile."""
    looked: int = 0
    """Nodes looked at ahead of a launch, and states of the beam search."""

    def plus(self, more: "Work") -> "Work":
        """Both together."""
        return Work(*(one + other for one, other in zip(self, more, strict=True)))


NO_WORK = Work()


@dataclass(frozen=True)
class Schedule:
    """An order that passed the validator, or the original one with the reason in ``fell_back``.

    Attributes:
        order: Node ids in the order to run.
        original, scheduled: Figures of the original order and of ``order``.
        headroom_bytes: The headroom asked for.
        base_bytes: The peak that it is counted from: the original's, or the lowest found (``Options.base``).
        decisions: One record per collective, in the order of launches.
        fell_back: ``None``, or why the original order was kept.
        work: What it took, counted.
        schedule_s: Seconds that it took (for people; nothing depends on it).
        unrestricted_us: Step of the best order found without ``Options.concurrent_groups``; ``None``: it asks for
            nothing.
        memory_limit_bytes: The device on which it is to run (``Options.memory_limit``); ``None``: no limit was given.
        short_bytes: What such a device lacks for it; 0: it runs there.
    """

    problem: Problem
    options: Options
    order: Order
    original: Figures
    scheduled: Figures
    headroom_bytes: int
    base_bytes: int
    decisions: tuple[Decision, ...]
    fell_back: str | None
    work: Work
    schedule_s: float
    unrestricted_us: float | None = None
    memory_limit_bytes: int | None = None
    short_bytes: int = 0

    @cached_property
    def lower_bound_us(self) -> float:
        """No order's step is shorter, whatever memory it is given."""
        return lower_bound_us(self.problem)

    @cached_property
    def budget_bound_us(self) -> float:
        """No order's step within the budget is shorter."""
        return raised_by_budget_us(self.lower_bound_us, self.problem, self.budget_bytes)

    @property
    def budget_bytes(self) -> int:
        """The most that the peak may be."""
        return self.base_bytes + self.headroom_bytes
