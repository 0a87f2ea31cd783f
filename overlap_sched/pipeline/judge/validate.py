"""Is a schedule of a pipelined job allowed? The first rule that is broken, in words."""

from collections import Counter
from collections.abc import Iterator

from overlap_sched.pipeline.action import UPDATES, Action, ActionKind, Pair, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.judge.graph import event_graph, needs_of
from overlap_sched.pipeline.schedule import PipelineSchedule

_RUNS_BEFORE = {
    ActionKind.BACKWARD: (ActionKind.FORWARD,),
    ActionKind.INPUT_GRADIENT: (ActionKind.FORWARD,),
    ActionKind.WEIGHT_GRADIENT: (ActionKind.INPUT_GRADIENT,),
}


def violation(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    """The first rule that a schedule without sends and receives breaks, or ``None`` if it can run.

    Every action once, on the rank of its stage: F and either B or both I and W per stage and micro-batch, one reduction
    and one step of stages that have them, behind all their gradients. F before B and I, I before W. No ring of ranks
    that wait for each other, where outputs are sent as soon as they are made and nobody waits to send.
    """
    return (
        _placed(job, schedule)
        or _complete(job, schedule)
        or _ordered(schedule)
        or _updated_last(schedule)
        or _deadlock(job, schedule)
    )


def _placed(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    if len(schedule.orders) != job.ranks:
        return f"there are orders for {len(schedule.orders)} ranks; the job has {job.ranks}"
    batches = {stage: route.micro_batches for route in job.routes for stage in route.stages}
    for rank, order in enumerate(schedule.orders):
        for item in order:
            if isinstance(item, Pair) and [action.kind for action in item] != [ActionKind.FORWARD, ActionKind.BACKWARD]:
                return f"rank {rank} runs {item} together; a pair is a forward and a whole backward"
            for action in parts(item):
                if action.stage not in batches:
                    return f"rank {rank} runs {action}; stages are 0 to {len(job.stages) - 1}"
                if job.rank_of[action.stage] != rank:
                    return f"rank {rank} runs {action}, but stage {action.stage} is on rank {job.rank_of[action.stage]}"
                if needs_of(job, action) is None:
                    return f"rank {rank} runs {action}; stage {action.stage} has no such action"
                if (action.micro_batch is None) != (action.kind in UPDATES):
                    return f"rank {rank} runs {action}: only reductions and steps are without a micro-batch"
                if action.micro_batch is not None and action.micro_batch not in batches[action.stage]:
                    return f"rank {rank} runs {action}; no such micro-batch comes through stage {action.stage}"
    return None


def _complete(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    counts = Counter(action for rank in range(job.ranks) for action in schedule.actions(rank))
    for action, count in counts.items():
        if count > 1:
            return f"rank {job.rank_of[action.stage]} runs {action} {count} times"
    for ways in _wanted(job):
        there = [all(action in counts for action in way) for way in ways]
        if not any(there):
            return f"{' or '.join(' and '.join(map(str, way)) for way in ways)} never runs"
        if sum(any(action in counts for action in way) for way in ways) > 1:
            return f"{' and '.join(str(action) for way in ways for action in way if action in counts)} all run"
    return None


def _wanted(job: PipelineJob) -> Iterator[tuple[tuple[Action, ...], ...]]:
    """Yield what has to run, in the ways in which it may."""
    for route in job.routes:
        for s in route.stages:
            for m in route.micro_batches:
                yield ((Action(ActionKind.FORWARD, s, m),),)
                halves = Action(ActionKind.INPUT_GRADIENT, s, m), Action(ActionKind.WEIGHT_GRADIENT, s, m)
                yield ((Action(ActionKind.BACKWARD, s, m),), halves)
            if job.stages[s].reduce is not None:
                yield ((Action(ActionKind.REDUCE, s),),)
            if job.stages[s].step is not None:
                yield ((Action(ActionKind.STEP, s),),)


def _ordered(schedule: PipelineSchedule) -> str | None:
    for rank, order in enumerate(schedule.orders):
        done: set[Action] = set()
        for item in order:
            for kind, stage, m in parts(item):
                for earlier in _RUNS_BEFORE.get(kind, ()):
                    if Action(earlier, stage, m) not in done:
                        return f"rank {rank} runs {Action(kind, stage, m)} before {Action(earlier, stage, m)}"
            done.update(parts(item))
    return None


def _updated_last(schedule: PipelineSchedule) -> str | None:
    """Gradients before their reduction, that before the step."""
    late = {ActionKind.REDUCE: 1, ActionKind.STEP: 2}
    for rank, order in enumerate(schedule.orders):
        reached: dict[int, Action] = {}
        for item in order:
            for action in parts(item):
                earlier = reached.get(action.stage)
                if earlier is not None and late[earlier.kind] > late.get(action.kind, 0):
                    return f"rank {rank} runs {earlier} before {action}"
                if action.kind in late:
                    reached[action.stage] = action
    return None


def _deadlock(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    ring = [event for event in event_graph(job, schedule).cycle() if not isinstance(event, Action)]
    if not ring:
        return None
    names = [f"{schedule.orders[rank][k]} (rank {rank})" for rank, k in ring]
    names += names[:1] if ring[0] != ring[-1] else []
    return f"ranks wait for each other: {' before '.join(names)}"
