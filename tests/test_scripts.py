"""Scripts from another folder; those that set up, in a copy of the skeleton with interpreters that only pretend."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCED = ("scripts/setup_env.sh", "scripts/find_python.sh")
SCRIPTS = (*SOURCED, "scripts/repro.sh", "scripts/test.sh", "scripts/test_torch.sh", ".ci/run")
MADE_FROM = ("setup.cfg", "setup.py", "pyproject.toml")
TOOLS = ("bash", "cat", "cksum", "cp", "dirname", "env", "grep", "mkdir", "mktemp", "rm", "tail", "tee", "touch")
# Writes down how it is called. Has torch once $BOX/torch exists. Fails where $FAIL is part of its arguments.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >> "$BOX/calls"
if [ -n "${FAIL:-}" ] && [[ "$*" == *"$FAIL"* ]]; then exit "${FAIL_WITH:-1}"; fi
case "$*" in
    "-c import sys; print(sys.prefix)") dirname "$(dirname "$0")" ;;
    "--version") echo "Python 3.11.9" ;;
    "-") cat > /dev/null; [ -e "$BOX/torch" ] && cat "$BOX/torch" ;;
    "-m venv "*) mkdir -p "${!#}/bin"; touch "${!#}/pyvenv.cfg"; cp "$0" "${!#}/bin/python" ;;
    "-m pip install -q torch=="*) echo 2.13.0 > "$BOX/torch" ;;
    "-m pytest"*) echo "==== 2 passed of ${*:2} in 1.00s ====" ;;
esac
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with the scripts in `repo`, a fake python3.11 in `bin`, and nothing else on the PATH but TOOLS."""
    for name in (*SCRIPTS, *MADE_FROM):
        target = tmp_path / "repo" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (tmp_path / "bin" / tool).symlink_to(found)
    write_python(tmp_path / "bin" / "python3.11")
    return tmp_path


def write_python(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE_PYTHON)
    path.chmod(0o755)


def run(box: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    elsewhere = box / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    return subprocess.run(
        [box / "repo" / script, *arguments],
        cwd=elsewhere,
        env={"PATH": str(box / "bin"), "BOX": str(box), "HOME": str(box), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def calls(box: Path) -> list[str]:
    """The interesting calls of fake interpreters since the last look."""
    log = box / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line for line in lines if line.startswith("-m") and line != "-m pip --version"]


@pytest.mark.parametrize("script", [*SCRIPTS, "scripts/docs.sh"])
def test_bash_parses_every_script_and_runs_all_that_are_not_sourced(script: str) -> None:
    assert subprocess.run(["bash", "-n", ROOT / script], capture_output=True).stderr == b""
    assert script in SOURCED or os.access(ROOT / script, os.X_OK)


# One process, which imports torch once. A script must put the root on the path itself, so our modules are forgotten.
HELP_OF_ALL = """
import contextlib, io, json, runpy, sys
before, found = list(sys.path), []
for script in sys.argv[1:]:
    sys.path[:], sys.argv, said, code = before, [script, "--help"], io.StringIO(), None
    for name in [name for name in sys.modules if name.split(".")[0] in ("llama_repro", "scripts", "tests")]:
        del sys.modules[name]
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    found.append([script, code, said.getvalue()[:7]])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_python_scripts_run_from_any_folder(tmp_path: Path) -> None:
    """Isolated: without PYTHONPATH, and without what is in the current folder or in that of the script."""
    scripts = [str(path) for path in sorted(ROOT.glob("scripts/*.py"))]
    done = subprocess.run(
        [sys.executable, "-I", "-c", HELP_OF_ALL, *scripts], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == [[script, 0, "usage: "] for script in scripts]


INSTALL = "-m pip install -q -e .[torch,plot,test]"


def test_a_bare_machine_gets_torch_first_then_the_package_then_the_run_and_later_only_the_run(box: Path) -> None:
    done = run(box, "scripts/repro.sh", "--config", "tiny")
    assert done.returncode == 0, done.stderr
    environment, torch = f"-m venv {box}/repo/.venv", "-m pip install -q torch==2.13.0"
    assert calls(box) == [environment, torch, INSTALL, "-m llama_repro --config tiny"]
    assert run(box, "scripts/repro.sh").returncode == 0
    assert calls(box) == ["-m llama_repro"]
    for changed in MADE_FROM:
        with open(box / "repo" / changed, "a") as file:
            file.write("\n# changed\n")
        run(box, "scripts/repro.sh")
        assert calls(box) == [INSTALL, "-m llama_repro"], changed
    assert run(box, "scripts/repro.sh", FAIL="-m llama_repro", FAIL_WITH="3").returncode == 3


def test_a_failed_install_is_tried_again(box: Path) -> None:
    failed = run(box, "scripts/repro.sh", FAIL="-e .[torch")
    assert failed.returncode == 1
    assert "FAILED: pip install -e .[torch,plot,test]" in failed.stderr
    calls(box)
    assert run(box, "scripts/repro.sh").returncode == 0
    assert calls(box) == [INSTALL, "-m llama_repro"]


def test_torch_of_the_python_found_is_seen_by_the_environment(box: Path) -> None:
    (box / "torch").write_text("2.12.1\n")
    assert "keeping torch 2.12.1" in run(box, "scripts/repro.sh").stderr
    assert calls(box)[:2] == [f"-m venv --system-site-packages {box}/repo/.venv", INSTALL]


def test_an_active_environment_with_torch_is_used_as_it_is(box: Path) -> None:
    (box / "torch").write_text("2.11.0\n")
    write_python(box / "active" / "bin" / "python")
    done = run(box, "scripts/repro.sh", VIRTUAL_ENV=str(box / "active"))
    assert f"using {box}/active/bin/python, torch 2.11.0" in done.stderr
    assert calls(box) == [INSTALL, "-m llama_repro"]
    assert not (box / "repo" / ".venv").exists()


def test_only_a_broken_environment_is_replaced(box: Path) -> None:
    folder = box / "repo" / ".venv"
    (folder / "bin").mkdir(parents=True)
    failed = run(box, "scripts/repro.sh")
    assert failed.returncode == 1
    assert ".venv exists but is not a virtual environment." in failed.stderr
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(box / "gone")
    done = run(box, "scripts/repro.sh")
    assert done.returncode == 0, done.stderr
    assert "replacing .venv, which does not run" in done.stderr


def test_style_and_types_come_first_and_fail_after_the_tests_have_run(box: Path) -> None:
    tests = "-m pytest -n 2 --dist worksteal -m not slow"
    assert run(box, "scripts/test.sh", "-m", "not slow").returncode == 0
    assert calls(box)[-4:] == ["-m ruff check .", "-m ruff format --check .", "-m mypy", tests]
    failed = run(box, "scripts/test.sh", "-m", "not slow", FAIL="-m ruff check")
    assert failed.returncode == 1
    assert calls(box)[-1] == tests
    assert "FAILED: ruff check ." in failed.stderr


TOUCH_TORCH = "tests/fx tests/dump tests/inductor tests/distributed tests/test_programs.py tests/sharding"


@pytest.mark.parametrize("lacks", ["", "numpy, sortedcontainers", "torchtitan, spmd_types"])
def test_another_torch_gets_an_environment_of_its_own_and_what_is_missing_there(box: Path, lacks: str) -> None:
    (box / "repo" / "tests" / "titan").mkdir(parents=True)
    done = run(box, "scripts/test_torch.sh", "2.15.0", "-x", FAIL=f"import {lacks}" if lacks else "")
    assert done.returncode == 0, done.stderr
    missing = "-e .[plot,test]" if "numpy" in lacks else "torchtitan==0.3.0 spmd_types torch==2.15.0"
    assert calls(box) == [
        f"-m venv {box}/repo/.venv-torch-2.15.0",
        "-m pip install -q torch==2.15.0",
        *([f"-m pip install -q {missing}"] if lacks else []),
        f"-m pytest -n 2 --dist worksteal {TOUCH_TORCH} tests/titan -x",
    ]


def test_another_torch_that_cannot_be_installed_says_so_and_leaves_nothing(box: Path) -> None:
    failed = run(box, "scripts/test_torch.sh", "2.15.0", FAIL="install -q torch==2.15.0")
    assert failed.returncode == 1
    assert "FAILED: pip install torch==2.15.0" in failed.stderr
    assert not (box / "repo" / ".venv-torch-2.15.0").exists()
    assert run(box, "scripts/test_torch.sh").returncode == 1
    nobody = run(box, "scripts/test_torch.sh", "2.15.0", FAIL="sys.version_info")
    assert "FAILED: no Python 3.11 or newer" in nobody.stderr


ALL, NEWEST = "all tests, on the torch that set-up pins", "tests that touch torch, on torch 2.15.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "code", "said"),
    [
        (None, 0, [f"{NEWEST}: passed", f"{ALL}: passed"]),
        ("-m pytest", 5, [f"{NEWEST}: FAILED (exit code 5)", f"{ALL}: FAILED (exit code 5)"]),
        ("-m pytest -n 2 --dist worksteal tests/fx", 5, [f"{ALL}: passed", f"{NEWEST}: FAILED (exit code 5)"]),
        ("install -q torch==2.15.0", 1, [f"{ALL}: passed", f"{NEWEST}: FAILED (exit code 1)"]),
    ],
)
def test_continuous_integration_runs_both_and_says_last_which_failed(
    box: Path, fail: str | None, code: int, said: list[str]
) -> None:
    done = run(box, ".ci/run", "-m", "not slow", **({"FAIL": fail, "FAIL_WITH": str(code)} if fail else {}))
    assert done.returncode == code, done.stdout
    assert re.findall(r"^\[ci\] =+ (.*)$", done.stdout, re.MULTILINE)[-2:] == said
    ran = [call for call in calls(box) if call.startswith("-m pytest")]
    on_newest = f"-m pytest -n 2 --dist worksteal {TOUCH_TORCH} -m not slow or private -m not slow"
    assert ran == ["-m pytest -n 2 --dist worksteal -m not slow", *([] if code == 1 else [on_newest])]
    assert ("[setup] FAILED: pip install torch==2.15.0" in done.stdout) is (code == 1)
