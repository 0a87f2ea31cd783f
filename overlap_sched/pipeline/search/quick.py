"""When each action of a schedule begins, and nothing else of it: what is asked of thousands of schedules of one job.

The rules are those of :mod:`overlap_sched.pipeline.replay`. Actions are numbers here, and so are *tokens*, one per
input that a forward or a backward needs from another stage: its maker puts it there, perhaps by way of a link.
"""

from collections import deque

from overlap_sched.pipeline.action import Action, ActionKind
from overlap_sched.pipeline.durations import block_of, transfer_us
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.schedule import PipelineSchedule

NONE = -1
Orders = list[list[int]]
"""Per rank, the numbers of its actions."""


class QuickTimes:
    """Of the schedules of one job, without pairs.

    Attributes:
        actions: By number. time_us: What each takes.
        needs: The token that it needs; ``NONE``: none. gives: The token that it makes.
        maker: Of a token, who made it in the schedule that was asked about last.
        start_us, end_us: Of that schedule, by number.
    """

    def __init__(self, job: PipelineJob, schedule: PipelineSchedule) -> None:
        """Numbers the actions of a schedule; others of the job are not known."""
        self.job = job
        self.actions = [action for rank in range(job.ranks) for action in schedule.actions(rank)]
        self.number = {action: k for k, action in enumerate(self.actions)}
        self.time_us = [block_of(job, action).time_us for action in self.actions]
        self._tokens: dict[tuple[bool, int, int | None], int] = {}
        self.needs = [self._input(action) for action in self.actions]
        self.gives, self._transfer_us, self._stream = list[int](), list[float](), list[int]()
        self._streams: dict[tuple[int, int], int] = {}
        for action in self.actions:
            self._add_output(action)
        self.maker = [NONE] * len(self._tokens)
        self.start_us, self.end_us = [0.0] * len(self.actions), [0.0] * len(self.actions)
        self._updates = [
            NONE if action.micro_batch is not None else 0 if action.kind is ActionKind.REDUCE else 1
            for action in self.actions
        ]

    def _input(self, action: Action) -> int:
        """The token of the input of an action; ``NONE`` where nothing comes from another stage."""
        return NONE if self.job.needs_from(action) is None else self._token(action, action.stage)

    def _token(self, action: Action, stage: int) -> int:
        """The number of what an action of a kind needs in a stage."""
        key = action.kind is ActionKind.FORWARD, stage, action.micro_batch
        return self._tokens.setdefault(key, len(self._tokens))

    def _add_output(self, action: Action) -> None:
        job, to = self.job, self.job.gives_to(action)
        if to is None:
            self.gives.append(NONE)
            self._transfer_us.append(0.0)
            self._stream.append(NONE)
            return
        self.gives.append(self._token(action, to))
        ranks = job.rank_of[action.stage], job.rank_of[to]
        apart = ranks[0] != ranks[1]
        self._transfer_us.append(transfer_us(job, action, ranks[1]) if apart else 0.0)
        self._stream.append(self._streams.setdefault(ranks, len(self._streams)) if apart else NONE)

    def orders_of(self, schedule: PipelineSchedule) -> Orders:
        """The numbers of a schedule of the same actions."""
        return [[self.number[action] for action in schedule.actions(rank)] for rank in range(self.job.ranks)]

    def schedule_of(self, orders: Orders, name: str) -> PipelineSchedule:
        """The schedule of such numbers."""
        return PipelineSchedule(name, tuple(tuple(self.actions[k] for k in order) for order in orders))

    def step_us(self, orders: Orders) -> float | None:
        """The step of a schedule; ``None``: its ranks wait for each other. Linear in actions."""
        ranks = len(orders)
        at, clock, reduced = [0] * ranks, [0.0] * ranks, [0.0] * ranks
        there = [-1.0] * len(self._tokens)
        waiting = [NONE] * len(self._tokens)
        free = [0.0] * len(self._streams)
        reduced_at: dict[int, float] = {}
        start_us, end_us, time_us = self.start_us, self.end_us, self.time_us
        needs, gives, maker, streams = self.needs, self.gives, self.maker, self._stream
        ready = deque(range(ranks))
        while ready:
            rank = ready.popleft()
            order, k, now = orders[rank], at[rank], clock[rank]
            while k < len(order):
                one = order[k]
                token, start = needs[one], now
                if token >= 0:
                    came = there[token]
                    if came < 0.0:
                        waiting[token] = rank
                        break
                    start = came if came > now else now
                if self._updates[one] >= 0:
                    now = self._update(one, rank, now, reduced, reduced_at)
                    k += 1
                    continue
                start_us[one] = start
                now = end_us[one] = start + time_us[one]
                k += 1
                token = gives[one]
                if token < 0:
                    continue
                arrival, stream = now, streams[one]
                if stream >= 0:
                    arrival = free[stream] = max(now, free[stream]) + self._transfer_us[one]
                there[token], maker[token] = arrival, one
                if waiting[token] >= 0:
                    ready.append(waiting[token])
            at[rank], clock[rank] = k, now
        if any(k < len(order) for k, order in zip(at, orders, strict=True)):
            return None
        return max([*clock, *reduced, *free])

    def _update(self, one: int, rank: int, now: float, reduced: list[float], reduced_at: dict[int, float]) -> float:
        """Run a reduction or a step; when the compute stream goes on."""
        stage = self.actions[one].stage
        if self._updates[one] == 0:
            start = max(now, reduced[rank])
            reduced[rank] = reduced_at[stage] = start + self.time_us[one]
            self.start_us[one], self.end_us[one] = start, reduced[rank]
            return now
        start = max(now, reduced_at.get(stage, 0.0))
        self.start_us[one], self.end_us[one] = start, start + self.time_us[one]
        return self.end_us[one]
