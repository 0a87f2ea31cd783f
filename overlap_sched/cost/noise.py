"""How wrong predicted times are: random factors on them, the same for every order of a graph.

Estimates are thought to be right on average: a node's time is multiplied by exp(sigma z - sigma^2 / 2) with z normal,
whose mean is 1. Collectives may also have a heavy tail, which only delays: one in so many takes longer by a Pareto
factor (a slow link, a rank that comes late), as latencies in large systems do (Dean and Barroso, The tail at scale,
2013). The default tail is an assumption, not a measurement.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlap_sched.errors import OptionsError
from overlap_sched.problem import Kind, Node

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """A distribution of errors.

    Attributes:
        sigma: Of the logarithm of each node's factor: 0.2 is an error of about 20 %.
        tail: Share of the collectives that are delayed, 0 to 1.
        tail_index: Of the Pareto distribution of their further factor, above 1: the lower, the heavier. At 2 the factor
            is 2 on average and above 10 once in a hundred.

    Raises:
        OptionsError: A value is out of its range.
    """

    sigma: float = 0.2
    tail: float = 0.0
    tail_index: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise OptionsError(f"sigma is {self.sigma}; it is a number, 0 or more (0.2: errors of about 20 %).")
        if not 0 <= self.tail <= 1:
            raise OptionsError(f"tail is {self.tail}; it is the share of collectives that are delayed, 0 to 1.")
        if not 1 < self.tail_index < math.inf:
            raise OptionsError(f"tail_index is {self.tail_index}; it is above 1, or delays would have no mean.")

    def times_us(self, nodes: Sequence[Node], draws: int, seed: Sequence[int]) -> Floats:
        """Times with errors: a row per node, a column per draw. The same nodes and seed give the same errors."""
        random = np.random.default_rng(list(seed))
        factors = random.standard_normal((len(nodes), draws))
        factors *= self.sigma
        factors -= self.sigma**2 / 2
        np.exp(factors, out=factors)
        if self.tail:
            rows = [k for k, node in enumerate(nodes) if node.kind is Kind.COLLECTIVE]
            delay = 1 + random.pareto(self.tail_index, (len(rows), draws))
            factors[rows] *= np.where(random.random((len(rows), draws)) < self.tail, delay, 1.0)
        factors *= np.array([node.time_us for node in nodes])[:, None]
        return factors


LOG_NORMAL = Noise()
HEAVY_TAILS = Noise(tail=0.02)
"""Every fiftieth collective is delayed, to twice its time on average."""
