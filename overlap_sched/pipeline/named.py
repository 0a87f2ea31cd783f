"""The named schedules by name: how each lays out a job, and what makes it."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import (
    Action,
    ActionKind,
    Item,
    Pair,
    PipelineSchedule,
    backward,
    forward,
    input_gradient,
    parts,
    weight_gradient,
)
from overlap_sched.pipeline.blocks import BlockShape, repeat_block
from overlap_sched.pipeline.cuts import best_cut
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.layout import FOLDED, MIRRORED, ONE_EACH, TWO_WAVES, Cut, StageLayout


def below(micro_batches: int) -> Callable[[Action], Action | None]:
    """Leave out micro-batches from this number on."""
    return lambda action: action if (action.micro_batch or 0) < micro_batches else None


def only(order: Iterable[Item], kept: Callable[[Action], Action | None]) -> tuple[Item, ...]:
    """The items of an order as ``kept`` gives them (``None``: left out); of a pair, perhaps one of its two alone."""
    found: list[Item] = []
    for item in order:
        there = [action for action in map(kept, parts(item)) if action is not None]
        found += [Pair(*there)] if len(there) == 2 else there
    return tuple(found)


def gpipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """All forwards, then all backwards in the same order, as torch's ``ScheduleGPipe``.

    Source: Huang et al. 2019, "GPipe", arXiv 1811.06965, figure 2c (which runs the backwards in reverse). Bubble per
    rank (p - 1)(F + B); activations of all micro-batches at the peak.
    """
    batches = range(micro_batches)
    orders = [(*(forward(r, m) for m in batches), *(backward(r, m) for m in batches)) for r in range(ranks)]
    return PipelineSchedule("gpipe", tuple(orders))


def one_f_one_b(ranks: int, micro_batches: int) -> PipelineSchedule:
    """One forward, one backward in turn, after a warm-up of ``p - 1 - r`` forwards.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    arXiv 2104.04473, section 2.2.1 (PipeDream-Flush). Bubble per rank (p - 1)(F + B); activations of ``p - r``
    micro-batches at the peak of rank r.
    """
    return replace(interleaved(ranks, 1, micro_batches, each=1), name="1f1b")


def zb_h1(ranks: int, micro_batches: int) -> PipelineSchedule:
    """1F1B with backward in two halves; rank r runs a weight gradient r micro-batches after its input gradient.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1 and table 2. With F = I =
    W the bubble is (p - 1)(F + I - W); what p micro-batches hold at the peak of every rank, as in rank 0 of 1F1B, if I
    frees nothing.
    """
    return replace(interleaved_zero_bubble(ranks, 1, micro_batches), name="zb-h1")


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> PipelineSchedule:
    """Interleaved 1F1B with backward in two halves, as torch's ``ScheduleInterleavedZeroBubble``; rounds as there.

    Rank r runs a weight gradient r input gradients after its own, and begins with no more forwards than 1F1B, whose
    order of chunks it has.
    """
    orders = []
    for rank in range(ranks):
        order, waiting = list[Action](), deque[Action]()
        for action in interleaved(ranks, chunks, micro_batches, each=1).actions(rank):
            if action.kind is ActionKind.FORWARD:
                order.append(action)
                continue
            order.append(action._replace(kind=ActionKind.INPUT_GRADIENT))
            waiting.append(action._replace(kind=ActionKind.WEIGHT_GRADIENT))
            if len(waiting) > rank:
                order.append(waiting.popleft())
        orders.append((*order, *waiting))
    return PipelineSchedule("interleaved-zb", tuple(orders))


def interleaved(ranks: int, chunks: int, micro_batches: int, each: int = 2) -> PipelineSchedule:
    """1F1B over p micro-batches of one chunk, then of the next, ...; with one chunk it is 1F1B.

    Where micro-batches are no multiple of the ranks, but of the ``m // p`` rounds, a round has ``m / (m // p)``, as in
    torch's ``ScheduleInterleaved1F1B``; where they are of neither, which torch refuses, the last round has fewer.

    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.2 (figure 4, below). With F and B of a rank's whole
    share the bubble is (p - 1)(F + B) / v for v chunks, where micro-batches are a multiple of the ranks; activations
    of ``(v - 1) p + 2 (p - 1 - r) + 1`` chunks at the peak of rank r: ``each`` times as many forwards in front.
    """
    rounds = max(micro_batches // ranks, 1)
    size = ranks if micro_batches % rounds else micro_batches // rounds
    firsts = range(0, micro_batches, size)
    turns = [(c, m) for first in firsts for c in range(chunks) for m in range(first, first + size)]
    orders = []
    for rank in range(ranks):
        ahead = [forward(chunk * ranks + rank, m) for chunk, m in turns]
        warm_up = (chunks - 1) * size + each * (ranks - 1 - rank)
        order = ahead[:warm_up]
        for k, (chunk, m) in enumerate(turns):
            order += [*ahead[warm_up + k : warm_up + k + 1], backward((chunks - 1 - chunk) * ranks + rank, m)]
        orders.append(only(order, below(micro_batches)))
    return PipelineSchedule("interleaved", tuple(orders))


def zbv(ranks: int, micro_batches: int) -> PipelineSchedule:
    """The hand-made schedule for F = I = W.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 6 (the order is that of
    torch's ``ScheduleZBVZeroBubble``; the same is V-ZB in Qi et al. 2024, "Pipeline Parallelism with Controllable
    Memory", arXiv 2405.15362). With F = I = W and at least ``2p - 1`` micro-batches no rank stalls between its first
    and its last action; activations of 2p stages at the peak of every rank, as much as p whole ones: that of rank 0
    in 1F1B.
    """
    full = max(2 * ranks - 1, micro_batches)
    orders = (only(_zbv_rank(r, ranks, full), below(micro_batches)) for r in range(ranks))
    return PipelineSchedule("zbv", tuple(orders))


def _zbv_rank(rank: int, ranks: int, micro_batches: int) -> Iterator[Item]:
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


def v_min(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Two stages per rank in the least memory.

    Source: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3: its block,
    with passes taken earlier as :mod:`~overlap_sched.pipeline.blocks` does. About a third of the activations of 1F1B.
    """
    return replace(repeat_block(ranks, micro_batches, BlockShape((0, 0))), name="v-min")


def v_half(ranks: int, micro_batches: int) -> PipelineSchedule:
    """As :func:`v_min`, with the block V-Half: about half of the activations of 1F1B."""
    return replace(repeat_block(ranks, micro_batches, BlockShape((1, 0), 0 if ranks % 2 else 3)), name="v-half")


def v_zb(ranks: int, micro_batches: int) -> PipelineSchedule:
    """As :func:`v_min`, with the block V-ZB: as much as 1F1B; :func:`zbv` is its twin that was made by hand."""
    return replace(repeat_block(ranks, micro_batches, BlockShape((3, 1))), name="v-zb")


def waves(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Two waves: four stages per rank, down the ranks and up again, twice; backward is whole.

    Source: Liu et al. 2023, "Hanayo: Harnessing Wave-like Pipeline Parallelism", arXiv 2308.15762. Made as
    :func:`v_min` is, with a block whose passes down have gaps for those up. With B = 2F a bubble of (p - 1)(F + B) of
    one stage, where micro-batches are many enough.
    """
    return replace(repeat_block(ranks, micro_batches, BlockShape((1, 0)), TWO_WAVES, halves=False), name="waves")


def dual_pipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Both directions; the first has micro-batches from 0 on, half of all (of an odd number, one more than half).

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1 and table 2; the order
    is that of ``dualpipe/dualpipe.py`` in github.com/deepseek-ai/DualPipe. With F&B for a pair, p ranks and 2p
    micro-batches or more the bubble is (p / 2 - 1)(F&B + B - 3W); activations of p + 1 stages at the peak.

    Raises:
        PipelineError: The number of ranks is odd: the two directions have no middle.
    """
    if ranks % 2:
        raise PipelineError(f"DualPipe's two directions meet in the middle: give an even number of ranks, not {ranks}.")
    first = -(-micro_batches // 2)
    second = micro_batches - first

    def renumbered(action: Action) -> Action | None:
        one_way, m = action.stage < ranks, action.micro_batch or 0
        if m >= (first if one_way else second):
            return None
        return action if one_way else action._replace(micro_batch=first + m)

    count = max(ranks, first)
    orders = []
    for rank in range(ranks):
        stages = (rank, 2 * ranks - 1 - rank)
        near = min(rank, ranks - 1 - rank)
        order = _dual_pipe_rank(near, ranks // 2, count, *(stages if near == rank else reversed(stages)))
        orders.append(only(order, renumbered))
    return PipelineSchedule("dualpipe", tuple(orders))


def dual_pipe_v(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Down the ranks and up again, as :func:`~overlap_sched.pipeline.named` places stages.

    Source: as of :func:`dual_pipe`, whose README calls it "cut in half" (Qi et al., sail-sg); the order is that of
    torch's ``ScheduleDualPipeV``. With PP = 2p stages and 2p micro-batches or more the bubble is (PP / 2 - 1)(F&B + B
    - 3W); activations of PP + 1 stages at the peak.
    """
    count = max(2 * ranks, micro_batches)
    orders = (_dual_pipe_rank(r, ranks, count, r, 2 * ranks - 1 - r) for r in range(ranks))
    return PipelineSchedule("dualpipev", tuple(only(order, below(micro_batches)) for order in orders))


def _dual_pipe_rank(near: int, half: int, count: int, zero: int, one: int) -> Iterator[Item]:
    """The order of one rank.

    Args:
        near: Ranks between it and the nearer end.
        half: Ranks between an end and the middle.
        count: Micro-batches of each of its stages, ``2 * half`` or more.
        zero: Its stage where what it starts comes in first.
        one: The other.
    """
    far = half - near - 1
    steps = [
        *["F0"] * (2 * far),
        *["F0", "F1"] * (near + 1),
        *["I1", "W", "F1"] * far,
        *(["F0B1"] if far else ["F0", "B1"]),  # apart, so that what comes first goes on first
        *["F1B0", "F0B1"] * (count - 2 * half + near),
        *["F1B0", *["B1", "F1B0"] * far],
        *(f"{'I' if k > near else 'B'}{1 - k % 2}" for k in range(2 * near + 2)),  # halved from the middle on
        *["W", "I0"] * far,
        *["W"] * (near + 1),
    ]
    begun, weights = Counter[tuple[bool, int]](), deque[Action]()
    for step in steps:
        actions = list[Action]()
        for letter, stage in zip(step[::2], step[1::2], strict=False):
            way = letter == "F", one if stage == "1" else zero
            actions.append(Action(ActionKind(letter), way[1], begun[way]))
            begun[way] += 1
            if letter == "I":
                weights.append(actions[-1]._replace(kind=ActionKind.WEIGHT_GRADIENT))
        yield weights.popleft() if step == "W" else Pair(*actions) if len(actions) > 1 else actions[0]


@dataclass(frozen=True)
class NamedSchedule:
    """One of them.

    Attributes:
        name: On the command line.
        layout: Where it wants the stages of a model.
        make: From ranks and micro-batches.
        halves: It runs the two halves of backward apart.
    """

    name: str
    layout: StageLayout
    make: Callable[[int, int], PipelineSchedule]
    halves: bool = False


def interleaved_in(chunks: int, zero_bubble: bool = False) -> NamedSchedule:
    """Interleaved 1F1B with so many stages per rank, or interleaved zero bubble."""
    name, layout = f"interleaved{'-zb' * zero_bubble}:{chunks}", StageLayout("looped", chunks)
    make = interleaved_zero_bubble if zero_bubble else partial(interleaved, each=min(chunks, 2))
    return NamedSchedule(name, layout, lambda ranks, batches: make(ranks, chunks, batches), halves=zero_bubble)


NAMED = (
    NamedSchedule("gpipe", ONE_EACH, gpipe),
    NamedSchedule("1f1b", ONE_EACH, one_f_one_b),
    NamedSchedule("zb-h1", ONE_EACH, zb_h1, halves=True),
    NamedSchedule("zbv", FOLDED, zbv, halves=True),
    NamedSchedule("v-min", FOLDED, v_min, halves=True),
    NamedSchedule("v-half", FOLDED, v_half, halves=True),
    NamedSchedule("v-zb", FOLDED, v_zb, halves=True),
    NamedSchedule("waves", TWO_WAVES, waves),
    NamedSchedule("dualpipe", MIRRORED, dual_pipe, halves=True),
    NamedSchedule("dualpipev", FOLDED, dual_pipe_v, halves=True),
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


def lay_out_named(
    job: PipelineJob, named: NamedSchedule, cut: Cut | None = None
) -> tuple[PipelineJob, PipelineSchedule]:
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
        lacks = "runs the halves of backward apart, but no stage has any. Give input_gradient and weight_gradient."
        raise PipelineError(f"{job.name}: {named.name} {lacks}")

    def whole(action: Action) -> Action | None:
        if placed.stages[action.stage].splits:
            return action
        if action.kind is ActionKind.INPUT_GRADIENT:
            return action._replace(kind=ActionKind.BACKWARD)
        return None if action.kind is ActionKind.WEIGHT_GRADIENT else action

    made = named.make(placed.ranks, placed.micro_batches)
    made = replace(made, orders=tuple(only(order, whole) for order in made.orders))
    return placed, placed.with_updates(made)
