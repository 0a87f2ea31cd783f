"""What contention adds to a bound: compute and communication that have to take turns, and what both lose beside others.

A bound without contention is a chain: compute, and between it collectives during which none of that compute can run::

    compute       |=== 30 ===|........|=== 20 ===|          counted: 50 of all compute, and collectives of 10
    tp                       |== 10 ==|
    fsdp          |========== 40 ==========|                takes from compute wherever it is not beside the 10

Outside of the chain's collectives the step has room for its compute and for what others take from it. Of collectives of
one link those in flight get its full rate together, so beside the chain's collectives they do at most as much as these
take; all else of theirs falls beside compute, which loses 1 - 1 / factor of it, or beside a standstill, which is worse.
And compute that is not counted can run beside the chain's collectives, at 1 / factor of its rate::

    step >= chain's collectives + all compute - min(compute not counted, sum of collective / factor)
            + max over links of (what its collectives take from compute - the most of it during the chain's)
"""

from dataclasses import dataclass
from typing import NamedTuple

from overlap_sched.judge.bound_terms import compute_us
from overlap_sched.problem import NodeId, Problem


class Chain(NamedTuple):
    """What a bound counts, in microseconds: no two parts of it can run at the same time.

    Attributes:
        compute_us: Compute.
        sent_us: Collectives.
        beside_us: The most compute that can run beside these, each divided by its factor.
    """

    compute_us: float
    sent_us: float
    beside_us: float


@dataclass(frozen=True)
class Losses:
    """What collectives take from compute.

    Attributes:
        total_us: All compute.
        links: Per link, what its collectives take from compute, and the largest part of their time that one takes.
    """

    total_us: float
    links: tuple[tuple[float, float], ...]

    def step_us(self, chain: Chain) -> float:
        """The bound of a chain, see the module."""
        others_us = min(self.total_us - chain.compute_us, chain.beside_us)
        lost_us = max((lost - chain.sent_us * most for lost, most in self.links), default=0.0)
        return chain.sent_us + self.total_us - others_us + max(lost_us, 0.0)


def losses(problem: Problem) -> Losses:
    """Return the losses of a whole problem."""
    links: dict[str, list[tuple[float, float]]] = {}
    for v in problem.collectives:
        node = problem.nodes[v]
        links.setdefault(problem.contention.link_of(node.group), []).append((part_lost(problem, v), node.time_us))
    lost = [(sum(part * us for part, us in mine), max(part for part, _ in mine)) for mine in links.values()]
    return Losses(sum(compute_us(problem)), tuple(lost))


def part_lost(problem: Problem, v: NodeId) -> float:
    """The part of a collective's time that it takes from compute, at the least."""
    return 1 - 1 / problem.contention.least_slowdown_of(problem.nodes[v].op)
