"""The storages behind Inductor's buffers: who shares which, how large they are, who allocates them.

Inductor has many names for one piece of memory: a mutation renames what it writes (a wait its collective's output),
a view and a part of a concatenation live in another's storage, a kernel may write over an input that is not needed
any more. And some names have no memory: a buffer that only its own fused kernel reads stays in registers.
"""

from dataclasses import dataclass, field
from typing import Any

from overlap_sched.errors import NotUnderstoodError
from overlap_sched.fx.sizes import Sizes
from overlap_sched.inductor.private import V

Roots = tuple[str, ...]
"""Names of the storages in which a buffer lives: that of the buffer or input that made it."""


@dataclass
class Buffers:
    """Names of buffers and what stands behind them.

    Attributes:
        sizes: Numbers for symbolic sizes.
        roots: Per buffer, input or constant, its storages; none where it has no memory.
        nbytes: Per storage, its size.
        maker: Per storage, the position of the scheduler node that allocates it; not for inputs.
        producer: Per buffer, the position of the scheduler node that gives it.
        inputs: The storages of inputs and constants, in their order.
        held: Inputs that others hold on, see :mod:`overlap_sched.inductor.lift.saved`.
        in_place: Per position, storages that it writes over: it is their last reader in any order.
        overwrites: The same as pairs of buffers: what is written over, and by what.
        internal: Buffers that never leave a fused kernel.
        elements: Per size, stride and offset seen so far, how many elements are allocated.
    """

    sizes: Sizes
    roots: dict[str, Roots] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    maker: dict[str, int] = field(default_factory=dict)
    producer: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    in_place: dict[int, list[str]] = field(default_factory=dict)
    overwrites: list[tuple[str, str]] = field(default_factory=list)
    internal: set[str] = field(default_factory=set)
    elements: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def of(self, name: str) -> Roots:
        """The storages of a name.

        Raises:
            NotUnderstoodError: Nothing has that name.
        """
        try:
            return self.roots[name]
        except KeyError:
            raise NotUnderstoodError(
                f"a kernel reads {name!r}, which is neither a buffer of this graph nor one of its inputs."
            ) from None


def extent(node: Any) -> tuple[Any, ...]:
    """Return what determines how many elements are allocated for a buffer: its size, stride and offset."""
    layout = node.get_layout()
    return (*V.graph.get_allocation_size(node), *layout.stride, layout.offset)
