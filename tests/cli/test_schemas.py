"""Every ``--json`` output keeps to the schema that the command itself prints."""

import json
from typing import Any

import pytest

from overlap_sched.errors import ProblemError
from overlap_sched.report.answers import ANSWERS, SweptOrder, as_json, schema_text
from tests.cli.test_transcripts import FOLDER
from tests.support.examples import Command, run

jsonschema = pytest.importorskip("jsonschema")


def validate(found: Any) -> str:
    """Return the name of the schema that it keeps to."""
    assert next(iter(found)) == "schema"
    name = str(found["schema"].split("/")[1])
    schema = json.loads(schema_text(name))
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


def test_the_command_prints_them(cli: Command) -> None:
    assert [cli.out("schema", name) for name in ANSWERS] == [schema_text(name) + "\n" for name in ANSWERS]
    assert run("schema", "replan") == 2


def test_a_figure_that_is_no_number() -> None:
    with pytest.raises(ProblemError, match="not a finite number"):
        as_json(SweptOrder(float("inf"), 0.0, 0, None, None))
