"""Which reductions keep their bits when their elements are moved to other places of a buffer.

A reduction adds the values of n ranks in some order, and sums of floats depend on it. gloo reduces in a ring: the
buffer is cut into n chunks, and each chunk starts at another rank. So:

- what is only copied (gathers), and integers, keep their bits wherever they lie;
- two ranks have only one order for a sum, an average or a product (``a + b == b + a``); their maximum has two, and
  ``max(nan, 1.0)`` and ``max(-0.0, 0.0)`` differ from those the other way round;
- an all_reduce of floats on more ranks changes when it is packed: other elements share its chunks;
- a reduce_scatter is packed row by row, and a row is a chunk: it starts at the same rank as before.

Seen on gloo (``tests/fx/rewrites/test_ranks.py``, two and four ranks). NCCL picks its algorithm by the size of the
buffer, and promises nothing of bits between sizes.
"""

import torch

from overlap_sched.errors import RewriteError

_COMMUTATIVE = ("avg", "product", "sum")
_EXACT_OF_INTEGERS = ("band", "bor", "bxor", "max", "min", "product", "sum")


def check_exact(name: str, op: str, reduction: str, dtype: torch.dtype, ranks: int | None) -> None:
    """Refuse what may change bits.

    Args:
        name: Of the collective.
        op: Of :data:`overlap_sched.transform.rewrites.BUCKETED`.
        reduction: ``"sum"``; ``""`` of a gather.
        dtype: Of its elements.
        ranks: Of its group; ``None``: not known.

    Raises:
        RewriteError: The result of an element depends on where in the buffer it is.
    """
    if not keeps_bits(op, reduction, dtype, ranks):
        many = "ranks of an unknown number" if ranks is None else f"{ranks} ranks"
        raise RewriteError(
            f"{name!r} is a {reduction} of {str(dtype).removeprefix('torch.')} on {many} ({op}): where an element lies "
            "in the buffer decides the order in which it is reduced, so a rewrite would change bits."
        )


def keeps_bits(op: str, reduction: str, dtype: torch.dtype, ranks: int | None) -> bool:
    """Tell whether elements keep their bits in another place, of a reduce_scatter within their row."""
    if not reduction or ranks == 1:
        return True
    if not (dtype.is_floating_point or dtype.is_complex):
        return reduction in _EXACT_OF_INTEGERS
    if reduction not in _COMMUTATIVE:
        return op == "reduce_scatter_tensor" and reduction in ("max", "min")
    return op == "reduce_scatter_tensor" or ranks == 2
