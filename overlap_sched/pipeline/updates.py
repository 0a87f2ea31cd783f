"""What comes after the last micro-batch: gradients reduced across replicas, and the step of the optimizer."""

from collections import Counter
from dataclasses import replace

from overlap_sched.pipeline.action import Action, ActionKind, Item, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.schedule import PipelineSchedule


def with_updates(job: PipelineJob, schedule: PipelineSchedule) -> PipelineSchedule:
    """The same with a reduction behind each stage's last gradient of its weights, and the steps at the end.

    Of stages that have them. Reductions are where torch's ``_add_reduce_grad`` puts them.
    """
    orders = []
    for rank, order in enumerate(schedule.orders):
        left = Counter(action.stage for item in order for action in parts(item) if _of_weights(action))
        found: list[Item] = []
        for item in order:
            found.append(item)
            for action in filter(_of_weights, parts(item)):
                left[action.stage] -= 1
                if not left[action.stage] and job.stages[action.stage].reduce is not None:
                    found.append(Action(ActionKind.REDUCE, action.stage))
        steps = [stage for stage in job.stages_of[rank] if job.stages[stage].step is not None]
        orders.append((*found, *(Action(ActionKind.STEP, stage) for stage in steps)))
    return replace(schedule, orders=tuple(orders))


def _of_weights(action: Action) -> bool:
    return action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)
