"""What is installed: all of overlap_sched with its data, and nothing else; that it runs where it is installed."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import overlap_sched
from overlap_sched.cli.plan import DEMO

ROOT = Path(__file__).parents[1]


def build(of: str, source: Path, into: Path, **environment: str) -> Path:
    """The source distribution or wheel of a tree; no network."""
    script = f"import sys, setuptools.build_meta as build; print(build.build_{of}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(into)], cwd=source, env={**os.environ, **environment}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return into / done.stdout.split()[-1]


def run_installed(wheel: Path, folder: Path, *arguments: str) -> str:
    """Install a wheel where nothing else of ours is, by name and from a folder as an index; run its command there."""
    index = ["--no-index", "--no-deps", "--find-links", str(wheel.parent), "--target", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *index, "overlap-sched"], check=True, capture_output=True
    )
    command = [sys.executable, "-P", "-m", "overlap_sched", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a source distribution unpacks to."""
    folder = tmp_path_factory.mktemp("source")
    junk = shutil.ignore_patterns(".*cache", ".venv*", ".git", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "tree", ignore=junk)
    made = build("sdist", folder / "tree", folder)
    assert made.name == f"overlap_sched-{overlap_sched.__version__}.tar.gz"
    with tarfile.open(made) as file:
        file.extractall(folder, filter="data")
    return folder / made.name.removesuffix(".tar.gz")


@pytest.mark.slow
def test_a_source_distribution_holds_what_its_tests_and_documents_need(source: Path) -> None:
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    needed = {"docs/index.md", "tests/test_wheel.py", "scripts/test.sh", "CHANGELOG.md", "docs/llama1d.png", "LICENSE"}
    assert needed | {"scripts/instances/dsv3_bw_64.json.gz", "llama_repro/__init__.py", "CITATION.cff"} <= there


@pytest.mark.slow
def test_a_wheel_is_installed_by_name_and_plans_the_demo(source: Path, tmp_path: Path) -> None:
    wheel = build("wheel", source, tmp_path)
    assert "step " in (out := run_installed(wheel, tmp_path / "there", "demo"))
    assert f"{tmp_path / 'there'}/overlap_sched/cli/shipped/demo.json.gz --html demo.html" in " ".join(out.split())
    sources = {path for path in (ROOT / "overlap_sched").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as file:
        installed = {name for name in file.namelist() if name.startswith("overlap_sched/")}
        assert installed == {str(path.relative_to(ROOT)) for path in sources}
        metadata = file.read(f"overlap_sched-{overlap_sched.__version__}.dist-info/METADATA").decode()
    assert "\n## Results\n" in metadata
    assert re.findall(r"\]\((?!https?:)", metadata) == []


@pytest.mark.slow
def test_a_script_beside_the_clone_finds_what_the_readme_installs(source: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    folder = re.search(r"^git clone \S+ (\S+) && cd \1 ", readme, re.MULTILINE)[1]  # type: ignore[index]
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL))
    names = {*re.findall(r"\boverlap_sched(?:\.\w+)+", blocks), "overlap_sched.deepspeed.register"}
    assert {"overlap_sched.enable", "overlap_sched.shard", "overlap_sched.schedule_graph"} <= names
    shutil.copytree(source, tmp_path / folder)
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(build("editable", tmp_path / folder, site)) as wheel:
        wheel.extractall(site)
    lines = [f"import site; site.addsitedir({str(site)!r})", "import overlap_sched", "print(overlap_sched.__file__)"]
    script = tmp_path / "train.py"
    script.write_text("\n".join([*lines, *sorted(names), "overlap_sched.distributed.shard"]))
    paths = os.pathsep.join([str(site), sysconfig.get_paths()["purelib"]])
    run = [sys.executable, "-S", str(script)]  # this environment may have the package, too
    done = subprocess.run(run, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).parent == tmp_path / folder / "overlap_sched"


def test_the_demo_is_one_of_the_graphs_of_the_benchmark() -> None:
    graph = ROOT / "scripts/instances/dsv3_bw_64.json.gz"
    assert DEMO.read_bytes() == graph.read_bytes()
