"""Which steps a compiler makes one kernel of, and what such a kernel moves: predicted from the graph alone.

What TorchInductor does, as far as bytes depend on it (torch 2.13, its defaults), in two phases:

1. **Inlining** (``graph.py: GraphLowering.run_node``, ``ir.py: StorageBox``). An elementwise step has no buffer of its
   own: whoever reads it computes it again. It gets one (*is stored*) where a kernel that is called as it is (a matmul,
   a collective) or the graph's output needs it, or where computing it again is too much: many reads and several
   readers, or a long formula. Reductions are always stored. A stored step with all that it inlines is a **loop nest**
   (:mod:`~overlap_sched.cost.fusion.loop_nests`).
2. **Merging** (``scheduler.py: Scheduler.can_fuse``, ``choices.py``, ``codegen/simd.py: SIMDScheduling.can_fuse``).
   Loop nests over the same points become one kernel where one reads what the other writes, or both read the same, if no
   path between them leads through something else (:mod:`~overlap_sched.cost.fusion.merging`).

A kernel reads each value once, writes only what somebody else reads, and keeps the rest in registers. Matmuls,
attention, collectives and all that is not known here are *opaque*: they stay alone (Inductor merges pointwise steps
into matmuls only where autotuning is asked for).

Inductor merges the best pair first, over and over; here each loop nest, in the order of the graph, joins what it may
join at that time, the most shared bytes first. Not followed: reductions that are split in two, and loops put in another
order to fit. ``docs/prices.md`` compares the result with Inductor's own kernels.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from overlap_sched.cost.fusion.loop_nests import LoopNest, loop_nests
from overlap_sched.cost.fusion.merging import merged
from overlap_sched.cost.fusion.steps import FusionRules, FusionStep
from overlap_sched.cost.model import Compute, Pricer
from overlap_sched.cost.price import Price, Source


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
    nests = loop_nests(steps, rules)
    kernels = merged(nests, rules)
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
    parts: Sequence[KernelShare | None], names: Sequence[str], ops: Sequence[str], flops: Sequence[int], pricer: Pricer
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
        whole = pricer.compute(Compute(op, sum([flops[v] for v in nodes]), total))
        if len(nodes) > 1:
            source: Source = "fusion" if whole.source == "roofline" else whole.source
            whole = whole._replace(source=source, part_of=names[kernel])
        for v, share in zip(nodes, shares, strict=True):
            prices[v] = whole._replace(time_us=whole.time_us * share / total if total else 0.0)
    return prices
