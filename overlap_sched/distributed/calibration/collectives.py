"""The collectives that are timed: the functional operators of compiled graphs, on the groups of a division.

A *division* cuts all ranks into groups of one size; all of them communicate at the same time, as they do in a job, and
share what they share there.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from overlap_sched.cost.table import CollectiveTime
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.stopwatch import Products, in_a_step, together
from overlap_sched.errors import CostError

FUNCTIONAL = torch.ops._c10d_functional
ELEMENT_BYTES = 4
"""fp32, in which gradients are reduced."""
_LONG_TIMES, _LONG_MORE_US = 4.0, 10_000.0
"""Products for so many times as long as a collective, and so much more, outlast two of it."""


class Division(NamedTuple):
    """Groups of ``size`` ranks that are ``stride`` apart.

    Eight ranks in groups of 4: stride 1 makes ``0123 4567``, stride 2 makes ``0246 1357``.
    """

    size: int
    stride: int = 1

    def groups(self, world: int) -> list[list[int]]:
        """All of them, as ranks.

        Raises:
            CostError: The ranks cannot be divided so.
        """
        block = self.size * self.stride
        if self.size < 1 or self.stride < 1 or world % block:
            raise CostError(
                f"{world} ranks cannot be divided into groups of {self.size} with stride {self.stride}: "
                f"{world} is not a multiple of {block}. Give another --group SIZE or SIZE/STRIDE."
            )
        starts = (first + offset for first in range(0, world, block) for offset in range(self.stride))
        return [list(range(start, start + block, self.stride)) for start in starts]

    def nodes(self, world: int, ranks_per_node: int) -> int:
        """On how many nodes a group's ranks are; the most of any."""
        return max(len({rank // ranks_per_node for rank in group}) for group in self.groups(world))


def default_divisions(world: int, ranks_per_node: int) -> list[Division]:
    """All ranks; the ranks of each node; one rank of each node."""
    nodes = world // ranks_per_node
    found = [Division(world)] if world > 1 else []
    if nodes > 1 and world % ranks_per_node == 0:
        found += [Division(ranks_per_node)] if ranks_per_node > 1 else []
        found += [Division(nodes, ranks_per_node)] if ranks_per_node > 1 else []
    return found


class Groups:
    """The process groups of divisions, each made once."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._made: dict[Division, Any] = {}

    def mine(self, division: Division) -> Any:
        """This rank's group; all ranks ask for the same divisions in the same order."""
        if division not in self._made:
            groups = division.groups(self._machine.size)
            self._made[division], _ = dist.new_subgroups_by_enumeration(groups)
        return self._made[division]


def whole_elements(nbytes: int, ranks: int) -> int:
    """How many fp32 numbers so many bytes hold, cut down to what the ranks of a group divide evenly; one of each."""
    return max(nbytes // ELEMENT_BYTES // ranks, 1) * ranks


def launch_of(kind: str, elements: int, group: Any, ranks: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function that starts a collective of so many fp32 numbers on its larger side."""
    name = group.group_name
    whole = torch.ones(elements, device=device)
    part = torch.ones(elements // ranks, device=device)
    if kind == "all_gather":
        return partial(_gather_out if device.type == "cpu" else FUNCTIONAL.all_gather_into_tensor, part, ranks, name)
    if kind == "reduce_scatter":
        return partial(FUNCTIONAL.reduce_scatter_tensor, whole, "sum", ranks, name)
    if kind == "all_reduce":
        return partial(FUNCTIONAL.all_reduce, whole, "sum", name)
    splits = [elements // ranks] * ranks
    return partial(FUNCTIONAL.all_to_all_single, whole, splits, splits, name)


def _gather_out(part: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """How functional gathers run over gloo, see :mod:`overlap_sched.inductor.gloo`."""
    out = part.new_empty(part.shape[0] * ranks)
    gathered: torch.Tensor = FUNCTIONAL.all_gather_into_tensor_out(part, ranks, group, out=out)
    return gathered


def sizes_between(smallest: int, largest: int, factor: int = 4) -> Sequence[int]:
    """``smallest``, ``factor`` times as much, and so on; the last is ``largest``."""
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return sizes if smallest >= largest else [*sizes, largest]


def timed_collective(machine: Machine, groups: Groups, kind: str, division: Division, nbytes: int) -> CollectiveTime:
    """Time a collective: alone, and the wait for it once it is long done; all ranks call this.

    ``kind`` is one of :data:`overlap_sched.cost.table.KINDS`, ``division`` says which groups communicate, and
    ``nbytes`` is the larger of input and output, cut down to what divides evenly.
    """
    elements = whole_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups.mine(division), division.size, machine.device)
    alone = in_a_step(machine, launch, FUNCTIONAL.wait_tensor)
    finish_us = 0.0
    if machine.device.type == "cpu":  # a GPU's stream does not wait for the host
        finish_us = _finish_us(machine, launch, _LONG_TIMES * alone.time_us + _LONG_MORE_US)
    nodes = division.nodes(machine.size, machine.ranks_per_node)
    times = (alone.time_us, alone.launch_us, finish_us)
    return CollectiveTime(kind, division.size, nodes, elements * ELEMENT_BYTES, *times)


def _finish_us(machine: Machine, launch: Callable[[], Any], products_us: float) -> float:
    """Time the second of two waits for collectives that were done while products ran.

    After some milliseconds of products the code of a wait is out of the caches, and a wait takes several times as long
    as right behind another; in a step, which calls operators all the time, it is not.
    """
    products = Products(machine)
    count = products.count_for(products_us)

    def begin() -> Any:
        first, second = launch(), launch()
        products.run(count)
        FUNCTIONAL.wait_tensor(first)
        return second

    return together(machine, begin, FUNCTIONAL.wait_tensor, statistics.median).finish_us
