"""What is to be calibrated for graphs: their matrix products and attention, and their collectives."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from overlap_sched.distributed.calibration.collectives import Division
from overlap_sched.distributed.calibration.kernels import Grid, KernelCall, calls_in, calls_in_grid
from overlap_sched.distributed.calibration.measuring import Wishes, collectives_of
from overlap_sched.fx import lift
from overlap_sched.problem import Problem

_COPIES = Grid((), (), tuple(2**k for k in range(8, 27, 2)))


@dataclass
class Shapes:
    """Given to the plug-in as a function of costs: it prices nothing, and sees every graph that is compiled.

    Attributes:
        calls: The kernels of the graphs seen, each operator and shape once.
    """

    calls: dict[tuple[str, str], KernelCall] = field(default_factory=dict)
    _seen: list[fx.Graph] = field(default_factory=list)

    def __call__(self, node: fx.Node) -> None:
        """As a cost function is called; leaves the node to the model."""
        if all(graph is not node.graph for graph in self._seen):
            self._seen.append(node.graph)
            for call in calls_in(lift(node.graph)):
                self.calls.setdefault((call.op, call.shapes), call)


def wishes_for(calls: Iterable[KernelCall], problems: Sequence[Problem], world: int) -> Wishes:
    """The kernels, copies by size, the collectives of the graphs in their very sizes."""
    sizes = {group.size for problem in problems for group in problem.groups.values()}
    divisions = [Division(size) for size in sorted(sizes) if size > 1 and world % size == 0]
    wanted = dict.fromkeys(one for problem in problems for one in collectives_of(problem, divisions))
    copies = calls_in_grid(_COPIES, torch.float32, torch.device("cpu"))
    return Wishes(tuple(wanted), (*calls, *copies))
