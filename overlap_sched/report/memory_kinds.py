"""Memory by kind, for pictures of a whole step: what each storage is, and how many bytes of each kind are live when.

Kinds are those of :mod:`overlap_sched.peak_memory.peak`, told by the same rules of structure and names; they are told
of the original order, so that a storage has one colour before and after. Only *collectives in flight* depends on the
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

from collections.abc import Sequence
from itertools import accumulate, pairwise

from overlap_sched.peak_memory.peak import KINDS, PeakKind, StructuralKinds, idle_steps
from overlap_sched.problem import Problem
from overlap_sched.simulate.ledger import LiveRange, LiveRanges

MEMORY_KINDS: tuple[PeakKind, ...] = KINDS
"""All kinds, in the order in which pictures stack them."""
IN_FLIGHT: PeakKind = "collectives in flight"


def memory_kinds(problem: Problem) -> tuple[PeakKind, ...]:
    """Per storage its kind while no collective holds it: never :data:`IN_FLIGHT`.

    What nobody makes (it is never live) is a temporary. *Saved activations* are temporaries that nobody touches for a
    while in the original order (:func:`overlap_sched.peak_memory.peak.idle_steps`), and inputs that may be freed.
    """
    structure, ranges = StructuralKinds(problem), LiveRanges(problem)
    kinds: list[PeakKind] = ["temporaries"] * len(problem.storages)
    for span in ranges.of(problem.original_order):
        kind = structure.kind(span.storage)
        if kind == "temporaries" and _is_saved(span, ranges.users[span.storage], idle_steps(problem)):
            kind = "saved activations"
        kinds[span.storage] = kind
    return tuple(kinds)


def _is_saved(span: LiveRange, users: Sequence[int], steps: float) -> bool:
    touched = (span.first, *users, span.last) if users else (span.first, span.last)
    return any(after - before >= steps for before, after in pairwise(touched))


def memory_by_kind(problem: Problem, order: Sequence[int]) -> dict[PeakKind, list[int]]:
    """Per kind the bytes live while each step of a valid order runs.

    At each step the kinds add up to :func:`overlap_sched.judge.validate.memory_profile`. O(nodes + uses of storages).
    """
    kinds = memory_kinds(problem)
    change = {kind: [0] * (len(order) + 1) for kind in MEMORY_KINDS}
    held = flights(problem, order)
    for span in LiveRanges(problem).of(order):
        own, flown = change[kinds[span.storage]], change[IN_FLIGHT]
        own[span.first] += span.bytes
        own[span.last + 1] -= span.bytes
        for first, last in held.get(span.storage, ()):
            first, last = max(first, span.first), min(last, span.last)
            if first <= last:
                for counter, sign in ((flown, 1), (own, -1)):
                    counter[first] += sign * span.bytes
                    counter[last + 1] -= sign * span.bytes
    return {kind: list(accumulate(steps[:-1])) for kind, steps in change.items()}


def flights(problem: Problem, order: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """Per storage, when collectives hold it: first and last step, both included, ascending and apart."""
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
