import os
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from overlap_sched.errors import OutputError
from overlap_sched.report.files import check_writable, write_file


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.touch()
    path.chmod(0o640)
    write_file(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_what_is_not_a_plain_file_is_written_to() -> None:
    write_file("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with patch("os.replace", side_effect=error), pytest.raises((OutputError, KeyboardInterrupt)):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out"
    repair = "Name a file in a folder that exists and is writable."
    with pytest.raises(OutputError) as caught:
        write_file(path, b"x")
    assert str(caught.value) == f"{path}: cannot be written (No such file or directory). {repair}"
    with pytest.raises(OutputError) as caught:
        check_writable(path)
    assert str(caught.value) == f"{path}: cannot be written (there is no folder {tmp_path}/missing). {repair}"


def test_a_folder_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot be written \(it is a folder\)"):
        check_writable(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match=r"cannot be written \(permission denied\)"):
        check_writable(tmp_path / "out")
