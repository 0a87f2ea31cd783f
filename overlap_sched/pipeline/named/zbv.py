"""ZBV: two stages per rank, down the ranks and up again, weight gradients in the gaps.

Stage r and stage ``2p - 1 - r`` are on rank r, so the last rank has two neighbouring stages and the first rank the
loss.
"""

from collections.abc import Iterator

from overlap_sched.pipeline.action import Item, forward, input_gradient, weight_gradient
from overlap_sched.pipeline.named.leave_out import below, only
from overlap_sched.pipeline.schedule import PipelineSchedule


def zbv(ranks: int, micro_batches: int) -> PipelineSchedule:
    """The hand-made schedule for F = I = W.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6 (the order is that of
    torch's ``ScheduleZBVZeroBubble``; the same is V-ZB in Qi et al. 2024, "Pipeline Parallelism with Controllable
    Memory", arXiv 2405.15362). With F = I = W and at least ``2p - 1`` micro-batches no rank stalls between its first
    and its last action; activations of 2p stages at the peak of every rank, as much as p whole ones: that of rank 0
    in 1F1B.
    """
    full = max(2 * ranks - 1, micro_batches)
    orders = (only(_rank(r, ranks, full), below(micro_batches)) for r in range(ranks))
    return PipelineSchedule("zbv", tuple(orders))


def _rank(rank: int, ranks: int, micro_batches: int) -> Iterator[Item]:
    down, up = rank, 2 * ranks - 1 - rank
    started = 2 * (ranks - rank) - 1  # forwards of `down` before anything comes back
    yield from (forward(down, m) for m in range(started))
    for m in range(rank):
        yield forward(up, m)
        yield forward(down, started + m)
    started += rank
    turns = ranks - rank
    for m in range(turns):
        yield from (forward(up, rank + m), input_gradient(up, m), weight_gradient(up, m))
    for m in range(micro_batches - ranks):
        if started + m < micro_batches:
            yield forward(down, started + m)
        yield from (input_gradient(down, m), weight_gradient(down, m))
        yield from (forward(up, ranks + m), input_gradient(up, turns + m), weight_gradient(up, turns + m))
    done_down, done_up = micro_batches - ranks, micro_batches - rank
    for k in range(rank):
        yield input_gradient(down, done_down + k)
        yield input_gradient(up, done_up + k)
    for k in range(turns):
        yield input_gradient(down, done_down + rank + k)
        yield weight_gradient(down, done_down + k)
    yield from (weight_gradient(up, m) for m in range(done_up, micro_batches))
    yield from (weight_gradient(down, m) for m in range(done_down + turns, micro_batches))
