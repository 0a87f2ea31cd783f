"""``fit``, ``pipeline`` and ``plan --rewrites``: figures, files and errors; ``transcripts`` have what is printed."""

import json
from pathlib import Path

import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, read_order
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.pipeline.named import one_f_one_b
from overlap_sched.problem.file import read_problem
from overlap_sched.report.units import size
from overlap_sched.transform.apply import apply
from overlap_sched.transform.plan import records, records_json
from overlap_sched.transform.rewrites import Recompute, Regather
from tests.cli.test_transcripts import validate
from tests.report.test_page import embedded
from tests.support.examples import Command, run
from tests.support.pipelines import read_schedule
from tests.support.sharded import PRICES, whole_step
from tests.support.traces import violations


def test_the_order_and_the_problem_that_are_written(inputs: object, cli: Command) -> None:
    arguments = ("--memory-limit", "130MiB", "--out", "order.json", "--save-problem", "rewritten.json")
    figures = cli.json("fit", "saved.json", *arguments)
    made = read_problem("rewritten.json")
    ran = read_order("order.json", made)
    assert peak_memory(made, ran)[0] == figures["picked"]["peak_bytes"] <= 130 * 2**20
    assert replay(made, ran).step_us == figures["picked"]["step_us"]
    assert [one["rewrite"]["kind"] for one in figures["rewrites"]] == ["recompute"]
    assert figures["rewrites"][0]["compute_us"] == 10.0
    assert figures["rewrites"][0]["bytes"] == 64 * 2**20


@pytest.mark.parametrize("question", [("--memory-limit", "130MiB"), ("--max-slowdown", "1%")])
def test_a_page(question: tuple[str, str], inputs: Path, cli: Command) -> None:
    """Its figures are those of the command, its plans those of the frontier."""
    out = inputs / "fit.html"
    told, page = cli.json("fit", "saved.json", *question, "--html", str(out)), embedded(out.read_text(encoding="utf-8"))
    before, after = page["runs"]
    for run_, name in ((before, "original"), (after, "picked")):
        assert [run_[key] for key in ("step_us", "exposed_us", "peak_bytes")] == [
            told[name][key] for key in ("step_us", "exposed_us", "peak_bytes")
        ]
    keys = ("peak_bytes", "step_us", "exposed_us")
    assert [[one[key] for key in keys] for one in page["frontier"]] == [
        [one[key] for key in keys] for one in told["points"]
    ]
    limit = told["limit_bytes"] or told["picked"]["peak_bytes"]
    assert page["budget_bytes"] == limit
    assert f"the original peak minus {size(told['original']['peak_bytes'] - limit)}" in page["remarks"][0]
    answer = "The lowest peak found: " if told["limit_bytes"] is None else "Fits into 130.0 MiB: a peak of "
    assert page["remarks"][-1].startswith(answer)
    assert page["columns"] == ["original", "scheduled", "change", "limit"]
    assert '<th scope="col">gap</th>' not in out.read_text(encoding="utf-8")
    assert len(page["rewrites"]) == told["picked"]["rewrites"] == 1
    assert page["rewrites"][0][0].endswith(" computed again: 64.0 MiB not kept, 10.0 us more compute")
    old, new = page["graphs"]
    assert [new["nodes"]["name"][v] for v in new["marked"]] == [
        name for name in new["nodes"]["name"] if name not in old["nodes"]["name"]
    ]
    assert new["marked"]


def test_a_dump_runs_in_parts(inputs: object, cli: Command) -> None:
    """Tensor-parallel products one behind the other: no order hides anything."""
    pytest.importorskip("torch")
    asked = ("layers.py", "--group", "0=8", "--no-contention", "--memory-limit", "200%")
    found = cli.json("fit", *asked)
    assert [one["rewrite"]["kind"] for one in found["rewrites"]] == ["fission"]
    assert found["picked"]["step_us"] < 0.9 * found["without"]["step_us"]
    slow = ("--comm-scale", "8")
    assert cli.json("fit", *asked, *slow)["picked"]["step_us"] > found["picked"]["step_us"]
    assert cli.json("fit", *asked, "--kinds", "recompute,offload")["rewrites"] == []


def test_a_dump_runs_in_parts_along_its_batch(inputs: object, cli: Command) -> None:
    """Only where that is asked for: the gradient is a sum of parts."""
    pytest.importorskip("torch")
    found = cli.json("fit", "wide.py", "--memory-limit", "40%", "--kinds", "batch")
    (one,) = found["rewrites"]
    assert one["rewrite"]["kind"] == "fission"
    assert one["bytes"] == found["original"]["peak_bytes"] - found["picked"]["peak_bytes"] > 0
    assert one["compute_us"] == pytest.approx(found["picked"]["step_us"] - found["original"]["step_us"])
    assert found["reserved"]["reserved_bytes"] >= found["picked"]["peak_bytes"]


def test_a_problem_file_has_no_shapes_to_cut(inputs: object, cli: Command) -> None:
    assert cli.json("fit", "saved.json", "--memory-limit", "100%", "--kinds", "fission")["rewrites"] == []


def test_forward_and_backward_are_fitted_as_one_step(inputs: object, cli: Command) -> None:
    pytest.importorskip("torch")
    found = cli.json("fit", "forward.py", "backward.py", "--memory-limit", "60%", "--kinds", "offload")
    assert found["picked"]["peak_bytes"] <= found["limit_bytes"] < 0.61 * found["original"]["peak_bytes"]
    assert {one["rewrite"]["node"] for one in found["rewrites"]} <= {f"mm_{k}" for k in range(8)}


def test_csv(inputs: object, cli: Command) -> None:
    cli.out("pipeline", "job.toml", "--csv", "out.csv", "--schedule", "1f1b")
    assert read_schedule(*Path("out.csv").read_text().splitlines()).orders == one_f_one_b(2, 4).orders


def test_graphs(inputs: object, cli: Command) -> None:
    def step_us(job: str, *options: str) -> float:
        return float(cli.json("pipeline", job, "--schedules", "1f1b", *options)["schedules"][0]["step_us"])

    ordered = ("--order-graphs",)
    assert step_us("graphs.toml") == 4 * 190.0
    assert step_us("graphs.toml", *ordered) == step_us("graphs-64MiB.toml", *ordered, "0") == 4 * 150.0
    assert step_us("graphs.toml", *ordered, "5MiB") == step_us("graphs-64MiB.toml", *ordered) == 4 * 120.0
    figures = cli.json("pipeline", "graphs.toml", "--schedules", "1f1b", *ordered, "5MiB")
    before, after = (figures["pairs"][0][name] for name in ("before", "ordered"))
    assert (before["step_us"], before["peak_bytes"] >> 20) == (240.0, 32)
    assert after["step_us"] < 240
    assert after["peak_bytes"] >> 20 <= 32 + 5


@pytest.mark.slow
def test_dumps_are_priced_for_the_cluster(dump: str, cli: Command) -> None:
    for cluster in ("dgx-h100", "dgx-a100"):
        job = Path("one.toml").read_text().replace('{ time = "1ms" }', f"{{ problem = {json.dumps(dump)} }}")
        Path("of_dump.toml").write_text(job.replace("ranks = 1", f'ranks = 1\ncluster = "{cluster}"'))
        alone = cli.json("plan", dump, "--effort", "0", "--cluster", cluster)["original_step_us"]
        found = cli.json("pipeline", "of_dump.toml", "--schedules", "1f1b")
        assert found["schedules"][0]["step_us"] == 2 * (alone + 2000.0)


def test_the_example_of_the_documents_is_what_is_printed(cli: Command, tmp_path: Path, plain_terminal: None) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    path = tmp_path / "job.toml"
    numbers = page[page.index("## By numbers") :]
    path.write_text(numbers.split("```toml\n")[1].split("```")[0])
    words = cli.words("pipeline", str(path))
    rows = [
        line for line in numbers.splitlines() if line.startswith(("| gpipe", "| 1f1b", "| inter", "| zb", "| dual"))
    ]
    assert len(rows) == 8
    for row in rows:
        assert " ".join(row.replace("|", " ").split()) in words


@pytest.mark.slow
def test_find_adds_the_shortest_schedule_that_fits(inputs: object, cli: Command) -> None:
    figures = cli.json("pipeline", "job.toml", "--schedules", "1f1b", "--find")
    first, found = figures["schedules"]
    assert (first["name"], found["name"]) == ("1f1b", "found")
    assert found["step_us"] < first["step_us"]
    assert found["lacks"] is None
    assert figures["found"]["any_cut_bound_us"] <= figures["found"]["bound_us"] <= found["step_us"]
    assert (sum(first["cut"]), sum(found["cut"]), found["recomputed"]) == (4, 4, [])


@pytest.mark.slow
def test_what_recomputes_is_said(inputs: object, cli: Command) -> None:
    assert "; recomputed: " in cli.words("pipeline", "recompute.toml", "--schedules", "gpipe", "--find")
    Path("less.toml").write_text(Path("recompute.toml").read_text().replace('"9MB"', '"3MB"'))
    told = cli.refused("pipeline", "less.toml", "--schedules", "gpipe", "--find")
    assert told.startswith("four: no schedule was found that fits, recomputed or not. With gpipe, the nearest, ")


def test_what_if(inputs: object, cli: Command) -> None:
    """One row per combination, the job as it is included."""
    given = ("pipeline", "links.toml", "--schedules", "1f1b,zbv")
    varied = cli.json(*given, "--vary", "micro_batches=4,8", "--vary", "links=0.5,1")["varied"]
    assert [one["changed"] for one in varied] == [
        {"micro_batches": count, "links": factor} for count in (4, 8) for factor in (0.5, 1.0)
    ]
    slow, fast, *more = (one["schedule"]["step_us"] for one in varied)
    assert fast < slow < min(more)
    assert fast == min(one["step_us"] for one in cli.json(*given)["schedules"] if one["lacks"] is None)


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
