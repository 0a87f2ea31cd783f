"""The collectives that are timed: the functional operators of compiled graphs, on the groups of a division.

A *division* cuts all ranks into groups of one size; all of them communicate at the same time, as they do in a job, and
share what they share there.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.errors import CalibrationError

FUNCTIONAL = torch.ops._c10d_functional
ELEMENT_BYTES = 4
"""fp32, in which gradients are reduced."""


class Division(NamedTuple):
    """Groups of ``size`` ranks that are ``stride`` apart.

    Eight ranks in groups of 4: stride 1 makes ``0123 4567``, stride 2 makes ``0246 1357``.
    """

    size: int
    stride: int = 1

    def groups(self, world: int) -> list[list[int]]:
        """All of them, as ranks.

        Raises:
            CalibrationError: The ranks cannot be divided so.
        """
        block = self.size * self.stride
        if self.size < 1 or self.stride < 1 or world % block:
            raise CalibrationError(
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
