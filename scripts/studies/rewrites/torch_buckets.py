"""torch's own overlap pass with its bucketing, run on a problem and judged at the problem's prices.

The graph that the pass makes is lifted and replayed: nodes that were there take the problem's times, those that it has
made are priced as ours are. Its peak is compared with that of the same graph before the pass: a graph that is made of
a problem holds more than the problem, since values of waits are storages of their own there.
"""

import logging
from collections.abc import Mapping
from typing import NamedTuple
from unittest import mock

from torch import fx

from llama_repro.harness.judge import DEFAULT_CAPS
from llama_repro.harness.problem_graph import RebuiltGraph, problem_to_graph
from llama_repro.harness.torch_pass import CAPS, any_gpu, groups_of, overlap_pass, passed
from overlap_sched.cost import Collective, Compute
from overlap_sched.fx.lifting import lift
from overlap_sched.judge.validate import JudgedOrder, measure
from overlap_sched.problem import Group, Kind, Problem
from overlap_sched.transform.prices import Prices

_SAYS = "torch._inductor.fx_passes.fsdp"
"""A logger that says what it has merged, whoever asks."""


class TorchBuckets(NamedTuple):
    """What torch's pass makes: microseconds of the step, the peak as a part above the original one, collectives."""

    step_us: float
    peak_change: float
    collectives: int


def torch_buckets(problem: Problem, prices: Prices, caps: str = DEFAULT_CAPS) -> TorchBuckets:
    """Run torch's pass with its own bucketing: FSDP's collectives first, then by overlap.

    Args:
        problem: What to schedule, its collectives priced by ``prices``.
        prices: Of new nodes.
        caps: As for :func:`llama_repro.harness.torch_pass.torch_order`.

    Raises:
        TorchPassError: This torch has no such pass, or it failed; the message says how.
    """
    logger = logging.getLogger(_SAYS)
    with groups_of(problem) as names, any_gpu(), mock.patch.object(logger, "disabled", True):
        rebuilt = problem_to_graph(problem, names, "cpu")
        groups = {names[name]: group for name, group in problem.groups.items()}
        before = judged(problem, rebuilt.graph_module, rebuilt, prices, groups)
        made = passed(problem, rebuilt, overlap_pass(bucketing=True), CAPS[caps])
        return compared(before, judged(problem, made, rebuilt, prices, groups))


class Judged(NamedTuple):
    """Microseconds of a graph's step, bytes at its peak, collectives."""

    step_us: float
    peak_bytes: int
    collectives: int


def compared(before: Judged, after: Judged) -> TorchBuckets:
    """What a pass has made of a graph."""
    return TorchBuckets(after.step_us, after.peak_bytes / before.peak_bytes - 1, after.collectives)


def judged(
    problem: Problem, made: fx.GraphModule, rebuilt: RebuiltGraph, prices: Prices, groups: Mapping[str, Group]
) -> Judged:
    """What a graph takes and holds in the order in which it stands.

    Args:
        problem: What the graph was made of.
        made: It, or what a pass has made of it.
        rebuilt: It, before any pass.
        prices: Of what the pass has made.
        groups: By their names in the graph.
    """
    timed = (Kind.COMPUTE, Kind.COLLECTIVE)
    known = {node: problem.nodes[v].time_us for node, v in rebuilt.node_ids.items() if problem.nodes[v].kind in timed}
    kept = [node.name for node in made.graph.nodes if node.op == "placeholder" and node.name.startswith("primals")]
    given = [node.name for node in made.graph.nodes if node.op == "placeholder" and node.name not in kept]

    def cost(node: fx.Node) -> float | None:
        joins = node.op == "call_function" and getattr(node.target, "namespace", "") == "llama_repro"
        return known.get(node, 0.0 if joins else None)  # what only joins inputs is no node of the problem

    lifted = lift(made, cost=cost, model=_Scaled(prices), groups=groups, parameters=kept, donated=given)
    found: JudgedOrder = measure(lifted.problem, lifted.problem.original_order)
    return Judged(found.timeline.step_us, max(found.profile), len(lifted.problem.collectives))


class _Scaled:
    """Prices as a cost model: a network as slow as the problem's."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices

    def compute_us(self, work: Compute) -> float:
        """As the model has it."""
        return self.prices.model.compute_us(work)

    def collective_us(self, work: Collective) -> float:
        """So many times as long as the model has it."""
        return self.prices.collective_us(work.op.removesuffix("_out"), work.bytes, work.group)
