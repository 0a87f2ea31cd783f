"""``--profile`` with a dump and with a problem file."""

import json
from pathlib import Path
from typing import Any

import pytest

from overlap_sched import read_problem
from tests.support.examples import Command, run
from tests.support.traces import C10D, GRAPHS, TRACES, event, nccl, write


def saved(path: Path) -> dict[str, float]:
    """The times of a problem that was saved."""
    return {node.name: node.time_us for node in read_problem(path).nodes if node.time_us}


@pytest.fixture
def ranks(tmp_path: Path) -> list[str]:
    """Traces of the layer in ``DUMP``, of two ranks: the second comes late."""
    operators = [
        event("aten::mm", 10, 70, (8192, 4096), (4096, 4096)),
        event("aten::mm", 90, 60, (4096, 8192), (8192, 4096)),
        event(C10D + "all_gather_into_tensor", 0, 1, (64, 4096)),
        event(C10D + "reduce_scatter_tensor", 160, 1, (4096, 4096)),
    ]

    def gloo(gather: float, scatter: float) -> list[dict[str, object]]:
        return [
            event("gloo:all_gather", 1, gather, (64, 4096), cat="user_annotation", tid=5),
            event("gloo:reduce_scatter", 161, scatter, (4096, 4096), cat="user_annotation", tid=5),
        ]

    first = write(tmp_path, [*operators, *gloo(300, 500)], rank=0)
    second = write(tmp_path, [*operators, *gloo(200, 600)], rank=1)
    return [str(first), str(second)]


def test_a_dump_with_the_times_of_traces(
    dump: str, tmp_path: Path, ranks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert run("plan", dump, "--group", "0=64", "--profile", *ranks, "--save-problem", str(out), "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["name"] == "layer"
    assert json.loads(shown.out)["prices"]["cluster"] is None  # what was measured is slower by contention already
    assert [line for line in shown.err.splitlines() if " note: profile: " in line][:2] == [
        "overlap-sched: note: profile: 4 of 4 nodes that take time were found in it, 100.0% of the predicted time, "
        "4 by shapes and order (1 run on 2 ranks)",
        "overlap-sched: note: profile: 100.0 us of waiting for late ranks taken out of the collectives of a run",
    ]
    assert "where prediction and profile differ most" in shown.err
    assert saved(out) == {"gather": 200.0, "scatter": 500.0, "mm": 70.0, "mm_1": 60.0}

    scaled = ("--comm-scale", "2", "--profile", ranks[0], "--profile", ranks[1])  # one option each is the same
    assert run("explain", dump, "--group", "0=64", *scaled, "--save-problem", str(out)) == 0
    assert saved(out) == {"gather": 400.0, "scatter": 1000.0, "mm": 70.0, "mm_1": 60.0}


def test_a_problem_file_with_the_times_of_a_trace(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    about: dict[str, Any] = {"In msg nelems": 2**19, "Out msg nelems": 2**22, "dtype": "BFloat16"}
    trace = write(tmp_path, nccl("all_gather_into_tensor", 0, 77, (2**19,), number=1, **about))
    arguments = ("--profile", str(trace), "--comm-scale", "2", "--save-problem", str(out))
    assert run("plan", problem, *arguments) == 0
    assert saved(out) == {"gather": 154.0, "mm": 50.0, "dgrad": 30.0, "wgrad": 30.0, "scatter": 80.0}
    assert "profile: one rank: its collectives still hold" in capsys.readouterr().err


def test_a_bad_trace_ends_the_command(
    problem: str, tmp_path: Path, cli: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path, [event("aten::conv2d", 0, 1, (3, 3))])
    assert run("plan", problem, "--profile", str(trace)) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert all(text in said for text in (str(trace), "aten::conv2d", "Was another job"))
    assert f"{problem}: is not JSON with a list of traceEvents" in cli.refused(
        "plan", problem, "--profile", problem, "--max-input-bytes", "10MB"
    )


@pytest.mark.slow
def test_recorded_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert run("plan", str(GRAPHS[1]), "--profile", *map(str, TRACES), "--json") == 0
    shown = capsys.readouterr()
    assert "145 of 145 nodes that take time were found in it, 100.0% of the predicted time, 73 by shapes" in shown.err
    assert 5_000 < json.loads(shown.out)["original_step_us"] < 500_000  # of two cores, not of an H100
