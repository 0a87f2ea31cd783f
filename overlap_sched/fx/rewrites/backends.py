"""What backends of process groups do: in which order they reduce, and what they are known to get wrong.

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

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.calls import name_and_group
from overlap_sched.transform.plan import FORMS
from overlap_sched.transform.rewrites import Form

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


def check_coalesced(name: str, group: Any) -> None:
    """Refuse a coalesced all_gather over gloo.

    Several of them in flight damage memory: four ranks abort within some hundred rounds in torch 2.13 and 2.15
    (:mod:`overlap_sched.inductor.gloo` says the same of plain gathers, which go that way too and are led around it).

    Raises:
        RewriteError: The group is of gloo.
    """
    if over_gloo(group):
        raise RewriteError(
            f"{name!r} would be a coalesced all_gather over gloo, where several in flight damage memory. "
            "Use form='copied'."
        )


def forms_for(launches: Iterable[fx.Node]) -> tuple[Form, ...]:
    """Forms of buckets that the backends of these collectives can do, the one preferred first."""
    return ("copied",) if any(over_gloo(name_and_group(node)[0]) for node in launches) else FORMS


def over_gloo(group: Any) -> bool:
    """Tell whether a process group, by name or itself, is of this process and talks over gloo on CPUs."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed import distributed_c10d as c10d

    try:
        found = c10d._resolve_process_group(group) if isinstance(group, str) else group
        return "cpu:gloo" in str(dist.get_backend_config(found)) or dist.get_backend(found) == "gloo"
    except Exception:  # a node, or no such group: torch raises several types
        return False
