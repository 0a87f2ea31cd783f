"""The link by itself, and two ranks that train with what was planned; none of it looks at how long a step took."""

import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from overlap_sched.pipeline.job import PipelineLink
from scripts.studies.pipeline_ranks import link
from scripts.studies.pipeline_ranks.__main__ import cells, rows_of
from scripts.studies.pipeline_ranks.plan import job_of, plans_of
from scripts.studies.pipeline_ranks.rank import Setting, _blocks

DONE = SimpleNamespace(wait=lambda: None)


def ends(kind: str, asked: list[tuple[bool, float, float]]) -> list[float]:
    """Of transfers to one other rank: whether this one sends, when it asks, when the other does; each takes 10 s."""
    slow = link.SlowLink(kind, 2.0, 4.0)  # 32 bytes take 8 s
    made = []
    for sends, mine_s, other_s in asked:

        def hear(tensor: torch.Tensor, peer: int, tag: int = 0, heard_s: float = other_s) -> Any:
            if tag:
                tensor.fill_(heard_s)
            return DONE

        with (
            mock.patch.object(dist, "irecv", hear),
            mock.patch.object(dist, "isend", return_value=DONE),
            mock.patch.object(time, "perf_counter", return_value=mine_s),
        ):
            op: Any = SimpleNamespace(op=dist.isend if sends else dist.irecv, tensor=torch.zeros(8), peer=1)
            made += slow.batch_p2p([op])
    return [transfer.end_s() for transfer in made[::-1]][::-1]  # the last first: it asks those before


@pytest.mark.parametrize(
    ("kind", "over"), [("eager", [11, 21, 21, 31]), ("both", [13, 23, 21, 37]), ("one-queue", [13, 23, 33, 43])]
)
def test_what_starts_a_transfer(kind: str, over: list[float]) -> None:
    """Received when sent at 1 and asked for at 3; sent at 4; then the other way at 11; asked for late."""
    asked = [(True, 1.0, 3.0), (True, 4.0, 4.0), (False, 9.0, 11.0), (False, 27.0, 12.0)]
    assert ends(kind, asked) == over


def test_blocks_have_what_asking_for_transfers_took() -> None:
    own = [("1RECV_F0", 9.0), ("1F0", 1.0), ("1SEND_F0", 0.5), ("1F1", 2.0), ("1I0", 4.0), ("1W0", 5.0)]
    assert _blocks(own) == {(1, "F"): 1.75e6, (1, "I"): 4e6, (1, "W"): 5e6}


def test_what_is_planned_is_what_torch_can_run() -> None:
    blocks = {(s, letter): 2.0 if letter == "B" else 1.0 for s in range(4) for letter in "FBIW"}
    one = {block: 2 * us for block, us in blocks.items() if block[0] < 2}
    plans = plans_of(*(job_of(each, 2, 8, PipelineLink(1.0), 64) for each in (one, blocks)))
    assert [plan.name for plan in plans] == ["gpipe", "1f1b", "zb-h1", "interleaved:2", "zbv", "found"]
    assert {len(plan.job.routes) for plan in plans} == {1}
    assert min(plan.replay.step_us for plan in plans) == plans[-1].replay.step_us


@pytest.mark.slow
def test_two_ranks_train(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(Setting(2, 1e-4, "both", False, "compute_only", 1))
    assert [len(row.steps_us) for row in rows] == [1] * 6
    known = rows[1].losses
    assert known.shape == (3 * 8,)
    assert known[-8:].mean() < known[:8].mean()
    for row in rows:
        assert row.step_us > 0
        assert row.own_us[0] > 0
        assert len(cells(row, known)) == 6
        if row.name in ("gpipe", "1f1b", "interleaved:2"):
            assert cells(row, known)[-1] == "bitwise"
        torch.testing.assert_close(row.losses, known)
