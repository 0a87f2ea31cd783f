"""``plan --rewrites``: the graph and the order that it writes; ``transcripts`` have what it prints and refuses."""

import json
from pathlib import Path

from overlap_sched import read_problem
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import read_order
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.transform.apply import apply
from overlap_sched.transform.plan import records, records_json
from overlap_sched.transform.rewrites import Recompute, Regather
from tests.cli.test_transcripts import validate
from tests.support.examples import Command, run
from tests.support.sharded import PRICES, whole_step
from tests.support.traces import violations


def test_json_and_the_rewritten_graph(inputs: object, cli: Command) -> None:
    wanted = ("--rewrites", "bucket,stream", "--headroom", "100%", "--cluster", "dgx-a100", "--comm-scale", "4")
    found = cli.json("plan", "graph.json", *wanted, "--save-problem", "new.json.gz", "--out", "order.json")
    validate(found)
    assert found["rewrites"]
    assert found["step_us"] < found["step_without_rewrites_us"]
    was, rewritten = read_problem("graph.json"), read_problem("new.json.gz")
    new = read_order("order.json", rewritten)
    assert abs(replay(rewritten, new).step_us - found["step_us"]) < 1e-6
    assert found["original_reserved_bytes"] == replay_allocator(was, was.original_order).reserved_bytes
    assert found["reserved_bytes"] == replay_allocator(rewritten, new).reserved_bytes


def test_what_is_kept_and_gathered_again(inputs: object, cli: Command) -> None:
    found = cli.json("plan", "gathers.json", "--rewrites", "keep,regather")
    validate(found)
    assert {one["kind"] for one in found["rewrites"]} == {"keep"}
    assert found["rewrites"][0]["held_bytes"] == 64
    again = Regather("gather0f", ("backward0",)), Recompute(("cast0f",), ("again_gather0f_backward0",))
    held = whole_step([16] * 3, 1.0, again=False)
    validate(found | {"rewrites": records_json(records(held, apply(held, again, PRICES), again))})


def test_explain_tells_of_the_rewritten_graph(inputs: object, cli: Command) -> None:
    found = cli.json("explain", "graph.json", "--rewrites", "bucket", "--headroom", "100%")
    assert any(one["name"].startswith("bucket_") for one in found["most_exposed"])


def test_in_a_trace_the_original_is_the_graph_as_it_was(inputs: object) -> None:
    wanted = ("--rewrites", "bucket", "--headroom", "100%", "--trace", "trace.json", "--save-problem", "new.json")
    assert run("plan", "graph.json", *wanted) == 0
    text = Path("trace.json").read_text()
    assert violations(text) == []
    events = [e for e in json.loads(text)["traceEvents"] if e.get("cat") == "collective" and e["ph"] == "X"]
    launched = [{e["name"] for e in events if e["pid"] == pid} for pid in (1, 2)]
    graphs = [read_problem(path) for path in ("graph.json", "new.json")]
    assert launched == [{graph.nodes[v].name for v in graph.collectives} for graph in graphs]
    assert launched[0] != launched[1]
