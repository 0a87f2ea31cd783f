"""``plan --rewrites``: what it prints, what it writes, what it refuses."""

import json
from pathlib import Path

import pytest

from overlap_sched import read_problem, write_problem
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import read_order
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.transform.apply import apply
from overlap_sched.transform.records import records, records_json
from overlap_sched.transform.rewrites import Recompute, Regather
from tests.cli.test_schemas import validator
from tests.support.examples import Command, run
from tests.support.sharded import PRICES, sharded, whole_step


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """Latency binds on every network: twelve parameters of a few bytes."""
    path = tmp_path / "graph.json"
    write_problem(sharded([[2, 2, 2]] * 4, compute_us=4.0), path)
    return str(path)


def test_what_it_prints(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", graph, "--rewrites", "bucket", "--headroom", "100%") == 0
    out, err = capsys.readouterr()
    assert err == (
        f"overlap-sched: note: the collectives of {graph} are priced anew for dgx-h100, those of the original order, "
        "too: rewritten ones have no times in the file, and compare with no others. --cluster FILE_OR_NAME says "
        "otherwise; without --rewrites the file's own times count\n"
    )
    assert "Without rewrites the best order found takes " in out
    assert " rewrites: " in out or " rewrite: " in out
    assert "together from gather" in out
    assert "Tried " in out


def test_json_and_the_rewritten_graph(graph: str, tmp_path: Path, cli: Command) -> None:
    saved, order = tmp_path / "rewritten.json.gz", tmp_path / "order.json"
    wanted = ("--rewrites", "bucket,stream", "--headroom", "100%", "--cluster", "dgx-a100", "--comm-scale", "4")
    found = cli.json("plan", graph, *wanted, "--save-problem", str(saved), "--out", str(order))
    validator("plan").validate(found)
    assert found["rewrites"]
    assert found["step_us"] < found["step_without_rewrites_us"]
    rewritten = read_problem(saved)
    new, was = read_order(order, rewritten), read_problem(graph)
    assert replay(rewritten, new).step_us == pytest.approx(found["step_us"])
    assert found["original_reserved_bytes"] == replay_allocator(was, was.original_order).reserved_bytes
    assert found["reserved_bytes"] == replay_allocator(rewritten, new).reserved_bytes


@pytest.mark.slow
def test_what_is_kept_and_gathered_again(tmp_path: Path, cli: Command) -> None:
    path = tmp_path / "step.json"
    write_problem(whole_step([16] * 4, 1.0, temporary_bytes=4000), path)
    out = cli.out("plan", str(path), "--rewrites", "keep", "--left-out")
    assert "gather0f kept instead of gather0b: " in out
    assert "4 gathers kept for their next use: " in out
    assert "us longer" in out.split("Scheduled again")[1]
    found = cli.json("plan", str(path), "--rewrites", "keep,regather", "--left-out")
    validator("plan").validate(found)
    assert {one["kind"] for one in found["rewrites"]} == {"keep"}
    assert found["rewrites"][0]["held_bytes"] == 64
    again = Regather("gather0f", ("backward0",)), Recompute(("cast0f",), ("again_gather0f_backward0",))
    held = whole_step([16] * 3, 1.0, again=False)
    validator("plan").validate(found | {"rewrites": records_json(records(held, apply(held, again, PRICES), again))})


@pytest.mark.slow
def test_each_rewrite_left_out(graph: str, cli: Command) -> None:
    wanted = ("--rewrites", "bucket", "--headroom", "100%", "--left-out", "2")
    out = cli.out("plan", graph, *wanted)
    assert "Scheduled again without one of them, against " in out
    assert " longer" in out.split("Scheduled again")[1]
    found = cli.json("plan", graph, *wanted)
    validator("plan").validate(found)
    assert len(found["left_out"]) == min(2, len(found["rewrites"]))


def test_explain_tells_what_was_rewritten_and_what_was_not(graph: str, cli: Command) -> None:
    wanted = ("--rewrites", "bucket", "--headroom", "100%")
    out = cli.out("explain", graph, *wanted, "--left-out", "1")
    assert "bucket_" in out.split("Without rewrites")[0]  # collectives of the rewritten graph
    assert "Tried " in out
    assert ": not taken, " in out
    assert "Scheduled again without one of them, against " in out
    found = cli.json("explain", graph, *wanted)
    validator("explain").validate(found)
    assert any(one["name"].startswith("bucket_") for one in found["most_exposed"])


@pytest.mark.parametrize("given", ["--peak", "--costs"])
def test_what_explain_refuses(graph: str, given: str, cli: Command) -> None:
    message = f"{given} explains the graph as it is, --rewrites changes it. Leave out one of the two."
    assert cli.refused("explain", graph, "--rewrites", "bucket", given) == message
    assert run("explain", graph, "--left-out") == 2


def test_an_order_of_a_graph_that_is_not_written(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("--rewrites", "bucket", "--headroom", "100%", "--out", str(tmp_path / "order.json"))
    assert run("plan", graph, *wanted) == 0
    note = "note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json"
    assert note in capsys.readouterr().err


def test_without_rewrites_nothing_changes(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", graph, "--json") == 0
    assert not {"rewrites", "not_rewritten", "tried", "step_without_rewrites_us"} & set(
        json.loads(capsys.readouterr().out)
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("--rewrites", "bucket", "--budget", "profile"), "--rewrites is ('bucket',) and --budget is 'profile'"),
        (("--left-out",), "--left-out leaves out rewrites: give --rewrites bucket, too."),
        (("--rewrites", "bucket", "--left-out", "-1"), "--left-out is -1; it is a number of rewrites, 1 or more."),
        (("--rewrites", "bucket", "--profile", "trace.json"), "--rewrites: merged collectives are in no trace"),
    ],
)
def test_what_it_refuses(graph: str, wanted: tuple[str, ...], message: str, cli: Command) -> None:
    assert message in cli.refused("plan", graph, *wanted)
