"""DualPipe and DualPipeV: two streams of micro-batches meet in each rank, forward of one beside backward of the other.

DualPipe sends half of the micro-batches from either end: each rank has two stages, one per direction, so that
parameters exist twice. Stage r on rank r is of the first direction, stage ``p + k`` (the same layers as stage k) on
rank ``p - 1 - k`` of the second. DualPipeV cuts that in half at the middle: the second half of each micro-batch's way
goes back over the same ranks, as in ZBV. Both are one order of eight phases, seen from a rank by two stages of its
own: 0 is where what it starts comes in first.
"""

from collections import Counter, deque
from collections.abc import Iterator

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Action, Item, Pair, backward, forward, input_gradient, weight_gradient
from overlap_sched.pipeline.named.leave_out import below, only
from overlap_sched.pipeline.schedule import PipelineSchedule


def dual_pipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Both directions; the first has micro-batches from 0 on, half of all (of an odd number, one more than half).

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 3.2.1 and table 2; the order
    is that of ``dualpipe/dualpipe.py`` in github.com/deepseek-ai/DualPipe. With F&B for a pair, p ranks and 2p
    micro-batches or more the bubble is (p / 2 - 1)(F&B + B - 3W); activations of p + 1 stages at the peak.

    Raises:
        PipelineError: The number of ranks is odd: the two directions have no middle.
    """
    if ranks % 2:
        raise PipelineError(
            f"DualPipe has an even number of ranks, not {ranks}: its two directions meet in the middle."
        )
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
        order = _rank(near, ranks // 2, count, *(stages if near == rank else reversed(stages)))
        orders.append(only(order, renumbered))
    return PipelineSchedule("dualpipe", tuple(orders))


def dual_pipe_v(ranks: int, micro_batches: int) -> PipelineSchedule:
    """Down the ranks and up again, as :func:`~overlap_sched.pipeline.named.zbv.zbv` places stages.

    Source: as of :func:`dual_pipe`, whose README calls it "cut in half" (Qi et al., sail-sg); the order is that of
    torch's ``ScheduleDualPipeV``. With PP = 2p stages and 2p micro-batches or more the bubble is (PP / 2 - 1)(F&B + B
    - 3W); activations of PP + 1 stages at the peak.
    """
    count = max(2 * ranks, micro_batches)
    orders = (_rank(r, ranks, count, r, 2 * ranks - 1 - r) for r in range(ranks))
    return PipelineSchedule("dualpipev", tuple(only(order, below(micro_batches)) for order in orders))


class _Own:
    """The next micro-batch of each of a rank's two stages, and the weight gradients that are yet to come."""

    def __init__(self) -> None:
        self._forwards, self._backwards, self._weights = Counter[int](), Counter[int](), deque[Action]()

    def forward(self, stage: int) -> Action:
        self._forwards[stage] += 1
        return forward(stage, self._forwards[stage] - 1)

    def backward(self, stage: int) -> Action:
        self._backwards[stage] += 1
        return backward(stage, self._backwards[stage] - 1)

    def input_gradient(self, stage: int) -> Action:
        m = self.backward(stage).micro_batch or 0
        self._weights.append(weight_gradient(stage, m))
        return input_gradient(stage, m)

    def weight_gradient(self) -> Action:
        return self._weights.popleft()

    def pair(self, ahead: int, back: int) -> Pair:
        return Pair(self.forward(ahead), self.backward(back))


def _rank(near: int, half: int, count: int, zero: int, one: int) -> Iterator[Item]:
    """The order of one rank.

    Args:
        near: Ranks between it and the nearer end.
        half: Ranks between an end and the middle.
        count: Micro-batches of each of its stages, ``2 * half`` or more.
        zero: Its stage where what it starts comes in first.
        one: The other.
    """
    own, far = _Own(), half - near - 1
    for _ in range(2 * far):  # 1: F0
        yield own.forward(zero)
    for _ in range(near + 1):  # 2: F0 F1
        yield own.forward(zero)
        yield own.forward(one)
    for _ in range(far):  # 3: I1 W1 F1
        yield own.input_gradient(one)
        yield own.weight_gradient()
        yield own.forward(one)
    for k in range(count - 2 * half + near + 1):  # 4: F0&B1 F1&B0
        if k == 0 and far == 0:  # apart, so that what comes first goes on first
            yield own.forward(zero)
            yield own.backward(one)
        else:
            yield own.pair(zero, one)
        yield own.pair(one, zero)
    for _ in range(far):  # 5: B1 F1&B0
        yield own.backward(one)
        yield own.pair(one, zero)
    for k in range(2 * (near + 1)):  # 6: B1 B0, halved from the middle on
        stage = zero if k % 2 else one
        yield own.input_gradient(stage) if k > near else own.backward(stage)
    for _ in range(far):  # 7: W I0
        yield own.weight_gradient()
        yield own.input_gradient(zero)
    for _ in range(near + 1):  # 8: W
        yield own.weight_gradient()
