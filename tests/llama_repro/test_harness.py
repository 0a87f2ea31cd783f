import dataclasses
import json

import pytest

import llama_repro.__main__ as command
from llama_repro.errors import GoldenError, TorchPassError
from llama_repro.harness import golden, torch_pass
from llama_repro.harness import measure as harness
from llama_repro.harness.measure import measure

_NAMES = ["original", "heap", "heap, no prefetch", "heap, fallback"]
_OURS = ["ours, headroom 0", "ours, headroom 1 GiB"]


@pytest.fixture(scope="module")
def measured(tiny):
    return measure("tiny", tiny, with_torch=False)


def test_every_scheduler_has_a_row_and_ours_keeps_its_promise_in_the_model_asked_for(measured):
    assert [entry.name for entry in measured.entries] == _NAMES + _OURS * 2
    assert [entry.model for entry in measured.entries[-4:]] == ["tracker", "tracker", "runtime", "runtime"]
    original = measured.entries[0]
    for entry in measured.entries:
        assert entry.broken is None
        assert entry.row.step_us >= entry.row.bound_us
        if entry.name in _OURS:
            assert entry.row.headroom_bytes == harness.OURS[entry.name]
            assert entry.row.peak_bytes <= original.rows[entry.model].peak_bytes + harness.OURS[entry.name]
    assert measured.entries[-2].row.step_us < original.row.step_us


@pytest.mark.slow
def test_a_peak_above_the_promise_is_a_failure(tiny, monkeypatch):
    real = harness.schedule

    def lying(problem, options):
        result = real(problem, options)
        worst = harness.heap_order(problem, prefetch=False)
        return dataclasses.replace(result, order=worst)

    monkeypatch.setattr(harness, "schedule", lying)
    entries = measure("tiny", tiny, with_torch=False).entries
    broken = [entry for entry in entries if entry.broken]
    assert [entry.name for entry in broken] == ["ours, headroom 0"] * 2
    over = broken[0].row.peak_bytes - entries[0].rows["tracker"].peak_bytes
    assert broken[0].broken == f"peak {over} bytes above the original peak and the headroom"


@pytest.mark.slow
def test_a_pass_that_fails_is_left_out_and_said(tiny, monkeypatch):
    def failing(problem, caps):
        raise TorchPassError("no such pass")

    monkeypatch.setattr(torch_pass, "torch_order", failing)
    result = measure("tiny", tiny)
    assert result.remarks == ("torch, default caps: no such pass", "torch, caps 0: no such pass")
    assert not [entry for entry in result.entries if entry.name.startswith("torch")]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_regression_of_the_heap_is_largest_on_the_graph_with_two_groups():
    stored = harness.load_graph("llama2d")
    assert list(stored.problems) == ["runtime"]
    measured = measure("llama2d", stored, with_torch=False)
    rise = {entry.name: round(entry.row.peak_percent) for entry in measured.entries}
    assert (rise["heap"], rise["heap, fallback"], rise["ours, headroom 0"]) == (49, 90, 0)
    assert golden.worse_than_golden(measured) == []


def test_figures_that_got_worse_are_named_and_others_not(measured, tmp_path):
    path = tmp_path / "golden.json"
    golden.update_golden(measured, path)
    assert golden.worse_than_golden(measured, path) == []
    numbers = json.loads(path.read_text())
    row = numbers["tiny"]["rows"]["ours, headroom 0, runtime"]
    row["step_us"] /= 2
    row["runtime_peak_bytes"] *= 1.2  # it was worse: fine
    path.write_text(json.dumps(numbers))
    (line,) = golden.worse_than_golden(measured, path)
    now = golden.figures_of(measured.entries[-2])["step_us"]
    assert line == (
        f"ours, headroom 0, runtime: step_us is {now:,.10g}; golden {row['step_us']:,.10g}, "
        f"at most {row['step_us'] + 20:,.10g} allowed"
    )


def test_missing_golden_numbers_are_told(measured, tmp_path):
    path = tmp_path / "golden.json"
    with pytest.raises(GoldenError, match=r"golden.json cannot be read: .* Make it again with --update-golden."):
        golden.worse_than_golden(measured, path)
    path.write_text("{}")
    with pytest.raises(GoldenError) as caught:
        golden.worse_than_golden(measured, path)
    assert str(caught.value) == (
        "golden.json has no numbers for 'tiny'. Make them with --update-golden, and commit them."
    )


def test_no_figure_is_worse_than_the_committed_ones(measured):
    assert golden.worse_than_golden(measured) == []


@pytest.fixture
def run(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(command, "load_graph", lambda graph, **options: tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def call(*arguments):
        return command.main(["--config", "tiny", "--no-torch", *arguments])

    return call


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures take seconds; only one test looks at them."""
    monkeypatch.setattr(command, "draw", lambda measured, folder: [])


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json_and_pictures(run, capsys, tmp_path):
    out, plots = tmp_path / "out.json", tmp_path / "plots"
    assert run("--json", str(out), "--plots", str(plots)) == 0
    text = capsys.readouterr().out
    assert "tiny_bwd: " in text
    assert "20 all_gather_into_tensor, 21 reduce_scatter_tensor, groups of 8 ranks" in text
    assert "no figure is worse than the committed ones" in text
    (data,) = json.loads(out.read_text())["graphs"]
    assert [row["by"] for row in data["rows"]] == _NAMES + _OURS * 2
    assert data["rows"][0]["peaks"].keys() == {"tracker", "runtime"}
    assert {path.name for path in plots.iterdir()} == {"tiny.png", "tiny-peaks.png"}


@pytest.mark.slow
def test_the_command_fails_where_a_figure_got_worse(run, undrawn, capsys, monkeypatch):
    monkeypatch.setattr(command, "worse_than_golden", lambda measured: ["heap: step_us is 2; golden 1"])
    assert run() == 1
    assert "FAILED heap: step_us is 2; golden 1" in capsys.readouterr().out


@pytest.mark.slow
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
