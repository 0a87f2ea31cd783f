"""Faults in real training steps of two gloo ranks: nothing hangs, no loss changes, both ranks launch in one order.

Runs a part of the faults that there are, evenly picked. More of them, or each one once::

    FAULT_RUNS=200 python -m pytest tests/inductor/test_fault_runs.py
    FAULT_RUNS=0 python -m pytest tests/inductor/test_fault_runs.py
    FAULT_WAY="graphs differ" FAULT_RUNS=200 python -m pytest tests/inductor/test_fault_runs.py

How many there are and what came of them was last noted in ``docs/guarantees.md``.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.once import filled_once
from tests.support.ranks import run_ranks

RUNS = int(os.environ.get("FAULT_RUNS", "40"))
RANKS = 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each fault, and what came of it on each rank."""

    def run(folder: Path) -> None:
        limit_s = 120 + 5 * (RUNS or 1000)
        run_ranks("tests.support.inductor.fault_runs", RUNS, folder, ranks=RANKS, limit_s=limit_s)

    folder = filled_once(tmp_path_factory, "faults", run)
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    assert ranks[0]["there are"] == ranks[1]["there are"]
    print(f"faults there are: {ranks[0]['there are']}; run: {len(ranks[0]['done'])}")
    both = zip(ranks[0]["done"], ranks[1]["done"], strict=True)
    return [(first[0], [first[1], second[1]]) for first, second in both]


def test_no_loss_changes(done: list[Any]) -> None:
    assert len(done) == RUNS or RUNS == 0
    assert [fault for fault, outcomes in done if not all(outcome["equal"] for outcome in outcomes)] == []


def test_both_ranks_launch_in_one_order(done: list[Any]) -> None:
    """Or each in its own, where one has a collective more."""
    for fault, (one, other) in done:
        lonely = fault["way"].endswith("launches differ")
        assert (one["launches"] != other["launches"]) == lonely, fault
        assert not lonely or not any(one["moved"] + other["moved"]), fault


def test_ranks_that_launch_differently_reorder(done: list[Any]) -> None:
    """One may be back at its original order meanwhile: no fault on either keeps the other from it."""
    lonely = [outcomes for fault, outcomes in done if fault["way"].endswith("launches differ")]
    assert any(one["reordered"] == other["reordered"] == 2 for one, other in lonely)


def test_launches_move_only_where_the_ranks_run_one_order(done: list[Any]) -> None:
    for fault, (one, other) in done:
        assert one["moved"] == other["moved"], fault
        assert not (fault["way"].endswith("ranks differ") and any(one["moved"])), fault
        for here, there, moved in zip(one["orders"], other["orders"], one["moved"], strict=True):
            assert here == there or not moved or fault["way"].endswith("graphs differ"), fault


def test_ranks_with_other_graphs_launch_as_one_of_them_does(done: list[Any]) -> None:
    """Unless a fault keeps them from it."""
    unlike = [outcomes for fault, outcomes in done if fault["way"].endswith("graphs differ")]
    assert any(any(outcome["moved"]) for outcome, _ in unlike)
    assert all(one["orders"] != other["orders"] for one, other in unlike)


def test_an_interrupt_comes_through(done: list[Any]) -> None:
    found = [(fault, outcomes) for fault, outcomes in done if fault["kind"] == "interrupt"]
    assert found
    for _, outcomes in found:
        assert [outcome["interrupted"] for outcome in outcomes] == [outcome["struck"] for outcome in outcomes]


def test_faults_strike_where_they_should(done: list[Any]) -> None:
    """Not each of them on each rank: only rank 0 logs, and how often a rank looks for a verdict depends on time."""
    meant = [outcomes[rank] for fault, outcomes in done for rank in range(RANKS) if fault["on"] in (None, rank)]
    spared = [outcomes[1 - fault["on"]] for fault, outcomes in done if fault["on"] is not None]
    assert sum(outcome["struck"] for outcome in meant) >= 0.8 * len(meant)
    assert not any(outcome["struck"] for outcome in spared)


def test_faults_leave_the_new_order_or_the_launches_or_the_original_order(done: list[Any]) -> None:
    """All of what may come of a fault does: else this would say little."""
    assert Counter(outcomes[0]["reordered"] for _, outcomes in done).keys() >= {0, 1, 2}
    assert Counter(sum(outcomes[0]["moved"]) for _, outcomes in done).keys() >= {0, 2}
    assert any(outcomes[0]["reordered"] > sum(outcomes[0]["moved"]) for _, outcomes in done)
