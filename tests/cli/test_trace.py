"""``plan --trace``, with real steps and with rewrites."""

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched import read_problem, write_problem
from tests.support.examples import Command, run
from tests.support.sharded import sharded
from tests.support.traces import TRACES, violations

RANKS = [str(path) for path in TRACES]
pytestmark = pytest.mark.usefixtures("plain_terminal")


def read(path: Path) -> dict[str, Any]:
    text = path.read_text()
    assert violations(text) == []
    found: dict[str, Any] = json.loads(text)
    return found


def processes(trace: dict[str, Any]) -> list[str]:
    return [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]


@pytest.mark.slow
@pytest.mark.parametrize("merge", [["--merge", *RANKS], ["--merge", RANKS[0], "--merge", RANKS[1]]])
def test_a_real_step_stands_under_the_simulated_ones(problem: str, merge: list[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert run("plan", problem, "--trace", str(path), *merge) == 0
    trace = read(path)
    pids = {
        Path(rank).name: e["pid"]
        for rank in RANKS
        for e in json.loads(gzip.decompress(Path(rank).read_bytes()))["traceEvents"][:1]
    }
    assert processes(trace) == [
        "original (simulated)",
        "scheduled (simulated)",
        f"rank 0: process {pids['rank0.json.gz']} (measured, step 1)",
        f"rank 1: process {pids['rank1.json.gz']} (measured, step 1)",
    ]
    assert [(one["trace"], one["rank"], one["step"]) for one in trace["otherData"]["measured"]] == [
        ("rank0.json.gz", 0, 1),
        ("rank1.json.gz", 1, 1),
    ]


def test_a_trace_that_cannot_be_merged_ends_the_command_early(problem: str, tmp_path: Path, cli: Command) -> None:
    path = tmp_path / "trace.json"
    with patch("overlap_sched.cli.input.load", side_effect=AssertionError("the input was read")):
        assert cli.refused("plan", problem, "--trace", str(path), "--merge", problem) == (
            f"{problem}: has no list of traceEvents: it is not a trace of torch.profiler. "
            "Write one with profile.export_chrome_trace(PATH)."
        )
        assert "rank0.json.gz: has more than 1,000 bytes once decompressed" in cli.refused(
            "plan", problem, "--trace", str(path), "--merge", RANKS[0], "--max-input-bytes", "1000"
        )
    assert not path.exists()


def test_with_rewrites_the_original_is_the_graph_as_it_was(tmp_path: Path) -> None:
    problem, path, out = tmp_path / "graph.json", tmp_path / "trace.json", tmp_path / "rewritten.json"
    write_problem(sharded([[2, 2, 2]] * 4, compute_us=4.0), problem)
    wanted = ("--rewrites", "bucket", "--headroom", "100%", "--trace", str(path), "--save-problem", str(out))
    assert run("plan", str(problem), *wanted) == 0
    events = read(path)["traceEvents"]
    names = [
        {e["name"] for e in events if e["ph"] == "X" and e["pid"] == pid and e["cat"] == "collective"} for pid in (1, 2)
    ]
    for found, of in zip(names, (problem, out), strict=True):
        graph = read_problem(of)
        assert found == {graph.nodes[v].name for v in graph.collectives}
    assert names[0] != names[1]
