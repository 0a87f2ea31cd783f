"""The named schedules by name: how each lays out a job, and what makes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Action, ActionKind
from overlap_sched.pipeline.cuts import best_cut
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.layout import Cut, StageLayout
from overlap_sched.pipeline.named.dual_pipe import dual_pipe, dual_pipe_v
from overlap_sched.pipeline.named.interleaved import interleaved
from overlap_sched.pipeline.named.leave_out import only
from overlap_sched.pipeline.named.one_at_a_time import gpipe, one_f_one_b, zb_h1
from overlap_sched.pipeline.named.zbv import zbv
from overlap_sched.pipeline.schedule import PipelineSchedule
from overlap_sched.pipeline.updates import with_updates


@dataclass(frozen=True)
class NamedSchedule:
    """One of them.

    Attributes:
        name: On the command line.
        what: In a line.
        layout: Where it wants the stages of a model.
        make: From ranks and micro-batches.
        halves: It runs the two halves of backward apart.
    """

    name: str
    what: str
    layout: StageLayout
    make: Callable[[int, int], PipelineSchedule]
    halves: bool = False


def interleaved_in(chunks: int) -> NamedSchedule:
    """Interleaved 1F1B with so many stages per rank."""
    return NamedSchedule(
        f"interleaved:{chunks}",
        f"1F1B with {chunks} stages per rank, dealt out in turn",
        StageLayout("looped", chunks),
        lambda ranks, micro_batches: interleaved(ranks, chunks, micro_batches),
    )


ONE_EACH, FOLD = StageLayout("looped"), StageLayout("folded", 2)
NAMED = (
    NamedSchedule("gpipe", "all forwards, then all backwards", ONE_EACH, gpipe),
    NamedSchedule("1f1b", "one forward, one backward", ONE_EACH, one_f_one_b),
    NamedSchedule("zb-h1", "1F1B with weight gradients deferred", ONE_EACH, zb_h1, halves=True),
    NamedSchedule(
        "zbv", "two stages per rank, down and up again, weight gradients in the gaps", FOLD, zbv, halves=True
    ),
    NamedSchedule(
        "dualpipe",
        "two directions, forward beside backward; parameters twice",
        StageLayout("mirrored"),
        dual_pipe,
        halves=True,
    ),
    NamedSchedule("dualpipev", "DualPipe over stages that go down and up again", FOLD, dual_pipe_v, halves=True),
)
"""All but the interleaved ones, which :func:`interleaved_in` makes for any number of stages per rank."""


def cut_for(job: PipelineJob, named: NamedSchedule) -> Cut:
    """How many neighbouring stages are joined to each of a schedule: as many to each, or the best where that cannot be.

    Raises:
        PipelineError: There are too few.
    """
    count = named.layout.count(job.ranks)
    size, left = divmod(len(job.stages), count)
    cut = best_cut(job, named.layout) if left else (size,) * count
    if cut is None or not size:
        raise PipelineError(
            f"{job.name}: {len(job.stages)} stages cannot be joined to {count}, which {job.ranks} ranks need. "
            f"Give {count} or more."
        )
    return cut


def laid_out(job: PipelineJob, named: NamedSchedule, cut: Cut | None = None) -> tuple[PipelineJob, PipelineSchedule]:
    """The job as a schedule wants it, and that schedule, with reductions and steps.

    A stage without halves runs its whole backward where others run the first half: so does the first stage in
    torchtitan's GraphPP, whose input needs no gradient.

    Args:
        job: As it was read.
        named: The schedule.
        cut: How many neighbouring stages are joined to each; ``None``: as :func:`cut_for` says.

    Raises:
        PipelineError: The job has stages or ranks that the schedule cannot have, or no halves of backward at all.
    """
    placed = named.layout.put(job, cut or cut_for(job, named))
    if named.halves and not any(stage.splits for stage in placed.stages):
        raise PipelineError(
            f"{job.name}: {named.name} runs the halves of backward apart, but no stage has any. "
            "Give input_gradient and weight_gradient."
        )

    def whole(action: Action) -> Action | None:
        if placed.stages[action.stage].splits:
            return action
        if action.kind is ActionKind.INPUT_GRADIENT:
            return action._replace(kind=ActionKind.BACKWARD)
        return None if action.kind is ActionKind.WEIGHT_GRADIENT else action

    made = named.make(placed.ranks, placed.micro_batches)
    made = replace(made, orders=tuple(only(order, whole) for order in made.orders))
    return placed, with_updates(placed, made)
