"""A redacted problem has no name of the old one in it, and schedules as it did."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, read_problem, schedule
from overlap_sched.problem import EXAMPLE, Kind, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import redacted
from tests.judge.test_contention import two_groups
from tests.support.command import run
from tests.support.examples import examples
from tests.support.graphs import problems

SECRET = Contention({"all_gather": 1.5, "our_kernel": 2.0, "": 1.25}, {"fsdp": "our rail", "ep": "our rail"})


def test_every_name_is_replaced() -> None:
    problem = redacted(replace(two_groups(), name="our model", contention=SECRET))
    assert problem.name == "redacted"
    assert [node.name for node in problem.nodes] == [f"n{v}" for v in range(len(problem.nodes))]
    assert list(problem.groups) == ["group1", "group0"]
    assert problem.contention == Contention({"all_gather": 1.5, "": 1.25}, {"group1": "link0", "group0": "link0"})
    for old, new in zip(two_groups().nodes, problem.nodes, strict=True):
        assert new._replace(name=old.name, op=old.op, group=old.group) == old
        assert new.op == (old.op if old.kind is Kind.COLLECTIVE else old.kind.value if old.op else "")


@examples(40)
@given(problems(), st.booleans())
def test_it_schedules_alike(problem: Problem, contention: bool) -> None:
    if contention:
        problem = replace(problem, contention=Contention({"all_": 1.5}, dict.fromkeys(problem.groups, "wire")))
    assert (
        schedule(redacted(problem), Options(memory_model=problem.memory_model)).order
        == schedule(problem, Options(memory_model=problem.memory_model)).order
    )


@pytest.mark.slow
def test_a_real_graph_schedules_alike() -> None:
    path = Path(__file__).parents[2] / "scripts" / "instances" / "llama3_8b_fw_64_2d.json.gz"
    problem, options = read_problem(path, comm_scale=4.0), Options()
    assert schedule(redacted(problem), options).order == schedule(problem, options).order


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "sweep --vary headroom=0", "explain", "memory"])
def test_every_command_saves_what_it_read(command: str, problem: str, tmp_path: Path) -> None:
    out = tmp_path / "saved.json.gz"
    assert run(*command.split(), "--save-problem", str(out), problem) == 0
    assert read_problem(out) == EXAMPLE
    assert run(*command.split(), "--save-problem", str(out), "--redact", problem) == 0
    assert read_problem(out) == redacted(EXAMPLE)


def test_times_and_contention_are_saved_as_used(problem: str, tmp_path: Path) -> None:
    out = tmp_path / "saved.json"
    assert run("plan", problem, "--save-problem", str(out), "--comm-scale", "4", "--slowdown", "1.5") == 0
    assert json.loads(out.read_text())["contention"] == {"slowdown": {"": 1.5}, "links": {}}
    assert read_problem(out).nodes[2].time_us == 160.0


def test_redact_alone(problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", problem, "--redact") == 2
    assert capsys.readouterr().err == (
        "overlap-sched: error: --redact changes what --save-problem writes: give --save-problem OUT.json, too.\n"
    )
