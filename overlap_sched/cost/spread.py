"""How far off prices are, by class, and what that leaves of a gain.

All durations of a class are wrong together: a draw multiplies them by one factor for each class, and both orders run at
the drawn times::

    draw    matmuls  attention  collectives   original   ours    ratio
    1       x1.08    x0.91      x1.20         124 ms     51 ms   2.4
    2       x0.97    x1.12      x0.88         101 ms     38 ms   2.7
    ...     32 draws; printed: the ratio between which nine of ten lie
"""

from collections.abc import Mapping

import numpy as np

from overlap_sched.cost.compute import kind_of
from overlap_sched.problem import Group, Kind, Node, Order, Problem
from overlap_sched.simulate.clock import StepTimes

DRAWS = 32
SPREADS: Mapping[str, float] = {
    "gemm": 0.10,
    "attention": 0.16,
    "row by row": 0.15,
    "element by element": 0.24,
    "collective in a node": 0.06,
    "collective across nodes": 0.13,
    "collective below 1 MiB": 0.13,
}
"""Per class, the root mean square of log(predicted / measured) on H100
(``python -m scripts.studies.truth``, 2026-11-28).
Row by row (norms, softmax, reductions) and element by element: of kernels from 5 us. Matmuls have 0.06 there; 0.10 is
what GPUs of one kind differ in whole steps."""
_ROW_BY_ROW = ("norm", "softmax", "reduction", "convolution")


def class_of(node: Node, groups: Mapping[str, Group]) -> str:
    """The class of a node, a name of :data:`SPREADS`."""
    if node.kind is Kind.COLLECTIVE:
        inside = node.group is None or groups[node.group].intra_node
        return f"collective {'below 1 MiB' if node.bytes < 2**20 else 'in a node' if inside else 'across nodes'}"
    kind = kind_of(node.op)
    if kind in ("gemm", "attention"):
        return kind
    return "row by row" if kind in _ROW_BY_ROW else "element by element"


def gain_range(*pairs: tuple[Problem, Order]) -> tuple[float, float]:
    """Return how many times as long the first step is as the second: less in a twentieth of the draws, more in one.

    Args:
        pairs: A problem and an order of it, twice: the original, and ours (rewritten, it is of another problem).
    """
    drawn = np.exp(np.random.default_rng(0).standard_normal((DRAWS, len(SPREADS))) * list(SPREADS.values()))
    steps_us = []
    for problem, order in pairs:
        names = [class_of(node, problem.groups) for node in problem.nodes]
        draws = (dict(zip(SPREADS, factors, strict=True)) for factors in drawn.tolist())
        steps_us.append(StepTimes(problem).drawn(order, ([of[name] for name in names] for of in draws)))
    ratios = [first / last if last else 1.0 for first, last in zip(*steps_us, strict=True)]
    low, high = np.quantile(ratios, (0.05, 0.95)).tolist()
    return low, high
