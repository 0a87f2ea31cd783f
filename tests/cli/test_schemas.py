"""Every ``--json`` output keeps to the schema that the command itself prints."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from overlap_sched import write_problem
from overlap_sched.errors import ProblemError
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.report.answers import ANSWERS as COMMANDS
from overlap_sched.report.answers import SweptOrder, as_json, schema_text
from tests.cli.test_pipeline import ONE_STAGE
from tests.judge.test_contention import two_groups
from tests.support.examples import Command, run

jsonschema = pytest.importorskip("jsonschema")

OUTPUTS = [
    ("plan",),
    ("plan", "--headroom", "5MiB", "--slowdown", "all_gather=1.1", "--link", "rail=fsdp"),
    ("plan", "--base", "memory-peak", "--comm-scale", "4"),
    ("sweep", "--vary", "network=1,2", "compute=1,2", "--cluster", "dgx-a100"),
    ("explain",),
    ("explain", "--top", "0"),
    ("explain", "--all", "--headroom", "1GiB"),
    ("explain", "gather", "--slowdown", "1.5"),
    ("explain", "--costs"),
    ("explain", "--costs", "--all", "--comm-scale", "4"),
    ("memory",),
    ("memory", "--addresses", "{addresses}", "--effort", "0"),
]


def validator(command: str) -> Any:
    schema = json.loads(schema_text(command))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.slow
@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
def test_outputs_keep_to_their_schema(command: tuple[str, ...], problem: str, tmp_path: Path, cli: Command) -> None:
    name, *rest = command
    places = {"order": tmp_path / "order.json", "addresses": tmp_path / "addresses.json"}
    assert run("plan", problem, "--out", str(places["order"])) == 0
    found = cli.json(name, problem, *(part.format(**places) for part in rest))
    written = "costs" if "--costs" in rest else name
    validator(written).validate(found)
    assert next(iter(found)) == "schema"
    assert found["schema"] == f"overlap-sched/{written}/1"


def test_a_plan_says_where_prices_come_from(problem: str, request: pytest.FixtureRequest, cli: Command) -> None:
    def prices(*options: str) -> object:
        found = cli.json("plan", *options)
        validator("plan").validate(found)
        return found["prices"]

    assert prices(problem) == {"from": "problem file", "comm_scale": 1.0, "traces": 0}
    dump = request.getfixturevalue("dump")  # it needs torch
    h100 = {"cluster": "dgx-h100", "device": "H100"}
    assert prices(dump) == {"from": "dump", **h100, "fusion": "inductor", "comm_scale": 1.0, "traces": 0}
    assert re.search(r"reserved, \w+ segments .* 74\.506 GiB", cli.words("plan", dump))  # the device's
    plain = {"from": "dump", "device": "Xeon-8480+", "cluster": None, "fusion": "none", "comm_scale": 1.0, "traces": 0}
    assert prices(dump, "--device", "cpu", "--fusion", "none") == plain
    on = {**plain, "cluster": "dgx-h200", "device": "H200", "fusion": "inductor", "comm_scale": 4.0}
    assert prices(dump, "--cluster", "dgx-h200", "--comm-scale", "4") == on


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_graphs_without_collectives_or_times_too(name: str, tmp_path: Path, cli: Command) -> None:
    job = tmp_path / "job.toml"
    job.write_text(ONE_STAGE)
    for at, problem in enumerate((Problem("alone", (Node("mm", Kind.COMPUTE),), ()), two_groups())):
        path = tmp_path / f"{at}.json"
        write_problem(problem, path)
        others = {
            "sweep": ("sweep", str(path), "--vary", "headroom=0"),
            "costs": ("explain", str(path), "--costs"),
            "fit": ("fit", str(path), "--max-slowdown", "0%"),
            "pipeline": ("pipeline", str(job)),
        }
        validator(name).validate(cli.json(*others.get(name, (name, str(path)))))


def test_the_command_prints_them(cli: Command) -> None:
    for name in COMMANDS:
        assert cli.out("schema", name) == schema_text(name) + "\n"
    assert run("schema", "replan") == 2


def test_a_figure_that_is_no_number() -> None:
    with pytest.raises(ProblemError) as caught:
        as_json(SweptOrder(float("inf"), 0.0, 0, None, None))
    assert str(caught.value) == (
        "a figure of the result is not a finite number: the times are too large to be added up. "
        "Are they in microseconds?"
    )
