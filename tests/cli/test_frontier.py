"""``overlap-sched frontier`` and ``overlap-sched robust``: what they print, write and refuse."""

import json
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE
from overlap_sched.judge.validate import read_order, violation
from tests.support.command import Command, run

pytestmark = pytest.mark.usefixtures("plain_terminal")


def test_frontier_as_json(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("frontier", problem, "--json", "--memory-limit", "24MiB") == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert list(figures) == [
        "schema", "name", "memory_model", "contention", "bound_us", "floor_bytes", "original", "points", "picked",
    ]  # fmt: skip
    point = ["peak_bytes", "headroom_bytes", "step_us", "exposed_us", "gap_percent"]
    assert all(list(given) == point for given in (figures["original"], figures["picked"], *figures["points"]))
    assert [given["headroom_bytes"] >> 20 for given in figures["points"]] == [-3, 0, 5]
    assert figures["picked"] == figures["points"][1]
    assert err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            ["--memory-limit", "24MiB"],
            "Fits into 24.0 MiB: a peak of 21.0 MiB, and 18.0 MiB would do. The step takes 150.0 us: 25.00 % longer "
            "than without a limit (120.0 us at 26.0 MiB).",
        ),
        (
            ["--memory-limit", "90%"],
            "Fits into 18.9 MiB: a peak of 18.0 MiB. The step takes 190.0 us: 58.33 % longer than without a limit "
            "(120.0 us at 26.0 MiB).",
        ),
        (
            ["--memory-limit", "80GB"],
            "Fits into 74.506 GiB: a peak of 26.0 MiB, and 18.0 MiB would do. The step takes 120.0 us: more memory "
            "buys nothing.",
        ),
        (
            ["--target-step", "0.15ms"],
            "The lowest peak found for a step of at most 150.0 us: 21.0 MiB (+0.0 % against the original order). "
            "It takes 150.0 us.",
        ),
    ],
)
def test_what_a_point_costs(problem: str, asked: list[str], answer: str, cli: Command) -> None:
    out = cli.words("frontier", problem, *asked)
    assert out.endswith(answer)
    assert "picked" in out


def test_a_table_of_peaks_and_steps(problem: str, cli: Command) -> None:
    lines = [line.split() for line in cli.out("frontier", problem).splitlines()]
    assert ["18.0", "MiB", "-14.3", "%", "190.0", "us", "+0.0", "%", "80.0", "us", "58.33", "%"] in lines
    assert ["21.0", "MiB", "+0.0", "%", "190.0", "us", "+0.0", "%", "80.0", "us", "58.33", "%", "original"] in lines
    assert not any("picked" in line for line in lines)


@pytest.mark.slow
def test_the_order_of_a_point_and_a_picture(problem: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "order.json", tmp_path / "frontier.png"
    assert run("frontier", problem, "--target-step", "120us", "--out", str(out), "--plot", str(plot)) == 0
    assert violation(EXAMPLE, read_order(out, EXAMPLE)) is None
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert run("frontier", problem, "--plot", str(tmp_path / "all.svg")) == 0
    assert b"original order" in (tmp_path / "all.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--headroom", "1GiB"],
            "--headroom 1GiB: the frontier goes through all of them. Leave it out; --memory-limit picks a point.",
        ),
        (["--budget", "profile"], "--budget profile: the frontier is one of peaks. Leave it out."),
        (
            ["--allocator", "plain"],
            "--allocator plain: the frontier counts live bytes. Leave it out; `overlap-sched plan` with the headroom "
            "of a point replays an allocator.",
        ),
        (
            ["--base", "memory"],
            "--base memory: the frontier starts from the original order and from the one with the lowest peak. "
            "Leave it out.",
        ),
        (
            ["--memory-limit", "80 apples"],
            "--memory-limit is '80 apples'; write a size with a unit (80GB, 24GiB) or percent of the original peak "
            "(90%).",
        ),
        (["--target-step", "120"], "--target-step is '120'; write a time with its unit: 850us, 120ms or 1.5s."),
        (
            ["--out", "order.json"],
            "--out order.json: it writes the order of one point. Pick one: --memory-limit or --target-step.",
        ),
        (["--budgets", "1"], "budgets is 1; it is 3 or more: the lowest, the original and no limit."),
        (
            ["--plot", "frontier.bmp"],
            "frontier.bmp: its ending does not name a picture format. End it in .png, .svg or .pdf.",
        ),
        (
            ["--memory-limit", "1MiB"],
            "'example' does not fit into 1.0 MiB: no order can: some step has at least 18.0 MiB live. "
            "Recompute more, shard over more ranks, or give it more memory.",
        ),
        (
            ["--target-step", "100us"],
            "'example' cannot be done in 100.0 us: no order can be shorter than 120.0 us, whatever memory it is given. "
            "Ask for a longer step, or mend what it waits for: a faster network, less to send.",
        ),
    ],
)
def test_errors_of_frontier(problem: str, arguments: list[str], message: str, cli: Command) -> None:
    assert cli.refused("frontier", problem, *arguments) == message


def test_robust_as_json_and_of_another_order(problem: str, tmp_path: Path, cli: Command) -> None:
    order = tmp_path / "order.json"
    assert run("plan", problem, "--out", str(order)) == 0
    figures = cli.json("robust", problem, "--draws", "50", "--order", str(order))
    assert list(figures) == ["schema", "name", "sigma", "tail", "draws", "seed", "contention", "orders"]
    assert list(figures["orders"]) == ["original", str(order), "scheduled"]
    assert figures["orders"][str(order)] == figures["orders"]["scheduled"]
    scheduled = figures["orders"]["scheduled"]
    assert list(scheduled) == ["errors", "errors_and_tails"]
    assert list(scheduled["errors"]) == ["predicted_us", "mean_us", "p95_us"]
    assert scheduled["errors"]["predicted_us"] == 150.0
    assert scheduled["errors"]["mean_us"] < scheduled["errors_and_tails"]["mean_us"]


def test_robust_as_a_table(problem: str, cli: Command) -> None:
    lines = [
        line.split() for line in cli.out("robust", problem, "--sigma", "0", "--tail", "0", "--draws", "5").splitlines()
    ]
    assert ["scheduled", "150.0", "us", "150.0", "us", "+0.00", "%", "150.0", "us"] in lines
    assert lines.count(["with", "tails", "150.0", "us", "+0.00", "%", "150.0", "us"]) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory). Check the path."),
        ("[", "is not JSON. An order is a JSON list of node names."),
        ("{}", "is not a list of names. An order is a JSON list of node names."),
        ('["w", 3]', "is not a list of names. An order is a JSON list of node names."),
        ('["v"]', "'v' is not a node of problem 'example'. Was the order made for another graph?"),
        ('["w"]', "the order cannot run on problem 'example': x never runs. Make it again."),
    ],
)
def test_orders_that_are_none(problem: str, tmp_path: Path, content: str | None, message: str, cli: Command) -> None:
    order = tmp_path / "order.json"
    if content is not None:
        order.write_text(content)
    assert cli.refused("robust", problem, "--order", str(order)) == f"{order}: {message}"
