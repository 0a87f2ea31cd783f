"""What is installed: all of overlap_sched with its data, and nothing else. What a wheel holds, without making one."""

from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools")

ROOT = Path(__file__).parents[1]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """Files that a build puts into the wheel, by their path in it."""
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["setup.cfg"])
    build = distribution.get_command_obj("build_py")
    build.build_lib = str(tmp_path)
    build.ensure_finalized()
    return {str(Path(file).relative_to(tmp_path)) for file in build.get_outputs(include_bytecode=False)}


def test_all_of_the_package_is_installed(installed: set[str]) -> None:
    compiled = {".c", ".h", ".pyc", ".pyd", ".so"}
    sources = [path for path in (ROOT / "overlap_sched").rglob("*") if path.is_file() and path.suffix not in compiled]
    assert installed == {str(path.relative_to(ROOT)) for path in sources}
    assert {"overlap_sched/py.typed", "overlap_sched/scheduler/pipeline.py"} <= installed


def test_nothing_else_is(installed: set[str]) -> None:
    assert {path.split("/")[0] for path in installed} == {"overlap_sched"}
