"""Which reductions may be moved about in a buffer; that it is so on real ranks is in ``test_ranks.py``."""

import pytest
import torch

from overlap_sched.errors import RewriteError
from overlap_sched.fx.rewrites.backends import check_exact, keeps_bits

F32, I64 = torch.float32, torch.int64


@pytest.mark.parametrize(
    ("op", "reduction", "dtype", "ranks", "keeps"),
    [
        ("all_gather_into_tensor", "", F32, 64, True),
        ("all_reduce", "sum", F32, 1, True),
        ("all_reduce", "sum", F32, 2, True),
        ("all_reduce", "avg", torch.bfloat16, 2, True),
        ("all_reduce", "sum", F32, 3, False),
        ("all_reduce", "sum", torch.complex64, 3, False),
        ("all_reduce", "sum", F32, None, False),
        ("all_reduce", "max", F32, 2, False),
        ("all_reduce", "max", I64, 64, True),
        ("all_reduce", "sum", I64, None, True),
        ("all_reduce", "avg", I64, 2, False),
        ("all_reduce", "premul_sum", F32, 2, False),
        ("reduce_scatter_tensor", "sum", torch.bfloat16, 64, True),
        ("reduce_scatter_tensor", "max", F32, 64, True),
        ("reduce_scatter_tensor", "premul_sum", F32, 64, False),
    ],
)
def test_keeps_bits(op: str, reduction: str, dtype: torch.dtype, ranks: int | None, keeps: bool) -> None:
    assert keeps_bits(op, reduction, dtype, ranks) is keeps


def test_what_a_refusal_says() -> None:
    with pytest.raises(RewriteError) as refused:
        check_exact("grad", "all_reduce", "sum", F32, 4)
    assert str(refused.value) == (
        "'grad' is a sum of float32 on 4 ranks (all_reduce): where an element lies in the buffer decides the order in "
        "which it is reduced, so a rewrite would change bits."
    )
    with pytest.raises(RewriteError, match="'grad' is a max of bfloat16 on ranks of an unknown number "):
        check_exact("grad", "all_reduce", "max", torch.bfloat16, None)
