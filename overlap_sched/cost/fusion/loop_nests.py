"""From steps to loop nests: which elementwise steps are computed where they are read."""

from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.cost.fusion.steps import FusionRules, FusionStep, Read


class LoopNest(NamedTuple):
    """A step that is stored, with all that it inlines; or an opaque step.

    Attributes:
        step: Id of the stored step.
        reads: What it reads of other loop nests and of inputs, inlined steps looked through; each window once.
        space: (points, elements that each is reduced from) of its loops; ``None``: opaque, joins nothing.
        inner: See :class:`~overlap_sched.cost.fusion.steps.FusionStep`.
        writes: Bytes of its result. kept: see :class:`~overlap_sched.cost.fusion.steps.FusionStep`.
        after: Ids of steps that come before it without being read.
    """

    step: int
    reads: tuple[Read, ...]
    space: tuple[int, int] | None
    inner: bool
    writes: int
    kept: bool
    after: tuple[int, ...]


class _Formula(NamedTuple):
    """What a step that is not stored brings into its readers."""

    reads: dict[tuple[int, int], Read]
    ops: int
    slow: bool
    after: tuple[int, ...]


def loop_nests(steps: Sequence[FusionStep | None], rules: FusionRules) -> list[LoopNest]:
    """The loop nests of a graph, in its order."""
    readers, needed = _readers(steps)
    nests: list[LoopNest] = []
    formulas: dict[int, _Formula] = {}
    for v, step in enumerate(steps):
        if step is None:
            continue
        formula = _formula(step, steps, formulas)
        pointwise = step.kind == "pointwise" or (step.kind == "reduction" and step.reduced < rules.unrolled)
        if pointwise and not (v in needed or step.stored) and not _too_much(formula, readers[v], rules):
            formulas[v] = formula
            continue
        space = None if step.kind == "opaque" else (step.points, 1 if pointwise else step.reduced)
        reads = tuple(formula.reads.values())
        nests.append(LoopNest(v, reads, space, step.inner, step.writes, step.kept, formula.after))
    return nests


def _readers(steps: Sequence[FusionStep | None]) -> tuple[list[int], set[int]]:
    """Per step how many read it, and the steps that must be stored, whatever they cost."""
    readers = [0] * len(steps)
    needed: set[int] = set()
    for v, step in enumerate(steps):
        if step is None:
            continue
        for read in step.reads:
            readers[read.value] += 1
        if step.kept:
            needed.add(v)
        if step.kind == "opaque":
            needed.update([read.value for read in step.reads])
    return readers, needed


def _formula(step: FusionStep, steps: Sequence[FusionStep | None], formulas: dict[int, _Formula]) -> _Formula:
    """Return what it takes to compute a step from stored values."""
    reads: dict[tuple[int, int], Read] = {}
    ops, slow, after = step.ops, step.slow, step.after
    for read in step.reads:
        inlined = formulas.get(read.value)
        if inlined is None:
            ops += 1
            _add(reads, read)
            continue
        ops += inlined.ops
        slow = slow or inlined.slow
        after += inlined.after
        for source in inlined.reads.values():
            if read.bytes < read.whole:  # a part of an inlined step needs that part of what it reads
                source = source._replace(bytes=source.bytes * read.bytes // read.whole)
            _add(reads, source if read.aligned else source._replace(aligned=False))
    return _Formula(reads, ops, slow, after)


def _add(reads: dict[tuple[int, int], Read], read: Read) -> None:
    key = (read.value, read.window)
    known = reads.get(key)
    if known is None or known.bytes < read.bytes:
        reads[key] = read


def _too_much(formula: _Formula, readers: int, rules: FusionRules) -> bool:
    """Tell whether a step is stored because computing it again is too much."""
    if len(formula.reads) > rules.reads or formula.ops > rules.ops:
        return True
    return readers > 1 and (len(formula.reads) > rules.reads_of_reused or (rules.store_slow and formula.slow))
