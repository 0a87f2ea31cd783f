"""``overlap-sched fit``: its answers, the files that it writes, and its errors word by word."""

from pathlib import Path

import pytest

from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, read_order
from overlap_sched.problem.file import read_problem
from overlap_sched.report.units import size
from tests.report.test_page import embedded
from tests.support.examples import Command


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
