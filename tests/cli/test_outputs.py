"""Results never overwrite the input nor each other, and a file without a name is an error: before anything is read."""

import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.examples import Command, run

OUTPUTS = {
    "plan": ("--out", "--plot", "--trace", "--save-problem"),
    "explain": ("--save-problem",),
    "report": ("--html",),
    "memory": ("--out", "--plot", "--addresses", "--save-problem"),
}
EACH = [(command, option) for command, options in OUTPUTS.items() for option in options]
PAIRS = [
    (command, one, other) for command, options in OUTPUTS.items() for one in options for other in options if one < other
]


def refused(arguments: list[str], cli: Command) -> str:
    """The error, of a command that reads nothing."""
    with patch("overlap_sched.cli.input.load", side_effect=AssertionError("the input was read")):
        return cli.refused(*arguments)


@pytest.mark.parametrize(("command", "option"), EACH)
def test_a_file_without_a_name(command: str, option: str, problem: str, cli: Command) -> None:
    assert refused([command, problem, option, ""], cli) == (
        f"{option}: the name of the file is empty. Name a file, or leave {option} out."
    )


@pytest.mark.parametrize(("command", "option"), EACH)
@pytest.mark.parametrize("link", ["itself", "dots", "symlink", "hard link", "folder"])
def test_the_input_is_not_overwritten(
    command: str, option: str, link: str, problem: str, tmp_path: Path, cli: Command
) -> None:
    before = Path(problem).read_bytes()
    folder, name = os.path.split(problem)
    target = {"itself": problem, "dots": f"{folder}/./{name}", "folder": str(tmp_path / "linked" / name)}.get(link)
    if target is None:
        target = str(tmp_path / "other")
        (os.symlink if link == "symlink" else os.link)(problem, target)
    if link == "folder":
        os.symlink(folder, tmp_path / "linked")
    assert refused([command, problem, option, target], cli) == (
        f"{option} {target}: would overwrite the input, {problem}. Name another file to write to."
    )
    assert Path(problem).read_bytes() == before


def test_a_link_as_input_is_followed_too(problem: str, tmp_path: Path, cli: Command) -> None:
    (tmp_path / "link.json.gz").symlink_to(problem)
    said = refused(["plan", str(tmp_path / "link.json.gz"), "--out", problem], cli)
    assert said.startswith(f"--out {problem}: would overwrite the input, ")


@pytest.mark.parametrize(
    ("command", "read", "written"),
    [
        ("plan", "--merge", "--trace"),
        ("plan", "--profile", "--out"),
        ("report", "--beside", "--html"),
    ],
)
def test_what_else_is_read_is_not_overwritten(
    command: str, read: str, written: str, problem: str, tmp_path: Path, cli: Command
) -> None:
    other = tmp_path / "other.json"
    other.write_text("old")
    assert refused([command, problem, read, str(other), written, str(other)], cli) == (
        f"{written} {other}: would overwrite {read}, {other}. Name another file to write to."
    )
    assert other.read_text() == "old"


@pytest.mark.parametrize(("command", "one", "other"), PAIRS)
@pytest.mark.parametrize("exists", [False, True])
def test_results_do_not_overwrite_each_other(
    command: str, one: str, other: str, exists: bool, problem: str, tmp_path: Path, cli: Command
) -> None:
    target = tmp_path / "result.png"
    if exists:
        target.write_text("old")
    same = f"{tmp_path}/./result.png"
    said = refused([command, problem, one, str(target), other, same], cli)
    assert "would overwrite what --" in said
    assert said.endswith(" writes. Give each a file of its own.")
    assert not exists or target.read_text() == "old"


def test_two_links_to_a_file_that_is_not_there_yet(problem: str, tmp_path: Path, cli: Command) -> None:
    one, other = str(tmp_path / "one.json"), str(tmp_path / "other.json")
    for link in (one, other):
        os.symlink(tmp_path / "result.json", link)
    assert refused(["plan", problem, "--out", one, "--trace", other], cli) == (
        f"--trace {other}: would overwrite what --out {one} writes. Give each a file of its own."
    )


def test_what_is_no_plain_file_may_be_shared(problem: str) -> None:
    assert run("plan", problem, "--out", "/dev/null", "--trace", "/dev/null") == 0


def test_files_of_their_own_are_all_written(problem: str, tmp_path: Path) -> None:
    paths = {option: tmp_path / f"{option[2:]}.json" for option in ("--out", "--trace", "--save-problem")}
    assert run("plan", problem, *(part for option, path in paths.items() for part in (option, str(path)))) == 0
    assert all(json.loads(path.read_text()) for path in paths.values())
