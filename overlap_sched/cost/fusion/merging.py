"""From loop nests to kernels: which loops over the same points become one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from overlap_sched.cost.fusion.loop_nests import LoopNest
from overlap_sched.cost.fusion.steps import FusionRules

FAR = 64
"""Loop nests further apart than this, in the graph's order, are not merged (``Scheduler.are_long_distant_nodes``, which
asks only where neither reads the other; here always, so that merging is linear)."""
LEAST_BYTES = 10
"""Fewer shared bytes are no reason to merge (``score_fusion_memory_threshold``)."""
_MATRIX_ELEMENTS, _MATRIX_ROWS, _MATRIX_COLUMNS = 5 * 2**20, 4096, 16 * 1024
"""When a matrix is reduced both ways at once (``scheduler.py: MixOrderReduction.can_fuse``)."""


@dataclass(slots=True)
class _Kernel:
    """Loop nests that have been merged. Sets of loop nests are bits of a number.

    Attributes:
        space, inner: Of its loops; those of its reduction, if it has one.
        first, last: Indices of its loop nests. size: how many they are.
        members: As bits. before: all that must run before it, as bits.
        direct: Loop nests that it reads or comes after.
    """

    space: tuple[int, int] | None
    inner: bool
    first: int
    last: int
    members: int
    before: int
    direct: list[int]
    size: int = 1


@dataclass(slots=True)
class _Merging:
    rules: FusionRules
    kernels: list[_Kernel] = field(default_factory=list)
    """Per loop nest its kernel: one object for all that are merged."""

    def add(self, nest: LoopNest, direct: list[int]) -> None:
        """One more loop nest, as a kernel of its own."""
        k, before = len(self.kernels), 0
        for d in direct:
            kernel = self.kernels[d]
            before |= kernel.before | kernel.members
        self.kernels.append(_Kernel(nest.space, nest.inner, k, k, 1 << k, before, direct))

    def merge(self, one: _Kernel, two: _Kernel) -> bool:
        """Make one kernel of two, if that may be; whether it was done."""
        first, last = min(one.first, two.first), max(one.last, two.last)
        if one.size + two.size > self.rules.size or last - first > FAR:
            return False
        joint = _joint(one, two, self.rules)
        if joint is None or self._between(one, two) or self._between(two, one):
            return False
        self._join(one, two, joint)
        return True

    def _between(self, early: _Kernel, late: _Kernel) -> bool:
        """Does a path lead from one to the other through a third?"""
        for d in late.direct:
            kernel = self.kernels[d]
            if kernel is not early and kernel is not late and kernel.before & early.members:
                return True
        return False

    def _join(self, one: _Kernel, two: _Kernel, joint: tuple[tuple[int, int], bool]) -> None:
        """Merge ``two`` into ``one``; whatever comes after one of them now comes after both."""
        one.space, one.inner = joint
        one.first, one.last = min(one.first, two.first), max(one.last, two.last)
        one.members |= two.members
        one.before = (one.before | two.before) & ~one.members
        one.direct = [d for d in (*one.direct, *two.direct) if not one.members >> d & 1]
        one.size += two.size
        kernels = self.kernels
        for k in range(one.first, one.last + 1):
            if kernels[k] is two:
                kernels[k] = one
        both = one.before | one.members
        for k in range(one.first + 1, len(kernels)):
            if kernels[k].before & one.members and kernels[k] is not one:
                kernels[k].before |= both


def merged(nests: Sequence[LoopNest], rules: FusionRules) -> list[int]:
    """Per loop nest the index of the first one of its kernel."""
    merging = _Merging(rules)
    index = {nest.step: k for k, nest in enumerate(nests)}
    last_reader: dict[tuple[int, int], int] = {}
    for k, nest in enumerate(nests):
        direct = {index[read.value]: None for read in nest.reads if read.value in index}
        direct.update((index[u], None) for u in nest.after if u in index)
        merging.add(nest, list(direct))
        if nest.space is None:
            continue
        for other in _candidates(nest, index, last_reader):
            mine, theirs = merging.kernels[k], merging.kernels[other]
            if mine is not theirs and theirs.space is not None:
                merging.merge(theirs, mine)
        last_reader.update(((read.value, read.window), k) for read in nest.reads)
    return [kernel.first for kernel in merging.kernels]


def _candidates(nest: LoopNest, index: dict[int, int], last_reader: dict[tuple[int, int], int]) -> Iterator[int]:
    """Loop nests that share bytes with this one, the most first: it reads what they write, or both read the same."""
    shared: dict[int, int] = {}
    crooked: set[int] = set()
    for read in nest.reads:
        maker, reader = index.get(read.value), last_reader.get((read.value, read.window))
        if maker is not None:
            shared[maker] = shared.get(maker, 0) + read.bytes
            if not read.aligned:
                crooked.add(maker)
        if reader is not None and read.bytes >= LEAST_BYTES:
            shared[reader] = shared.get(reader, 0) + read.bytes
    for other in sorted(shared, key=lambda o: (-shared[o], -o)):
        if other not in crooked:
            yield other


def _joint(one: _Kernel, two: _Kernel, rules: FusionRules) -> tuple[tuple[int, int], bool] | None:
    """The loops of a kernel made of both, or ``None`` where they have none in common."""
    if one.space is None or two.space is None:
        return None
    if one.space == two.space:
        return (one.space, one.inner) if one.space[1] == 1 or one.inner == two.inner else None
    if one.space[1] > 1 and two.space[1] > 1:
        return _both_ways(one, two) if rules.both_ways else None
    reduction, pointwise = (one, two) if one.space[1] > 1 else (two, one)
    if reduction.space is None or pointwise.space is None or reduction.space[1] == 1:
        return None
    (points, reduced), (elements, _) = reduction.space, pointwise.space
    fits = elements == points or (reduction.inner and elements == points * reduced)
    return (reduction.space, reduction.inner) if fits else None


def _both_ways(one: _Kernel, two: _Kernel) -> tuple[tuple[int, int], bool] | None:
    """A reduction along rows with one along columns of the same matrix, where neither needs the other."""
    rows, columns = (one, two) if one.inner else (two, one)
    if rows.space is None or columns.space is None or not rows.inner or columns.inner:
        return None
    high, wide = rows.space
    large = high * wide >= _MATRIX_ELEMENTS and high >= max(2 * wide, _MATRIX_ROWS) and wide <= _MATRIX_COLUMNS
    apart = not (one.before & two.members or two.before & one.members)
    return (rows.space, True) if columns.space == (wide, high) and large and apart else None
