"""What is measured, one thing after the other; what is known already is left out, and each result is saved at once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from overlap_sched.cost.measured.lanes import AT_ONCE, InFlight
from overlap_sched.cost.measured.table import (
    KINDS,
    CollectiveTime,
    KernelTime,
    SlowdownFactor,
    Tables,
    kind_of,
    merged,
)
from overlap_sched.distributed.calibration.collectives import ELEMENT_BYTES, Division, Groups, whole_elements
from overlap_sched.distributed.calibration.kernels import KernelCall, timed_kernel
from overlap_sched.distributed.calibration.machine import Machine
from overlap_sched.distributed.calibration.slowdown import timed_collective, timed_in_flight, timed_slowdown
from overlap_sched.problem import Kind, Problem

Row = CollectiveTime | KernelTime | SlowdownFactor | InFlight


class WantedCollective(NamedTuple):
    """A collective to time, see :func:`~overlap_sched.distributed.calibration.slowdown.timed_collective`."""

    kind: str
    division: Division
    bytes: int


@dataclass(frozen=True)
class Wishes:
    """What is to be measured.

    Attributes:
        collectives: Each kind, division and size.
        calls: Kernels.
        slowdowns: Collectives that are timed beside compute, and beside others of their group, one of each kind.
    """

    collectives: tuple[WantedCollective, ...] = ()
    calls: tuple[KernelCall, ...] = ()
    slowdowns: tuple[WantedCollective, ...] = ()


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
    """Every kind of collective in each division and size; ``more`` besides; the kernels; the slowdowns of all kinds.

    The slowdown of a kind is measured with one size, see :func:`one_of_each`.
    """
    grid = [WantedCollective(kind, division, nbytes) for division in divisions for kind in KINDS for nbytes in sizes]
    asked = list(more)
    return Wishes(tuple(dict.fromkeys([*grid, *asked])), tuple(calls), one_of_each([*asked, *grid]))


def one_of_each(wanted: Iterable[WantedCollective]) -> tuple[WantedCollective, ...]:
    """Choose, of each kind, the collective of middle size in the division that is named first."""
    found = []
    for kind in KINDS:
        ones = [one for one in wanted if one.kind == kind]
        ones = sorted((one for one in ones if one.division == ones[0].division), key=lambda one: one.bytes)
        found += ones[len(ones) // 2 :][:1]
    return tuple(found)


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
    for kind, division, nbytes in wishes.slowdowns:
        run_slowdown = partial(timed_slowdown, machine, groups, kind, division, nbytes)
        found.append(Measurement(f"compute beside {kind}", ("slowdown", kind), run_slowdown))
        for count in AT_ONCE:
            run_lanes = partial(timed_in_flight, machine, groups, kind, division, nbytes, count)
            found.append(Measurement(f"{count} of {kind} at once", ("in_flight", kind, count), run_lanes))
    return list({one.key: one for one in reversed(found)}.values())[::-1]


def measure(
    machine: Machine, wishes: Wishes, known: Tables, save: Callable[[Tables], object], tell: Callable[[str], object]
) -> tuple[Tables, list[str]]:
    """Measure all that is not known; all ranks call this.

    Args:
        machine: The ranks.
        wishes: What is to be measured; the same on all ranks.
        known: What rank 0 has from an earlier start; that of others does not count.
        save: Called on rank 0 with all that is known, after each measurement.
        tell: Called with what is being done.

    Returns:
        What is known now, the same on all ranks; and what could not be measured, and why.
    """
    known = machine.from_first(known)
    every, failed = measurements(machine, wishes), []
    left = [one for one in every if one.key not in keys_of(known)]
    for count, one in enumerate(left, len(every) - len(left) + 1):
        tell(f"measuring {count} of {len(every)}: {one.name}")
        row, reasons = _attempted(machine, one)
        if row is None:
            failed.append(f"{one.name}: {reasons[0]}")
            continue
        known = merged(known, tables_of(machine.from_first(row)))
        if machine.rank == 0:
            save(known)
    return known, failed


def _attempted(machine: Machine, one: Measurement) -> tuple[Row | None, list[str]]:
    """The result, where no rank has failed; else what the ranks that failed say."""
    row, reason = None, ""
    try:
        row = one.run()
    except (RuntimeError, NotImplementedError, ValueError) as error:  # no such kernel or collective here, no memory
        reason = " ".join(str(error).split())[:200] or type(error).__name__
    reasons = [said for said in machine.everyone(reason) if said]
    return (None if reasons else row), reasons


def tables_of(row: Row) -> Tables:
    """One result."""
    if isinstance(row, CollectiveTime):
        return Tables(collectives=(row,))
    if isinstance(row, InFlight):
        return Tables(in_flight=(row,))
    return Tables(kernels=(row,)) if isinstance(row, KernelTime) else Tables(slowdowns=(row,))


def keys_of(tables: Tables) -> set[tuple[object, ...]]:
    """By which measurements know what has been measured."""
    found: set[tuple[object, ...]] = {("collective", *one[:4]) for one in tables.collectives}
    found |= {("kernel", one.op, one.shapes) for one in tables.kernels}
    found |= {("in_flight", one.kind, one.at_once) for one in tables.in_flight}
    return found | {("slowdown", one.kind) for one in tables.slowdowns}
