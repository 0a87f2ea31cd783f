"""``overlap-sched fit``: its answers, the files that it writes, and its errors word by word."""

import json
from pathlib import Path

import pytest

from overlap_sched.fit.answer import Faster, Fit, FitPoint, Held
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.problem.file import read_problem, write_problem
from overlap_sched.report.answers import as_json, fit_answer
from overlap_sched.report.units import size
from tests.fit.test_fit import saved
from tests.fit.test_in_parts import holes
from tests.report.test_page import embedded
from tests.support.examples import Command, run


@pytest.fixture
def problem_file(tmp_path: Path) -> str:
    path = tmp_path / "saved.json"
    write_problem(saved(), path)
    return str(path)


def test_the_order_and_the_problem_that_are_written(problem_file: str, tmp_path: Path, cli: Command) -> None:
    order, rewritten = tmp_path / "order.json", tmp_path / "rewritten.json"
    arguments = ("--memory-limit", "130MiB", "--out", str(order), "--save-problem", str(rewritten))
    figures = cli.json("fit", problem_file, *arguments)
    made = read_problem(rewritten)
    ids = {node.name: v for v, node in enumerate(made.nodes)}
    ran = [ids[name] for name in json.loads(order.read_text())]
    assert peak_memory(made, ran)[0] == figures["picked"]["peak_bytes"] <= 130 * 2**20
    assert replay(made, ran).step_us == figures["picked"]["step_us"]
    assert [one["rewrite"]["kind"] for one in figures["rewrites"]] == ["recompute"]
    assert figures["rewrites"][0]["compute_us"] == 10.0
    assert figures["rewrites"][0]["bytes"] == 64 * 2**20


def test_what_people_read(problem_file: str, cli: Command) -> None:
    shown = cli.words("fit", problem_file, "--memory-limit", "130MiB", "--host-memory", "0")
    assert "recompute aten.gelu 1 64.0 MiB 10.0 us 0.0 us 160.0 us" in shown
    assert shown.endswith(
        "Fits into 130.0 MiB: a peak of 106.0 MiB. The step takes 2.22 ms, +0.45 % against the best order without "
        "rewrites (2.21 ms at 145.0 MiB). Without a limit torch's allocator reserves 106.0 MiB."
    )
    shown = cli.words("fit", problem_file, "--max-slowdown", "1%", "--host-memory", "0")
    assert "The lowest peak found: 106.0 MiB. The step takes 2.22 ms, +0.45 % against" in shown


@pytest.mark.parametrize("question", [("--memory-limit", "130MiB"), ("--max-slowdown", "1%")])
def test_a_page(question: tuple[str, str], problem_file: str, tmp_path: Path, cli: Command) -> None:
    """Its figures are those of the command, its plans those of the frontier."""
    out = tmp_path / "fit.html"
    told, page = cli.json("fit", problem_file, *question, "--html", str(out)), embedded(out.read_text(encoding="utf-8"))
    before, after = page["runs"]
    for run_, name in ((before, "original"), (after, "picked")):
        assert [run_[key] for key in ("step_us", "exposed_us", "peak_bytes")] == [
            told[name][key] for key in ("step_us", "exposed_us", "peak_bytes")
        ]
    keys = ("peak_bytes", "step_us", "exposed_us")
    assert [[one[key] for key in keys] for one in page["frontier"]["points"]] == [
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


def test_where_live_bytes_alone_fit_that_is_said_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "holes.json")
    write_problem(holes(), path)
    assert run("fit", path, "--memory-limit", "202MiB", "--kinds", "") == 4
    answer = " ".join(capsys.readouterr().out.split()).partition("Only live bytes fit")[2]
    assert answer.startswith(
        " into 202.0 MiB: a peak of 202.0 MiB, for which torch's allocator needs a device of 302.0 MiB, 100.0 MiB "
        "more. No plan was found that fits; expandable segments (PYTORCH_ALLOC_CONF) may need less. The step takes "
        "43.0 us"
    )
    assert run("fit", path, "--memory-limit", "202MiB", "--kinds", "", "--json") == 4
    figures = json.loads(capsys.readouterr().out)
    assert (figures["fits"], figures["live_bytes_fit"]) == (False, True)


def test_an_order_without_its_graph_is_noted(
    problem_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", problem_file, "--memory-limit", "130MiB", "--out", str(tmp_path / "order.json")) == 0
    assert (
        "overlap-sched: note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json"
        in capsys.readouterr().err
    )


def test_another_memory_model(tmp_path: Path, cli: Command) -> None:
    path = tmp_path / "tracker.json"
    write_problem(Problem("t", EXAMPLE.nodes, EXAMPLE.storages, EXAMPLE.groups, "tracker"), path)
    assert "problem 't' is in the 'tracker' memory model: rewrites want 'runtime'." in cli.refused(
        "fit", str(path), "--memory-limit", "1MiB"
    )


LAYERS = """\
import torch
class Repro(torch.nn.Module):
    def forward(self, x_1, w_1):
        mm = torch.ops.aten.mm.default(x_1, w_1)
        sum_1 = torch.ops._c10d_functional.all_reduce.default(mm, 'sum', '0')
        wait_1 = torch.ops._c10d_functional.wait_tensor.default(sum_1)
        mm_1 = torch.ops.aten.mm.default(wait_1, w_1)
        sum_2 = torch.ops._c10d_functional.all_reduce.default(mm_1, 'sum', '0')
        wait_2 = torch.ops._c10d_functional.wait_tensor.default(sum_2)
        mm_2 = torch.ops.aten.mm.default(wait_2, w_1)
        sum_3 = torch.ops._c10d_functional.all_reduce.default(mm_2, 'sum', '0')
        wait_3 = torch.ops._c10d_functional.wait_tensor.default(sum_3)
        mm_3 = torch.ops.aten.mm.default(wait_3, w_1)
        return (mm_3,)

def load_args(reader):
    buf0 = reader.storage(None, 268435456, device=device(type='cuda', index=0))
    reader.tensor(buf0, (16384, 8192), dtype=torch.bfloat16, is_leaf=True)  # x_1
    buf1 = reader.storage(None, 134217728, device=device(type='cuda', index=0))
    reader.tensor(buf1, (8192, 8192), dtype=torch.bfloat16, is_leaf=True)  # w_1
load_args._version = 0
mod = Repro()
"""
"""Tensor-parallel products one behind the other: no order hides anything."""


def test_a_dump_runs_in_parts(tmp_path: Path, cli: Command) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "layers.py"
    path.write_text(LAYERS)
    asked = (str(path), "--group", "0=8", "--no-contention", "--memory-limit", "200%")
    found = cli.json("fit", *asked)
    assert [one["rewrite"]["kind"] for one in found["rewrites"]] == ["fission"]
    assert found["picked"]["step_us"] < 0.9 * found["without"]["step_us"]
    slow = ("--comm-scale", "8")
    assert cli.json("fit", *asked, *slow)["picked"]["step_us"] > found["picked"]["step_us"]
    assert cli.json("fit", *asked, "--kinds", "recompute,offload")["rewrites"] == []


WIDE = """\
import torch
class Repro(torch.nn.Module):
    def forward(self, x_1, w_1, v_1):
        mm = torch.ops.aten.mm.default(x_1, w_1)
        relu = torch.ops.aten.relu.default(mm)
        mm_1 = torch.ops.aten.mm.default(relu, v_1)
        t = torch.ops.aten.t.default(relu)
        mm_2 = torch.ops.aten.mm.default(t, mm_1)
        return (mm_1, mm_2)

def load_args(reader):
    buf0 = reader.storage(None, 33554432, device=device(type='cuda', index=0))
    reader.tensor(buf0, (65536, 256), dtype=torch.bfloat16, is_leaf=True)  # x_1
    buf1 = reader.storage(None, 4194304, device=device(type='cuda', index=0))
    reader.tensor(buf1, (256, 8192), dtype=torch.bfloat16, is_leaf=True)  # w_1
    buf2 = reader.storage(None, 4194304, device=device(type='cuda', index=0))
    reader.tensor(buf2, (8192, 256), dtype=torch.bfloat16, is_leaf=True)  # v_1
load_args._version = 0
mod = Repro()
"""
"""A wide value between two products, and a gradient that is a sum over the batch."""


def test_a_dump_runs_in_parts_along_its_batch(tmp_path: Path, cli: Command) -> None:
    """Only where that is asked for: the gradient is a sum of parts. The table says what it saves, and what it costs."""
    pytest.importorskip("torch")
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    asked = (str(path), "--memory-limit", "40%", "--kinds")
    assert run("fit", *asked, "fission") == 2
    found = cli.json("fit", *asked, "batch")
    (one,) = found["rewrites"]
    assert one["rewrite"]["kind"] == "fission"
    assert one["bytes"] == found["original"]["peak_bytes"] - found["picked"]["peak_bytes"] > 0
    assert one["compute_us"] == pytest.approx(found["picked"]["step_us"] - found["original"]["step_us"])
    assert found["reserved"]["reserved_bytes"] >= found["picked"]["peak_bytes"]
    shown = cli.words("fit", *asked, "batch")
    assert f"{len(one['rewrite']['nodes'])} nodes in {one['rewrite']['parts']} parts 1 " in shown


def test_a_problem_file_has_no_shapes_to_cut(problem_file: str, cli: Command) -> None:
    assert cli.json("fit", problem_file, "--memory-limit", "100%", "--kinds", "fission")["rewrites"] == []


def half(name: str, inputs: list[str], lines: list[str], results: str) -> str:
    """A dump; each input is 256 MiB, but the weight, which is half as large."""
    arguments, body = ", ".join(inputs), "\n        ".join(lines)
    rows = {each: 8192 if each == "primals_2" else 16384 for each in inputs}
    read = "\n".join(
        f"    buf{k} = reader.storage(None, {2 * 8192 * rows[each]}, device=device(type='cuda', index=0))\n"
        f"    reader.tensor(buf{k}, ({rows[each]}, 8192), dtype=torch.bfloat16, is_leaf=True)  # {each}"
        for k, each in enumerate(inputs)
    )
    return (
        f"import torch\nclass Repro(torch.nn.Module):\n    def forward(self, {arguments}):\n        {body}\n"
        f"        return ({results})\n\ndef load_args(reader):\n{read}\nload_args._version = 0\nmod = Repro()\n"
    )


def halves(layers: int) -> tuple[str, str]:
    """Products and what is saved of each for backward, as torch dumps them."""
    value, gradient, forward, backward, saved = "primals_1", "tangents_1", [], [], []
    for k in range(layers):
        forward += [f"mm_{k} = torch.ops.aten.mm.default({value}, primals_2)"]
        forward += [f"gelu_{k} = torch.ops.aten.gelu.default(mm_{k})"]
        saved, value = [*saved, f"mm_{k}"], f"gelu_{k}"
    for k in reversed(range(layers)):
        backward += [f"gelu_{k} = torch.ops.aten.gelu_backward.default({gradient}, mm_{k})"]
        backward += [f"product_{k} = torch.ops.aten.mm.default(gelu_{k}, primals_2)"]
        gradient = f"product_{k}"
    kept = ["primals_2", *saved]
    return (
        half("forward", ["primals_1", "primals_2"], forward, ", ".join([value, *kept])),
        half("backward", [*kept, "tangents_1"], backward, f"{gradient}, None"),
    )


def test_forward_and_backward_are_fitted_as_one_step(tmp_path: Path, cli: Command) -> None:
    pytest.importorskip("torch")
    paths = [str(tmp_path / name) for name in ("forward.py", "backward.py")]
    for path, text in zip(paths, halves(8), strict=True):
        Path(path).write_text(text)
    for path, cause in zip(
        paths,
        (
            "This is a forward graph alone: activations that it saves are its results, and live to its end. ",
            "This is a backward graph alone: activations that forward has saved are its inputs, there from the start. ",
        ),
        strict=True,
    ):
        assert cli.refused("fit", path, "--memory-limit", "1GiB").endswith(
            f"{cause}Give the dumps of both graphs (fit FORWARD.py BACKWARD.py), or let the job itself choose what is "
            "saved: enable(memory_limit=...)."
        )
    found = cli.json("fit", *paths, "--memory-limit", "60%", "--kinds", "offload")
    assert found["picked"]["peak_bytes"] <= found["limit_bytes"] < 0.61 * found["original"]["peak_bytes"]
    assert {one["rewrite"]["node"] for one in found["rewrites"]} <= {f"mm_{k}" for k in range(8)}
    assert "Give the forward graph first." in cli.refused("fit", *paths[::-1], "--memory-limit", "60%")
    problem = str(tmp_path / "problem.json")
    write_problem(saved(), problem)
    assert cli.refused("fit", problem, paths[1], "--memory-limit", "60%") == (
        f"{problem} is a problem file: only dumps are joined. Give one problem file, or the dumps of a forward graph "
        "and of its backward graph."
    )


def test_a_faster_plan_that_is_passed_over_is_named() -> None:
    point = FitPoint((), EXAMPLE, EXAMPLE.original_order, 2.0, 0.0, 5)
    found = Fit(point, point, point, 10, None, (point,), 1, held=Held(7, 1, Faster(1.0, 3)))
    reserved = json.loads(as_json(fit_answer(found)))["reserved"]
    assert reserved == {"reserved_bytes": 7, "over_bytes": 1, "faster": {"step_us": 1.0, "lacks_bytes": 3}}
