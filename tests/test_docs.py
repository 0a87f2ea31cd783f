"""Documents: what they say can be run runs, and what they link to is there."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_dump import DUMP

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "docs/", "docs/records/", "llama_repro/", "scripts/instances/")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md"))
HOW_TO = ("graph_compilers.md", "report_a_graph.md", "torchrun.md")
"""Documents of which every block of Python must be marked as one that runs."""
_BLOCK = re.compile(r"^```(\w+)( run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_COMMAND = "overlap-sched "


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
                lines.append(f"assert main({shlex.split(line)[1:]!r}) == 0")
    return "\n".join(lines)


def anchors(path: Path) -> set[str]:
    """What headings can be linked to, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = [link or picture for link, picture in _LINK.findall(document.read_text())]
    for link in links:
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{link}: there is no {target.relative_to(ROOT)}"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("name", HOW_TO)
def test_every_block_of_python_is_one_that_runs(name: str) -> None:
    found = [marked for language, marked, _ in blocks(name) if language == "python"]
    assert found
    assert all(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOW_TO)
def test_blocks_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "dump.py").write_text(DUMP)
    (tmp_path / "document.py").write_text(program(name))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, **rank, "PYTHONPATH": str(ROOT)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")  # behind a hit no pass is called
    done = subprocess.run(
        [sys.executable, "document.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if name == "torchrun.md":
        assert [line.split()[0] for line in done.stdout.splitlines()] == ["forward", "backward"]
        assert "left as it was" not in done.stdout
