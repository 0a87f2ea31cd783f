"""Pipelined jobs with few stages, and random valid schedules of them."""

import random
import re
from dataclasses import replace

from overlap_sched.pipeline.action import Action, ActionKind, Item, Pair, PipelineSchedule, forward
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineLink, PipelineStage, Route
from overlap_sched.pipeline.layout import MIRRORED


def uniform(
    ranks: int, micro_batches: int, chunks: int = 1, f: float = 1.0, i: float = 1.0, w: float = 1.0, saved: int = 1
) -> PipelineJob:
    """All stages alike, no transfer time; what a stage saves it keeps until its weight gradient."""
    blocks = PipelineBlock(f), PipelineBlock(i + w), PipelineBlock(i), PipelineBlock(w)
    count = ranks * chunks
    return PipelineJob(
        "uniform",
        (PipelineStage(*blocks, saved_bytes=saved, kept_bytes=saved),) * count,
        tuple(stage % ranks for stage in range(count)),
        ranks,
        (Route(tuple(range(count)), range(micro_batches)),),
    )


def read_item(text: str) -> Item:
    """An item as torch writes it: ``3F7``, ``(3F7;3B2)OVERLAP_F_B``."""
    if text.startswith("("):
        ahead, back = text[1 : text.index(")")].split(";")
        return Pair(_read_action(ahead), _read_action(back))
    return _read_action(text)


def _read_action(text: str) -> Action:
    match = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", text)
    assert match is not None, text
    return Action(ActionKind(match[2]), int(match[1]), int(match[3]) if match[3] else None)


def read_schedule(*rows: str) -> PipelineSchedule:
    """A schedule of a text per rank, spaces or commas between items; waits are left out."""
    orders = (tuple(map(read_item, re.findall(r"[^\s,]+", re.sub(r"\d+WAIT_\w+", "", row)))) for row in rows)
    return PipelineSchedule("by hand", tuple(orders))


def random_job(rng: random.Random, most_stages: int = 5, most_batches: int = 4) -> PipelineJob:
    """Small integers everywhere, so that sums are exact; some without halves of backward, some in two directions."""

    def block() -> PipelineBlock:
        return PipelineBlock(
            float(rng.randint(0, 6)), rng.randint(0, 9), rng.randint(0, 9), rng.choice((None, 0, rng.randint(0, 9)))
        )

    def stage() -> PipelineStage:
        halves = (block(), block()) if rng.random() < 0.7 else (None, None)
        updates = [block() if rng.random() < 0.3 else None for _ in range(2)]
        held = [rng.randint(0, 20) for _ in range(3)]
        gather = block() if divided and rng.random() < 0.8 else None
        return replace(PipelineStage(block(), block(), *halves, *held, *updates), unshard=gather)

    divided, count, batches = rng.random() < 0.3, rng.randint(1, most_stages), rng.randint(1, most_batches)
    ranks = rng.randint(1, count)
    places = [*range(ranks), *(rng.randrange(ranks) for _ in range(count - ranks))]
    rng.shuffle(places)
    pairs = [(a, b) for a in range(count) for b in range(count) if rng.random() < 0.3]
    job = PipelineJob(
        "random",
        tuple(stage() for _ in range(count)),
        tuple(places),
        ranks,
        (Route(tuple(rng.sample(range(count), count)), range(batches)),),
        PipelineLink(float(rng.choice((0, 1, 9))), rng.choice((float("inf"), 1e6, 2e6))),
        {(a, b): PipelineLink(1.0) for a in range(ranks) for b in range(ranks) if rng.random() < 0.2},
        None,
        rng.choice((0.5, 0.75, 1.0, 1.5)),
        {pair: PipelineBlock(float(rng.randint(0, 9)), rng.randint(0, 9)) for pair in pairs},
    )
    if ranks == count and batches > 1 and rng.random() < 0.3:
        return MIRRORED.put(job)
    return job


def random_schedule(job: PipelineJob, rng: random.Random) -> PipelineSchedule:
    """Any valid one: actions of all ranks one after the other, each when what it needs has run."""
    todo = {forward(route.stages[0], m) for route in job.routes for m in route.micro_batches}
    orders: list[list[Item]] = [[] for _ in range(job.ranks)]

    def turn(s: int, m: int | None) -> Action:
        apart = job.stages[s].splits and rng.random() < 0.5
        return Action(ActionKind.INPUT_GRADIENT if apart else ActionKind.BACKWARD, s, m)

    while todo:
        action = rng.choice(sorted(todo))
        rank, done = job.rank_of[action.stage], [action]
        beside = [a for a in sorted(todo) if a.kind is ActionKind.BACKWARD and job.rank_of[a.stage] == rank]
        if action.kind is ActionKind.FORWARD and beside and rng.random() < 0.5:
            done.append(rng.choice(beside))
        orders[rank].append(Pair(*done) if len(done) > 1 else action)
        todo.difference_update(done)
        for one in done:  # what may run because this has run
            to = job.gives_to(one)
            if one.kind is ActionKind.FORWARD:
                todo.add(turn(one.stage, one.micro_batch) if to is None else one._replace(stage=to))
            elif to is not None:
                todo.add(turn(to, one.micro_batch))
            if one.kind is ActionKind.INPUT_GRADIENT:
                todo.add(one._replace(kind=ActionKind.WEIGHT_GRADIENT))
    return job.with_updates(PipelineSchedule("random", tuple(map(tuple, orders))))


def swapped(schedule: PipelineSchedule, rng: random.Random) -> PipelineSchedule:
    """Two items of one rank change places."""
    rank = rng.choice([r for r, order in enumerate(schedule.orders) if len(order) > 1])
    order = list(schedule.orders[rank])
    a, b = rng.sample(range(len(order)), 2)
    order[a], order[b] = order[b], order[a]
    return replace(schedule, orders=(*schedule.orders[:rank], tuple(order), *schedule.orders[rank + 1 :]))
