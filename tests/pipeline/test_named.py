"""Named schedules: valid for any number of ranks and micro-batches, with the figures of their papers."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import ActionKind
from overlap_sched.pipeline.csv_file import with_transfers
from overlap_sched.pipeline.judge import violation
from overlap_sched.pipeline.layout import FOLDED
from overlap_sched.pipeline.named import NAMED, NamedSchedule, interleaved_in, lay_out_named
from overlap_sched.pipeline.replay import pipeline_peaks, replay_pipeline
from tests.support.pipeline_judge import measure_pipeline, transfer_violation
from tests.support.pipelines import read_schedule, uniform
from tests.support.published_v import published

ALL = (*NAMED, *(interleaved_in(chunks, zero) for chunks in (1, 2, 3) for zero in (False, True)))
BY_NAME = {named.name: named for named in ALL}
TWO_EACH = {named.name for named in ALL if named.layout.chunks == 2 and named.name != "dualpipe"}


def figures(
    name: str, ranks: int, micro_batches: int, f: float = 1.0, i: float = 1.0, w: float = 1.0, factor: float = 1.0
) -> tuple[list[float], list[float], list[int]]:
    """Bubbles in the step and between first and last action, and peaks in activations of one stage; per rank.

    F, I, W: of one stage as the schedule has it.
    """
    job = uniform(ranks, micro_batches, 4 if name == "waves" else 2 if name in TWO_EACH else 1, f, i, w)
    job, schedule = lay_out_named(job, BY_NAME[name])
    object.__setattr__(job, "pair_factor", factor)
    replay = replay_pipeline(job, schedule)
    peaks = [peak.bytes for peak in pipeline_peaks(job, replay)]
    inner = [own[-1].end_us - own[0].start_us - busy for own, busy in zip(replay.items, replay.busy_us, strict=True)]
    return list(replay.bubble_us), inner, peaks


@pytest.mark.parametrize("named", ALL, ids=lambda named: named.name)
def test_they_are_valid_for_any_number_of_ranks_and_micro_batches(named: NamedSchedule) -> None:
    for ranks in (1, 2, 3, 4, 6):
        for micro_batches in (1, 2, 3, 5, 8):
            if named.name == "dualpipe" and (ranks % 2 or micro_batches == 1):
                continue
            job, schedule = lay_out_named(uniform(ranks, micro_batches, 6), named)
            assert violation(job, schedule) is None
            with_sends = with_transfers(job, schedule, replay_pipeline(job, schedule))
            assert transfer_violation(job, with_sends, "blocking") is None
            assert transfer_violation(job, with_sends, "buffered") is None


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 8), (4, 12), (8, 20)])
@pytest.mark.parametrize(("f", "i", "w"), [(1.0, 1.0, 1.0), (2.0, 3.0, 1.0)])
def test_gpipe_and_1f1b(ranks: int, micro_batches: int, f: float, i: float, w: float) -> None:
    """Narayanan et al. 2021, section 2.2.1: t_pb = (p - 1)(t_f + t_b) of both; activations of m, and of at most p."""
    bubble = (ranks - 1) * (f + i + w)
    for name in ("gpipe", "1f1b"):
        assert figures(name, ranks, micro_batches, f, i, w)[0] == [bubble] * ranks
    assert figures("gpipe", ranks, micro_batches)[2] == [micro_batches] * ranks
    assert figures("1f1b", ranks, micro_batches)[2] == [min(ranks - r, micro_batches) for r in range(ranks)]


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (4, 2), (8, 3)])
def test_interleaved_1f1b(ranks: int, rounds: int) -> None:
    """Narayanan et al. 2021, section 2.2.2: t_pb = (p - 1)(t_f + t_b) / v, t of all v chunks of a rank."""
    micro_batches = rounds * ranks
    bubble, _, peaks = figures("interleaved:2", ranks, micro_batches, f=1.0, i=2.0, w=1.0)
    assert bubble == [(ranks - 1) * 2 * (1.0 + 3.0) / 2] * ranks
    assert peaks == [min(ranks + 2 * (ranks - 1 - r) + 1, 2 * micro_batches) for r in range(ranks)]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 20)])
def test_zb_h1(ranks: int, micro_batches: int) -> None:
    """Qi et al. 2023, table 2: (p - 1)(T_F + T_B - T_W), p M_B; their B is our I; T_F = T_B = T_W (section 2)."""
    bubble, _, peaks = figures("zb-h1", ranks, micro_batches, f=2.0, i=2.0, w=2.0)
    assert bubble == [(ranks - 1) * (2.0 + 2.0 - 2.0)] * ranks
    assert peaks == [ranks] * ranks
    assert max(peaks) == max(figures("1f1b", ranks, micro_batches)[2])


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (2, 3), (4, 7), (4, 12), (8, 20)])
def test_zbv(ranks: int, micro_batches: int) -> None:
    """Qi et al. 2023, section 6: no bubble where T_F = T_B = T_W, and at most as many activations as 1F1B: 2p halves.

    Their bubble is counted from the first to the last action of a rank: where ranks do not wait for each other's step.
    """
    bubble, inner, peaks = figures("zbv", ranks, micro_batches)
    assert inner == [0.0] * ranks
    assert replay_pipeline(*lay_out_named(uniform(ranks, micro_batches, 2), BY_NAME["zbv"])).own_bubble == 0.0
    own = replay_pipeline(*lay_out_named(uniform(ranks, micro_batches), BY_NAME["zb-h1"])).own_bubble
    _, idle, _ = figures("zb-h1", ranks, micro_batches)
    assert own == pytest.approx(max(idle) / (max(idle) + 3.0 * micro_batches))
    assert bubble == [ranks - 1.0] * ranks  # all ranks but the first start late
    assert peaks == [min(2 * ranks, 2 * micro_batches)] * ranks


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 8, 9])
def test_v_min_and_v_half(ranks: int) -> None:
    """Qi et al. 2024: a third and half of the activations of 1F1B, 2p halves; no longer than by its authors' code."""
    for micro_batches, (name, part) in product((1, 7, 16), (("v-min", 3), ("v-half", 2))):
        job, theirs = FOLDED.put(uniform(ranks, micro_batches, 2)), published(name, ranks, micro_batches)
        assert violation(job, theirs) is None
        judged = measure_pipeline(job, theirs)
        bubble, _, peaks = figures(name, ranks, micro_batches)
        assert max(bubble) <= judged.step_us - min(judged.busy_us)
        assert max(peaks) <= min(2 * ranks / part + 3, max(most for most, _ in judged.peaks))


def test_the_published_v_min_is_that_of_its_authors() -> None:
    """A file that was made by their code: ``scheduler/zbv_greedy.py`` of zero-bubble-pipeline-parallelism."""
    text = (Path(__file__).parents[1] / "data" / "v_min_4x16.csv").read_text()
    assert published("v-min", 4, 16).orders == read_schedule(*text.splitlines()).orders


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 8), (4, 16), (8, 32)])
def test_v_zb(ranks: int, micro_batches: int) -> None:
    """As many activations as 1F1B; the bubble of a warm-up and two slots: zbv is V-ZB made by hand."""
    bubble, _, peaks = figures("v-zb", ranks, micro_batches)
    assert max(bubble) <= max(figures("zbv", ranks, micro_batches)[0]) + 2
    assert max(peaks) <= 2 * ranks


@pytest.mark.parametrize(("ranks", "micro_batches"), [(3, 6), (4, 8), (6, 12), (8, 16), (8, 32)])
def test_waves(ranks: int, micro_batches: int) -> None:
    """The bubble of interleaved 1F1B with as many stages per rank, in a quarter more than 1F1B, and a few."""
    bubble, _, peaks = figures("waves", ranks, micro_batches)
    assert max(bubble) == (ranks - 1) * 3
    assert max(peaks) <= 5 * ranks + 4


SIZES = {"dualpipe": [(4, 8), (4, 12), (8, 20)], "dualpipev": [(2, 4), (4, 8), (4, 11)]}
TIMES = [(1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 0.75), (3.0, 3.0, 3.0, 2 / 3)]


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), [(k, *of) for k, every in SIZES.items() for of in every])
@pytest.mark.parametrize(("f", "i", "w", "factor"), TIMES)
def test_dual_pipe(name: str, ranks: int, micro_batches: int, f: float, i: float, w: float, factor: float) -> None:
    """DeepSeek-V3 report, table 2: (PP / 2 - 1)(F&B + B - 3W), activations PP + 1; B is I and W, F = I = W.

    Where pairs are faster than their parts, of the ranks in the middle, which run most pairs. DualPipeV: the same with
    PP = 2 stages per rank (README of github.com/deepseek-ai/DualPipe).
    """
    bubble, _, peaks = figures(name, ranks, micro_batches, f, i, w, factor)
    stages = ranks if name == "dualpipe" else 2 * ranks
    expected = (stages / 2 - 1) * (factor * (f + i + w) + i + w - 3 * w)
    assert bubble == [pytest.approx(expected)] * ranks if factor == 1 else max(bubble) == pytest.approx(expected)
    assert peaks == [stages + 1] * ranks


def test_what_a_schedule_cannot_have() -> None:
    def refused(name: str, ranks: int, stages_per_rank: int, micro_batches: int = 4) -> str:
        with pytest.raises(PipelineError) as caught:
            lay_out_named(uniform(ranks, micro_batches, stages_per_rank), BY_NAME[name])
        return str(caught.value)

    assert refused("dualpipe", 3, 1).startswith(
        "DualPipe's two directions meet in the middle: give an even number of ranks, not 3"
    )
    assert refused("dualpipe", 2, 1, 1) == "uniform: two directions need two micro-batches, not 1."
    assert refused("zbv", 4, 1) == ("uniform: 4 stages cannot be joined to 8, which 4 ranks need. Give 8 or more.")
    assert refused("interleaved:3", 2, 2).startswith("uniform: 4 stages cannot be joined to 6, which 2 ranks need.")


def test_halves_of_backward_are_asked_for() -> None:
    job = uniform(2, 4)
    whole = replace(job.stages[0], input_gradient=None, weight_gradient=None)
    job = replace(job, stages=(whole, whole))
    with pytest.raises(PipelineError) as caught:
        lay_out_named(job, BY_NAME["zb-h1"])
    assert str(caught.value).startswith("uniform: zb-h1 runs the halves of backward apart, but no stage has any.")
    assert str(caught.value).endswith("Give input_gradient and weight_gradient.")
    assert violation(*lay_out_named(job, BY_NAME["1f1b"])) is None


@pytest.mark.parametrize("name", ["zb-h1", "zbv", "v-half", "dualpipev"])
def test_a_stage_without_halves_runs_its_backward_whole(name: str) -> None:
    """Where others run the first half; the halves of all others stay apart."""
    job = uniform(2, 4, 2)
    whole = replace(job.stages[0], input_gradient=None, weight_gradient=None)
    apart = lay_out_named(job, BY_NAME[name])[1]
    placed, schedule = lay_out_named(replace(job, stages=(whole, *job.stages[1:])), BY_NAME[name])
    assert violation(placed, schedule) is None
    kinds = {action.kind for action in schedule.actions(0) if action.stage == 0}
    assert kinds == {ActionKind.FORWARD, ActionKind.BACKWARD}
    assert schedule.actions(1) == apart.actions(1)
