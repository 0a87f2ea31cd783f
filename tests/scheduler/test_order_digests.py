"""Orders and decisions of real graphs stay as they are, byte for byte, until someone means to change them."""

import json
from pathlib import Path

import pytest

from tests.support.order_digests import DIGESTS, cases, digests_of

EXPECTED = json.loads(DIGESTS.read_text(encoding="utf-8"))
CASES = list(cases())
FAST = "llama3_8b_bw_64_2d x1 runtime"


def test_every_instance_has_its_digests() -> None:
    assert list(EXPECTED) == [name for name, *_ in CASES]


@pytest.mark.parametrize(
    ("name", "path", "comm_scale", "model"),
    [pytest.param(*case, marks=() if case[0] == FAST else pytest.mark.slow, id=case[0]) for case in CASES],
)
def test_orders_and_decisions_are_those_committed(name: str, path: Path, comm_scale: float, model: str) -> None:
    assert digests_of(path, comm_scale, model) == EXPECTED[name], (
        "an order or a decision has changed; if it was meant to: python -m tests.support.order_digests"
    )
