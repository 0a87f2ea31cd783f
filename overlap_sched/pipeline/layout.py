"""Where the stages of a job go for a schedule: neighbours joined, dealt out, folded, or twice in two directions."""

from dataclasses import replace
from itertools import accumulate, product

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route


def looped(job: PipelineJob, chunks: int = 1) -> PipelineJob:
    """The model in ``chunks`` stages per rank, dealt out in turn: stage s on rank ``s % ranks``.

    Raises:
        PipelineError: Its stages cannot be joined to so many of one size.
    """
    count = chunks * job.ranks
    return _placed(job, _joined(job, count), tuple(s % job.ranks for s in range(count)))


def folded(job: PipelineJob) -> PipelineJob:
    """Two stages per rank, down the ranks and up again: stages r and ``2 * ranks - 1 - r`` on rank r.

    Raises as :func:`looped`.
    """
    count = 2 * job.ranks
    return _placed(job, _joined(job, count), tuple(min(s, count - 1 - s) for s in range(count)))


def mirrored(job: PipelineJob) -> PipelineJob:
    """One stage per rank in each of two directions: stage r and, with the layers of stage k, stage ``ranks + k``.

    The latter is on rank ``ranks - 1 - k``. The first direction has half of the micro-batches, or one more. Raises as
    :func:`looped`.
    """
    ranks, half = job.ranks, -(-job.micro_batches // 2)
    stages = _joined(job, ranks)
    routes = [Route(tuple(range(ranks)), range(half))]
    if job.micro_batches == 1:
        raise PipelineError(f"{job.name}: two directions need two micro-batches, not 1.")
    routes.append(Route(tuple(range(ranks, 2 * ranks)), range(half, job.micro_batches)))
    places = (*range(ranks), *reversed(range(ranks)))
    known = _joined_pairs(job, ranks)
    twice = {(f + i, b + k): pair for (f, b), pair in known.items() for i in (0, ranks) for k in (0, ranks)}
    return replace(job, stages=(*stages, *stages), rank_of=places, routes=tuple(routes), pairs=twice)


def _placed(job: PipelineJob, stages: tuple[PipelineStage, ...], places: tuple[int, ...]) -> PipelineJob:
    routes = (Route(tuple(range(len(stages))), range(job.micro_batches)),)
    return replace(job, stages=stages, rank_of=places, routes=routes, pairs=_joined_pairs(job, len(stages)))


def _joined_pairs(job: PipelineJob, count: int) -> dict[tuple[int, int], PipelineBlock]:
    """Pairs of joined stages: the first forward beside the last backward, then the second beside the last but one."""
    size = len(job.stages) // count
    line = job.routes[0].stages
    found: dict[tuple[int, int], PipelineBlock] = {}
    for f, b in product(range(count), repeat=2) if job.pairs else ():
        ahead = [line[f * size + k] for k in range(size)]
        back = [line[b * size + k] for k in reversed(range(size))]
        steps = [job.pairs.get(both) for both in zip(ahead, back, strict=True)]
        known = [one for one in steps if one is not None]
        if len(known) < size:
            continue
        later = [sum(job.stages[s].saved_bytes for s in ahead[k + 1 :]) for k in range(size)]  # not yet saved
        gone = [sum(job.stages[s].saved_bytes for s in back[:k]) for k in range(size)]
        most = max(one.transient_bytes - a - g for one, a, g in zip(known, later, gone, strict=True))
        found[f, b] = PipelineBlock(sum(one.time_us for one in known), max(most, 0))
    return found


def _joined(job: PipelineJob, count: int) -> tuple[PipelineStage, ...]:
    """The stages of the model, neighbours joined until there are so many."""
    size, left = divmod(len(job.stages), count)
    if len(job.routes) != 1:
        raise PipelineError(f"{job.name}: has {len(job.routes)} routes already; only a job with one is laid out.")
    if left or not size:
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages cannot be joined to {count} of one size, which {job.ranks} "
            f"ranks need. Give a multiple of {count} stages."
        )
    stages = [job.stages[stage] for stage in job.routes[0].stages]
    return tuple(_join(stages[k : k + size]) for k in range(0, len(stages), size))


def _join(stages: list[PipelineStage]) -> PipelineStage:
    """Several neighbouring stages as one.

    Times, and what is static, saved or kept, add up. What is transient is what the joined blocks need at once beyond
    that, where all that is saved counts from the start of the joined forward to the end of the joined backward.
    """
    if len(stages) == 1:
        return stages[0]
    saved, kept = [one.saved_bytes for one in stages], [one.kept_bytes for one in stages]
    up = list(accumulate(saved))  # live in the k-th forward or backward: what it and those below have saved
    above = [sum(kept[k + 1 :]) for k in range(len(stages))]
    whole = sum(saved)

    def block(name: str, live: list[int], counted: int, output: int) -> PipelineBlock | None:
        blocks = [found for one in stages if (found := getattr(one, name)) is not None]
        if not blocks:
            return None
        most = max(one.transient_bytes + more for one, more in zip(blocks, live, strict=False))
        last = blocks[output]
        return PipelineBlock(
            sum(one.time_us for one in blocks), max(most - counted, 0), last.output_bytes, last.sent_bytes
        )

    halves = all(one.splits for one in stages)
    ahead, back = block("forward", up, whole, -1), block("backward", up, whole, 0)
    assert ahead is not None
    assert back is not None
    half_live = [one + more for one, more in zip(up, above, strict=True)]
    return PipelineStage(
        forward=ahead,
        backward=back,
        input_gradient=block("input_gradient", half_live, whole, 0) if halves else None,
        weight_gradient=block("weight_gradient", [sum(kept)] * len(stages), sum(kept), 0) if halves else None,
        saved_bytes=whole,
        kept_bytes=sum(kept),
        static_bytes=sum(one.static_bytes for one in stages),
        reduce=block("reduce", [0] * len(stages), 0, 0),
        step=block("step", [0] * len(stages), 0, 0),
    )
