"""File names that no system takes: one line and exit code 2, whatever the file is for."""

from pathlib import Path

import pytest

from overlap_sched import EXAMPLE, load_dump
from overlap_sched.cost.cluster import read_cluster, write_cluster
from overlap_sched.errors import CostError, DumpError, OutputError, ProblemError
from overlap_sched.problem.file import read_problem, write_problem
from overlap_sched.report.files import make_folder, write_file
from tests.cli.test_outputs import EACH
from tests.support.examples import Command

NAMES = {
    "a\0b": ("a\\x00b", "no file can have this name: it has a NUL character"),
    "a\ud800b": ("a\\ud800b", "no file can have this name: it has half of a surrogate pair"),
}
names = pytest.mark.parametrize("name", NAMES, ids=["NUL", "surrogate"])
INPUTS = [
    *[[command, "{bad}.json"] for command in ("plan", "explain", "memory")],
    ["fit", "{bad}.json", "--memory-limit", "1GiB"],
    ["plan", "{bad}.py"],
    ["plan", "{bad}"],
    ["report", "{bad}.json", "--html", "{dir}/page.html"],
    ["report", "{file}", "--html", "{dir}/page.html", "--beside", "{bad}.json"],
    ["plan", "{file}", "--profile", "{bad}.json"],
    ["plan", "{file}", "--trace", "{dir}/trace.json", "--merge", "{bad}.json"],
    ["plan", "{file}", "--rewrites", "bucket", "--cluster", "{bad}.toml"],
]


def refused(arguments: list[str], name: str, cli: Command) -> str:
    said = cli.refused(*arguments)
    shown, reason = NAMES[name]
    assert shown in said
    assert reason in said
    return said


@names
@pytest.mark.parametrize("arguments", INPUTS, ids=" ".join)
def test_inputs(arguments: list[str], name: str, problem: str, tmp_path: Path, cli: Command) -> None:
    (tmp_path / "order.json").write_text("[]")
    refused([a.format(bad=name, file=problem, dir=tmp_path) for a in arguments], name, cli)


@names
@pytest.mark.parametrize(
    ("command", "option"),
    [*EACH, ("fit", "--out"), ("fit", "--html"), ("plan", "--memory-snapshot")],
)
def test_outputs(command: str, option: str, name: str, problem: str, cli: Command) -> None:
    more = ["--memory-limit", "1GiB"] if command == "fit" else []
    target = name + {"--plot": ".png", "--html": ".html"}.get(option, ".json")
    shown, reason = NAMES[name]
    assert refused([command, problem, *more, option, target], name, cli) == (
        f"{target.replace(name, shown)}: cannot be written ({reason}). "
        "Name a file in a folder that exists and is writable."
    )


@names
def test_input_and_output_alike(name: str, cli: Command) -> None:
    refused(["plan", f"{name}.json", "--out", f"{name}.json"], name, cli)
    refused(["calibrate", "--out", f"{name}.toml"], name, cli)


@names
def test_in_python(name: str) -> None:
    reason = NAMES[name][1]
    with pytest.raises(ProblemError, match=reason):
        read_problem(name)
    with pytest.raises(DumpError, match=reason):
        load_dump(name)
    with pytest.raises(CostError, match=reason):
        read_cluster(name)
    for write in (lambda: write_problem(EXAMPLE, name), lambda: write_cluster(read_cluster("dgx-h100"), name)):
        with pytest.raises(OSError, match=reason):
            write()
    for out in (lambda: write_file(name, b""), lambda: make_folder(name)):
        with pytest.raises(OutputError, match=reason):
            out()
