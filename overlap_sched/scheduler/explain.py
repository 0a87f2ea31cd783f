"""Why each collective went where it went: the record that reports and tests read."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlap_sched.problem import Kind, Order, Position, Problem
from overlap_sched.scheduler.restrictions import clashes
from overlap_sched.scheduler.task import Candidate, Reason, Task

if TYPE_CHECKING:
    from overlap_sched.judge.replay import Replay

_ROUNDING = 1e-9  # relative: less than this is not exposed but rounded


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


def decisions(problem: Problem, timeline: "Replay", best: Candidate, task: Task | None = None) -> tuple[Decision, ...]:
    """One record per collective, in the order of launches.

    Args:
        problem: What was scheduled.
        timeline: The replay of the order that came out.
        best: That order, with the reasons and refusals of the run that made it, if one did.
        task: What was asked for, which may forbid earlier launches; ``None``: nothing did.
    """
    order = best.order
    unmoved: Reason = "original" if order == problem.original_order else "reference"
    nodes, waits = problem.nodes, problem.waits
    computing = [v for v in order if problem.compute_us[v] > 0]
    starts = [timeline.start_us[v] for v in computing]
    previous: dict[str | None, int] = {}
    bars = None if task is None else _Bars(task, timeline, order)
    records = []
    for position, v in enumerate(order):
        if nodes[v].kind is not Kind.COLLECTIVE:
            continue
        start, finish = timeline.start_us[v], timeline.finish_us[v]
        beside = computing[max(bisect_right(starts, start) - 1, 0) : bisect_left(starts, finish)]
        common = [(min(timeline.finish_us[u], finish) - max(timeline.start_us[u], start), u) for u in beside]
        overlap = [(us, u) for us, u in common if us > 0]
        exposed = sum(timeline.stall_us[w] for w in waits.get(v, ()))
        held_by, held_node = _holder(problem, timeline, best, v, exposed, previous.get(nodes[v].group))
        if held_by == "choice" and bars is not None:
            held_by, held_node = bars.holder(position)
        refusal = best.refusals.get(v)
        records.append(
            Decision(
                collective=v,
                position=position,
                original_position=v,  # nodes are listed in their original order
                reason=best.reasons.get(v, unmoved),
                launch_us=timeline.at_us[v],
                start_us=start,
                finish_us=finish,
                wait_us=min((timeline.at_us[w] for w in waits.get(v, ())), default=timeline.step_us),
                hidden_us=sum(us for us, _ in overlap),
                exposed_us=exposed,
                under=tuple(u for _, u in sorted(overlap, key=lambda pair: (-pair[0], pair[1]))[:3]),
                held_by=held_by,
                held_node=held_node,
                over_bytes=refusal.over_bytes if refusal else 0,
                over_position=refusal.node if refusal else None,
            )
        )
        previous[nodes[v].group] = v
    return tuple(records)


def _holder(
    problem: Problem, timeline: "Replay", best: Candidate, v: int, exposed_us: float, previous: int | None
) -> tuple[Holder, int | None]:
    """Find what kept v from being hidden better, and which node, where it is one."""
    if exposed_us <= _ROUNDING * timeline.step_us:
        return "nothing", None
    launch_us = timeline.at_us[v]
    dependency = _last_dependency(problem, timeline, v)
    ready_us = timeline.finish_us[dependency] if dependency is not None else 0.0
    if v in best.refusals and launch_us > ready_us:
        return "memory", None
    if previous is not None and timeline.start_us[v] > launch_us:
        return "stream", previous
    if launch_us > ready_us:
        return "choice", None
    return ("start", None) if dependency is None else ("dependency", dependency)


class _Bars:
    """What a task lets no launch pass: its budget, launches and pins in their order, groups kept apart."""

    def __init__(self, task: Task, timeline: "Replay", order: Order) -> None:
        self._task, self._at_us, self._order, self._pairs = task, timeline.at_us, order, frozenset(task.pairs)
        self._clash = clashes(task.problem, task.options.concurrent_groups)
        # per position but the last, what the budget has left where the node there runs one place later
        limit = task.limit[1:] if task.limit.ndim else task.limit
        self._spare_bytes = limit - task.live_ranges.profile(order)[:-1]

    def holder(self, position: Position) -> tuple[Holder, int | None]:
        """Find what keeps the launch there behind the node in front of which it would come any sooner."""
        task, order, at_us = self._task, self._order, self._at_us
        v, begin = order[position], position - 1
        while begin > 0 and at_us[order[begin]] >= at_us[v]:
            begin -= 1
        for u in reversed(order[begin:position]):
            c = task.problem.nodes[u].collective
            apart = task.options.concurrent_groups != "any" and c is not None and self._clash(c, v)
            if apart or (u, v) in self._pairs:
                return "dependency", u
        fits = task.live_ranges.alloc_bytes[v] <= int(self._spare_bytes[begin:position].min())
        return ("choice" if fits else "memory"), None


def _last_dependency(problem: Problem, timeline: "Replay", v: int) -> int | None:
    """The node of some length, before v, that finished last; views and the like are looked through."""
    while True:
        before = [u for u in problem.predecessors[v] if problem.nodes[u].kind is not Kind.INPUT]
        if not before:
            return None
        v = max(before, key=lambda u: (timeline.finish_us[u], u))
        if problem.nodes[v].kind is Kind.WAIT or timeline.finish_us[v] > timeline.start_us[v]:
            return v
