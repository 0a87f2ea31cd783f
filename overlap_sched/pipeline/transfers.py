"""A schedule with its sends and receives written out, as torch's ``compute_comms`` files have them.

All ranks' items are gone through in one order, by when they start; behind what makes an output its send goes to the one
rank and the receive to the other. So even where sends and receives block until the other side is there, that one order
can run: nothing deadlocks.
"""

from overlap_sched.pipeline.action import Action, ActionKind, Item, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import PipelineReplay
from overlap_sched.pipeline.schedule import PipelineSchedule


def with_transfers(job: PipelineJob, schedule: PipelineSchedule, replay: PipelineReplay) -> PipelineSchedule:
    """The schedule of which this is the replay, with sends and receives; what stays on its rank is not sent.

    What starts at one time stays in the order of the replay, in which each comes behind what it needs.
    """
    sent = {
        one.action: one.needed_by for one in replay.sent if job.rank_of[one.needed_by] != job.rank_of[one.action.stage]
    }
    orders: list[list[Item]] = [[] for _ in range(job.ranks)]
    for rank, (item, _, _) in sorted(replay.ran, key=lambda ran: ran[1].start_us):
        orders[rank].append(item)
        for action in parts(item):
            if action in sent:
                ahead, to, m = action.kind is ActionKind.FORWARD, sent[action], action.micro_batch
                send = ActionKind.SEND_FORWARD if ahead else ActionKind.SEND_BACKWARD
                receive = ActionKind.RECEIVE_FORWARD if ahead else ActionKind.RECEIVE_BACKWARD
                orders[rank].append(Action(send, action.stage, m))
                orders[job.rank_of[to]].append(Action(receive, to, m))
    return PipelineSchedule(schedule.name, tuple(map(tuple, orders)))
