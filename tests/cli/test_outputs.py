"""Results never overwrite the input nor each other, and a file without a name is an error: before anything is read."""

import os
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from overlap_sched.errors import OutputError
from overlap_sched.report.files import check_writable, write_file
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
    assert f"{option}: the name of the file is empty" in refused([command, problem, option, ""], cli)


@pytest.mark.parametrize("link", ["itself", "dots", "symlink", "folder"])
def test_the_input_is_not_overwritten(link: str, problem: str, tmp_path: Path, cli: Command) -> None:
    before = Path(problem).read_bytes()
    folder, name = os.path.split(problem)
    target = {"itself": problem, "dots": f"{folder}/./{name}", "folder": str(tmp_path / "linked" / name)}.get(link)
    if target is None:
        target = str(tmp_path / "other")
        os.symlink(problem, target)
    if link == "folder":
        os.symlink(folder, tmp_path / "linked")
    for command, option in EACH:
        said = refused([command, problem, option, target], cli)
        assert f"{option} {target}: would overwrite the input, {problem}." in said
        assert f"{option} {problem}: would overwrite the input, " in refused([command, target, option, problem], cli)
    assert Path(problem).read_bytes() == before


@pytest.mark.parametrize(
    ("command", "read", "written"), [("plan", "--profile", "--out"), ("report", "--beside", "--html")]
)
def test_what_else_is_read_is_not_overwritten(
    command: str, read: str, written: str, problem: str, tmp_path: Path, cli: Command
) -> None:
    other = tmp_path / "other.json"
    other.write_text("old")
    said = refused([command, problem, read, str(other), written, str(other)], cli)
    assert f"{written} {other}: would overwrite {read}, {other}." in said
    assert other.read_text() == "old"


@pytest.mark.parametrize("exists", [False, True])
def test_results_do_not_overwrite_each_other(exists: bool, problem: str, tmp_path: Path, cli: Command) -> None:
    target, link = tmp_path / "result.png", tmp_path / "link.png"
    if exists:
        target.write_text("old")
    os.symlink(target, link)
    for command, one, other in PAIRS:
        for same in (f"{tmp_path}/./result.png", str(link)):
            assert "would overwrite --" in refused([command, problem, one, str(target), other, same], cli)
    assert not exists or target.read_text() == "old"


def test_what_is_no_plain_file_is_written_to_and_may_be_shared(problem: str, tmp_path: Path) -> None:
    """A pipe of its own: a fault here must not replace a device."""
    os.mkfifo(pipe := tmp_path / "pipe")
    both_ends = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    assert run("plan", problem, "--out", str(pipe), "--trace", str(pipe)) == 0
    assert os.read(both_ends, 7) == b'["w","x'
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    os.close(both_ends)


NAMES = {
    "a\0b": ("a\\x00b", "no file can have this name: it has a NUL character"),
    "a\ud800b": ("a\\ud800b", "no file can have this name: it has half of a surrogate pair"),
}
names = pytest.mark.parametrize("name", NAMES, ids=["NUL", "surrogate"])
INPUTS = [
    *[[command, "{bad}.json"] for command in ("plan", "explain", "memory")],
    ["plan", "{bad}.py"],
    ["calibrate", "--out", "{bad}.toml"],
    ["report", "{file}", "--html", "{dir}/page.html", "--beside", "{bad}.json"],
    ["plan", "{file}", "--profile", "{bad}.json"],
    ["plan", "{file}", "--rewrites", "bucket", "--cluster", "{bad}.toml"],
]


@names
@pytest.mark.parametrize("arguments", INPUTS, ids=" ".join)
def test_inputs(arguments: list[str], name: str, problem: str, tmp_path: Path, cli: Command) -> None:
    said = cli.refused(*(each.format(bad=name, file=problem, dir=tmp_path) for each in arguments))
    assert all(part in said for part in NAMES[name])


@names
@pytest.mark.parametrize(("command", "option"), [*EACH, ("fit", "--out"), ("fit", "--html")])
def test_outputs(command: str, option: str, name: str, problem: str, cli: Command) -> None:
    more = ["--memory-limit", "1GiB"] if command == "fit" else []
    target = name + {"--plot": ".png", "--html": ".html"}.get(option, ".json")
    said = cli.refused(command, problem, *more, option, target)
    assert all(part in said for part in (*NAMES[name], "cannot be written"))


def test_a_file_is_replaced_with_its_mode_and_links_are_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "out.json", tmp_path / "link"
    link.symlink_to(path)
    write_file(path, b"one")
    path.chmod(0o640)
    write_file(link, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "out.json"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with patch("os.replace", side_effect=error), pytest.raises((OutputError, KeyboardInterrupt)):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


def test_what_cannot_be_written_is_found_before_and_while_writing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file or directory"):
        write_file(tmp_path / "missing" / "out", b"x")
    for path, why in ((tmp_path / "missing" / "out", "there is no folder"), (tmp_path, "it is a folder")):
        with pytest.raises(OutputError, match=why):
            check_writable(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match=r"cannot be written \(permission denied\)"):
        check_writable(tmp_path / "out")
