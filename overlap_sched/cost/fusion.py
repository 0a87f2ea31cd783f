"""Which steps a compiler makes one kernel of, and what such a kernel moves: predicted from the graph alone.

What TorchInductor does, as far as bytes depend on it (torch 2.13, its defaults), in two phases:

1. **Inlining** (``graph.py: GraphLowering.run_node``, ``ir.py: StorageBox``). An elementwise step has no buffer of its
   own: whoever reads it computes it again. It gets one (*is stored*) where a kernel that is called as it is (a matmul,
   a collective) or the graph's output needs it, or where computing it again is too much: many reads and several
   readers, or a long formula. Reductions are always stored. A stored step with all that it inlines is a **loop nest**
   (:func:`find_loop_nests`).
2. **Merging** (``scheduler.py: Scheduler.can_fuse``, ``choices.py``, ``codegen/simd.py: SIMDScheduling.can_fuse``).
   Loop nests over the same points become one kernel where one reads what the other writes, or both read the same, if no
   path between them leads through something else (:func:`merge_nests`).

A kernel reads each value once, writes only what somebody else reads, and keeps the rest in registers. Matmuls,
attention, collectives and all that is not known here are *opaque*: they stay alone (Inductor merges pointwise steps
into matmuls only where autotuning is asked for).

Inductor merges the best pair first, over and over; here each loop nest, in the order of the graph, joins what it may
join at that time, the most shared bytes first. Not followed: reductions that are split in two, and loops put in another
order to fit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from overlap_sched.cost.compute import Compute
from overlap_sched.cost.model import CostModel, Price, Source, price_of


class Read(NamedTuple):
    """One value that a step reads.

    Attributes:
        value: Id of the step (or input) that computes it: views are looked through.
        window: Which part of it, in which order: the value's own id where all of it is read as it is stored, else
            the id of the view. Two reads of one window read the same elements in the same order.
        bytes: Of the elements read, each once.
        whole: Bytes of the value.
        aligned: Whether the reader's loops may be those of the step that computes it: nothing permuted or sliced.
    """

    value: int
    window: int
    bytes: int
    whole: int
    aligned: bool = True


class FusionStep(NamedTuple):
    """One step that computes.

    Attributes:
        kind: ``"pointwise"``: every element by itself; ``"reduction"``; ``"opaque"``: a kernel of its own.
        reads: See :class:`Read`. writes: bytes of its result.
        points: Elements of its result; of a reduction, how many are reduced. reduced: elements that each of them is
            reduced from, 1 for a pointwise step.
        inner: Of a reduction, whether it is along the dimension that lies together in memory.
        ops: Operations on an element, reads left out. slow: one of them is slow (``exp``, ``tanh``).
        stored: It has a buffer in any case.
        kept: Its result outlives the graph, or is a write to something that exists.
        after: Ids of the steps that must come before it, though it does not read what they compute.
    """

    kind: Literal["pointwise", "reduction", "opaque"]
    reads: tuple[Read, ...]
    writes: int
    points: int = 1
    reduced: int = 1
    inner: bool = True
    ops: int = 1
    slow: bool = False
    stored: bool = False
    kept: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class FusionRules:
    """What the back ends of Inductor differ in; the names of ``torch/_inductor/config.py`` of torch 2.13 in brackets.

    Attributes:
        reads_of_reused: A step with several readers is stored when it reads more values than this
            [``realize_reads_threshold``].
        reads: Any step is [``realize_acc_reads_threshold``].
        ops: Or when its formula has more operations than this [``realize_opcount_threshold``].
        store_slow: A step with several readers is stored when an operation in it is slow.
        unrolled: Reductions of fewer elements are written out and count as pointwise
            [``unroll_reductions_threshold``].
        both_ways: A reduction along rows and one along columns of the same large matrix become one kernel
            [``triton.mix_order_reduction``].
        adds_by_index: ``scatter_add`` and its like are loops; else they are called as they are
            [``cpp.fallback_scatter_reduce_sum``].
        size: Loop nests in one kernel, at most [``max_fusion_size``].
    """

    reads_of_reused: int = 4
    reads: int = 8
    ops: int = 30
    store_slow: bool = False
    unrolled: int = 8
    both_ways: bool = True
    adds_by_index: bool = True
    size: int = 64


TRITON = FusionRules()
"""GPUs."""

CPP = FusionRules(reads=12, ops=50, store_slow=True, both_ways=False, adds_by_index=False)
"""CPUs [``realize_cpu_acc_reads_threshold``, ``realize_cpu_opcount_threshold``]."""


class LoopNest(NamedTuple):
    """A step that is stored, with all that it inlines; or an opaque step.

    Attributes:
        step: Id of the stored step.
        reads: What it reads of other loop nests and of inputs, inlined steps looked through; each window once.
        space: (points, elements that each is reduced from) of its loops; ``None``: opaque, joins nothing.
        inner: See :class:`~overlap_sched.cost.fusion.FusionStep`.
        writes: Bytes of its result. kept: see :class:`~overlap_sched.cost.fusion.FusionStep`.
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


def find_loop_nests(steps: Sequence[FusionStep | None], rules: FusionRules) -> list[LoopNest]:
    """The loop nests of a graph, in its order."""
    readers = Counter(read.value for step in steps if step is not None for read in step.reads)
    needed = {read.value for step in steps if step is not None and step.kind == "opaque" for read in step.reads}
    nests: list[LoopNest] = []
    formulas: dict[int, _Formula] = {}
    for v, step in enumerate(steps):
        if step is None:
            continue
        formula = _formula(step, formulas)
        pointwise = step.kind == "pointwise" or (step.kind == "reduction" and step.reduced < rules.unrolled)
        stored = step.stored or step.kept or v in needed or len(formula.reads) > rules.reads or formula.ops > rules.ops
        reused = len(formula.reads) > rules.reads_of_reused or (rules.store_slow and formula.slow)
        if pointwise and not stored and not (readers[v] > 1 and reused):
            formulas[v] = formula
            continue
        space = None if step.kind == "opaque" else (step.points, 1 if pointwise else step.reduced)
        reads = tuple(formula.reads.values())
        nests.append(LoopNest(v, reads, space, step.inner, step.writes, step.kept, formula.after))
    return nests


def _formula(step: FusionStep, formulas: Mapping[int, _Formula]) -> _Formula:
    """Return what it takes to compute a step from stored values."""
    reads: dict[tuple[int, int], Read] = {}
    ops, slow, after = step.ops, step.slow, step.after
    for read in step.reads:
        inlined = formulas.get(read.value)
        ops += 1 if inlined is None else inlined.ops
        if inlined is not None:
            slow, after = slow or inlined.slow, after + inlined.after
        for source in [read] if inlined is None else inlined.reads.values():
            if inlined is not None and read.bytes < read.whole:  # a part of it needs that part of what it reads
                source = source._replace(bytes=source.bytes * read.bytes // read.whole)
            source = source._replace(aligned=source.aligned and read.aligned)
            known = reads.get((source.value, source.window))
            if known is None or known.bytes < source.bytes:
                reads[source.value, source.window] = source
    return _Formula(reads, ops, slow, after)


FAR = 64
"""Loop nests further apart than this, in the graph's order, are not merged (``Scheduler.are_long_distant_nodes``, which
asks only where neither reads the other; here always, so that merging is linear)."""
LEAST_BYTES = 10
"""Fewer shared bytes are no reason to merge (``score_fusion_memory_threshold``)."""
_MATRIX_ELEMENTS, _MATRIX_ROWS, _MATRIX_COLUMNS = 5 * 2**20, 4096, 16 * 1024
"""When a matrix is reduced both ways at once (``scheduler.py: MixOrderReduction.can_fuse``)."""


@dataclass(slots=True, eq=False)
class _Kernel:
    """Loop nests that have been merged. Sets of loop nests are bits of a number.

    Attributes:
        space, inner: Of its loops; those of its reduction, if it has one.
        members: As bits. before: all that must run before it, as bits.
        direct: Loop nests that it reads or comes after.
    """

    space: tuple[int, int] | None
    inner: bool
    members: int
    before: int
    direct: list[int]

    @property
    def first(self) -> int:
        """Index of its first loop nest."""
        return (self.members & -self.members).bit_length() - 1


def merge_nests(nests: Sequence[LoopNest], rules: FusionRules) -> list[int]:
    """Per loop nest the index of the first one of its kernel."""
    kernels: list[_Kernel] = []
    index = {nest.step: k for k, nest in enumerate(nests)}
    last_reader: dict[tuple[int, int], int] = {}
    for k, nest in enumerate(nests):
        before, values = 0, (*(read.value for read in nest.reads), *nest.after)
        direct = list(dict.fromkeys(index[value] for value in values if value in index))
        for d in direct:
            before |= kernels[d].before | kernels[d].members
        kernels.append(_Kernel(nest.space, nest.inner, 1 << k, before, direct))
        for other in _candidates(nest, index, last_reader) if nest.space else ():
            _merge(kernels, kernels[other], kernels[k], rules)
        if nest.space:
            last_reader.update(((read.value, read.window), k) for read in nest.reads)
    return [kernel.first for kernel in kernels]


def _merge(kernels: list[_Kernel], one: _Kernel, two: _Kernel, rules: FusionRules) -> None:
    """Make one kernel of two, if that may be: whatever comes after one of them then comes after both."""
    members, first = one.members | two.members, min(one.first, two.first)
    if one is two or members.bit_count() > rules.size or members.bit_length() - 1 - first > FAR:
        return
    joint = _joint(one, two, rules)
    if joint is None or _path_between(kernels, one, two) or _path_between(kernels, two, one):
        return
    one.space, one.inner = joint
    one.members, one.before = members, (one.before | two.before) & ~members
    one.direct = [d for d in (*one.direct, *two.direct) if not members >> d & 1]
    for k in range(first, len(kernels)):
        kernel = kernels[k]
        if kernel is two:
            kernels[k] = one
        elif kernel is not one and kernel.before & members:
            kernel.before |= one.before | members


def _path_between(kernels: Sequence[_Kernel], early: _Kernel, late: _Kernel) -> bool:
    """Tell whether a path leads from one to the other through a third."""
    others = (kernels[d] for d in late.direct)
    return any(one is not early and one is not late and one.before & early.members for one in others)


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
    yield from (other for other in sorted(shared, key=lambda o: (-shared[o], -o)) if other not in crooked)


def _joint(one: _Kernel, two: _Kernel, rules: FusionRules) -> tuple[tuple[int, int], bool] | None:
    """The loops of a kernel made of both, or ``None`` where they have none in common."""
    if one.space is None or two.space is None:
        return None
    if one.space == two.space:
        return (one.space, one.inner) if one.space[1] == 1 or one.inner == two.inner else None
    (points, reduced), (others, others_reduced) = one.space, two.space
    if reduced > 1 and others_reduced > 1:  # a reduction along rows with one along columns, neither needs the other
        rows, (high, wide) = (one, one.space) if one.inner else (two, two.space)
        large = high * wide >= _MATRIX_ELEMENTS and high >= max(2 * wide, _MATRIX_ROWS) and wide <= _MATRIX_COLUMNS
        apart = one.inner != two.inner and not (one.before & two.members or two.before & one.members)
        crossed = {one.space, two.space} == {(high, wide), (wide, high)}
        return ((high, wide), rows.inner) if rules.both_ways and crossed and large and apart else None
    if reduced == others_reduced:
        return None
    reduction, elements = (one, others) if reduced > 1 else (two, points)
    points, reduced = (points, reduced) if reduced > 1 else (others, others_reduced)
    fits = elements == points or (reduction.inner and elements == points * reduced)
    return ((points, reduced), reduction.inner) if fits else None


class KernelShare(NamedTuple):
    """What a step is in its kernel.

    Attributes:
        kernel: Id of the last stored step of the kernel, which names it.
        bytes: Of what the kernel moves, what this step is the first to read, and what it writes: the parts of a kernel
            add up to the kernel. A step that is inlined has 0: who inlines it has its reads.
    """

    kernel: int
    bytes: int


def parts_of_kernels(steps: Sequence[FusionStep | None], rules: FusionRules) -> list[KernelShare | None]:
    """Per step its part in a kernel; ``None`` for what is opaque, is ``None`` itself, or is computed for nobody.

    Linear in the steps and what they read.

    Args:
        steps: In the graph's order; a step reads only earlier ones. ``None``: inputs, views, what computes nothing.
        rules: Of the compiler's back end.
    """
    nests = find_loop_nests(steps, rules)
    kernels = merge_nests(nests, rules)
    kernel_of = {nest.step: kernel for nest, kernel in zip(nests, kernels, strict=True)}
    members: dict[int, list[LoopNest]] = {}
    leaving = {nest.step for nest in nests if nest.kept}
    for nest, kernel in zip(nests, kernels, strict=True):
        leaving.update([read.value for read in nest.reads if kernel_of.get(read.value) != kernel])
        if nest.space is not None:
            members.setdefault(kernel, []).append(nest)
    parts: list[KernelShare | None] = [None] * len(steps)
    for kernel, group in members.items():
        for step, nbytes in _moved(group, kernel, kernel_of, leaving):
            parts[step] = KernelShare(group[-1].step, nbytes)
    _follow_readers(steps, parts)
    return parts


def _moved(
    group: Sequence[LoopNest], kernel: int, kernel_of: Mapping[int, int], leaving: Set[int]
) -> Iterator[tuple[int, int]]:
    """Per loop nest of a kernel, the bytes that it adds to what the kernel moves."""
    windows: set[tuple[int, int]] = set()
    read_of: dict[int, int] = {}  # per value, bytes read so far: never more than it has
    for nest in group:
        nbytes = nest.writes if nest.step in leaving else 0
        for read in nest.reads:
            value = read.value
            if kernel_of.get(value) == kernel or (value, read.window) in windows:
                continue
            windows.add((value, read.window))
            known = read_of.get(value, 0)
            read_of[value] = min(known + read.bytes, max(read.whole, known))
            nbytes += read_of[value] - known
        yield nest.step, nbytes


def _follow_readers(steps: Sequence[FusionStep | None], parts: list[KernelShare | None]) -> None:
    """An inlined step is a part of the kernel of its first reader."""
    first: dict[int, int] = {}
    for v in range(len(steps) - 1, -1, -1):
        step, reader = steps[v], first.get(v)
        if step is None:
            continue
        if parts[v] is None and reader is not None and step.kind != "opaque":
            of_reader = parts[reader]
            parts[v] = None if of_reader is None else KernelShare(of_reader.kernel, 0)
        for read in step.reads:
            first[read.value] = v


def shared_prices(
    parts: Sequence[KernelShare | None],
    names: Sequence[str],
    ops: Sequence[str],
    flops: Sequence[int],
    model: CostModel,
) -> dict[int, Price]:
    """The prices of all nodes that are in kernels.

    A kernel has one price, but the graph stays one of single nodes, each of which may be moved. The price is divided
    among the kernel's stored steps by the bytes that each adds. Were all of it on the last one, a collective that sends
    what an earlier one writes would seem to start before the kernel; on the first one, the kernel would seem to run
    before its last input is there. Divided, each step costs what it would take if the kernel were cut behind it.
    """
    members: dict[int, list[int]] = {}
    for v, part in enumerate(parts):
        if part is not None:
            members.setdefault(part.kernel, []).append(v)
    prices: dict[int, Price] = {}
    for kernel, nodes in members.items():
        shares = [part.bytes for v in nodes if (part := parts[v]) is not None]
        total = sum(shares)
        op = "+".join(dict.fromkeys([ops[v] for v in nodes]))
        whole = price_of(model, Compute(op, sum([flops[v] for v in nodes]), total, "fused"))
        if len(nodes) > 1:
            source: Source = "fusion" if whole.source == "roofline" else whole.source
            whole = whole._replace(source=source, part_of=names[kernel])
        for v, share in zip(nodes, shares, strict=True):
            prices[v] = whole._replace(time_us=whole.time_us * share / total if total else 0.0)
    return prices
