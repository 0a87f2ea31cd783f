"""Schedules that repeat a building block: one micro-batch's passes, again and again at a fixed interval.

Source: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362. What a rank holds is how long
a micro-batch's activations live, over the interval; blocks whose passes follow each other closely hold little. On three
ranks with two stages each, down and up again, passes one slot apart (V-Min)::

    rank 0   F         F I         I          of the next one six slots later, and so on;
    rank 1     F     F     I     I            weight gradients go into what is free
    rank 2       F F         I I

A pass goes where, modulo the interval, its rank is free. The block says in which order a rank wants its passes:
:mod:`~overlap_sched.pipeline.greedy` runs them.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from overlap_sched.pipeline.action import Action, ActionKind, PipelineSchedule
from overlap_sched.pipeline.greedy import B, F, W, greedy_schedule
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.layout import FOLDED, StageLayout
from overlap_sched.pipeline.replay import PipelineClock, transfer_us


class BlockShape(NamedTuple):
    """How far apart a block's passes are, in sixths of the interval, beyond what they need.

    Attributes:
        gaps: Of a pass and the next one, in the first half of the stages on the way and in the second.
        turn: Between forward and backward.
    """

    gaps: tuple[float, float]
    turn: float = 0.0


BLOCKS = [BlockShape(gaps, turn) for gaps in ((0, 0), (1, 0), (1, 1), (2, 2)) for turn in range(4)]
"""What is tried."""


def block_orders(job: PipelineJob, shape: BlockShape) -> list[list[Action]]:
    """Per rank, in which order it wants its passes; ``B`` stands for ``I`` where there are halves."""
    stages = job.stages

    def time_us(kind: ActionKind, s: int) -> float:
        stage = stages[s]
        return stage.forward.time_us if kind is F else stage.down_us if kind is B else stage.whole_us - stage.down_us

    every_us = max(sum(time_us(kind, s) for s in own for kind in (F, B, W)) for own in job.stages_of) or 1.0
    placed: list[list[tuple[float, float]]] = [[] for _ in range(job.ranks)]
    starts = dict[tuple[ActionKind, int], float]()

    def place(kind: ActionKind, s: int, from_us: float) -> float:
        here, us = placed[job.rank_of[s]], time_us(kind, s)
        starts[kind, s] = _first_free(here, from_us, us, every_us)
        here.append((starts[kind, s], us))
        return starts[kind, s] + us

    for route in job.routes:
        now = 0.0
        for kind, line in ((F, route.stages), (B, route.stages[::-1])):
            for k, (s, after) in enumerate(pairwise((*line, -1))):
                now = place(kind, s, now)
                if after >= 0:
                    made = Action(kind if kind is F or not stages[s].splits else ActionKind.INPUT_GRADIENT, s, 0)
                    to = job.rank_of[after]
                    now += transfer_us(job, made, to) if to != job.rank_of[s] else 0.0
                    now += every_us / 6 * shape.gaps[k + 1 >= len(line) // 2]
            now += every_us / 6 * shape.turn
        for s in route.stages[::-1]:
            if stages[s].splits:
                place(W, s, starts[B, s] + time_us(B, s))
    wanted: list[list[tuple[float, int, Action]]] = [[] for _ in range(job.ranks)]
    for (kind, s), start_us in starts.items():
        for k, m in enumerate(job.route_of[s].micro_batches):
            wanted[job.rank_of[s]].append((start_us + k * every_us, "FBW".index(kind), Action(kind, s, m)))
    return [[action for _, _, action in sorted(own)] for own in wanted]


def _first_free(placed: list[tuple[float, float]], from_us: float, time_us: float, every_us: float) -> float:
    """The first start from an instant on that overlaps with nothing placed, modulo the interval; else that instant."""
    close = 1e-9 * every_us
    for start_us in sorted([from_us, *(from_us + (s + us - from_us) % every_us for s, us in placed)]):
        if all(
            (s - start_us + close) % every_us >= time_us and (start_us - s + close) % every_us >= us for s, us in placed
        ):
            return start_us
    return from_us


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
    clock, made = PipelineClock(job), [greedy_schedule(job, orders, steady=steady) for steady in (True, False)]
    return min((one for one in made if one is not None), key=lambda one: clock.step_us(clock.orders_of(one)))


def time_in_slots(job: PipelineJob) -> PipelineJob:
    """The job with passes that are all as long as each other, and links that take no time."""

    def slots(stage: PipelineStage) -> PipelineStage:
        names = {"forward": 1.0, "backward": 2.0, **dict.fromkeys(("input_gradient", "weight_gradient"), 1.0)}
        blocks = {name: (getattr(stage, name), us) for name, us in names.items()}
        return replace(stage, **{name: replace(block, time_us=us) for name, (block, us) in blocks.items() if block})

    return replace(job, stages=tuple(map(slots, job.stages)), link=PipelineLink(), links={})
