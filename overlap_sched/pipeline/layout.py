"""Where the stages of a job go for a schedule: neighbours joined, dealt out, folded, or twice in two directions.

A cut says how many neighbours each of the joined stages has, in the order of forward. Where none is given, as many in
each.
"""

from dataclasses import replace
from itertools import accumulate, product, zip_longest
from typing import Literal, NamedTuple, TypeAlias

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route

Cut: TypeAlias = tuple[int, ...]
LayoutKind = Literal["looped", "folded", "mirrored"]


class StageLayout(NamedTuple):
    """One of them: :func:`looped` with so many stages per rank, :func:`folded` (two), or :func:`mirrored`."""

    kind: LayoutKind
    chunks: int = 1

    def __str__(self) -> str:
        if self.kind == "looped":
            return "one stage per rank" if self.chunks == 1 else f"{self.chunks} stages per rank"
        folded = self.kind == "folded"
        return "two stages per rank, down and up again" if folded else "one stage per rank in two directions"

    def count(self, ranks: int) -> int:
        """The number of stages that neighbours are joined to."""
        return self.chunks * ranks

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The stages of a rank, in the order of forward; in two directions that of the first one, then of the other."""
        if self.kind == "looped":
            return tuple(range(rank, self.count(ranks), ranks))
        return rank, self.count(ranks) - 1 - rank

    def put(self, job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
        """Lay out a job; raises as :func:`looped`."""
        if self.kind == "looped":
            return looped(job, self.chunks, cut)
        return folded(job, cut) if self.kind == "folded" else mirrored(job, cut)


def looped(job: PipelineJob, chunks: int = 1, cut: Cut | None = None) -> PipelineJob:
    """The model in ``chunks`` stages per rank, dealt out in turn: stage s on rank ``s % ranks``.

    Raises:
        PipelineError: Its stages cannot be joined to so many of one size, or by that cut.
    """
    count = chunks * job.ranks
    return _placed(job, _sizes(job, count, cut), tuple(s % job.ranks for s in range(count)))


def folded(job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
    """Two stages per rank, down the ranks and up again: stages r and ``2 * ranks - 1 - r`` on rank r.

    Raises as :func:`looped`.
    """
    count = 2 * job.ranks
    return _placed(job, _sizes(job, count, cut), tuple(min(s, count - 1 - s) for s in range(count)))


def mirrored(job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
    """One stage per rank in each of two directions: stage r and, with the layers of stage k, stage ``ranks + k``.

    The latter is on rank ``ranks - 1 - k``. The first direction has half of the micro-batches, or one more. Raises as
    :func:`looped`.
    """
    ranks, half = job.ranks, -(-job.micro_batches // 2)
    sizes = _sizes(job, ranks, cut)
    stages, known = _joined(job, sizes), _joined_pairs(job, sizes)
    routes = [Route(tuple(range(ranks)), range(half))]
    if job.micro_batches == 1:
        raise PipelineError(f"{job.name}: two directions need two micro-batches, not 1.")
    routes.append(Route(tuple(range(ranks, 2 * ranks)), range(half, job.micro_batches)))
    places = (*range(ranks), *reversed(range(ranks)))
    twice = {(f + i, b + k): pair for (f, b), pair in known.items() for i in (0, ranks) for k in (0, ranks)}
    return replace(job, stages=(*stages, *stages), rank_of=places, routes=tuple(routes), pairs=twice)


def _placed(job: PipelineJob, sizes: Cut, places: tuple[int, ...]) -> PipelineJob:
    routes = (Route(tuple(range(len(sizes))), range(job.micro_batches)),)
    known = _joined_pairs(job, sizes)
    return replace(job, stages=_joined(job, sizes), rank_of=places, routes=routes, pairs=known)


def _joined_pairs(job: PipelineJob, cut: Cut) -> dict[tuple[int, int], PipelineBlock]:
    """Pairs of joined stages: the first forward beside the last backward, and so on; what is left over runs alone."""
    line, found = job.routes[0].stages, dict[tuple[int, int], PipelineBlock]()
    joined = [line[end - size : end] for size, end in zip(cut, accumulate(cut), strict=True)]
    for (f, ahead), (b, back) in product(enumerate(joined), repeat=2) if job.pairs else ():
        steps = [_side_by_side(job, *both) for both in zip_longest(ahead, reversed(back))]
        known = [one for one in steps if one is not None]
        if len(known) < len(steps):
            continue
        later = [sum(job.stages[s].saved_bytes for s in ahead[k + 1 :]) for k in range(len(steps))]  # not yet saved
        gone = [sum(job.stages[s].saved_bytes for s in back[::-1][:k]) for k in range(len(steps))]
        most = max(one.transient_bytes - a - g for one, a, g in zip(known, later, gone, strict=True))
        time_us, exposed_us = (
            sum(times) for times in zip(*((one.time_us, one.exposed_us) for one in known), strict=True)
        )
        found[f, b] = PipelineBlock(time_us, max(most, 0), exposed_us=exposed_us)
    return found


def _side_by_side(job: PipelineJob, ahead: int | None, back: int | None) -> PipelineBlock | None:
    """A forward beside a backward, or one of them alone; ``None``: what both take together is not known."""
    if ahead is None or back is None:
        return job.stages[ahead].forward if ahead is not None else job.stages[back or 0].backward
    return job.pairs.get((ahead, back))


def _sizes(job: PipelineJob, count: int, cut: Cut | None) -> Cut:
    """The neighbours that each of so many stages joins: how many."""
    if len(job.routes) != 1:
        raise PipelineError(f"{job.name}: has {len(job.routes)} routes already; only a job with one is laid out.")
    sizes = cut or (len(job.stages) // count,) * count
    if len(sizes) != count or min(sizes) < 1 or sum(sizes) != len(job.stages):
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages cannot be joined to {count} of "
            f"{'one size' if cut is None else ', '.join(map(str, cut))}, which {job.ranks} ranks need."
        )
    return sizes


def _joined(job: PipelineJob, sizes: Cut) -> tuple[PipelineStage, ...]:
    """The stages of the model, neighbours joined."""
    stages = [job.stages[stage] for stage in job.routes[0].stages]
    return tuple(_join(stages[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True))


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
            sum(one.time_us for one in blocks),
            max(most - counted, 0),
            last.output_bytes,
            last.sent_bytes,
            exposed_us=sum(one.exposed_us for one in blocks),
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
