"""Do sends and receives of a schedule match, and can it hang? Ranks are run action by action, without a clock."""

from collections import defaultdict, deque
from typing import Literal

from overlap_sched.pipeline.action import RECEIVES, SENDS, Action, ActionKind, Item, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineJob

Sending = Literal["blocking", "buffered"]
"""``blocking``: a send ends when its receive is reached on the other rank (rendezvous). ``buffered``: at once."""

_SENT_AS = {
    ActionKind.FORWARD: (ActionKind.SEND_FORWARD, ActionKind.RECEIVE_FORWARD, 1),
    ActionKind.BACKWARD: (ActionKind.SEND_BACKWARD, ActionKind.RECEIVE_BACKWARD, -1),
    ActionKind.INPUT_GRADIENT: (ActionKind.SEND_BACKWARD, ActionKind.RECEIVE_BACKWARD, -1),
}


def transfer_violation(job: PipelineJob, schedule: PipelineSchedule, sending: Sending) -> str | None:
    """The first rule that the sends and receives of a schedule break, or ``None`` if it runs to its end.

    An output for another rank is sent once, behind what makes it, and received in front of what needs it; messages of
    one pair of ranks are received in the order in which they are sent; no ring of ranks that wait for each other.
    """
    return _unmatched(job, schedule) or _hang(job, schedule, sending)


def _way(job: PipelineJob, action: Action) -> tuple[Action, Action] | None:
    """The send and the receive of what an action makes; ``None``: it stays."""
    if action.kind not in _SENT_AS:
        return None
    send, receive, by = _SENT_AS[action.kind]
    for route in job.routes:
        for one, other in zip(route.stages[::by], route.stages[::by][1:], strict=False):
            if one == action.stage and job.rank_of[one] != job.rank_of[other]:
                return Action(send, one, action.micro_batch), Action(receive, other, action.micro_batch)
    return None


def _unmatched(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    place: dict[Action, tuple[int, int]] = {}
    for rank, order in enumerate(schedule.orders):
        for k, item in enumerate(order):
            for action in parts(item):
                if action in place:
                    return f"{action} runs twice, on ranks {place[action][0]} and {rank}"
                place[action] = (rank, k)
    wanted: set[Action] = set()
    for action in list(place):
        way = _way(job, action)
        if way is None:
            continue
        wanted.update(way)
        send, receive = way
        for one in way:
            if place.get(one, (-1, 0))[0] != job.rank_of[one.stage]:
                return f"rank {job.rank_of[one.stage]} never runs {one}, for what {action} makes"
        if place[send] < place[action]:
            return f"{send} comes before {action}"
        ahead = action.kind is ActionKind.FORWARD
        for kind in (ActionKind.FORWARD,) if ahead else (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT):
            user = Action(kind, receive.stage, receive.micro_batch)
            if user in place and place[user] < place[receive]:
                return f"{user} comes before {receive}"
    extra = [action for action in place if action.kind in (*SENDS, *RECEIVES) and action not in wanted]
    return f"nothing is sent by {extra[0]}" if extra else None


def _hang(job: PipelineJob, schedule: PipelineSchedule, sending: Sending) -> str | None:
    at = [0] * job.ranks
    channels: dict[tuple[int, int], deque[Action]] = defaultdict(deque)
    ways = {way[1]: way[0] for r in range(job.ranks) for a in schedule.actions(r) if (way := _way(job, a)) is not None}
    back = {send: receive for receive, send in ways.items()}

    def head(rank: int) -> Item | None:
        order = schedule.orders[rank]
        return order[at[rank]] if at[rank] < len(order) else None

    moved = True
    while moved:
        moved = False
        for rank in range(job.ranks):
            item = head(rank)
            if item is None:
                continue
            if isinstance(item, Action) and item.kind in SENDS:
                to = job.rank_of[back[item].stage]
                if sending == "buffered":
                    channels[rank, to].append(back[item])
                elif head(to) == back[item]:
                    at[to] += 1
                else:
                    continue
            elif isinstance(item, Action) and item.kind in RECEIVES:
                waiting = channels[job.rank_of[ways[item].stage], rank]
                if not waiting:
                    continue
                if waiting[0] != item:
                    return f"rank {rank} is at {item}, but what comes next is for {waiting[0]}"
                waiting.popleft()
            at[rank] += 1
            moved = True
    stuck = [f"rank {rank} at {head(rank)}" for rank in range(job.ranks) if head(rank) is not None]
    return f"ranks wait for each other where sends are {sending}: {', '.join(stuck)}" if stuck else None
