"""How many bytes are live on each rank of a replayed schedule, by the rules of :mod:`overlap_sched.pipeline.job`."""

from typing import NamedTuple

from overlap_sched.pipeline.action import Action, ActionKind, Item, Pair, parts
from overlap_sched.pipeline.durations import block_of, pair_block
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import PipelineReplay, RunItem


class RankPeak(NamedTuple):
    """The most bytes live on a rank at once.

    Attributes:
        bytes: All, what is static among them.
        at_us: The first instant at which they are.
        item: What the rank computes then; of an idle one, what begins to be live.
    """

    bytes: int
    at_us: float
    item: Item


class _LiveBytes(NamedTuple):
    start_us: float
    end_us: float
    bytes: int
    owner: Action


def pipeline_peaks(job: PipelineJob, replay: PipelineReplay) -> tuple[RankPeak, ...]:
    """The peak of each rank; sorts what is live by time."""
    live = _live_bytes(job, replay)
    return tuple(_peak(job.static_bytes[rank], live[rank], replay.items[rank]) for rank in range(job.ranks))


def within_limits(job: PipelineJob, replay: PipelineReplay) -> bool:
    """Tell whether no rank needs more than its limit."""
    limits = job.memory_limit_bytes
    return limits is None or all(
        peak.bytes <= limit for peak, limit in zip(pipeline_peaks(job, replay), limits, strict=True)
    )


def memory_curves(job: PipelineJob, replay: PipelineReplay) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Per rank, the bytes that are live from each instant (microseconds) at which they change, from 0 on."""
    curves = []
    for rank, live in enumerate(_live_bytes(job, replay)):
        change: dict[float, int] = {0.0: job.static_bytes[rank]}
        for one in live:
            change[one.start_us] = change.get(one.start_us, 0) + one.bytes
            change[one.end_us] = change.get(one.end_us, 0) - one.bytes
        now, curve = 0, list[tuple[float, int]]()
        for time_us in sorted(change):
            now += change[time_us]
            curve.append((time_us, now))
        curves.append(tuple(curve))
    return tuple(curves)


def _peak(static: int, live: list[_LiveBytes], items: tuple[RunItem, ...]) -> RankPeak:
    first, now = items[0], static
    best, at_us, owner = static, 0.0, first.item
    ends = [(one.end_us, 0 if one.end_us > one.start_us else 2, -one.bytes, one.owner) for one in live]
    for time_us, _, size, action in sorted([*ends, *((one.start_us, 1, one.bytes, one.owner) for one in live)]):
        now += size
        if now > best:
            best, at_us, owner = now, time_us, action
    running = [run.item for run in items if run.start_us <= at_us and (at_us < run.end_us or run.start_us == at_us)]
    return RankPeak(best, at_us, running[-1] if running else owner)


def _transient_bytes(job: PipelineJob, action: Action, item: Item) -> int:
    """Those of an action; where those of its pair are known, the forward has them all."""
    known = pair_block(job, item) if isinstance(item, Pair) else None
    if known is None:
        return block_of(job, action).transient_bytes
    return known.transient_bytes if action.kind is ActionKind.FORWARD else 0


def _live_bytes(job: PipelineJob, replay: PipelineReplay) -> list[list[_LiveBytes]]:
    """Per rank, what is live from when to when, without what is static."""
    found: list[list[_LiveBytes]] = [[] for _ in range(job.ranks)]
    times = {action: run for items in replay.items for run in items for action in parts(run.item)}
    for action, run in times.items():
        kind, stage, m = action
        live, needs = found[job.rank_of[stage]], job.stages[stage]
        live.append(_LiveBytes(run.start_us, run.end_us, _transient_bytes(job, action, run.item), action))
        if kind is ActionKind.FORWARD:
            back = (
                times.get(Action(ActionKind.BACKWARD, stage, m)) or times[Action(ActionKind.INPUT_GRADIENT, stage, m)]
            )
            live.append(_LiveBytes(run.start_us, back.end_us, needs.saved_bytes, action))
        elif kind is ActionKind.INPUT_GRADIENT:
            weights = times[Action(ActionKind.WEIGHT_GRADIENT, stage, m)]
            live.append(_LiveBytes(run.end_us, weights.end_us, needs.kept_bytes, action))
    for action, stage, made_us, start_us, end_us in replay.sent:
        sender, receiver, m = job.rank_of[action.stage], job.rank_of[stage], action.micro_batch
        ahead = action.kind is ActionKind.FORWARD
        kinds = (ActionKind.FORWARD,) if ahead else (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
        user = next(times[one] for kind in kinds if (one := Action(kind, stage, m)) in times)
        block = block_of(job, action)
        if sender == receiver:
            if user.start_us > made_us:
                found[sender].append(_LiveBytes(made_us, user.start_us, block.buffer_bytes, action))
            continue
        send, receive = (
            (ActionKind.SEND_FORWARD, ActionKind.RECEIVE_FORWARD)
            if ahead
            else (ActionKind.SEND_BACKWARD, ActionKind.RECEIVE_BACKWARD)
        )
        if end_us > made_us:
            found[sender].append(_LiveBytes(made_us, end_us, block.buffer_bytes, Action(send, action.stage, m)))
        if user.start_us > start_us:
            found[receiver].append(_LiveBytes(start_us, user.start_us, block.output_bytes, Action(receive, stage, m)))
    return found
