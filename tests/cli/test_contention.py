"""Contention said on the command line: as good as in the file, key by key, and never without being shown."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import read_problem, write_problem
from overlap_sched.cli.arguments import PlanCommand
from overlap_sched.cli.flags import parse
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import Contention
from tests.judge.test_contention import two_groups
from tests.support.examples import Command
from tests.support.inputs import DUMP

pytestmark = pytest.mark.usefixtures("plain_terminal")

ROOT = Path(__file__).parents[2]
OPTIONS = ["--slowdown", "all_gather=1.25", "--slowdown", "1.5", "--link", "rail=fsdp,ep"]
SAME = Contention({"all_gather": 1.25, "": 1.5}, {"fsdp": "rail", "ep": "rail"})
LINE = (
    "With contention: compute takes 1.25 times as long beside all_gather*, 1.5 times as long beside any other "
    "collective; groups ep and fsdp share link rail."
)


@pytest.fixture
def plain(tmp_path: Path) -> str:
    write_problem(two_groups(), tmp_path / "plain.json")
    return str(tmp_path / "plain.json")


def written(problem: Problem, contention: Contention, path: Path) -> str:
    write_problem(replace(problem, contention=contention), path)
    return str(path)


@pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["explain"]], ids=" ".join)
def test_options_are_as_good_as_the_file_and_shown(
    command: list[str], plain: str, tmp_path: Path, cli: Command
) -> None:
    def told(path: str, *options: str) -> str:
        return re.sub(
            r'(Scheduled in|"schedule_s":) [\d.e-]+', r"\1 0", cli.words(command[0], path, *command[1:], *options)
        )

    said, without = told(plain, *OPTIONS), told(plain)
    assert said == told(written(two_groups(), SAME, tmp_path / "with.json"))
    if "--json" in command:
        assert Contention(**json.loads(said)["contention"]) == SAME
    else:
        assert said.count(LINE) == 1
        assert "ontention" not in without


@pytest.mark.parametrize(
    ("options", "contention"),
    [
        (["--slowdown", "all_gather=2"], replace(SAME, slowdown={"all_gather": 2.0, "": 1.5})),
        (["--slowdown", "2"], replace(SAME, slowdown={"all_gather": 1.25, "": 2.0})),
        (["--slowdown", "all_to_all=3"], replace(SAME, slowdown={**SAME.slowdown, "all_to_all": 3.0})),
        (["--link", "own=ep"], replace(SAME, links={"fsdp": "rail", "ep": "own"})),
        (["--slowdown", "1", "--slowdown", "all_gather=1", "--link", "own=ep"], None),
    ],
)
def test_what_is_said_replaces_the_file_key_by_key(
    options: list[str], contention: Contention | None, tmp_path: Path, cli: Command
) -> None:
    path, trace = written(two_groups(), SAME, tmp_path / "with.json"), tmp_path / "trace.json"
    found = cli.json("plan", path, *options, "--trace", str(trace))["contention"]
    assert found == (contention and asdict(contention))
    assert found == json.loads(trace.read_text())["otherData"]["contention"]
    assert read_problem(path).contention == SAME


def test_of_a_dump(dump: str, cli: Command) -> None:
    Path(dump).write_text(DUMP.replace("64, '0');  mm_1", "64, '1');  mm_1"))
    given = ("--group", "0=64", "--group", "1=64", "--slowdown", "reduce_scatter=1.5", "--link", "rail=0,1")
    found = cli.json("plan", dump, *given)["contention"]
    assert found["slowdown"] == {"": 1.189, "reduce_scatter": 1.5}  # the cluster that is assumed says the rest
    assert found["links"] == {"0": "rail", "1": "rail"}


@given(
    st.dictionaries(st.text("a_", max_size=3), st.floats(1.0, 1e9)),
    st.dictionaries(st.text("ab=:/", min_size=1), st.text("lk[:", min_size=1)),
)
def test_whatever_a_problem_says_can_be_said(slowdown: dict[str, float], links: dict[str, str]) -> None:
    given = [f"--slowdown={kind}={factor}" if kind else f"--slowdown={factor}" for kind, factor in slowdown.items()]
    given += [
        f"--link={link}={','.join(group for group in links if links[group] == link)}" for link in set(links.values())
    ]
    assert parse(PlanCommand, "plan", "", ["x.json", *given]).contention == Contention(slowdown, links)
