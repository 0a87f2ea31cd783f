"""A pipelined job: stages with times and bytes, their ranks, links, and micro-batches. Pure data.

Memory of a rank, in bytes; what is written ``[a, b)`` is live from the instant a until just before b::

    static            of each of its stages, always: parameters, gradients, states of the optimizer
    transient         [start, end) of an action, beyond all else that is counted here
    saved             [start of F, end of I or B): activations
    kept              [end of I, end of W): what I leaves for W
    sent              [end of F, I or B, end of the transfer) on the rank that sends
    received          [start of the transfer, start of the action that needs it) on the rank that receives
    gathered          [start of UNSHARD, RESHARD): parameters of a sharded stage

Between stages of one rank nothing is sent: an output is live, as what is sent, until the action that needs it starts,
and belongs to that action from then on. What an action without duration holds is live at its instant; a buffer that is
needed by nobody for any time is not.

Stages that run forward again in their backward (activation checkpointing), and so save little until then.

While it runs, and again in backward, all that the stage would save is live; in between only what it says it saves, by
default what its forward has received::

    saved    F [ all ]---- what is received ----[ F again, B: all ]
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import BACKWARDS, Action, ActionKind, PipelineSchedule, last_gradients, with_gathers
from overlap_sched.problem import MAX_TOTAL_BYTES
from overlap_sched.problem.sizes import show_number

_FIELD = {kind: kind.name.lower() for kind in ActionKind}


@dataclass(frozen=True)
class PipelineBlock:
    """What one action takes.

    Attributes:
        time_us: On the compute stream; of a gradient reduction, on the rank's reduction stream. Microseconds.
        transient_bytes: Live only while it runs, its output included where that is not saved.
        output_bytes: Sent to the next stage (the previous one in backward).
        sent_bytes: The buffer of the output until it has been sent; ``None``: as large as the output. 0 where the
            output is saved for backward and so counted already.
        graph: The graph that it has been measured from; empty: given by numbers, or joined of several.
        counted_bytes: Of the peak of that graph, what is counted elsewhere: parameters, and what is saved or kept.
        exposed_us: Of its time, that in which compute waits for collectives of its graph.
    """

    time_us: float
    transient_bytes: int = 0
    output_bytes: int = 0
    sent_bytes: int | None = None
    graph: str = ""
    counted_bytes: int = 0
    exposed_us: float = 0.0

    @property
    def buffer_bytes(self) -> int:
        """The bytes that the sender holds until the output has been sent."""
        return self.output_bytes if self.sent_bytes is None else self.sent_bytes


@dataclass(frozen=True)
class PipelineStage:
    """One stage of the model, for one micro-batch.

    Attributes:
        forward, backward: Whole.
        input_gradient, weight_gradient: The two halves of backward; both or neither.
        saved_bytes: Activations from forward to backward.
        kept_bytes: What the input gradient leaves for the weight gradient.
        static_bytes: Parameters, gradients and states of the optimizer.
        reduce, step: Of gradients across replicas, and of the optimizer; once, after the last micro-batch.
        unshard: Gathers its parameters, its output, from the replicas that they are sharded over; ``None``: they are
            not sharded. All that the stage computes is behind it, and in front of what frees them.
        recomputed: The same stage where it runs forward again in its backward; ``None``: it cannot.
    """

    forward: PipelineBlock
    backward: PipelineBlock
    input_gradient: PipelineBlock | None = None
    weight_gradient: PipelineBlock | None = None
    saved_bytes: int = 0
    kept_bytes: int = 0
    static_bytes: int = 0
    reduce: PipelineBlock | None = None
    step: PipelineBlock | None = None
    unshard: PipelineBlock | None = None
    recomputed: "PipelineStage | None" = None

    def block(self, kind: ActionKind) -> PipelineBlock | None:
        """Look up what an action of a kind takes; ``None``: the stage has no such action."""
        block: PipelineBlock | None = getattr(self, _FIELD[kind], None)
        return block

    @property
    def reshard(self) -> PipelineBlock | None:
        """Frees its parameters, in no time; ``None``: they are not sharded."""
        return None if self.unshard is None else PipelineBlock(0.0)

    @property
    def numbers(self) -> list[float]:
        """All times and sizes."""
        blocks = filter(None, map(self.block, ActionKind))
        each = ((one.time_us, one.transient_bytes, one.output_bytes, one.buffer_bytes) for one in blocks)
        return [self.saved_bytes, self.kept_bytes, self.static_bytes, *chain.from_iterable(each)]

    @property
    def splits(self) -> bool:
        """It has both halves of its backward."""
        return self.input_gradient is not None and self.weight_gradient is not None

    @property
    def backs(self) -> list[PipelineBlock]:
        """The blocks that make the gradient of its input: B, and I where it has halves."""
        return [self.backward] if self.input_gradient is None else [self.backward, self.input_gradient]

    @property
    def down_us(self) -> float:
        """The least time until its gradient goes on."""
        return min(block.time_us for block in self.backs)

    @property
    def whole_us(self) -> float:
        """The least time of its whole backward."""
        i, w = self.input_gradient, self.weight_gradient
        return min(self.backward.time_us, i.time_us + w.time_us) if i and w else self.backward.time_us

    def recomputing(
        self, received_bytes: int, time_us: float | None = None, saved_bytes: int | None = None
    ) -> "PipelineStage":
        """The same with its other way to run.

        Args:
            received_bytes: What its forward receives.
            time_us: Added to its backward; ``None``: that of its forward.
            saved_bytes: Until then; ``None``: what it has received.
        """
        more_us = self.forward.time_us if time_us is None else time_us
        saved = min(self.saved_bytes, received_bytes if saved_bytes is None else saved_bytes)

        def hold(block: PipelineBlock, us: float) -> PipelineBlock:
            """With what is not saved live while it runs."""
            part = us / self.forward.time_us if self.forward.time_us else 0.0
            return replace(
                block,
                time_us=block.time_us + us,
                transient_bytes=block.transient_bytes + self.saved_bytes - saved,
                exposed_us=block.exposed_us + part * self.forward.exposed_us,
            )

        half = self.input_gradient
        again = replace(
            self,
            forward=replace(hold(self.forward, 0.0), sent_bytes=None),
            backward=hold(self.backward, more_us),
            input_gradient=None if half is None else hold(half, more_us),
            saved_bytes=saved,
        )
        return replace(self, recomputed=again)


@dataclass(frozen=True)
class PipelineLink:
    """From one rank to another: a transfer takes ``latency_us`` and its bytes at ``bytes_per_s``; one at a time."""

    latency_us: float = 0.0
    bytes_per_s: float = float("inf")


@dataclass(frozen=True)
class Route:
    """The way of some micro-batches through the model: stages in the order of forward.

    All jobs have one route, but those in two directions, whose stages exist twice.
    """

    stages: tuple[int, ...]
    micro_batches: range


@dataclass(frozen=True)
class PipelineJob:
    """Stages on ranks.

    Attributes:
        name: For people.
        stages: By index; each is on one route.
        rank_of: Per stage, its rank.
        ranks: How many.
        routes: See :class:`Route`; micro-batches of two routes differ.
        link: Between any two ranks, where ``links`` has no other for the pair (sender, receiver).
        shared_links: Gathers and reductions of a rank go over the links that it sends to other ranks by.
        memory_limit_bytes: Per rank; ``None``: none has a limit.
        pair_factor: A :class:`~overlap_sched.pipeline.action.Pair` takes so much of the sum of its two times, and never
            less than the longer of them.
        pairs: By stage of the forward and stage of the backward, the time of a pair and the transient bytes of both,
            where they are known better; else both have their own.

    Raises:
        PipelineError: A number is out of range.
    """

    name: str
    stages: tuple[PipelineStage, ...]
    rank_of: tuple[int, ...]
    ranks: int
    routes: tuple[Route, ...]
    link: PipelineLink = PipelineLink()
    links: Mapping[tuple[int, int], PipelineLink] = field(default_factory=dict)
    memory_limit_bytes: tuple[int, ...] | None = None
    pair_factor: float = 1.0
    pairs: Mapping[tuple[int, int], PipelineBlock] = field(default_factory=dict)
    shared_links: bool = False

    def __post_init__(self) -> None:
        for number, stage in enumerate(self.stages):
            _check_numbers(f"{self.name}: stage {number}", stage.numbers)
        _check_numbers(f"{self.name}: a pair or a memory limit", (self.pair_factor, *(self.memory_limit_bytes or ())))

    @cached_property
    def route_of(self) -> tuple[Route, ...]:
        """Per stage, its route."""
        found = {stage: route for route in self.routes for stage in route.stages}
        return tuple(found[stage] for stage in range(len(self.stages)))

    @cached_property
    def after(self) -> tuple[int | None, ...]:
        """Per stage, the next one of forward; ``None`` of the last."""
        following = dict(both for route in self.routes for both in pairwise(route.stages))
        return tuple(map(following.get, range(len(self.stages))))

    @cached_property
    def before(self) -> tuple[int | None, ...]:
        """Per stage, the previous one of forward; ``None`` of the first."""
        preceding = {stage: s for s, stage in enumerate(self.after)}
        return tuple(map(preceding.get, range(len(self.stages))))

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Per rank, its stages, ascending."""
        return tuple(tuple(stage for stage, at in enumerate(self.rank_of) if at == rank) for rank in range(self.ranks))

    @cached_property
    def static_bytes(self) -> tuple[int, ...]:
        """Per rank, what is live always."""
        return tuple(sum(self.stages[stage].static_bytes for stage in stages) for stages in self.stages_of)

    def needs_from(self, action: Action) -> int | None:
        """The stage that makes the input of an action; ``None``: no other one does."""
        if action.kind is ActionKind.FORWARD:
            return self.before[action.stage]
        return self.after[action.stage] if action.kind in BACKWARDS else None

    def gives_to(self, action: Action) -> int | None:
        """The stage that needs the output of an action; ``None``: no other one does."""
        if action.kind is ActionKind.FORWARD:
            return self.after[action.stage]
        return self.before[action.stage] if action.kind in BACKWARDS else None

    @property
    def micro_batches(self) -> int:
        """The number of those of all routes."""
        return sum(len(route.micro_batches) for route in self.routes)

    def with_updates(self, schedule: PipelineSchedule) -> PipelineSchedule:
        """The schedule with a reduction behind each stage's last gradient of its weights, and the steps at the end.

        Of stages that have them; parameters of sharded stages are gathered and freed on the way. Reductions are where
        torch's ``_add_reduce_grad`` puts them.
        """
        sharded = {s for s, stage in enumerate(self.stages) if stage.unshard is not None}
        orders = []
        for stages, order in zip(self.stages_of, schedule.orders, strict=True):
            runs = (
                (item, *(Action(ActionKind.REDUCE, s) for s in done if self.stages[s].reduce is not None))
                for item, done in last_gradients([*with_gathers(order, sharded)])
            )
            steps = (Action(ActionKind.STEP, s) for s in stages if self.stages[s].step is not None)
            orders.append((*chain.from_iterable(runs), *steps))
        return replace(schedule, orders=tuple(orders))


def _check_numbers(where: str, numbers: Iterable[float]) -> None:
    for number in numbers:
        if not 0 <= number <= MAX_TOTAL_BYTES:
            raise PipelineError(f"{where} has {show_number(number)}: times, sizes and factors are from 0 to 2**60.")


def scale_links(job: PipelineJob, factor: float) -> PipelineJob:
    """The job with links of so many times their bandwidth."""
    links = (replace(one, bytes_per_s=one.bytes_per_s * factor) for one in (job.link, *job.links.values()))
    return replace(job, link=next(links), links=dict(zip(job.links, links, strict=True)))


def recompute_stages(job: PipelineJob, units: Iterable[int]) -> PipelineJob:
    """The job with some stages run the other way, those that have one. What pairs take is known of the first way."""
    again = {unit for unit in units if job.stages[unit].recomputed is not None}
    if not again:
        return job
    stages = [(one.recomputed or one) if unit in again else one for unit, one in enumerate(job.stages)]
    kept = {both: block for both, block in job.pairs.items() if again.isdisjoint(both)}
    return replace(job, stages=tuple(stages), pairs=kept)
