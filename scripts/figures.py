#!/usr/bin/env python3
"""Run again what documents show, and say where it is printed differently today.

A block ```` ```text printed ```` shows what the commands in front of it print: those of the nearest block of shell or
Python, or the nearest `overlap-sched ...` in a paragraph. It may leave out whole paragraphs. Neither what a clock says
("Scheduled in 0.77 s") nor the wrapping of lines is compared::

    python scripts/figures.py                      # all documents; the exit code is 1 if any differs
    python scripts/figures.py docs/gallery.md
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # works where it is not installed, too
COMMAND = "overlap-sched "
PIECE = re.compile(
    r"^```(?P<kind>sh|python run|text printed)(?: run)?\n(?P<block>.*?)^```$|`(?P<inline>overlap-sched [^`]+)`",
    re.MULTILINE | re.DOTALL,
)
CLOCK = re.compile(r"(?<=in )\d[\d,.]* s\b")


class Shown(NamedTuple):
    """What a document shows, and what prints it.

    Attributes:
        line: Where it stands in the document.
        kind: ``"sh"`` or ``"python"``.
        source: Commands, one a line, or a program.
        text: What is shown.
    """

    line: int
    kind: str
    source: str
    text: str


def shown(text: str) -> Iterator[Shown]:
    """All that a document shows as printed.

    Raises:
        ValueError: Nothing in front of a block prints it.
    """
    kind = source = ""
    program: list[str] = []
    for piece in PIECE.finditer(text):
        line = text[: piece.start()].count("\n") + 1
        if piece["kind"] == "text printed":
            if not source:
                raise ValueError(f"line {line}: no command in front of this block prints it.")
            yield Shown(line, kind, source, piece["block"])
        elif piece["kind"] == "python run":
            program.append(piece["block"])
            kind, source = "python", "\n".join(program)
        else:
            kind, source = "sh", piece["block"] or " ".join(piece["inline"].split())


def printed(one: Shown, folder: Path) -> str:
    """What its commands print now, in a folder that has the repository's files.

    Raises:
        subprocess.CalledProcessError: One of them fails.
    """
    known = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    if one.kind == "python":
        calls = [[sys.executable, "-c", one.source]]
    else:
        lines = [line for line in one.source.splitlines() if line.startswith(COMMAND)]
        calls = [[sys.executable, "-m", "overlap_sched", *shlex.split(line, comments=True)[1:]] for line in lines]
    done = [
        subprocess.run(
            call, cwd=folder, env=known, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for call in calls
    ]
    return "".join(one.stdout for one in done)


def comparable(text: str) -> str:
    """Words in their order: neither how lines are wrapped, nor what a clock says."""
    return CLOCK.sub("* s", " ".join(text.split()))


def missing(one: Shown, now: str) -> list[str]:
    """Paragraphs that are shown and not printed."""
    found = comparable(now)
    return [part for part in re.split(r"\n\s*\n", one.text.strip("\n")) if comparable(part) not in found]


def check(document: Path) -> list[str]:
    """What a document shows that is not printed today."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in ROOT.iterdir():
            if not path.name.startswith("."):
                (folder / path.name).symlink_to(path)
        for one in shown(document.read_text(encoding="utf-8")):
            now = printed(one, folder)
            for part in missing(one, now):
                wrong += [f"{document.relative_to(ROOT)}:{one.line} shows:\n{part}\n\nprinted is:\n{now}"]
    return wrong


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run again what documents show.")
    parser.add_argument("document", nargs="*", type=Path, help="by default README.md and docs/*.md")
    documents = parser.parse_args(arguments).document or [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    wrong = [line for document in documents for line in check(document.resolve())]
    print("\n".join(wrong) or "every document shows what is printed today")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
