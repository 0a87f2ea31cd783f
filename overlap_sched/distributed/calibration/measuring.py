"""What is measured, one thing after the other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from overlap_sched.cost.table import KINDS, CollectiveTime, KernelTime, Tables, kind_of
from overlap_sched.distributed.calibration.collectives import (
    ELEMENT_BYTES,
    Division,
    Groups,
    timed_collective,
    whole_elements,
)
from overlap_sched.distributed.calibration.kernels import KernelCall, timed_kernel
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.problem import Kind, Problem

Row = CollectiveTime | KernelTime


class WantedCollective(NamedTuple):
    """A collective to time, see :func:`~overlap_sched.distributed.calibration.collectives.timed_collective`."""

    kind: str
    division: Division
    bytes: int


@dataclass(frozen=True)
class Wishes:
    """What is to be measured.

    Attributes:
        collectives: Each kind, division and size.
        calls: Kernels.
    """

    collectives: tuple[WantedCollective, ...] = ()
    calls: tuple[KernelCall, ...] = ()


class Measurement(NamedTuple):
    """One thing to measure: what it is called, how its result is known again, and how it is done."""

    name: str
    key: tuple[object, ...]
    run: Callable[[], Row]


def wishes_of(
    divisions: Sequence[Division],
    sizes: Iterable[int],
    calls: Iterable[KernelCall],
    more: Iterable[WantedCollective] = (),
) -> Wishes:
    """Every kind of collective in each division and size; ``more`` besides; the kernels."""
    grid = [WantedCollective(kind, division, nbytes) for division in divisions for kind in KINDS for nbytes in sizes]
    return Wishes(tuple(dict.fromkeys([*grid, *more])), tuple(calls))


def collectives_of(problem: Problem, divisions: Sequence[Division]) -> list[WantedCollective]:
    """The collectives of a problem whose groups are as large as those of a division, each size once."""
    of_size = {division.size: division for division in reversed(divisions)}
    found: dict[WantedCollective, None] = {}
    for node in problem.nodes:
        if node.kind is Kind.COLLECTIVE and node.group is not None:
            division, kind = of_size.get(problem.groups[node.group].size), kind_of(node.op)
            if division is not None and kind:
                found[WantedCollective(kind, division, node.bytes)] = None
    return list(found)


def measurements(machine: Machine, wishes: Wishes) -> list[Measurement]:
    """In the order in which they are made, kernels first; the same on all ranks."""
    groups, world, per_node = Groups(machine), machine.size, machine.ranks_per_node
    found = [
        Measurement(f"{call.op} {call.shapes}", ("kernel", call.op, call.shapes), partial(timed_kernel, machine, call))
        for call in wishes.calls
    ]
    for kind, division, nbytes in wishes.collectives:
        whole = whole_elements(nbytes, division.size) * ELEMENT_BYTES
        key = ("collective", kind, division.size, division.nodes(world, per_node), whole)
        run = partial(timed_collective, machine, groups, kind, division, nbytes)
        found.append(Measurement(f"{kind} of {whole:,} bytes, {division.size} ranks", key, run))
    return list({one.key: one for one in reversed(found)}.values())[::-1]


def measure(machine: Machine, wishes: Wishes, tell: Callable[[str], object]) -> tuple[Tables, list[str]]:
    """Measure everything wished for; all ranks call this.

    Args:
        machine: The ranks.
        wishes: What is to be measured; the same on all ranks.
        tell: Called with what is being done.

    Returns:
        The tables, sorted, the same on all ranks; and what could not be measured, and why.
    """
    every, failed, rows = measurements(machine, wishes), [], list[Row]()
    for count, one in enumerate(every, 1):
        tell(f"measuring {count} of {len(every)}: {one.name}")
        row, reasons = _attempted(machine, one)
        if row is None:
            failed.append(f"{one.name}: {reasons[0]}")
        else:
            rows.append(machine.from_first(row))
    collectives = sorted(row for row in rows if isinstance(row, CollectiveTime))
    kernels = sorted(row for row in rows if isinstance(row, KernelTime))
    return Tables(tuple(collectives), tuple(kernels)), failed


def _attempted(machine: Machine, one: Measurement) -> tuple[Row | None, list[str]]:
    """The result, where no rank has failed; else what the ranks that failed say."""
    row, reason = None, ""
    try:
        row = one.run()
    except (RuntimeError, NotImplementedError, ValueError) as error:  # no such kernel or collective here, no memory
        reason = " ".join(str(error).split())[:200] or type(error).__name__
    reasons = [said for said in machine.everyone(reason) if said]
    return (None if reasons else row), reasons
