"""Where the stages of a job go for a schedule: neighbours joined, dealt out, folded, or twice in two directions.

A cut says how many neighbours each of the joined stages has, in the order of forward. Where none is given, as many in
each.
"""

from dataclasses import replace
from itertools import accumulate, product, zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route

Cut: TypeAlias = tuple[int, ...]


class StageLayout(NamedTuple):
    """Where stages go.

    Attributes:
        kind: ``looped``: stage s on rank ``s % ranks``. ``folded``: down the ranks and up again, stages r and
            ``2 * ranks - 1 - r`` on rank r, with more chunks again. ``mirrored``: stage r on rank r and, with the
            layers of stage k, stage ``ranks + k`` on rank ``ranks - 1 - k``; the first direction has half of the
            micro-batches, or one more.
        chunks: Stages per rank that neighbours are joined to.
    """

    kind: Literal["looped", "folded", "mirrored"]
    chunks: int = 1

    def __str__(self) -> str:
        if self.kind == "looped":
            return "one stage per rank" if self.chunks == 1 else f"{self.chunks} stages per rank"
        if self.kind == "mirrored":
            return "one stage per rank in two directions"
        return f"{'two' if self.chunks == 2 else self.chunks} stages per rank, down and up again"

    def count(self, ranks: int) -> int:
        """The number of stages that neighbours are joined to."""
        return self.chunks * ranks

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The stages of a rank, in the order of forward; in two directions that of the first one, then of the other."""
        if self.kind == "looped":
            return tuple(range(rank, self.count(ranks), ranks))
        if self.kind == "mirrored":
            return rank, ranks - 1 - rank
        return tuple(k * ranks + (ranks - 1 - rank if k % 2 else rank) for k in range(self.chunks))

    def put(self, job: PipelineJob, cut: Cut | None = None) -> PipelineJob:
        """Lay out a job.

        Raises:
            PipelineError: Its stages cannot be joined to so many of one size, or by that cut; or for two directions
                it has one micro-batch.
        """
        count, batches = self.count(job.ranks), range(job.micro_batches)
        sizes = cut or (len(job.stages) // count,) * count
        if len(job.routes) != 1:
            raise PipelineError(f"{job.name}: has {len(job.routes)} routes already; only a job with one is laid out.")
        if len(sizes) != count or min(sizes) < 1 or sum(sizes) != len(job.stages):
            raise PipelineError(
                f"{job.name}: {len(job.stages)} stages cannot be joined to {count} of "
                f"{'one size' if cut is None else ', '.join(map(str, cut))}, which {job.ranks} ranks need."
            )
        line, ranks = tuple(range(count)), job.ranks
        units = [job.routes[0].stages[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        stages, pairs = tuple(_join([job.stages[unit] for unit in own]) for own in units), _joined_pairs(job, units)
        routes: tuple[Route, ...] = (Route(line, batches),)
        if self.kind == "mirrored":
            if len(batches) == 1:
                raise PipelineError(f"{job.name}: two directions need two micro-batches, not 1.")
            half, stages = -(-len(batches) // 2), stages * 2
            routes = Route(line, batches[:half]), Route(tuple(range(count, 2 * count)), batches[half:])
            pairs = {(f + i, b + k): pairs[f, b] for (f, b), i, k in product(pairs, (0, count), (0, count))}
        back = [self.kind != "looped" and s // ranks % 2 for s in range(len(stages))]
        places = tuple(ranks - 1 - s % ranks if up else s % ranks for s, up in enumerate(back))
        return replace(job, stages=stages, rank_of=places, routes=routes, pairs=pairs)


ONE_EACH, FOLDED, MIRRORED = StageLayout("looped"), StageLayout("folded", 2), StageLayout("mirrored")
TWO_WAVES = StageLayout("folded", 4)


def _joined_pairs(job: PipelineJob, units: list[tuple[int, ...]]) -> dict[tuple[int, int], PipelineBlock]:
    """Pairs of joined stages: the first forward beside the last backward, and so on; what is left over runs alone."""
    found, stages = dict[tuple[int, int], PipelineBlock](), job.stages
    for (f, ahead), (b, back) in product(enumerate(units), repeat=2) if job.pairs else ():
        sides = list(zip_longest(ahead, reversed(back)))
        steps = [job.pairs.get(both) for both in sides[: min(len(ahead), len(back))]]
        steps += [stages[other].backward if one is None else stages[one].forward for one, other in sides[len(steps) :]]
        known = [step for step in steps if step is not None]
        if len(known) == len(steps):  # else what two of them take together is not known
            most = 0
            for k, step in enumerate(known):
                not_yet, gone = ahead[k + 1 :], back[::-1][:k]
                most = max(most, step.transient_bytes - sum(stages[u].saved_bytes for u in (*not_yet, *gone)))
            time_us, exposed_us = sum(step.time_us for step in known), sum(step.exposed_us for step in known)
            found[f, b] = PipelineBlock(time_us, most, exposed_us=exposed_us)
    return found


def _join(stages: list[PipelineStage]) -> PipelineStage:
    """Several neighbouring stages as one.

    Times, and what is static, saved or kept, add up. What is transient is what the joined blocks need at once beyond
    that, where all that is saved counts from the start of the joined forward to the end of the joined backward.
    """
    if len(stages) == 1:
        return stages[0]
    saved, kept = sum(one.saved_bytes for one in stages), sum(one.kept_bytes for one in stages)
    up = list(accumulate(one.saved_bytes for one in stages))  # live in the k-th block: what it and those below saved
    above = [kept - one for one in accumulate(one.kept_bytes for one in stages)]
    halves_up = [one + more for one, more in zip(up, above, strict=True)]
    none, found = [0] * len(stages), dict[str, Any]()
    for name, live, counted in (
        ("forward", up, saved),
        ("backward", up, saved),
        ("input_gradient", halves_up, saved),
        ("weight_gradient", [kept] * len(stages), kept),
        ("reduce", none, 0),
        ("step", none, 0),
        ("unshard", none, 0),
    ):
        blocks = [(block, more) for one, more in zip(stages, live, strict=True) if (block := getattr(one, name))]
        if not blocks or (len(blocks) < len(stages) and name.endswith("gradient")):
            continue
        last, _ = blocks[-1 if name == "forward" else 0]
        gathered = sum(block.output_bytes for block, _ in blocks)
        found[name] = replace(
            last,
            output_bytes=gathered if name == "unshard" else last.output_bytes,
            time_us=sum(block.time_us for block, _ in blocks),
            transient_bytes=max(0, max(block.transient_bytes + more for block, more in blocks) - counted),
            exposed_us=sum(block.exposed_us for block, _ in blocks),
            graph="",
            counted_bytes=0,
        )
    static = sum(one.static_bytes for one in stages)
    return PipelineStage(saved_bytes=saved, kept_bytes=kept, static_bytes=static, **found)
