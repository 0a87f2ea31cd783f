"""What a rank of a pipeline does, one thing at a time; the letters are those of ``torch.distributed.pipelining``.

The words, on two stages and one micro-batch::

    rank 0   0F0 0SEND_F0                          0RECV_B0 0B0     F: forward, B: whole backward
    rank 1           1RECV_F0 1F0 1I0 1SEND_B0 1W0                  I: gradient of the input, W: of the weights

B is I and W in one. ``3F7`` is the forward of stage 3 for micro-batch 7. A :class:`Pair` is a forward and a backward
that run together, multiplexed: ``(3F7;3B2)OVERLAP_F_B``.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple, TypeAlias


class ActionKind(StrEnum):
    """What an action is: its name in torch's files; ``STEP`` is ours alone."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    SEND_FORWARD = "SEND_F"
    RECEIVE_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"
    RECEIVE_BACKWARD = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE = "REDUCE_GRAD"
    STEP = "STEP"


COMPUTE = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT)
SENDS = (ActionKind.SEND_FORWARD, ActionKind.SEND_BACKWARD)
RECEIVES = (ActionKind.RECEIVE_FORWARD, ActionKind.RECEIVE_BACKWARD)
BACKWARDS = (ActionKind.BACKWARD, ActionKind.INPUT_GRADIENT)
"""They make the gradient of a stage's input."""
OF_WEIGHTS = (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT)
"""They make the gradient of a stage's weights."""
UPDATES = (ActionKind.REDUCE, ActionKind.STEP)
"""Once per stage, for all micro-batches."""
GATHERS = (ActionKind.UNSHARD, ActionKind.RESHARD)
"""They gather a stage's parameters, and free what was gathered."""
BESIDE = (ActionKind.UNSHARD, ActionKind.REDUCE)
"""Collectives of data parallelism, which run beside compute."""


class Action(NamedTuple):
    """One action.

    Attributes:
        kind: See :class:`ActionKind`.
        stage: Index of its stage in the job. Of a send, the stage that sends; of a receive, the one that receives.
        micro_batch: Which one; ``None`` for :data:`UPDATES`. Of :data:`GATHERS`, how many came before for its stage.
    """

    kind: ActionKind
    stage: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.micro_batch is None or self.kind in GATHERS else self.micro_batch}"


class Pair(NamedTuple):
    """A forward and a whole backward, of stages of one rank, that run together."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Item: TypeAlias = Action | Pair
"""What has one place in the order of a rank."""


def parts(item: Item) -> tuple[Action, ...]:
    """The actions of an item: one, or the two of a pair."""
    return (item.forward, item.backward) if isinstance(item, Pair) else (item,)


forward, backward, input_gradient, weight_gradient = (partial(Action, kind) for kind in COMPUTE)
"""Of a stage and a micro-batch: ``F``, ``B``, ``I`` and ``W``."""


@dataclass(frozen=True)
class PipelineSchedule:
    """Orders of all ranks; nothing in it is checked, see :func:`overlap_sched.pipeline.judge.violation`.

    Attributes:
        name: For people.
        orders: Per rank, its items in the order in which its compute stream runs them.
    """

    name: str
    orders: tuple[tuple[Item, ...], ...]

    def actions(self, rank: int) -> list[Action]:
        """The actions of a rank, pairs taken apart."""
        return [action for item in self.orders[rank] for action in parts(item)]


MAX_ACTIVE_STAGES = 3
"""So many stages of a rank are gathered at once, as torch has it."""


def with_gathers(order: Sequence[Item], sharded: Collection[int]) -> Iterator[Item]:
    """Yield each item of a rank, and what gathers and frees parameters of sharded stages, so that the next have theirs.

    Source: torch's ``_add_unshard_reshard`` (``torch/distributed/pipelining/schedules.py``).
    """
    coming, wanted = list[int](), list[list[int]]()
    for item in reversed(order):
        own = [action.stage for action in parts(item) if action.stage in sharded]
        coming = list(dict.fromkeys([*own, *coming]))
        wanted.append(coming[:MAX_ACTIVE_STAGES])
    gathered, counts = list[int](), Counter[int]()
    for k, stages in enumerate((*reversed(wanted), [])):
        for stage in [stage for stage in gathered if stage not in stages]:
            gathered.remove(stage)
            yield Action(ActionKind.RESHARD, stage, counts[stage])
            counts[stage] += 1
        for stage in [stage for stage in stages if stage not in gathered]:
            gathered.append(stage)
            yield Action(ActionKind.UNSHARD, stage, counts[stage])
        yield from order[k : k + 1]


def last_gradients(order: Sequence[Item]) -> Iterator[tuple[Item, list[int]]]:
    """Yield each item of a rank with the stages whose last gradient of weights it makes."""
    left = Counter(action.stage for item in order for action in parts(item) if action.kind in OF_WEIGHTS)
    for item in order:
        stages = [action.stage for action in parts(item) if action.kind in OF_WEIGHTS]
        left.subtract(stages)
        yield item, [s for s in stages if not left[s]]
