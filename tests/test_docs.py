"""Documents: what they say can be run runs, what they link to is there, and they use the field's words."""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.cli.command import COMMANDS, command_parser
from overlap_sched.problem import Kind
from tests.support.examples import module_at
from tests.support.inputs import DUMP
from tests.support.ranks import free_port

ROOT = Path(__file__).parents[1]
BENCHMARK, FIGURES = ROOT / "docs" / "benchmark.md", ROOT / "scripts" / "figures.py"
READERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
"""What people read; records and changes stay as they were written."""
_OTHERS = ("docs/records", "llama_repro", "scripts/instances")
STUDIES = sorted(ROOT.glob("scripts/studies/**/README.md"))
DOCUMENTS = [*READERS, ROOT / "CHANGELOG.md", *sorted(path for name in _OTHERS for path in ROOT.glob(f"{name}/*.md"))]
TUTORIALS = ("tutorial_compiler.md", "tutorial_dump.md", "tutorial_training.md")
"""Documents of which every block of Python must be marked as one that runs."""
WITHOUT_TORCH = ("concepts.md", "commands.md", "memory.md", "prices.md")

PRIVATE_WORDS = {
    r"flying|in the air": "in flight",
    r"landed|lands": "completed, completes",
    r"due(?! to)": "latest start has come",
    r"put off|puts off|putting off": "deferred",
    r"held(?! back)": "blocked, deferred, live",
    r"widen\w*|relist\w*": "shift, relabel",
    r"lives": "live ranges, is live",
    r"fluid": "processor sharing",
    r"facts": "operator traits",
    r"patience": "backoff",
    r"played|plays": "emulated",
    r"(?:is|are|what is) said|said on": "given",
    r"stands? still|standstills?": "stalls",
    r"only the data knows": "data-dependent",
    r"beats? in both": "dominated",
    r"mend(?:s|ed)?": "repair",
}
"""Words that only we used, and what the field says; see "Words" in docs/concepts.md."""

_BLOCK = re.compile(r"^```(\w+)(?: printed)?( run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_NAME = re.compile(r"(?<![\w/.])overlap_sched(?:\.[A-Za-z_]\w*)+(?![\w/])")
_LINK_TO_RECORD = re.compile(r"\((records/bench-[\d-]+\.md)\)")
_MODULE = re.compile(r"(?:python|\.venv/bin/python)(?: -s)? -m ((?:llama_repro|scripts|tests|overlap_sched)[\w.]*\w)")
_FILE = re.compile(
    r"(?<![\w/.-])((?:scripts|tests|llama_repro|overlap_sched|fx|transform|inductor|fit|cost|joint|problem)/[\w/-]+\.(?:py|sh)(?:\.gz)?)\b"
)
_COMMAND = "overlap-sched "


def named(paths: list[Path]) -> "pytest.MarkDecorator":
    """One test per document."""
    return pytest.mark.parametrize("document", paths, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(name: str) -> list[tuple[str, bool, str]]:
    """Language, whether it is marked, text."""
    return [(m[1], bool(m[2]), m[3]) for m in _BLOCK.finditer((ROOT / "docs" / name).read_text())]


def program(name: str) -> str:
    """All marked blocks of a document as one program; commands are called as functions."""
    lines = ["from overlap_sched.cli.command import main"]
    for language, marked, text in blocks(name):
        if marked and language == "python":
            lines.append(text)
        elif marked:
            assert all(line.startswith(_COMMAND) for line in text.splitlines()), f"{name}: no other commands"
            for line in text.splitlines():
                lines.append(f"assert main({shlex.split(line, comments=True)[1:]!r}) == 0")
    return "\n".join(lines)


def anchors(path: Path) -> set[str]:
    """What headings can be linked to, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def prose(path: Path) -> str:
    """The text without code, quoted output and the targets of links; lines stay where they are."""
    text = _FENCED.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", text))


@cache
def options_somewhere() -> frozenset[str]:
    """Options of the command, of the scripts, and of the few tools that documents call."""
    places = [*ROOT.glob("scripts/*"), *ROOT.glob("llama_repro/**/*.py")]
    places += [*ROOT.glob("scripts/studies/*/*.py"), ROOT / "tests/support/titan/compare.py"]
    text = "\n".join(path.read_text() for path in places if path.is_file())
    flags = {flag for name in COMMANDS for flag in command_parser(name)._option_string_actions}
    others = "--version --help --nproc-per-node --no-deps --index-url --fix --nightly --dist --durations"  # of others
    others += " --module --config --override --compile --parallelism"  # of torchtitan
    others += " --ablate --fail-if --frontier"  # gone since: older records name them
    return frozenset(re.findall(r"""["'](--[a-z][a-z0-9-]*)["']""", text)) | flags | set(others.split())


@named([*DOCUMENTS, *STUDIES])
def test_links_lead_somewhere(document: Path) -> None:
    links = [link or picture for link, picture in _LINK.findall(document.read_text())]
    for link in links:
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link}: there is no {target.relative_to(ROOT)}"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@named([*READERS, ROOT / "overlap_sched"])
def test_documents_and_code_use_the_words_of_the_field(document: Path) -> None:
    """In code in names, too; three of them have other meanings there."""
    code = [path.read_text() for path in sorted(document.rglob("*.py"))] if document.is_dir() else []
    text, letter = ("\n".join(code), "[A-Za-z]") if code else (prose(document), r"\w")
    for word, better in PRIVATE_WORDS.items():
        if not code or not word.startswith(("held", "facts", "landed")):
            found = re.search(rf"(?<!{letter})(?:{word})(?!{letter})", text, re.IGNORECASE)
            assert not found, f"{text[: found.end()].splitlines()[-1]} <- the field says: {better}"


@named([path for path in DOCUMENTS if path.name != "CHANGELOG.md"])  # it names what was there once
def test_options_that_documents_name_exist(document: Path) -> None:
    assert set(_OPTION.findall(document.read_text())) <= options_somewhere()


@pytest.mark.slow
@named(READERS)
def test_commands_in_documents_are_understood(document: Path) -> None:
    for language, _, text in (match.groups() for match in _BLOCK.finditer(document.read_text())):
        for line in text.splitlines() if language == "sh" else ():
            if line.startswith(_COMMAND):
                _, name, *arguments = shlex.split(line, comments=True)
                if not name.startswith("-"):
                    command_parser(name).parse_args(arguments)


@named(READERS)
def test_names_in_documents_exist(document: Path) -> None:
    pytest.importorskip("torch")
    for name in set(_NAME.findall(document.read_text())):
        if name.startswith("overlap_sched.titan") and importlib.util.find_spec("torchtitan") is None:
            continue
        found, path = importlib.import_module("overlap_sched"), "overlap_sched"
        for part in name.split(".")[1:]:
            path += f".{part}"
            if not hasattr(found, part):
                assert importlib.util.find_spec(path), f"{document.name}: there is no {name}"
                importlib.import_module(path)
            found = getattr(found, part)


@named([*READERS, ROOT / "llama_repro" / "README.md", *STUDIES])
def test_modules_and_files_in_documents_exist(document: Path) -> None:
    text = document.read_text()
    modules = [name.replace(".", "/") for name in _MODULE.findall(text)]
    for name in {*modules, *_FILE.findall(text)}:
        places = [ROOT / name, ROOT / f"{name}.py", ROOT / "overlap_sched" / name]
        assert any(place.exists() for place in places), f"{document.name}: there is no {name}"


def test_the_index_names_what_users_can_call() -> None:
    pytest.importorskip("torch")
    rows = cells(ROOT / "docs" / "index.md")
    for module, (names,) in ((first, rows[first][0]) for first in rows if first.startswith("`overlap_sched")):
        for name in re.findall(r"`([\w.]+)`", names):
            *package, last = f"{module.strip('`')}.{name}".split(".")
            assert hasattr(importlib.import_module(".".join(package)), last), f"there is no {module}.{name}"


def run(name: str, folder: Path, **environment: str) -> str:
    """Run a document's marked blocks in a folder; what they print."""
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / "dump.py").write_text(DUMP)
    (folder / "document.py").write_text(program(name))
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "document.py"], cwd=folder, env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_blocks_without_torch_run(name: str, tmp_path: Path) -> None:
    assert any(marked for _, marked, _ in blocks(name))
    run(name, tmp_path)


WORKFLOW = re.compile(r"^      - run: \|\n((?: {10}.*\n)+)", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(("comm_scale", "exit_code"), [(1.0, 0), (4.0, 1)])
def test_the_workflow_finds_regressions(comm_scale: float, exit_code: int, tmp_path: Path) -> None:
    """Its script runs as GitHub would run it, on problem files in the place of dumps."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    (workflow,) = (text for language, _, text in blocks("commands.md") if language == "yaml")
    (script,) = WORKFLOW.findall(workflow)
    for branch, scale in (("old", 1.0), ("new", comm_scale)):
        nodes = (v._replace(time_us=v.time_us * (scale if v.kind is Kind.COLLECTIVE else 1.0)) for v in EXAMPLE.nodes)
        (tmp_path / branch / "ci").mkdir(parents=True)
        write_problem(replace(EXAMPLE, nodes=tuple(nodes)), tmp_path / branch / "ci" / "step.json.gz")
    command = tmp_path / "overlap-sched"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m overlap_sched "$@"\n')
    command.chmod(0o755)
    script = script.replace("step.py.gz --cluster dgx-h100", "step.json.gz")
    known = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=known, capture_output=True, text=True)
    assert done.returncode == exit_code, done.stderr
    assert done.stdout.split()[-1] == ("true" if exit_code == 0 else "false")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    cache_folder = str(tmp_path / "cache")  # on a cache hit no pass is called
    assert all(marked for language, marked, _ in blocks(name) if language == "python")
    printed = run(name, tmp_path, **rank, TORCHINDUCTOR_CACHE_DIR=cache_folder)
    if name == "tutorial_training.md":
        assert [line.split()[0] for line in printed.splitlines()] == ["forward", "backward"]
        assert "left as it was" not in printed


@pytest.mark.slow
def test_the_reference_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("torch", "matplotlib", "sphinx", "furo", "myst_parser"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[torch,plot,docs]'")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("api"))
    for path in ROOT.iterdir():
        if path.name not in ("docs", "build") and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    # not with the theme of scripts/docs.sh, which takes two thirds of the time for the list of pages beside each page
    how = ["-W", "--keep-going", "-q", "-b", "html", "-D", "html_theme=basic"]
    command = [sys.executable, "-m", "sphinx", *how, "docs", "built"]
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "built" / "api" / "overlap_sched.scheduler.driver.html").read_text()
    assert "overlap_sched.scheduler.driver.schedule" in page


@named(READERS)
def test_all_that_is_shown_as_printed_has_its_command(document: Path) -> None:
    for one in module_at(FIGURES).shown(document.read_text()):
        assert one.source


@pytest.mark.nightly
@named([path for path in READERS if "```text printed" in path.read_text()])
def test_documents_show_what_is_printed_today(document: Path) -> None:
    pytest.importorskip("torch")
    assert module_at(FIGURES).check(document) == []


def cells(path: Path) -> dict[str, list[list[str]]]:
    """Rows of all tables of a document by their first cell."""
    rows: dict[str, list[list[str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("| "):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            rows.setdefault(first.strip(), []).append(others)
    return rows


def numbers(row: list[str]) -> set[str]:
    return set(re.findall(r"\d[\d,.]*\d", " ".join(row)))


def test_figures_of_the_benchmark_are_those_of_its_records() -> None:
    """All but pass times, which are in the last column."""
    cited = [BENCHMARK.parent / link for link in _LINK_TO_RECORD.findall(BENCHMARK.read_text())]
    recorded = [row for path in cited for rows in cells(path).values() for row in rows]
    shown = {first: rows for first, rows in cells(BENCHMARK).items() if re.search(r"` x[14]", first)}
    assert len(shown) == 8
    for first, rows in shown.items():
        for row in rows:
            assert any(row[:-1] == other[: len(row) - 1] for other in recorded), f"{first} is not in a record"


def test_figures_of_the_readme_are_those_of_the_benchmark() -> None:
    table = [row for rows in cells(BENCHMARK).values() for row in rows]
    rows = [row for row in cells(ROOT / "README.md").items() if "ms" in row[1][0][0]]
    assert len(rows) == 4
    for first, (row,) in rows:
        assert any(numbers(row) <= numbers(other) for other in table), f"{first}: {row}"
