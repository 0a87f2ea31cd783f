"""Commands and what they print, word by word (``tests/data/transcripts``); ``TRANSCRIPTS=write`` writes that anew.

A file has sessions (``# title``); a session has command lines (``$ overlap-sched ...``, ``$ cat FILE``) in a folder of
its own, each with its output: lines of standard error marked ``! ``, and ``exit code N`` where that is not 0.
"""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from overlap_sched.errors import ProblemError
from overlap_sched.report.answers import ANSWERS, SweptOrder, as_json, schema_text
from tests.support.examples import Command, run

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
    text = re.sub(r"^overlap-sched: .* \(\d+ s(, about \d+ s left)?\)\n", "", text, flags=re.MULTILINE)  # busy machine
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


def validate(found: Any) -> str:
    """Return the name of the schema that it keeps to."""
    assert next(iter(found)) == "schema"
    name = str(found["schema"].split("/")[1])
    jsonschema, schema = pytest.importorskip("jsonschema"), json.loads(schema_text(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)
    return name


def test_what_the_transcripts_hold() -> None:
    texts = [text for path in FOLDER.glob("*.txt") for text in path.read_text().split("\n{\n")[1:]]
    found = [validate(json.JSONDecoder().raw_decode("{" + text)[0]) for text in texts]
    assert set(found) == set(ANSWERS)


@pytest.mark.parametrize("problem", ["alone", "groups"])
@pytest.mark.parametrize("command", ["plan", "explain", "explain --costs", "memory", "fit --max-slowdown 0%"])
def test_graphs_without_collectives_or_times_too(problem: str, command: str, cli: Command, inputs: object) -> None:
    name, *options = command.split()
    assert validate(cli.json(name, f"{problem}.json", *options)) in (name, "costs")


def test_the_command_prints_schemas(cli: Command) -> None:
    assert [cli.out("schema", name) for name in ANSWERS] == [schema_text(name) + "\n" for name in ANSWERS]
    assert run("schema", "replan") == 2


def test_a_figure_that_is_no_number() -> None:
    with pytest.raises(ProblemError, match="not a finite number"):
        as_json(SweptOrder(float("inf"), 0.0, 0, None, None))
