"""Where the stages of a job go for a schedule: neighbours joined, dealt out, folded, or twice in two directions.

A cut says how many neighbours each of the joined stages has, in the order of forward. Where none is given, as many in
each.
"""

from dataclasses import replace
from itertools import accumulate
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
    return _placed(job, _joined(job, count, cut), tuple(s % job.ranks for s in range(count)))


def folded(job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
    """Two stages per rank, down the ranks and up again: stages r and ``2 * ranks - 1 - r`` on rank r.

    Raises as :func:`looped`.
    """
    count = 2 * job.ranks
    return _placed(job, _joined(job, count, cut), tuple(min(s, count - 1 - s) for s in range(count)))


def mirrored(job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
    """One stage per rank in each of two directions: stage r and, with the layers of stage k, stage ``ranks + k``.

    The latter is on rank ``ranks - 1 - k``. The first direction has half of the micro-batches, or one more. Raises as
    :func:`looped`.
    """
    ranks, half = job.ranks, -(-job.micro_batches // 2)
    stages = _joined(job, ranks, cut)
    routes = [Route(tuple(range(ranks)), range(half))]
    if job.micro_batches == 1:
        raise PipelineError(f"{job.name}: two directions need two micro-batches, not 1.")
    routes.append(Route(tuple(range(ranks, 2 * ranks)), range(half, job.micro_batches)))
    places = (*range(ranks), *reversed(range(ranks)))
    twice = {(f + i, b + k): us for (f, b), us in job.pair_us.items() for i in (0, ranks) for k in (0, ranks)}
    kept = twice if len(stages) == len(job.stages) else {}
    return replace(job, stages=(*stages, *stages), rank_of=places, routes=tuple(routes), pair_us=kept)


def _placed(job: PipelineJob, stages: tuple[PipelineStage, ...], places: tuple[int, ...]) -> PipelineJob:
    routes = (Route(tuple(range(len(stages))), range(job.micro_batches)),)
    known = job.pair_us if len(stages) == len(job.stages) else {}
    return replace(job, stages=stages, rank_of=places, routes=routes, pair_us=known)


def _joined(job: PipelineJob, count: int, cut: Cut | None) -> tuple[PipelineStage, ...]:
    """The stages of the model, neighbours joined until there are so many."""
    if len(job.routes) != 1:
        raise PipelineError(f"{job.name}: has {len(job.routes)} routes already; only a job with one is laid out.")
    sizes = cut or (len(job.stages) // count,) * count
    if len(sizes) != count or min(sizes) < 1 or sum(sizes) != len(job.stages):
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages cannot be joined to {count} of "
            f"{'one size' if cut is None else ', '.join(map(str, cut))}, which {job.ranks} ranks need."
        )
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
