"""Schedules with one stage per rank: GPipe, 1F1B, ZB-H1. Stage r is on rank r.

Four ranks, seen from rank 1 (``p = 4``, so two micro-batches are started before the first backward may)::

    GPipe   F0 F1 F2 F3 F4 F5  B0 B1 B2 B3 B4 B5
    1F1B    F0 F1  F2 B0 F3 B1 F4 B2 F5 B3  B4 B5
    ZB-H1   F0 F1  F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2  I4 W3 I5 W4  W5
"""

from overlap_sched.pipeline.action import Item, backward, forward, input_gradient, weight_gradient
from overlap_sched.pipeline.schedule import PipelineSchedule


def gpipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """All forwards, then all backwards in the same order, as torch's ``ScheduleGPipe``.

    Source: Huang et al. 2019, "GPipe", arXiv 1811.06965, figure 2c (which runs the backwards in reverse). Bubble per
    rank (p - 1)(F + B); activations of all micro-batches at the peak.
    """
    batches = range(micro_batches)
    return PipelineSchedule(
        "gpipe",
        tuple((*(forward(r, m) for m in batches), *(backward(r, m) for m in batches)) for r in range(ranks)),
    )


def one_f_one_b(ranks: int, micro_batches: int) -> PipelineSchedule:
    """One forward, one backward in turn, after a warm-up of ``p - 1 - r`` forwards.

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
    arXiv 2104.04473, section 2.2.1 (PipeDream-Flush). Bubble per rank (p - 1)(F + B); activations of ``p - r``
    micro-batches at the peak of rank r.
    """
    return PipelineSchedule("1f1b", tuple(_one_f_one_b(r, ranks - 1 - r, micro_batches) for r in range(ranks)))


def _one_f_one_b(rank: int, warm_up: int, micro_batches: int) -> tuple[Item, ...]:
    ahead = min(warm_up, micro_batches)
    order: list[Item] = [forward(rank, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            order.append(forward(rank, m + ahead))
        order.append(backward(rank, m))
    return tuple(order)


def zb_h1(ranks: int, micro_batches: int) -> PipelineSchedule:
    """1F1B with backward in two halves; rank r runs a weight gradient r micro-batches after its input gradient.

    Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 2.1 and table 2 (the order
    is that of torch's ``ScheduleInterleavedZeroBubble`` with one stage per rank). With F = I = W the bubble is (p -
    1)(F + I - W); what p micro-batches hold at the peak of every rank, as in rank 0 of 1F1B, if I frees nothing.
    """
    return PipelineSchedule("zb-h1", tuple(_zb_h1(r, ranks - 1 - r, micro_batches) for r in range(ranks)))


def _zb_h1(rank: int, warm_up: int, micro_batches: int) -> tuple[Item, ...]:
    ahead = min(warm_up, micro_batches)
    order: list[Item] = [forward(rank, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            order.append(forward(rank, m + ahead))
        order.append(input_gradient(rank, m))
        if m >= rank:
            order.append(weight_gradient(rank, m - rank))
    order.extend(weight_gradient(rank, m) for m in range(max(micro_batches - rank, 0), micro_batches))
    return tuple(order)
