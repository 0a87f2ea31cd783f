"""Every rewrite on real ranks over gloo: results have the same bits, for each type and reduction, or it is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from overlap_sched.fx.rewrites.backends import keeps_bits
from tests.support.examples import at_night
from tests.support.ranks import filled_once, run_ranks
from tests.support.rewrite_ranks import DTYPES, REDUCTIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, at_night(4)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[dict[str, Any]]]:
    ranks: int = request.param

    def rewrite(folder: Path) -> None:
        run_ranks("tests.support.rewrite_ranks", folder, "rewrites", ranks=ranks, limit_s=600)

    folder = filled_once(tmp_path_factory, f"rewrites-{ranks}", rewrite)
    return ranks, [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def test_all_ranks_do_the_same(found: tuple[int, list[dict[str, Any]]]) -> None:
    _, told = found
    refusals = [{case: value for case, value in one.items() if isinstance(value, str)} for one in told]
    assert all(one == refusals[0] for one in refusals)


def test_what_is_legal_is_bitwise_and_all_else_is_refused(found: tuple[int, list[dict[str, Any]]]) -> None:
    ranks, told = found
    seen = 0
    for one in told:
        for case, value in one.items():
            if case == "by hand":
                continue
            seen += 1
            form, op, *kind = case.split()
            reduced = op in ("all_reduce", "reduce_scatter_tensor")
            if (form, op) == ("coalesced", "all_gather_into_tensor"):
                assert "would be a coalesced all_gather over gloo" in value, case
            elif reduced and not keeps_bits(op, kind[0], _dtype(kind[1]), ranks):
                assert re.search("so a rewrite would change bits", value), case
            else:
                assert value is True, (case, value)
    assert seen == ranks * 132


def test_what_is_refused_of_reductions_does_change_bits(found: tuple[int, list[dict[str, Any]]]) -> None:
    """A rule that refused more than it must would cost time, one that refused less would cost results."""
    ranks, told = found
    for dtype in DTYPES:
        for reduction in REDUCTIONS:
            key = f"{reduction} {str(dtype).removeprefix('torch.')}"
            if key in told[0]["by hand"]:
                alike = all(one["by hand"][key] for one in told)
                assert alike is keeps_bits("all_reduce", reduction, dtype, ranks), key


def _dtype(name: str) -> Any:
    return next(dtype for dtype in DTYPES if str(dtype) == f"torch.{name}")
