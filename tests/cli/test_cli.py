"""The command line, from outside where that matters (exit codes, what is imported, pipes), else in this process."""

import gzip
import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest.mock import patch

import pytest

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.cli.command import main
from overlap_sched.judge.validate import violation
from overlap_sched.options import Options
from overlap_sched.peak_memory.addresses import address_violation
from overlap_sched.problem import Group, Kind, Node, Problem
from tests.peak_memory.test_orders import chain_with_updates
from tests.support.examples import Command, run
from tests.support.layers import large_layers

ROOT = Path(__file__).parents[2]
KEYS = [
    "schema", "name", "nodes", "original_step_us", "step_us", "exposed_us", "bound_us", "gap_percent",
    "budget_bound_us", "gap_within_budget_percent", "original_peak_bytes",
    "peak_bytes", "headroom_bytes", "memory_model", "contention", "groups_together", "concurrent_groups",
    "unrestricted_step_us", "schedule_s", "fell_back", "pins", "memory_limit_bytes", "short_bytes", "prices",
    "original_reserved_bytes", "reserved_bytes",
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("plain_terminal")


def command(*arguments: str, **keywords: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "overlap_sched", *arguments],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, **keywords,
    )  # type: ignore[call-overload]  # fmt: skip


def test_json_has_exactly_the_documented_keys(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--json", "--headroom", "5MiB") == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert sorted(figures) == sorted(KEYS)
    assert (figures["name"], figures["nodes"], figures["original_step_us"], figures["bound_us"]) == (
        "example", 10, 190.0, 120.0,
    )  # fmt: skip
    assert figures["peak_bytes"] <= figures["original_peak_bytes"] + figures["headroom_bytes"]
    assert figures["headroom_bytes"] == 5 * 2**20
    assert figures["fell_back"] is False
    assert err == ""


def test_out_is_a_list_of_names_that_the_judge_can_read(problem: str, tmp_path: Path) -> None:
    assert run("plan", problem, "--out", str(tmp_path / "order.json")) == 0
    names = json.loads((tmp_path / "order.json").read_text())
    assert sorted(names) == sorted(node.name for node in EXAMPLE.nodes)


def test_an_order_given_is_shown_and_none_is_searched_for(problem: str, tmp_path: Path, cli: Command) -> None:
    order, names = tmp_path / "order.json", [node.name for node in EXAMPLE.nodes]
    found = json.loads(cli.out("plan", problem, "--out", str(order), "--json"))
    with patch("overlap_sched.cli.plan.schedule", side_effect=AssertionError):
        given = json.loads(cli.out("plan", problem, "--order", str(order), "--json"))
        cli.out("explain", problem, "--order", str(order))
        cli.out("report", problem, "--order", str(order), "--html", str(tmp_path / "page.html"))
        order.write_text(json.dumps(names))
        original = json.loads(cli.out("plan", problem, "--order", str(order), "--json"))
        order.write_text(json.dumps(names[::-1]))
        assert str(order) in cli.refused("plan", problem, "--order", str(order))
    assert {key for key in given if given[key] != found[key]} == {"schedule_s"}
    assert found["step_us"] < original["step_us"] == original["original_step_us"]


def test_a_memory_limit_that_is_too_small_stands_above_the_table(tmp_path: Path, cli: Command) -> None:
    path = str(tmp_path / "layers.json")
    write_problem(large_layers(8, 20), path)
    out = cli.out("plan", path, "--memory-limit", "100MiB", code=4)
    assert out.startswith("No order was found that runs in the --memory-limit of 100.0 MiB: this one needs ")
    found = cli.json("plan", path, "--memory-limit", "100MiB", code=4)
    assert (found["memory_limit_bytes"], found["short_bytes"] > 0) == (100 * 2**20, True)
    assert cli.json("plan", path, "--memory-limit", "1000GiB")["short_bytes"] == 0


@pytest.mark.slow
def test_pictures_and_traces(problem: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot, trace = tmp_path / "out.png", tmp_path / "trace.json"
    assert run("plan", problem, "--plot", str(plot), "--trace", str(trace)) == 0
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(trace.read_text())["traceEvents"]


def test_comm_scale_makes_collectives_slower(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("plan", problem, "--json", "--comm-scale", "4")
    assert json.loads(capsys.readouterr().out)["original_step_us"] == 110 + 2 * 160


def test_a_base_with_less_memory(problem: str, cli: Command) -> None:
    def planned(base: str) -> tuple[float, int, int]:
        figures = cli.json("plan", problem, "--strict", "--base", base)
        return figures["step_us"], figures["peak_bytes"] >> 20, figures["original_peak_bytes"] >> 20

    assert planned("original") == planned("memory") == (150.0, 21, 21)
    assert planned("memory-peak") == (190.0, 18, 21)
    assert "18.0 MiB" in cli.out("explain", problem, "--peak", "--base", "memory-peak").splitlines()[0]


def test_options_are_named_as_in_the_library(problem: str) -> None:
    given = {"headroom": "1GiB", "budget": "peak", "preserve_collective_order": "all", "base": "memory", "effort": 1}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    with patch("overlap_sched.cli.plan.schedule", side_effect=KeyboardInterrupt) as called:
        assert run("plan", problem, "--strict", *arguments) == 130
    assert called.call_args.args[1] == Options(**given, strict=True, rewrites=())  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".problem", ".txt", ".bin"])
def test_problem_files_are_known_by_name_or_content(suffix: str, tmp_path: Path, cli: Command) -> None:
    path = tmp_path / f"p{suffix}"
    write_problem(EXAMPLE, path)
    if suffix == ".bin":
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert cli.json("plan", str(path))["name"] == "example"


@pytest.mark.parametrize("asked", [None, "tracker"])
def test_the_memory_model_is_that_of_the_file(asked: str | None, tmp_path: Path, cli: Command) -> None:
    tracked = Problem("t", EXAMPLE.nodes, EXAMPLE.storages, EXAMPLE.groups, "tracker")
    write_problem(tracked, tmp_path / "t.json")
    assert (
        cli.json("plan", str(tmp_path / "t.json"), *(("--memory-model", asked) if asked else ()))["memory_model"]
        == "tracker"
    )


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["explain", "--help"]])
def test_help_documents_the_exit_codes(arguments: list[str], cli: Command) -> None:
    out = cli.out(*arguments)
    for code in ("0 ", "1 ", "2 ", "70 ", "130 ", "141 "):
        assert f"\n  {code}" in out


def fail_validation(*_: object) -> str:
    return "full runs before gather"


def test_a_fallback_is_exit_code_1_and_says_why(
    problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert run("plan", problem, "--json", "--out", str(tmp_path / "order.json")) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["fell_back"] is True
    assert json.loads((tmp_path / "order.json").read_text()) == [node.name for node in EXAMPLE.nodes]
    assert err == (
        "overlap-sched: warning: overlap_sched keeps the original order of 'example': full runs before gather\n"
    )


def test_a_fallback_shows_in_the_table_and_the_explanation(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert (run("plan", problem), run("explain", problem)) == (1, 1)
    assert capsys.readouterr().out.count("The original order was kept: full runs before gather") == 2


@pytest.mark.parametrize("rewrites", [(), ("--rewrites", "bucket")])
@pytest.mark.parametrize("command", ["plan", "explain", "report"])
def test_a_fallback_is_exit_code_1(command: str, rewrites: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    page = ("--html", str(tmp_path / "page.html")) if command == "report" else ()
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert run(command, problem, *page, *rewrites) == 1


def test_strict_fails_and_writes_nothing(problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert run("plan", problem, "--strict", "--out", str(tmp_path / "order.json")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("overlap-sched: error: ")
    assert "full runs before gather" in err
    assert not (tmp_path / "order.json").exists()


def test_a_graph_without_collectives_is_fine(tmp_path: Path, cli: Command) -> None:
    write_problem(Problem("alone", (Node("mm", Kind.COMPUTE, time_us=3.0),), ()), tmp_path / "alone.json")
    assert cli.json("plan", str(tmp_path / "alone.json"))["gap_percent"] == 0.0
    assert "alone: 0 collectives" in cli.out("explain", str(tmp_path / "alone.json"))


def test_a_bug_shows_its_traceback_and_asks_for_a_report(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("overlap_sched.cli.plan.schedule", side_effect=ZeroDivisionError("oh")):
        assert run("plan", problem) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in err
    assert "this is a bug in overlap_sched: please report the lines above" in err


def test_ctrl_c_is_quiet(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with patch("overlap_sched.cli.plan.schedule", side_effect=KeyboardInterrupt):
        assert run("plan", problem) == 130
    assert capsys.readouterr().err == "overlap-sched: interrupted\n"


def test_names_cannot_command_the_terminal(tmp_path: Path, cli: Command) -> None:
    nodes = (Node("\x1b[2J[red]x", Kind.COLLECTIVE, time_us=1.0, group="g"), Node("ü", Kind.WAIT, collective=0))
    write_problem(Problem("p\x07", nodes, (), {"g": Group(2, True)}), tmp_path / "p.json")
    assert run("plan", str(tmp_path / "p.json")) == 0
    out = cli.out("explain", str(tmp_path / "p.json"))
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b[2J[red]x: collective on group g of 2" in out


@pytest.mark.slow
def test_problem_files_never_import_torch_nor_matplotlib(problem: str) -> None:
    script = textwrap.dedent("""
        import sys
        from overlap_sched.cli.command import main
        codes = main(["plan", sys.argv[1], "--json"]), main(["explain", sys.argv[1]])
        print(codes, sorted({"torch", "matplotlib", "overlap_sched.fx"} & set(sys.modules)))
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, problem],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "(0, 0) []", done.stderr


@pytest.mark.slow
def test_a_dump_without_torch_says_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "dump.py"
    path.write_text("class Repro: ...\n")
    script = "import sys; sys.modules['torch'] = None; from overlap_sched.cli.command import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", path],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"overlap-sched: error: {path} is a graph dump, and reading it needs torch: "
        "pip install 'overlap_sched[torch]'\n"
    )


@pytest.mark.slow
def test_python_m_and_a_reader_that_goes_away(problem: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "overlap_sched", "explain", problem],
        stdout=write, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_closed_streams_take_what_is_written_and_nobody_is_told(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):  # of a process started with ``>&- 2>&-``; of a program that has closed its own
        monkeypatch.setattr(sys, "stdout", stream)
        assert run("plan", problem) == 0
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        assert run("plan", "missing") == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output(problem: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "overlap_sched", "plan", problem],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "overlap-sched: error: [Errno 28] No space left on device\n")


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii(problem: str) -> None:
    done = command("plan", problem)
    ascii_only = subprocess.run(
        [sys.executable, "-m", "overlap_sched", "plan", problem],
        capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == ascii_only.returncode == 0
    assert ascii_only.stdout.isascii()


@pytest.mark.slow
def test_the_same_order_under_another_hash_seed(problem: str, tmp_path: Path) -> None:
    orders = []
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-m", "overlap_sched", "plan", problem, "--out", tmp_path / seed],
            check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        )  # fmt: skip
        orders.append((tmp_path / seed).read_bytes())
    assert orders[0] == orders[1]


@pytest.fixture
def step(tmp_path: Path) -> str:
    write_problem(chain_with_updates(6), tmp_path / "step.json")
    return str(tmp_path / "step.json")


def test_figures_orders_and_addresses(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, addresses = tmp_path / "order.json", tmp_path / "addresses.json"
    assert main(["memory", step, "--json", "--out", str(out), "--addresses", str(addresses), "--align", "8"]) == 0
    problem = chain_with_updates(6)
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] == found["bound_bytes"] == found["arena_bytes"] < found["original_peak_bytes"]
    assert (found["optimal"], found["fragmentation"]) == (True, 0.0)
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    order = [ids[name] for name in json.loads(out.read_text())]
    assert violation(problem, order) is None
    written = json.loads(addresses.read_text())
    assert (written["format"], written["align_bytes"]) == ("overlap-addresses/1", 8)
    offsets = {entry["storage"]: entry["offset"] for entry in written["storages"]}
    assert address_violation(problem, order, offsets, 8) is None


def test_the_table(step: str, cli: Command) -> None:
    shown = cli.words("memory", step, "--exact", "--limit", "1KiB")
    assert "optimal: no order has a lower peak" in shown
    assert "peak 400 B 128 B -68.0 % 128 B" in shown


def test_peak_in_words(problem: str, cli: Command) -> None:
    assert "example: peak 18.0 MiB, first at dgrad, step 9 of 10" in cli.out("memory", problem, "--peak")
    assert "gathered parameters" in cli.out("explain", problem, "--peak")


def test_a_picture(problem: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["memory", problem, "--plot", str(tmp_path / "memory.svg")]) == 0
    assert "<svg" in (tmp_path / "memory.svg").read_text()
