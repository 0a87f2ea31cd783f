"""Compute that communicates by itself: a launch among the others where launch orders are kept."""

import itertools
import json
from pathlib import Path

import pytest

from overlap_sched.distributed import digest_of
from overlap_sched.errors import ProblemError
from overlap_sched.judge.validate import launch_violation
from overlap_sched.options import Options
from overlap_sched.problem import Group, Kind, Node, Problem
from overlap_sched.problem.file import problem_bytes, read_problem, redacted, write_problem
from overlap_sched.problem.precedence import Preserve, launch_pairs
from overlap_sched.transform.recompute import refusal


def problem(text: str) -> Problem:
    """Launches on groups ``a`` and ``b``; ``A``, ``B``: compute that communicates there; ``*``: on any; ``.``: none.

    ``w``: a wait for what was launched before the graph.
    """
    nodes = []
    for i, letter in enumerate(text):
        if letter in "ab":
            nodes.append(Node(f"{letter}{i}", Kind.COLLECTIVE, op="all_reduce", group=letter))
        elif letter == "w":
            nodes.append(Node(f"w{i}", Kind.WAIT))
        else:
            nodes.append(Node(f"{letter}{i}", Kind.COMPUTE, launches=() if letter == "." else (letter.lower(),)))
    return Problem("letters", tuple(nodes), (), {"a": Group(2, True), "b": Group(2, True)})


def brute(text: str, order: tuple[int, ...], preserve: Preserve) -> bool:
    """Whether an order is allowed: each two launches that share a group stand as they did; waits behind launches."""
    for i, v in enumerate(order):
        for u in order[:i]:
            x, y = text[u].lower(), text[v].lower()
            if "." in (x, y) or "w" in (x, y):
                meet = preserve == "waits" and x == "w" and y in "ab*"
            else:
                meet = preserve in ("all", "waits") or x == y or "*" in (x, y)
            if meet and preserve != "none" and u > v:
                return False
    return True


@pytest.mark.parametrize("preserve", ["none", "group", "all", "waits"])
@pytest.mark.parametrize("text", ["aAb.", "a*bB", "A.aB*", "*ab*a", "ABba", "bAA*", "wabw.", "aw*wB"])
def test_pairs_and_the_judge_against_brute_force(text: str, preserve: Preserve) -> None:
    given = problem(text)
    pairs = launch_pairs(given, given.original_order, preserve)
    for order in itertools.permutations(range(len(text))):
        allowed = brute(text, order, preserve)
        assert all(order.index(u) < order.index(v) for u, v in pairs) == allowed
        assert (launch_violation(given, order, preserve) is None) == allowed


def test_files_have_them_as_version_2(tmp_path: Path) -> None:
    given = problem("aA*")
    write_problem(given, tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["format"] == "overlap-problem/2"
    assert [node.get("launches") for node in data["nodes"]] == [None, ["a"], ["*"]]
    assert read_problem(tmp_path / "p.json") == given
    assert json.loads(problem_bytes(problem("ab.")))["format"] == "overlap-problem/1"
    data["nodes"][1]["launches"] = [3]
    (tmp_path / "p.json").write_text(json.dumps(data))
    with pytest.raises(ProblemError, match=r"nodes\[1\]\.launches\[0\]: expected str, got int"):
        read_problem(tmp_path / "p.json")


def test_redacted_names() -> None:
    assert [node.launches for node in redacted(problem("bA*")).nodes] == [(), ("group0",), ("*",)]


def test_ranks_that_differ_in_them_have_other_digests() -> None:
    found = [digest_of(problem(text), Options(), range(3)) for text in ("aAb", "aBb", "a.b", "a*b")]
    assert len({one.launches for one in found}) == len({one.operators for one in found}) == 4


def test_they_never_run_again() -> None:
    assert refusal(problem("A").nodes[0]._replace(op="deep.dispatch")) == "communicates, or may (deep.dispatch)"
