"""What fusion is predicted from: steps of a graph, what they read, and the rules of a compiler's back end."""

from dataclasses import dataclass
from typing import Literal, NamedTuple


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
