"""Interleaved 1F1B: several stages per rank, dealt out in rounds. Stage ``c * p + r`` is chunk c of rank r."""

from collections.abc import Iterator

from overlap_sched.pipeline.action import Item, backward, forward
from overlap_sched.pipeline.named.leave_out import below, only
from overlap_sched.pipeline.schedule import PipelineSchedule


def interleaved(ranks: int, chunks: int, micro_batches: int) -> PipelineSchedule:
    """1F1B over p micro-batches of one chunk, then of the next, ...; with one chunk it is 1F1B.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2 (figure 4, below). With F and B of a rank's whole
    share the bubble is (p - 1)(F + B) / v for v chunks, where micro-batches are a multiple of the ranks; activations
    of ``(v - 1) p + 2 (p - 1 - r) + 1`` chunks at the peak of rank r.
    """
    if chunks == 1:
        warm_ups = [ranks - 1 - rank for rank in range(ranks)]
    else:
        warm_ups = [(chunks - 1) * ranks + 2 * (ranks - 1 - rank) for rank in range(ranks)]
    full = -(-micro_batches // ranks) * ranks
    orders = (_rank(rank, ranks, chunks, full, warm_up) for rank, warm_up in enumerate(warm_ups))
    return PipelineSchedule("interleaved", tuple(only(order, below(micro_batches)) for order in orders))


def _rank(rank: int, ranks: int, chunks: int, micro_batches: int, warm_up: int) -> Iterator[Item]:
    steps = chunks * micro_batches
    ahead = min(warm_up, steps)
    ups = [_nth(k, ranks, chunks) for k in range(steps)]
    for chunk, m in ups[:ahead]:
        yield forward(chunk * ranks + rank, m)
    for k, (chunk, m) in enumerate(ups):
        if k + ahead < steps:
            next_chunk, next_m = ups[k + ahead]
            yield forward(next_chunk * ranks + rank, next_m)
        yield backward((chunks - 1 - chunk) * ranks + rank, m)


def _nth(k: int, ranks: int, chunks: int) -> tuple[int, int]:
    """Chunk and micro-batch of a rank's k-th forward: p micro-batches of each chunk in turn."""
    around, within = divmod(k, ranks * chunks)
    chunk, m = divmod(within, ranks)
    return chunk, around * ranks + m
