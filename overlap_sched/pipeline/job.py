"""A pipelined job: stages with times and bytes, their ranks, links, and micro-batches. Pure data.

Memory of a rank, in bytes; what is written ``[a, b)`` is live from the instant a until just before b::

    static            of each of its stages, always: parameters, gradients, states of the optimizer
    transient         [start, end) of an action, beyond all else that is counted here
    saved             [start of F, end of I or B): activations
    kept              [end of I, end of W): what I leaves for W
    sent              [end of F, I or B, end of the transfer) on the rank that sends
    received          [start of the transfer, start of the action that needs it) on the rank that receives

Between stages of one rank nothing is sent: an output is live, as what is sent, until the action that needs it starts,
and belongs to that action from then on. What an action without duration holds is live at its instant; a buffer that is
needed by nobody for any time is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from overlap_sched.pipeline.action import Action, ActionKind
from overlap_sched.pipeline.check import check_job


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
    recomputed: "PipelineStage | None" = None

    @property
    def splits(self) -> bool:
        """It has both halves of its backward."""
        return self.input_gradient is not None and self.weight_gradient is not None


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
    """Stages on ranks; checked when made.

    Attributes:
        name: For people.
        stages: By index; each is on one route.
        rank_of: Per stage, its rank.
        ranks: How many.
        routes: See :class:`Route`; micro-batches of two routes differ.
        link: Between any two ranks, where ``links`` has no other for the pair (sender, receiver).
        memory_limit_bytes: Per rank; ``None``: none has a limit.
        pair_factor: A :class:`~overlap_sched.pipeline.action.Pair` takes so much of the sum of its two times, and never
            less than the longer of them.
        pairs: By stage of the forward and stage of the backward, the time of a pair and the transient bytes of both,
            where they are known better; else both have their own.

    Raises:
        PipelineError: The first rule that is broken.
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

    def __post_init__(self) -> None:
        check_job(self)

    @cached_property
    def route_of(self) -> tuple[Route, ...]:
        """Per stage, its route."""
        found = {stage: route for route in self.routes for stage in route.stages}
        return tuple(found[stage] for stage in range(len(self.stages)))

    @cached_property
    def after(self) -> tuple[int | None, ...]:
        """Per stage, the next one of forward; ``None`` of the last."""
        following = {s: t for route in self.routes for s, t in zip(route.stages, route.stages[1:], strict=False)}
        return tuple(following.get(stage) for stage in range(len(self.stages)))

    @cached_property
    def before(self) -> tuple[int | None, ...]:
        """Per stage, the previous one of forward; ``None`` of the first."""
        preceding = {t: s for route in self.routes for s, t in zip(route.stages, route.stages[1:], strict=False)}
        return tuple(preceding.get(stage) for stage in range(len(self.stages)))

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
        return self._beside(action, self.before, self.after)

    def gives_to(self, action: Action) -> int | None:
        """The stage that needs the output of an action; ``None``: no other one does."""
        return self._beside(action, self.after, self.before)

    def _beside(self, action: Action, ahead: tuple[int | None, ...], back: tuple[int | None, ...]) -> int | None:
        if action.kind is ActionKind.FORWARD:
            return ahead[action.stage]
        return back[action.stage] if action.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT) else None

    @property
    def micro_batches(self) -> int:
        """The number of those of all routes."""
        return sum(len(route.micro_batches) for route in self.routes)
