"""Who ran when, and how much memory of which kind was live: what pictures, pages and traces draw.

One order becomes spans on streams (see the drawing in :mod:`overlap_sched.judge.replay`) and memory samples in time.
Nodes that take no time (inputs, views, waits that do not stall) have no span.

Kinds of memory are those of :mod:`overlap_sched.peak_memory.peak`, by the same rules of structure and names, and of
the original order, so that a storage has one colour before and after. Only *collectives in flight* depends on the
order: a storage is of that kind from the launch to the last wait of a collective that makes or reads it, and of its own
kind before and after. EXAMPLE in its original order, MiB (w is a parameter, x an input that the caller gives up)::

                          w x gather full mm dgrad wgrad scatter grad output
    parameters            1 1   1     1    1   1     1      1      1    1
    saved activations     4 4   4     4    4   4     4
    collectives in flight       8     8                     9      9           full; dw and ds
    gathered parameters                    8   8
    gradients                                        8                  1      dw before its launch, ds after its wait
    temporaries                            4   8     8      4      4    4      g, dx
    live                  5 5  13    13   17  21    21     14     14    6
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile
from overlap_sched.peak_memory.peak import KINDS, PeakKind, StructuralKinds, idle_steps
from overlap_sched.problem import Kind, Problem
from overlap_sched.simulate.ledger import LiveRanges


class Span(NamedTuple):
    """A node at work, or (of a wait) the compute stream standing still."""

    node: int
    start_us: float
    end_us: float


class Timeline(NamedTuple):
    """One order in time. Spans of one row are in ascending order and do not overlap.

    Attributes:
        step_us: When everything is done.
        compute: The compute stream at work.
        exposed: The compute stream standing still; ``node`` is the wait.
        streams: Per process group that has collectives, in the problem's order of groups, its collectives.
        memory: (when, bytes live from then on), one sample per node in the order run.
    """

    step_us: float
    compute: tuple[Span, ...]
    exposed: tuple[Span, ...]
    streams: Mapping[str, tuple[Span, ...]]
    memory: tuple[tuple[float, int], ...]


def timeline(problem: Problem, order: Sequence[int]) -> Timeline:
    """Replay a valid order and sort what happened into rows."""
    run, rows = replay(problem, order), defaultdict[tuple[str, str], list[Span]](list)
    for v in order:
        node, span = problem.nodes[v], Span(v, run.start_us[v], run.finish_us[v])
        if span.end_us > span.start_us:
            kind = node.kind if node.kind in (Kind.WAIT, Kind.COLLECTIVE) else Kind.COMPUTE
            rows[kind, node.group or ""].append(span)
    used = {problem.nodes[v].group for v in problem.collectives}
    return Timeline(
        step_us=run.step_us,
        compute=tuple(rows[Kind.COMPUTE, ""]),
        exposed=tuple(rows[Kind.WAIT, ""]),
        streams={name: tuple(rows[Kind.COLLECTIVE, name]) for name in problem.groups if name in used},
        memory=tuple((run.at_us[v], live) for v, live in zip(order, memory_profile(problem, order), strict=True)),
    )


IN_FLIGHT: PeakKind = "collectives in flight"


def memory_kinds(problem: Problem) -> tuple[PeakKind, ...]:
    """Return, per storage, its kind while no collective holds it: never :data:`IN_FLIGHT`.

    What nobody makes (it is never live) is a temporary. *Saved activations* are temporaries that nobody touches for a
    while in the original order (:func:`overlap_sched.peak_memory.peak.idle_steps`), and inputs that may be freed.
    """
    structure, ranges, idle = StructuralKinds(problem), LiveRanges(problem), idle_steps(problem)
    kinds: list[PeakKind] = ["temporaries"] * len(problem.storages)
    for span in ranges.of(problem.original_order):
        kind = structure.kind(span.storage)
        touched = (span.first, *ranges.users[span.storage], span.last)
        if kind == "temporaries" and any(after - before >= idle for before, after in pairwise(touched)):
            kind = "saved activations"
        kinds[span.storage] = kind
    return tuple(kinds)


def memory_by_kind(problem: Problem, order: Sequence[int]) -> dict[PeakKind, list[int]]:
    """Return, per kind, the bytes live while each step of a valid order runs.

    At each step the kinds add up to :func:`overlap_sched.judge.validate.memory_profile`. O(nodes + uses of storages).
    """
    kinds, held = memory_kinds(problem), flights(problem, order)
    change = {kind: [0] * (len(order) + 1) for kind in KINDS}

    def add(kind: PeakKind, first: int, last: int, nbytes: int) -> None:
        change[kind][first] += nbytes
        change[kind][last + 1] -= nbytes

    for span in LiveRanges(problem).of(order):
        add(kinds[span.storage], span.first, span.last, span.bytes)
        for first, last in held.get(span.storage, ()):
            first, last = max(first, span.first), min(last, span.last)
            if first <= last:
                add(IN_FLIGHT, first, last, span.bytes)
                add(kinds[span.storage], first, last, -span.bytes)
    return {kind: list(accumulate(steps[:-1])) for kind, steps in change.items()}


def flights(problem: Problem, order: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """Return, per storage, when collectives hold it: first and last step, both included, ascending and apart."""
    structure = StructuralKinds(problem)
    position = {v: at for at, v in enumerate(order)}
    found: dict[int, list[tuple[int, int]]] = {}
    for v in sorted(problem.waits, key=position.__getitem__):
        last = max(position[w] for w in problem.waits[v])
        for s in dict.fromkeys(structure.held_by(v)):
            if structure.may_fly(s):
                before = found.setdefault(s, [])
                if before and position[v] <= before[-1][1]:
                    before[-1] = (before[-1][0], max(before[-1][1], last))
                else:
                    before.append((position[v], last))
    return found
