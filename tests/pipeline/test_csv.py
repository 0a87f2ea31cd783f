"""Schedules as torch's CSV: what we write it reads, what it writes we read, and its runtime trains with ours."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import Action, ActionKind, PipelineSchedule
from overlap_sched.pipeline.csv_file import CsvFormat, schedule_csv
from overlap_sched.pipeline.job import PipelineJob, PipelineLink
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.named import (
    NAMED,
    gpipe,
    interleaved,
    interleaved_in,
    interleaved_zero_bubble,
    lay_out_named,
    one_f_one_b,
)
from overlap_sched.pipeline.replay import replay_pipeline
from tests.support.pipeline_judge import transfer_violation
from tests.support.pipelines import read_schedule, uniform

FORMS: tuple[CsvFormat, ...] = ("compute_only", "compute_comms")
ONE_WAY = {named.name: named for named in (*NAMED, interleaved_in(2)) if named.name != "dualpipe"}


@pytest.fixture
def torch_schedules() -> ModuleType:
    pytest.importorskip("torch")
    from torch.distributed.pipelining import schedules

    return schedules


def one_way(name: str, ranks: int = 2, micro_batches: int = 4) -> tuple[PipelineJob, PipelineSchedule]:
    return lay_out_named(uniform(ranks, micro_batches, 4 if name == "waves" else 2), ONE_WAY[name])


def written(job: PipelineJob, schedule: PipelineSchedule, form: CsvFormat = "compute_only") -> str:
    return schedule_csv(job, schedule, replay_pipeline(job, schedule), form)


@pytest.mark.parametrize("name", ONE_WAY)
def test_what_we_write_we_read(name: str) -> None:
    job, schedule = one_way(name)
    assert read_schedule(*written(job, schedule).splitlines()).orders == schedule.orders
    text = written(job, schedule, "compute_comms")
    read = read_schedule(*text.splitlines())
    assert read_schedule(*written(job, schedule, "compute_comms_waits").splitlines()) == read
    assert transfer_violation(job, read, "blocking") is None
    assert sum(
        isinstance(item, Action) and item.kind is ActionKind.REDUCE for row in read.orders for item in row
    ) == len(job.stages)


def test_waits_are_where_sends_and_reductions_are_over() -> None:
    job = replace(uniform(2, 2), link=PipelineLink(1.5))
    assert written(job, one_f_one_b(2, 2), "compute_comms_waits").split() == [
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0WAIT_SEND_F0,0WAIT_SEND_F1,0B0,0B1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD",
        "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1WAIT_SEND_B0,1WAIT_SEND_B1,1WAIT_REDUCE_GRAD",
    ]


def test_two_directions_are_not_torchs() -> None:
    job, schedule = lay_out_named(uniform(2, 4), next(named for named in NAMED if named.name == "dualpipe"))
    with pytest.raises(PipelineError, match=r"torch's schedules go one way, by stages 0, 1, 2, \.\.\."):
        written(job, schedule)


def orders_of_torch(of: Any, ranks: int, chunks: int, micro_batches: int) -> list[list[str]]:
    count = ranks * chunks
    needed = {"pp_group_size": ranks, "n_local_stages": chunks, "_n_microbatches": micro_batches, "num_stages": count}
    rounds = micro_batches // max(1, micro_batches // ranks)
    stages = SimpleNamespace(**needed, _num_stages=count, microbatches_per_round=rounds)
    if hasattr(of, "_calculate_single_rank_operations"):
        made = [of._calculate_single_rank_operations(stages, rank) for rank in range(ranks)]
    else:
        made = list(of._get_pipeline_order(stages).values())
    return [[str(one) for one in order if one is not None and "REDUCE" not in str(one)] for order in made]


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 2), (3, 2), (4, 3)])
def test_orders_are_those_of_torch(ranks: int, rounds: int, torch_schedules: ModuleType) -> None:
    micro_batches = 2 * ranks * rounds
    ours = {
        ("ScheduleGPipe", 1): gpipe(ranks, micro_batches),
        ("Schedule1F1B", 1): one_f_one_b(ranks, micro_batches),
        ("ScheduleInterleaved1F1B", 2): interleaved(ranks, 2, micro_batches),
        ("ScheduleInterleaved1F1B", 3): interleaved(ranks, 3, micro_batches),
        ("ScheduleInterleavedZeroBubble", 1): ONE_WAY["zb-h1"].make(ranks, micro_batches),
        ("ScheduleInterleavedZeroBubble", 3): interleaved_zero_bubble(ranks, 3, micro_batches),
        ("ScheduleZBVZeroBubble", 2): ONE_WAY["zbv"].make(ranks, micro_batches),
        ("ScheduleDualPipeV", 2): ONE_WAY["dualpipev"].make(ranks, micro_batches),
    }
    for (name, chunks), schedule in ours.items():
        theirs = orders_of_torch(getattr(torch_schedules, name), ranks, chunks, micro_batches)
        made = [list(map(str, order)) for order in schedule.orders]
        if name == "Schedule1F1B":  # torch 2.13 numbers the last rank's forwards from 1 on, what it runs from 0
            made, theirs = made[:-1], theirs[:-1]
        assert made == theirs, name


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_interleaved_rounds_are_those_of_torch(ranks: int, torch_schedules: ModuleType) -> None:
    """Micro-batches that are no multiple of the ranks; torch refuses those that are none of the rounds either."""
    compared = 0
    for micro_batches, chunks in product(range(1, 4 * ranks), (2, 3)):
        if micro_batches % max(micro_batches // ranks, 1) == 0:
            for name, make in (("1F1B", interleaved), ("ZeroBubble", interleaved_zero_bubble)):
                of = getattr(torch_schedules, f"ScheduleInterleaved{name}")
                made = [list(map(str, order)) for order in make(ranks, chunks, micro_batches).orders]
                assert made == orders_of_torch(of, ranks, chunks, micro_batches)
            compared += micro_batches % ranks > 0
    assert compared >= 2


@pytest.mark.parametrize("name", ONE_WAY)
def test_torch_reads_and_lowers_ours(name: str, tmp_path: Path, torch_schedules: ModuleType) -> None:
    """Its own sends and receives of our schedule pass our judge, too, and ours its simulation."""
    job, schedule = one_way(name)
    only, comms = (
        {
            rank: [torch_schedules._Action.from_str(cell) for cell in row.split(",")]
            for rank, row in enumerate(written(job, schedule, form).split())
        }
        for form in FORMS
    )
    count, place = len(job.stages), job.rank_of.__getitem__
    assert torch_schedules._validate_schedule(only, job.ranks, count, 4) == dict(enumerate(job.rank_of))
    theirs = torch_schedules._add_send_recv(only, place, count)
    text = "\n".join(",".join(map(str, theirs[rank])) for rank in range(job.ranks))
    assert transfer_violation(job, read_schedule(*text.splitlines()), "blocking") is None
    if name != "dualpipev":  # it knows neither pairs nor reductions
        known = {rank: [one for one in row if one.microbatch_index is not None] for rank, row in comms.items()}
        steps = torch_schedules._simulate_comms_compute(known, place, count)
        assert {rank: [one for one in row if one is not None] for rank, row in steps.items()} == known


@pytest.mark.slow
@pytest.mark.private
def test_torchs_runtime_trains_with_them(tmp_path: Path, torch_schedules: ModuleType) -> None:
    """Two gloo ranks, eight layers. Losses and weights are bitwise those of torch's own 1F1B where backward is whole.

    Micro-batches come back in one order in all of these, so gradients add up in that order. In two halves a weight
    gradient is computed by another path of autograd, which may round otherwise.
    """
    import torch

    from tests.support.pipeline_ranks import BATCHES, LAYERS
    from tests.support.ranks import run_ranks

    waits = "WAIT_REDUCE_GRAD" in torch_schedules._ComputationType.__members__  # 2.15
    forms: list[CsvFormat] = ["compute_only", "compute_comms_waits" if waits else "compute_comms"]
    for name in ("gpipe", "1f1b", "interleaved:2", "zb-h1", "zbv", "dualpipev"):
        job, schedule = one_way(name, 2, BATCHES)
        assert violation(job, schedule) is None
        plain = name.replace(":", "-")
        for form in forms:
            (tmp_path / f"{plain}.{form.removesuffix('_waits')}.csv").write_text(written(job, schedule, form))
    run_ranks("tests.support.pipeline_ranks", tmp_path, ranks=2)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]

    def found(name: str) -> list[torch.Tensor]:
        losses = [torch.stack(one) for rank in ranks for one in rank[name]["losses"] if one]
        weights = {k: w for rank in ranks for k, w in rank[name]["weights"].items()}
        return [*losses, *(part for k in range(LAYERS) for part in weights[k])]

    torchs = found("Schedule1F1B")
    assert not torch.equal(*torchs[:2])
    assert len(ranks[0]) == 2 + 2 * 6
    for name in ranks[0]:
        whole = name.startswith(("gpipe", "1f1b", "interleaved", "Schedule"))
        for ours, theirs in zip(found(name), torchs, strict=True):
            torch.testing.assert_close(ours, theirs, **({"rtol": 0, "atol": 0} if whole else {}))
