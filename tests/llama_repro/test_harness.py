import dataclasses
import json

import pytest

import llama_repro.__main__ as command
from llama_repro.errors import GoldenError, TorchPassError
from llama_repro.harness import golden
from llama_repro.harness import measure as harness
from llama_repro.harness.measure import measure

_NAMES = ["original", "heap", "heap, no prefetch", "heap, fallback"]
_OURS = ["ours, headroom 0", "ours, headroom 1 GiB"]


@pytest.fixture(scope="module")
def measured(tiny):
    return measure(tiny, with_torch=False)


def test_every_scheduler_has_a_row_and_ours_keeps_its_promise_in_the_model_asked_for(measured):
    assert [row.name for row in measured.rows] == _NAMES + _OURS * 2
    assert [row.model for row in measured.rows[-4:]] == ["tracker", "tracker", "runtime", "runtime"]
    for row in measured.rows:
        assert row.problem is None
        assert row.step_us >= measured.bound_us
        if row.headroom_bytes is not None:
            assert row.peak_bytes[row.model] <= measured.original.peak_bytes[row.model] + row.headroom_bytes
    assert measured.rows[-2].step_us < measured.original.step_us


def test_a_peak_above_the_promise_is_a_failure(tiny, monkeypatch):
    real = harness.schedule

    def lying(problem, options):
        result = real(problem, options)
        worst = harness.heap_order(problem, prefetch=False)
        return dataclasses.replace(result, order=worst)

    monkeypatch.setattr(harness, "schedule", lying)
    broken = [row for row in measure(tiny, with_torch=False).rows if row.problem]
    assert [row.name for row in broken] == ["ours, headroom 0"] * 2
    over = broken[0].peak_bytes["tracker"] - measure(tiny, with_torch=False).original.peak_bytes["tracker"]
    assert broken[0].problem == (
        f"peak {broken[0].peak_bytes['tracker']} is {over} bytes above the original peak + headroom"
    )


def test_a_pass_that_fails_is_left_out_and_said(tiny, monkeypatch):
    def failing(problem, headroom):
        raise TorchPassError("no such pass")

    monkeypatch.setattr(harness, "torch_order", failing)
    result = measure(tiny)
    assert result.remarks == ("torch, default caps: no such pass", "torch, caps 0: no such pass")
    assert not [row for row in result.rows if row.name.startswith("torch")]


def test_figures_that_got_worse_are_named_and_others_not(measured, tmp_path):
    path = tmp_path / "golden.json"
    golden.update_golden("tiny", measured, path)
    assert golden.worse_than_golden("tiny", measured, path) == []
    numbers = json.loads(path.read_text())
    row = numbers["tiny"]["rows"]["ours, headroom 0, runtime"]
    row["step_us"] /= 2
    row["runtime_peak_bytes"] *= 1.2  # it was worse: fine
    path.write_text(json.dumps(numbers))
    (line,) = golden.worse_than_golden("tiny", measured, path)
    now = golden.figures_of(measured.rows[-2])["step_us"]
    assert line == (
        f"ours, headroom 0, runtime: step_us is {now:,.10g}; golden {row['step_us']:,.10g}, "
        f"at most {row['step_us'] + 20:,.10g} allowed"
    )


def test_missing_golden_numbers_are_told(measured, tmp_path):
    path = tmp_path / "golden.json"
    with pytest.raises(GoldenError, match=r"golden.json cannot be read: .* Make it anew with --update-golden."):
        golden.worse_than_golden("tiny", measured, path)
    path.write_text("{}")
    with pytest.raises(GoldenError) as caught:
        golden.worse_than_golden("tiny", measured, path)
    assert str(caught.value) == (
        "golden.json has no numbers for 'tiny'. Make them with --update-golden, and commit them."
    )


@pytest.mark.parametrize("config", ["tiny"])
def test_no_figure_is_worse_than_the_committed_ones(measured, config):
    assert golden.worse_than_golden(config, measured) == []


@pytest.fixture
def run(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "stored_problems", lambda config, **options: tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def call(*arguments):
        return command.main(["--config", "tiny", "--no-torch", *arguments])

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take seconds; only one test looks at them."""
    monkeypatch.setattr(command, "plot_schedule", lambda schedule, path: None)


def test_the_command_prints_a_table_and_writes_json_and_pictures(run, capsys, tmp_path):
    out, plots = tmp_path / "out.json", tmp_path / "plots"
    assert run("--json", str(out), "--plots", str(plots)) == 0
    text = capsys.readouterr().out
    assert "tiny, backward graph of one of 8 ranks" in text
    assert "20 all_gather_into_tensor, 21 reduce_scatter_tensor" in text
    assert "no figure is worse than the committed ones" in text
    data = json.loads(out.read_text())
    assert [row["name"] for row in data["rows"]] == _NAMES + _OURS * 2
    assert data["failures"] == []
    assert sorted(path.name for path in plots.iterdir()) == [
        "tiny-heap.png",
        "tiny-ours-headroom-0-runtime.png",
        "tiny-ours-headroom-0-tracker.png",
        "tiny-ours-headroom-1-GiB-runtime.png",
        "tiny-ours-headroom-1-GiB-tracker.png",
    ]


def test_the_command_fails_where_a_figure_got_worse(run, undrawn, capsys, monkeypatch):
    monkeypatch.setattr(command, "worse_than_golden", lambda config, measured: ["heap: step_us is 2; golden 1"])
    assert run() == 1
    assert "FAILED heap: step_us is 2; golden 1" in capsys.readouterr().out


def test_wrong_usage_is_told_apart(run, undrawn, capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        command.main(["--config", "llama4"])
    assert caught.value.code == 2
    assert run("--json", str(tmp_path / "missing" / "out.json")) == 2
    assert "llama_repro:" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run("--plots", str(tmp_path / "file")) == 2
    assert "the folder cannot be made (File exists); name another with --plots." in _one_line(capsys.readouterr().err)


def _one_line(text):
    return " ".join(text.split())
