"""A schedule as one graph of events: what must have ended before what, and how long each takes.

Events are the items of each rank, by position, and the transfers of outputs between ranks. Edges: the order of a rank's
compute stream; input before use; transfers of one pair of ranks in the order of making. Reductions form a chain of
their own, each behind the item in front of it. The replay runs streams; here the longest path says when events end.
"""

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from overlap_sched.pipeline.action import Action, ActionKind, Pair, parts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob
from overlap_sched.pipeline.schedule import PipelineSchedule

Event: TypeAlias = tuple[int, int] | Action
"""``(rank, position)`` of an item; the action that made what is sent, of a transfer."""

_BACK = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)


@dataclass
class EventGraph:
    """Events, what they take, and what each waits for."""

    time_us: dict[Event, float] = field(default_factory=dict)
    before: dict[Event, list[Event]] = field(default_factory=dict)

    def add(self, event: Event, time_us: float, before: list[Event]) -> None:
        """Add an event that waits for others."""
        self.time_us[event], self.before[event] = time_us, before

    def sorted_events(self) -> list[Event]:
        """Events, each behind what it waits for; raises :class:`graphlib.CycleError` where there is no such order."""
        return list(TopologicalSorter(self.before).static_order())

    def times(self) -> dict[Event, tuple[float, float]]:
        """When each event starts and ends at the earliest."""
        found: dict[Event, tuple[float, float]] = {}
        for event in self.sorted_events():
            start = max([0.0, *(found[earlier][1] for earlier in self.before[event])])
            found[event] = (start, start + self.time_us[event])
        return found

    def cycle(self) -> list[Event]:
        """Events that wait for each other in a ring, the first again at the end; empty where there are none."""
        try:
            self.sorted_events()
        except CycleError as error:
            return list(error.args[1])
        return []


def event_graph(job: PipelineJob, schedule: PipelineSchedule) -> EventGraph:
    """The graph of a schedule in which every action is there once, on its rank."""
    graph = EventGraph()
    at = {
        action: (rank, k)
        for rank, order in enumerate(schedule.orders)
        for k, item in enumerate(order)
        for action in parts(item)
    }
    previous = {stage: s for route in job.routes for s, stage in zip(route.stages, route.stages[1:], strict=False)}
    following = {s: stage for stage, s in previous.items()}

    def made_by(action: Action) -> list[Event]:
        """Find what brings the input of an action from another stage."""
        if action.kind is ActionKind.FORWARD and action.stage in previous:
            maker = Action(ActionKind.FORWARD, previous[action.stage], action.micro_batch)
        elif action.kind in _BACK and action.stage in following:
            back = [Action(kind, following[action.stage], action.micro_batch) for kind in _BACK]
            maker = next(one for one in back if one in at)
        else:
            return []
        return [maker if job.rank_of[maker.stage] != job.rank_of[action.stage] else at[maker]]

    for rank, order in enumerate(schedule.orders):
        compute: list[Event] = []
        reductions: list[Event] = []
        sent: dict[int, Event] = {}
        for k, item in enumerate(order):
            event, here = (rank, k), parts(item)
            time_us = time_of(job, item)
            if here[0].kind is ActionKind.REDUCE:
                graph.add(event, time_us, [*compute, *reductions])
                reductions = [event]
                continue
            needed = [earlier for action in here for earlier in made_by(action)]
            if here[0].kind is ActionKind.STEP:
                needed += [at[reduce] for reduce in (here[0]._replace(kind=ActionKind.REDUCE),) if reduce in at]
            graph.add(event, time_us, [*compute, *needed])
            compute = [event]
            for action in here:
                to = following.get(action.stage) if action.kind is ActionKind.FORWARD else previous.get(action.stage)
                if action.kind not in (ActionKind.FORWARD, *_BACK) or to is None or job.rank_of[to] == rank:
                    continue
                other = job.rank_of[to]
                graph.add(
                    action, _sent_us(job, action, rank, other), [event, *([sent[other]] if other in sent else [])]
                )
                sent[other] = action
    return graph


def needs_of(job: PipelineJob, action: Action) -> PipelineBlock | None:
    """Look up what an action takes; ``None``: its stage has no such action."""
    stage = job.stages[action.stage]
    match action.kind:
        case ActionKind.FORWARD:
            return stage.forward
        case ActionKind.BACKWARD:
            return stage.backward
        case ActionKind.INPUT_GRADIENT:
            return stage.input_gradient
        case ActionKind.WEIGHT_GRADIENT:
            return stage.weight_gradient
        case ActionKind.REDUCE:
            return stage.reduce
        case ActionKind.STEP:
            return stage.step
        case _:
            return None


def time_of(job: PipelineJob, item: Action | Pair) -> float:
    """Add up what an item takes on its stream, in microseconds."""
    times = [block.time_us for action in parts(item) if (block := needs_of(job, action)) is not None]
    if not isinstance(item, Pair):
        return times[0]
    both = item.forward.stage, item.backward.stage
    return max(*times, job.pairs[both].time_us if both in job.pairs else job.pair_factor * sum(times))


def _sent_us(job: PipelineJob, action: Action, sender: int, receiver: int) -> float:
    link, block = job.links.get((sender, receiver), job.link), needs_of(job, action)
    return link.latency_us + (0.0 if block is None else block.output_bytes / link.bytes_per_s * 1e6)
