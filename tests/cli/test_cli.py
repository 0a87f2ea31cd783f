"""The command line, from outside where that matters (exit codes, what is imported, pipes), else in this process.

``transcripts`` have what it prints.
"""

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.judge.validate import read_order
from overlap_sched.options import Options
from overlap_sched.peak_memory.addresses import address_violation
from tests.peak_memory.test_orders import chain_with_updates
from tests.support.examples import Command, run

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "overlap_sched"]
pytestmark = pytest.mark.usefixtures("inputs")


def process(*arguments: str | Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    """A process of its own that ended."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120, **more}
    return subprocess.run(arguments, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, **streams)


def test_an_order_given_is_shown_and_none_is_searched_for(cli: Command) -> None:
    order, names = Path("order.json"), [node.name for node in EXAMPLE.nodes]
    found = cli.json("plan", "example.json", "--out", "order.json")
    given = ("example.json", "--order", "order.json")
    with patch("overlap_sched.cli.plan.schedule", side_effect=AssertionError):
        again = cli.json("plan", *given)
        cli.out("explain", *given)
        cli.out("report", *given, "--html", "page.html")
        order.write_text(json.dumps(names))
        original = cli.json("plan", *given)
        order.write_text(json.dumps(names[::-1]))
        assert "order.json" in cli.refused("plan", *given)
    assert {key for key in again if again[key] != found[key]} == {"schedule_s"}
    assert found["step_us"] < original["step_us"] == original["original_step_us"]


@pytest.mark.slow
def test_pictures_and_traces() -> None:
    pytest.importorskip("matplotlib")
    assert run("plan", "example.json", "--plot", "out.png", "--trace", "trace.json") == 0
    assert run("memory", "example.json", "--plot", "memory.svg") == 0
    assert Path("out.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in Path("memory.svg").read_text()
    assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_options_are_named_as_in_the_library() -> None:
    given = {"headroom": "1GiB", "budget": "peak", "preserve_collective_order": "all", "base": "memory", "effort": 1}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    with patch("overlap_sched.cli.plan.schedule", side_effect=KeyboardInterrupt) as called:
        assert run("plan", "example.json", "--strict", *arguments) == 130
    assert called.call_args.args[1] == Options(**given, strict=True, rewrites=())  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".problem", ".bin"])
def test_what_is_not_named_like_a_dump_is_a_problem_file(suffix: str, cli: Command) -> None:
    path = Path(f"p{suffix}")
    write_problem(EXAMPLE, path)
    if suffix == ".bin":
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert cli.json("plan", str(path))["name"] == "example"


def fail_validation(*_: object) -> str:
    return "full runs before gather"


@pytest.mark.parametrize("rewrites", [(), ("--rewrites", "bucket")])
@pytest.mark.parametrize("command", ["plan", "explain", "report"])
def test_a_fallback_is_exit_code_1_and_says_why(
    command: str, rewrites: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    page = ("--html", "page.html") if command == "report" else ()
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert run(command, "example.json", *page, *rewrites) == 1
    out, err = capsys.readouterr()
    assert "keeps the original order of 'example': full runs before gather" in err
    assert rewrites or page or "The original order was kept: full runs before gather" in out


def test_a_fallback_writes_the_original_order(cli: Command) -> None:
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert cli.json("plan", "example.json", "--out", "order.json", code=1)["fell_back"] is True
    assert read_order("order.json", EXAMPLE) == EXAMPLE.original_order


def test_strict_fails_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with patch("overlap_sched.scheduler.driver.violation", fail_validation):
        assert run("plan", "example.json", "--strict", "--out", "order.json") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    assert "full runs before gather" in err
    assert not Path("order.json").exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ZeroDivisionError("oh"), 70, ["ZeroDivisionError: oh", "this is a bug in overlap_sched: please report"]),
        (KeyboardInterrupt(), 130, ["overlap-sched: interrupted\n"]),
    ],
)
def test_bugs_and_interrupts(
    error: BaseException, code: int, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("overlap_sched.cli.plan.schedule", side_effect=error):
        assert run("plan", "example.json") == code
    err = capsys.readouterr().err
    assert all(text in err for text in said)


@pytest.mark.slow
def test_problem_files_never_import_torch_nor_matplotlib() -> None:
    script = (
        "import sys; from overlap_sched.cli.command import main\n"
        "codes = main(['plan', sys.argv[1], '--json']), main(['explain', sys.argv[1]])\n"
        "print(codes, sorted({'torch', 'matplotlib', 'overlap_sched.fx'} & set(sys.modules)))"
    )
    done = process(sys.executable, "-c", script, "example.json")
    assert done.stdout.splitlines()[-1] == "(0, 0) []", done.stderr


@pytest.mark.slow
def test_a_dump_without_torch_says_what_to_install() -> None:
    script = "import sys; sys.modules['torch'] = None; from overlap_sched.cli.command import main; sys.exit(main())"
    done = process(sys.executable, "-c", script, "plan", "layer.py")
    assert done.returncode == 2
    assert "graph dumps and calibrate need torch: pip install 'overlap_sched[torch]'" in done.stderr


@pytest.mark.slow
def test_a_reader_that_goes_away() -> None:
    read, write = os.pipe()
    os.close(read)
    done = process(*COMMAND, "explain", "example.json", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_streams_take_what_is_written_and_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):  # of a process started with ``>&- 2>&-``; of a program that has closed its own
        monkeypatch.setattr(sys, "stdout", stream)
        assert run("plan", "example.json") == 0
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        assert run("plan", "missing") == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "w") as full:
        done = process(*COMMAND, "plan", "example.json", stdout=full)
    assert (done.returncode, done.stderr) == (2, "overlap-sched: error: [Errno 28] No space left on device\n")


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_and_another_hash_seed() -> None:
    orders = []
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
        done = process(*COMMAND, "plan", "example.json", "--out", seed, env=env)
        assert done.returncode == 0
        assert done.stdout.isascii()
        orders.append(Path(seed).read_bytes())
    assert orders[0] == orders[1]


def test_figures_orders_and_addresses(cli: Command) -> None:
    files = ("--out", "order.json", "--addresses", "addresses.json", "--align", "8")
    found, problem = cli.json("memory", "chain.json", *files), chain_with_updates(6)
    assert found["peak_bytes"] == found["bound_bytes"] == found["arena_bytes"] < found["original_peak_bytes"]
    assert (found["optimal"], found["fragmentation"]) == (True, 0.0)
    written = json.loads(Path("addresses.json").read_text())
    offsets = {entry["storage"]: entry["offset"] for entry in written["storages"]}
    assert address_violation(problem, read_order("order.json", problem), offsets, 8) is None
