"""Commands and what they print, word by word (``tests/data/transcripts``); ``TRANSCRIPTS=write`` writes that anew.

A file has sessions (``# title``); a session has command lines (``$ overlap-sched ...``, ``$ cat FILE``) in a folder of
its own, each with its output: lines of standard error marked ``! ``, and ``exit code N`` where that is not 0.
"""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.examples import run

FOLDER = Path(__file__).parents[1] / "data/transcripts"
SESSIONS = [
    pytest.param(path, title, text, id=f"{path.stem}: {title}")
    for path in sorted(FOLDER.glob("*.txt"))
    for title, text in re.findall(r"^# (.*)\n((?:(?!# ).*\n)*)", path.read_text(), re.MULTILINE)
]


def plain(text: str) -> str:
    """Without what differs from run to run; JSON in lines."""
    if text.startswith('{"schema"'):
        text = json.dumps(json.loads(text), indent=1) + "\n"
    text = re.sub(r'(Scheduled\s+in\s+|"schedule_s": )[\d.e-]+', r"\g<1>0.00", text.replace(str(Path.cwd()), "FOLDER"))
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def play(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line prints."""
    name, *words = shlex.split(line)
    if name == "cat":
        return plain(Path(words[0]).read_text())
    capsys.readouterr()
    code = run(*words)
    out, err = capsys.readouterr()
    said = "".join(f"! {told}\n" for told in plain(err).splitlines()) + plain(out)
    return said + (f"exit code {code}\n" if code else "")


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(("path", "title", "text"), SESSIONS)
def test_as_written(
    path: Path, title: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.stem == "dumps":
        pytest.importorskip("torch")
    monkeypatch.setenv("COLUMNS", "40" if "40 columns" in title else "120")
    lines = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    found = "".join(f"$ {line}\n{play(line, capsys)}" for line in lines)
    if os.environ.get("TRANSCRIPTS") == "write":
        path.write_text(path.read_text().replace(f"# {title}\n{text}", f"# {title}\n{found}\n"))
    else:
        assert found == text.removesuffix("\n")
