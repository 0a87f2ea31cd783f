"""Schedules that repeat a building block: one micro-batch's passes, again and again at a fixed interval.

Source: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362. What a rank holds is how long
a micro-batch's activations live, over the interval; blocks whose passes follow each other closely hold little. On three
ranks with two stages each, down and up again, passes one slot apart (V-Min)::

    rank 0   F         F I         I          of the next one six slots later, and so on;
    rank 1     F     F     I     I            weight gradients go into what is free
    rank 2       F F         I I

A pass goes where, modulo the interval, its rank is free. The block says in which order a rank wants its passes. Where
the next one's input is not there, a rank takes a later one, if what it holds stays within its limit until that one's
turn would have come.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from overlap_sched.pipeline.action import Action, ActionKind, Item, PipelineSchedule
from overlap_sched.pipeline.greedy import GreedyRun, PipelinePolicy, ScheduleSearch
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.layout import FOLDED, StageLayout
from overlap_sched.pipeline.replay import PipelineClock, transfer_us

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT
SIXTHS = 6
LOOKED_AHEAD = 48
"""So many of a rank's next passes are looked at."""
CLOSE = 1e-9


class BlockShape(NamedTuple):
    """How far apart a block's passes are, in sixths of the interval, beyond what they need.

    Attributes:
        ahead: Of a forward and the next one, in the first half of the stages and in the second.
        back: Of a gradient and the next one, in the half that is first on the way back and in the other.
        turn: Between forward and backward.
    """

    ahead: tuple[float, float]
    back: tuple[float, float]
    turn: float = 0.0


BLOCKS = [BlockShape(gaps, gaps, turn) for gaps in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0)) for turn in range(4)]
"""What is tried within memory limits."""
WAYS = (True, True), (True, False), (False, False)
"""In which each of them is run: with room reserved, steady in the middle."""


def block_orders(job: PipelineJob, shape: BlockShape) -> list[list[Action]]:
    """Per rank, in which order it wants its passes; ``B`` stands for ``I`` where there are halves."""
    (route,), stages = job.routes, job.stages

    def time_us(kind: ActionKind, s: int) -> float:
        stage = stages[s]
        return stage.forward.time_us if kind is F else stage.down_us if kind is B else stage.whole_us - stage.down_us

    kinds = F, B, W
    every_us = max(
        sum(time_us(kind, s) for s in own for kind in kinds if kind is not W or stages[s].splits)
        for own in job.stages_of
    )
    placed: list[list[tuple[float, float]]] = [[] for _ in range(job.ranks)]
    starts, now = dict[tuple[ActionKind, int], float](), 0.0

    def place(kind: ActionKind, s: int, from_us: float) -> float:
        here, us = placed[job.rank_of[s]], time_us(kind, s)
        starts[kind, s] = _first_free(here, from_us, us, every_us)
        here.append((starts[kind, s], us))
        return starts[kind, s] + us

    for kind, line, gaps in ((F, route.stages, shape.ahead), (B, route.stages[::-1], shape.back)):
        for k, (s, after) in enumerate(pairwise((*line, -1))):
            now = place(kind, s, now)
            if after >= 0:
                made = Action(kind if kind is F or not stages[s].splits else ActionKind.INPUT_GRADIENT, s, 0)
                to = job.rank_of[after]
                now += transfer_us(job, made, to) if to != job.rank_of[s] else 0.0
                now += every_us / SIXTHS * gaps[k + 1 >= len(line) // 2]
        now += every_us / SIXTHS * shape.turn
    for s in route.stages[::-1]:
        if stages[s].splits:
            place(W, s, starts[B, s] + time_us(B, s))
    wanted: list[list[tuple[float, int, Action]]] = [[] for _ in range(job.ranks)]
    for (kind, s), start_us in starts.items():
        for k, m in enumerate(route.micro_batches):
            wanted[job.rank_of[s]].append((start_us + k * every_us, "FBW".index(kind), Action(kind, s, m)))
    return [[action for _, _, action in sorted(own)] for own in wanted]


def _first_free(placed: list[tuple[float, float]], from_us: float, time_us: float, every_us: float) -> float:
    """The first start from an instant on that overlaps with nothing placed, modulo the interval; else that instant."""
    close = CLOSE * every_us
    for start_us in sorted([from_us, *(from_us + (s + us - from_us) % every_us for s, us in placed)]):
        if all(
            (s - start_us + close) % every_us >= time_us and (start_us - s + close) % every_us >= us for s, us in placed
        ):
            return start_us
    return from_us


class _BlockRun(GreedyRun):
    """A run in which each rank takes its passes in turn, or a later one where that one's input is not there.

    Once all forwards of its first stage have begun, it has weight gradients wait until nothing else is there.
    """

    def __init__(
        self, job: PipelineJob, orders: Sequence[Sequence[Action]], spare: Sequence[int], *, reserve: bool, steady: bool
    ) -> None:
        super().__init__(job, (PipelinePolicy(0, 0),) * job.ranks, spare or (0,) * job.ranks)
        self._left, self._reserve, self._steady = list(map(list, orders)), reserve, steady

    def _chosen(self, time_us: float, rank: int) -> Item | None:
        left, stages, own = self._left[rank], self.job.stages, self.job.stages_of[rank]
        room, last = self.room[rank] - self.coming[rank], self.begun["F"][own[0]] == len(self.batches[own[0]])
        live = most = sum(
            (self.begun["F"][s] - self.begun["B"][s]) * stages[s].saved_bytes
            + len(self.waiting[s]) * stages[s].kept_bytes
            for s in own
        )
        weights: int | None = None
        steady = self._steady and self.begun["B"][own[0]] > 0 and not last
        for k, action in enumerate(left[: 1 if steady else LOOKED_AHEAD]):
            kind, s, m = action
            more = stages[s].saved_bytes if kind is F else -stages[s].kept_bytes
            if kind is W:
                there = m in list(self.waiting[s])[:1]
                if there and last:
                    weights, there = k if weights is None else weights, False
            else:
                there = self.next_us(kind, s) <= time_us and self.batches[s][self.begun[kind][s]] == m
                if kind is B:
                    more = stages[s].kept_bytes * stages[s].splits - stages[s].saved_bytes
                else:
                    there = there and most + more - self.input_bytes(action) <= room
            if there:
                del left[k]
                return action if kind is not B else action._replace(kind=self.back(s))
            live += more if kind is F or not self._reserve else 0
            most = max(most, live)
        return None if weights is None else left.pop(weights)


def block_schedule(
    job: PipelineJob,
    orders: Sequence[Sequence[Action]],
    spare: Sequence[int] = (),
    *,
    reserve: bool,
    steady: bool = False,
) -> PipelineSchedule | None:
    """Run a job in such orders; ``None``: it comes to a stop, as ranks wait for room.

    Args:
        job: As a layout has placed it; its limits are kept to as by :func:`greedy_schedule`.
        orders: Of :func:`block_orders`.
        spare: Bytes per rank that are left free.
        reserve: A later forward is taken only where those that it overtakes might be, too.
        steady: From its first stage's first gradient to that one's last forward, a rank takes its passes in turn.
    """
    return _BlockRun(job, orders, spare, reserve=reserve, steady=steady).finish()


def try_blocks(search: ScheduleSearch) -> None:
    """Add schedules of several blocks, placed by the times of the stages and as if all passes were equally long."""
    placed, seen = search.clock.job, set[object]()
    for job, shape in product((_in_slots(placed), placed), BLOCKS):
        orders = tuple(map(tuple, block_orders(job, shape)))
        if (job is placed, orders) not in seen:
            seen.add((job is placed, orders))
            for reserve, steady in WAYS:
                make = partial(block_schedule, job, orders, reserve=reserve, steady=steady)
                search.try_made(make, "repeated blocks")


def repeat_block(
    ranks: int, micro_batches: int, shape: BlockShape, layout: StageLayout = FOLDED, halves: bool = True
) -> PipelineSchedule:
    """Repeat a block whose passes all take one slot, whole backwards two, in the memory that it needs unchanged."""
    slot, line = PipelineBlock(1.0), tuple(range(layout.count(ranks)))
    half = slot if halves else None
    stage = PipelineStage(slot, PipelineBlock(2.0), half, half, saved_bytes=1, kept_bytes=1)
    job = layout.put(PipelineJob("", (stage,) * len(line), line, ranks, (Route(line, range(micro_batches)),)))
    orders, last = block_orders(job, shape), W if halves else B
    most = max(max(accumulate((a.kind is F) - (a.kind is last) for a in order)) for order in orders)
    job = replace(job, memory_limit_bytes=(most,) * ranks)
    clock = PipelineClock(job)
    made = [block_schedule(job, orders, reserve=reserve, steady=steady) for reserve, steady in WAYS]
    return min((one for one in made if one is not None), key=lambda one: clock.step_us(clock.orders_of(one)))


def _in_slots(job: PipelineJob) -> PipelineJob:
    """The job with passes that are all as long as each other, and links that take no time."""

    def slot(block: PipelineBlock | None) -> PipelineBlock | None:
        return None if block is None else replace(block, time_us=1.0)

    stages = tuple(
        replace(
            one,
            forward=replace(one.forward, time_us=1.0),
            backward=replace(one.backward, time_us=2.0),
            input_gradient=slot(one.input_gradient),
            weight_gradient=slot(one.weight_gradient),
        )
        for one in job.stages
    )
    return replace(job, stages=stages, link=PipelineLink(), links={})
