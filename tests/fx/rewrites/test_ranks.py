"""Every rewrite on real ranks over gloo: results have the same bits, for each type and reduction, or it is refused."""

from typing import Any

import pytest

from overlap_sched.fx.rewrites.facts import keeps_bits
from tests.support.examples import at_night
from tests.support.ranks import found_once
from tests.support.rewrite_ranks import DTYPES
from tests.support.routed_graphs import CHOSEN, TOKENS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, at_night(4)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    ranks: int = request.param
    return found_once(tmp_path_factory, f"rewrites-{ranks}", "tests.support.rewrite_ranks", ranks=ranks, limit_s=600)


def test_what_is_legal_is_bitwise_and_all_else_is_refused(found: list[dict[str, Any]]) -> None:
    for case in found[0]["cases"]:
        values = [one["cases"][case] for one in found]
        form, op, *kind = case.split()
        reduced = op in ("all_reduce", "reduce_scatter_tensor")
        if (form, op) == ("coalesced", "all_gather_into_tensor"):
            want = "would be a coalesced all_gather over gloo"
        elif reduced and not keeps_bits(op, kind[0], _dtype(kind[1]), len(found)):
            want = "so a rewrite would change bits"
        else:
            assert all(value is True for value in values), (case, values)
            continue
        assert len(set(values)) == 1  # all ranks say the same
        assert want in values[0], case
    assert len(found[0]["cases"]) == 132


def test_what_is_refused_of_reductions_does_change_bits(found: list[dict[str, Any]]) -> None:
    """A rule that refused more than it must would cost time, one that refused less would cost results."""
    for kind in found[0]["by hand"]:
        reduction, dtype = kind.split()
        alike = all(one["by hand"][kind] for one in found)
        assert alike is keeps_bits("all_reduce", reduction, _dtype(dtype), len(found)), kind


def test_two_ranks_get_the_same_bits_in_parts(found: list[dict[str, Any]]) -> None:
    """A tensor-parallel layer, its batch in two parts; of experts each part sends some of what the whole sends."""
    for one in found if len(found) == 2 else ():
        assert one["fission"]["alike"] == [True] * 9
        assert one["fission"]["nodes"] > 50
        whole, *others = one["routed"]
        assert len(whole) == 5
        assert sum(whole[1]) == TOKENS * CHOSEN
        for parts, sent in zip((2, 2, 4, 4), others, strict=True):
            assert len(sent) == parts * len(whole)
            assert added(sent) == [parts + each for each in added(whole[1:])]


def added(sent: list[list[int]]) -> list[int]:
    """Per rank, all rows that went to it; of counts one to each rank, for each part."""
    return [sum(rows) for rows in zip(*sent, strict=True)]


def _dtype(name: str) -> Any:
    return next(dtype for dtype in DTYPES if str(dtype) == f"torch.{name}")
