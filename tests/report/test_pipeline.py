"""The picture of a pipelined job: every action is in it, where and as long as it runs."""

import random
import re
from dataclasses import replace

import pytest

from overlap_sched.pipeline.compare import PlannedPipeline, named, plan_pipeline
from overlap_sched.pipeline.job import PipelineBlock
from overlap_sched.pipeline.replay import memory_curves, pipeline_peaks, replay_pipeline
from overlap_sched.report import pipeline as pipeline_page
from overlap_sched.report.colours import PIPELINE
from overlap_sched.report.units import duration
from tests.support.pipelines import random_job, random_schedule, uniform


@pytest.fixture
def planned() -> list[PlannedPipeline]:
    job = replace(uniform(2, 4, 2, f=10.0, i=10.0, w=10.0), name="<two>", memory_limit_bytes=(8, 8))
    return [plan_pipeline(job, named(name)) for name in ("1f1b", "zbv", "dualpipev")]


def test_every_action_has_a_box_of_its_length(planned: list[PlannedPipeline]) -> None:
    page = pipeline_page.pipeline_page("<two>", planned, "overlap-sched pipeline a.toml")
    pictures = page.split("<section")[1:]
    longest = max(one.replay.step_us for one in planned)
    for one, picture in zip(planned, pictures, strict=True):
        boxes = re.findall(
            r"<rect class='box' x='([\d.]+)%' y='\d+' width='([\d.]+)%' height='\d+' fill='(#\w+)'", picture
        )
        actions = [action for rank in range(2) for action in one.schedule.actions(rank)]
        assert len(boxes) == len(actions)
        assert {colour for _, _, colour in boxes} == {PIPELINE[action.kind.value][0] for action in actions}
        ends = [float(x) + float(width) for x, width, _ in boxes]
        assert max(ends) == pytest.approx(100 * one.replay.step_us / longest, abs=0.1)


def test_what_it_says(planned: list[PlannedPipeline]) -> None:
    page = pipeline_page.pipeline_page("<two>", planned, "overlap-sched pipeline 'a<b>.toml'")
    assert "<h1>&lt;two&gt;</h1>" in page
    assert "a&lt;b&gt;.toml" in page
    assert re.search(r"<tr><th>1f1b</th><td>300.0 us</td><td>20.0 %</td>.*?<td>4 B</td>.*?<td>yes</td></tr>", page)
    assert "<script" not in page


def test_gathers_are_of_no_micro_batch() -> None:
    job = uniform(2, 4)
    job = replace(job, stages=tuple(replace(stage, unshard=PipelineBlock(3.0)) for stage in job.stages))
    page = pipeline_page.pipeline_page("two", [plan_pipeline(job, named("1f1b"))], "")
    assert page.count("<title>gather of parameters of stage 0, 0.0 us to 3.0 us</title>") == 1
    assert page.count("<title>release of parameters of stage") == 2


def test_what_does_not_fit_looks_so_and_the_verdict_is_of_what_fits(planned: list[PlannedPipeline]) -> None:
    by_step = sorted(planned, key=lambda one: one.replay.step_us)
    tight = replace(by_step[0], job=replace(by_step[0].job, memory_limit_bytes=(by_step[0].peaks[0].bytes - 1, 8)))
    page = pipeline_page.pipeline_page("two", [tight, *by_step[1:]], "")
    (verdict,) = re.findall(r"<p id='verdict'>(.*?)</p>", page)
    assert f"{by_step[1].name}, {duration(by_step[1].replay.step_us)}" in verdict
    assert f"{tight.name} lacks" in verdict
    assert page.count("<section class=fails>") == page.count("<tr class=fails>") == 1
    assert page.count("class='memory fails'") == 1
    none = pipeline_page.pipeline_page("two", [tight], "")
    assert "<p id='verdict' class='fails'>" in none


def test_what_waits_inside_is_drawn_at_the_foot_of_an_action(planned: list[PlannedPipeline]) -> None:
    assert "compute waits for collectives inside" not in pipeline_page.pipeline_page("two", planned, "")
    stages = tuple(replace(s, forward=replace(s.forward, exposed_us=2.5)) for s in planned[0].job.stages)
    page = pipeline_page.pipeline_page("two", [replace(planned[0], job=replace(planned[0].job, stages=stages))], "")
    bars = [float(width) for width in re.findall(r"<rect class='waits' .*? width='([\d.]+)%'", page)]
    assert bars == [pytest.approx(250 / planned[0].replay.step_us, abs=0.01)] * 8
    assert "compute waits for collectives inside" in page


def test_too_many_actions_are_said(planned: list[PlannedPipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_page, "MOST_BOXES", 20)
    page = pipeline_page.pipeline_page("two", planned, "")
    assert page.count("<section") == 1
    assert "2 more schedules are not drawn: too many actions." in page


@pytest.mark.parametrize("seed", range(30))
def test_curves_reach_the_peaks(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    replay = replay_pipeline(job, random_schedule(job, rng))
    for rank, (curve, peak) in enumerate(zip(memory_curves(job, replay), pipeline_peaks(job, replay), strict=True)):
        assert curve[0][0] == 0.0
        assert max(live for _, live in curve) <= peak.bytes  # what is live at an instant alone is in the peak
        assert curve[-1][1] == sum(job.stages[s].static_bytes for s in job.stages_of[rank])
