"""``plan --trace``, with real steps and with rewrites."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched import read_problem
from tests.support.examples import Command, run
from tests.support.traces import TRACES, violations

RANKS = [str(path) for path in TRACES]


def events() -> list[dict[str, Any]]:
    text = Path("trace.json").read_text()
    assert violations(text) == []
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("merge", [["--merge", *RANKS], ["--merge", RANKS[0], "--merge", RANKS[1]]])
def test_a_real_step_stands_under_the_simulated_ones(merge: list[str], inputs: object) -> None:
    assert run("plan", "example.json", "--trace", "trace.json", *merge) == 0
    names = [e["args"]["name"] for e in events() if e["name"] == "process_name"]
    assert names[:2] == ["original (simulated)", "scheduled (simulated)"]
    assert [name.partition(":")[0] for name in names[2:]] == ["rank 0", "rank 1"]
    assert all(name.endswith("(measured, step 1)") for name in names[2:])


def test_a_trace_that_cannot_be_merged_ends_the_command_early(inputs: object, cli: Command) -> None:
    given = ("plan", "example.json", "--trace", "trace.json", "--merge")
    with patch("overlap_sched.cli.input.load", side_effect=AssertionError("the input was read")):
        assert "example.json: has no list of traceEvents" in cli.refused(*given, "example.json")
        assert "more than 1,000 bytes" in cli.refused(*given, RANKS[0], "--max-input-bytes", "1000")
    assert not Path("trace.json").exists()


def test_with_rewrites_the_original_is_the_graph_as_it_was(inputs: object) -> None:
    wanted = ("--rewrites", "bucket", "--headroom", "100%", "--trace", "trace.json", "--save-problem", "new.json")
    assert run("plan", "graph.json", *wanted) == 0
    launched = [
        {e["name"] for e in events() if e["ph"] == "X" and e["pid"] == pid and e["cat"] == "collective"}
        for pid in (1, 2)
    ]
    graphs = [read_problem(path) for path in ("graph.json", "new.json")]
    assert launched == [{graph.nodes[v].name for v in graph.collectives} for graph in graphs]
    assert launched[0] != launched[1]
