"""Numbers that nobody means, in every option and every field: one line and exit code 2, never a traceback."""

import json
import re
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE
from overlap_sched.problem.file import problem_bytes
from tests.support.examples import Command, run

pytestmark = pytest.mark.usefixtures("plain_terminal")

HUGE = "9" * 400
NUMBERS = ["nan", "inf", "-inf", "1e400", "1e308", "5e-324", "-0", "-0.0", "0", "-1", HUGE, "9" * 5000, "1e-400", ""]
FINITE = ["1e308", "5e-324", "-0", "-0.0"]
FIELD_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e400", "-1", HUGE, "9" * 5000, *FINITE]
OPTIONS = {
    "plan": ["--headroom", "--comm-scale", "--effort", "--slowdown", "--max-nodes", "--max-input-bytes"],
    "sweep": ["--memory-limit"],
    "explain": ["--top"],
    "memory": ["--effort", "--align", "--limit", "--time-limit"],
}
ALSO = {"--align": ["--addresses", "/dev/null"], "--limit": ["--exact"], "--time-limit": ["--exact"]}


def fine_or_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    code = run(*arguments)
    err = capsys.readouterr().err
    assert code in (0, 2), (arguments, err)
    assert "Traceback" not in err
    assert max(map(len, err.splitlines()), default=0) < 5500, "a line that nobody can read"
    return code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, options in OPTIONS.items() for option in options]
)
def test_options(command: str, option: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    also = ["--vary", "headroom=0"] if command == "sweep" else ALSO.get(option, [])
    if option in ("--limit", "--time-limit"):
        pytest.importorskip("ortools")
    for number in NUMBERS:
        fine_or_told([command, problem, f"{option}={number}", "--json", *also], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["", "%", "TiB", "us", "s"])
def test_sizes_and_times_with_units(unit: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number in NUMBERS:
        fine_or_told(["plan", problem, f"--headroom={number}{unit}"], capsys)
        for name in ("headroom", "memory_limit", "noise", "compute"):
            fine_or_told(["sweep", problem, "--vary", f"{name}={number}{unit}"], capsys)


@pytest.mark.slow
def test_fields_of_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each number of a problem file, once per field and kind of node."""
    data = json.loads(problem_bytes(EXAMPLE)) | {
        "format": "overlap-problem/2",
        "contention": {"slowdown": {"all_gather": 1.5}, "links": {"fsdp": "rail"}},
    }
    data["nodes"] = [{"us": 0, "flops": 1, **node} for node in data["nodes"]]
    text, path, seen = json.dumps(data), tmp_path / "p.json", set()
    for found in re.finditer(r"\d+(\.\d+)?(?=[,\]}])", text):
        before, after = text[: found.start()], text[found.end() :]
        field = (re.findall(r'"(\w+)":', before)[-1], (re.findall(r'"kind": "(\w+)"', before) or [""])[-1])
        if field in seen:
            continue
        seen.add(field)
        for number in FIELD_NUMBERS:
            path.write_text(f"{before}{number}{after}")
            code = fine_or_told(["plan", str(path), "--effort=1", "--json"], capsys)
            assert code == 2 or number in FINITE, (field, number)
            if code == 0:
                fine_or_told(["explain", str(path), "--effort=1"], capsys)
                fine_or_told(["memory", str(path), "--effort=0"], capsys)
    assert {"us", "flops", "bytes", "collective", "size", "all_gather"} <= {key for key, _ in seen}


def test_the_version(cli: Command) -> None:
    out = cli.out("--version")
    assert out.startswith("overlap-sched ")
    assert "(Python 3." in out
