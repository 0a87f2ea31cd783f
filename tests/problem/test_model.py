"""Problems: what follows from them, what breaks their rules, launches of compute, and graphs cut in two."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.distributed import digest_of
from overlap_sched.errors import ProblemError
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import problem_bytes, read_problem, redact_problem, write_problem
from overlap_sched.problem.parts import cut_problem, needed_first
from overlap_sched.problem.precedence import Preserve, launch_pairs
from overlap_sched.scheduler.driver import schedule
from overlap_sched.transform.recompute import refusal
from tests.support.graphs import problems
from tests.support.oracle import rules

FSDP = {"fsdp": Group(8, True)}
A = Node("a", Kind.COMPUTE)
INPUT = Node("in", Kind.INPUT, alloc=(0,))


@given(problems())
def test_predecessors_and_successors(problem: Problem) -> None:
    assert [set(before) for before in problem.predecessors] == rules(problem)
    assert all(list(before) == sorted(before) for before in problem.predecessors)
    for v, before in enumerate(problem.predecessors):
        assert all(v in problem.successors[u] for u in before)
    assert sum(map(len, problem.predecessors)) == sum(map(len, problem.successors))


COMPUTE, WAIT = Kind.COMPUTE, Kind.WAIT
BROKEN = [
    ((), (), "has no nodes: there is nothing to schedule"),
    ((A, A), (), "nodes 0 and 1 are both named 'a'"),
    ((A, Node("b", COMPUTE, deps=(7,))), (), r"1 \('b'\) depends on node 7, but ids go from 0 to 1"),
    ((Node("c", Kind.COLLECTIVE, group="tp"),), (), r"0 \('c'\) runs on group 'tp', .* \['fsdp'\]. Add it to `groups`"),
    ((A, Node("in", Kind.INPUT, deps=(0,))), (), r"input 1 \('in'\) has dependencies \[0\]"),
    ((A, Node("b", COMPUTE, collective=0)), (), r"compute 1 \('b'\) names a collective to wait for"),
    ((A, Node("w", WAIT, collective=5)), (), r"wait 1 \('w'\) waits for node 5, which is not a collective"),
    ((Node("b", COMPUTE, deps=(1,)), A), (), r"node 0 \('b'\) is listed before node 1 \('a'\)"),
    (
        tuple(Node(name, COMPUTE, deps=(u,)) for name, u in zip("abc", (2, 0, 1), strict=True)),
        (),
        "3: a -> b -> c -> a",
    ),
    ((Node("a", COMPUTE, deps=(0,)),), (), "in a ring of 1: a -> a"),
    ((INPUT, Node("b", COMPUTE, alloc=(0,))), (Storage(1),), "storage 0 is allocated twice, by 'in' and by 'b'"),
    ((Node("b", COMPUTE, alloc=(0, 0)),), (Storage(1),), "storage 0 is allocated twice, by 'b' and by 'b'"),
    ((Node("b", COMPUTE, use=(0,)),), (Storage(1),), r"node 0 \('b'\) uses storage 0, which no node allocates"),
    (
        (Node("b", COMPUTE, use=(0,)), Node("c", COMPUTE, alloc=(0,))),
        (Storage(1),),
        r"before 'c' \(node 1\)",
    ),
    ((INPUT, Node("b", COMPUTE, use=(0, 0))), (Storage(1),), r"node 1 \('b'\) lists storage 0 twice"),
    ((Node("b", COMPUTE, use=(3,)),), (Storage(1),), r"node 0 \('b'\) names storage 3, but storages go from 0 to 0"),
    ((INPUT,), (Storage(-5),), "storage 0 has -5 bytes"),
    ((INPUT,), (Storage(2**61),), r"2305843009213693952 bytes, more than 1152921504606846976 \(2\*\*60\)"),
    ((Node("b", COMPUTE, time_us=float("nan")),), (), r"0 \('b'\) takes nan us: times are finite"),
    ((Node("b", COMPUTE, time_us=-1.0),), (), r"0 \('b'\) takes -1.0 us: times are finite and 0 or more"),
    ((Node("b", COMPUTE, time_us=1.7e308), Node("c", COMPUTE, time_us=1.7e308)), (), "add up to infinity"),
    ((Node("b", COMPUTE, time_us=10**400),), (), r"0 \('b'\) takes 2\*\*1328 or more us"),
    ((Node("b", COMPUTE, flops=2**63),), (), r"0 \('b'\) has 9223372036854775808 flops"),
    ((Node("b", COMPUTE, bytes=-1),), (), r"0 \('b'\) has -1 bytes: counts are 0 or more"),
    ((INPUT._replace(time_us=5.0),), (Storage(1),), r"input 0 \('in'\) takes 5.0 us: only compute"),
    ((A, Node("out", Kind.OUTPUT, time_us=1e-9)), (), r"output 1 \('out'\) takes 1e-09 us"),
    ((Node("c", Kind.COLLECTIVE, group="fsdp", launches=("fsdp",)),), (), r"collective 0 \('c'\) has `launches`"),
]


@pytest.mark.parametrize(("nodes", "storages", "said"), BROKEN)
def test_errors_name_what_is_wrong(nodes: tuple[Node, ...], storages: tuple[Storage, ...], said: str) -> None:
    with pytest.raises(ProblemError, match=said):
        Problem("broken", nodes, storages, FSDP)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory_model": "guess"}, "memory_model is 'guess'; it is 'runtime' or 'tracker'"),
        *(({"groups": {"tp": Group(n, True)}}, f"group 'tp' has size {n}; it is a number") for n in (0, -8, 2**31)),
        ({"contention": Contention({"": 1e300})}, "slowed down by contention, add up to infinity"),
    ],
)
def test_what_a_problem_cannot_have(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ProblemError, match=said):
        Problem("p", (A._replace(time_us=1e9),), (), **given)


def test_a_long_ring_is_shortened() -> None:
    ring = tuple(Node(f"n{v}", Kind.COMPUTE, deps=((v - 1) % 1000,)) for v in range(1000))
    with pytest.raises(ProblemError, match=r"in a ring of 1000: n0 -> n1 -> .* -> n7 -> \.\.\.\. No order"):
        Problem("ring", ring, ())


def test_an_original_order_that_uses_the_output_of_a_later_wait_is_named() -> None:
    launch = Node("launch", Kind.COLLECTIVE, alloc=(0,), group="fsdp")
    wait = Node("wait", Kind.WAIT, use=(0,), collective=1)
    with pytest.raises(ProblemError, match=r"node 0 \('wait'\) is listed before node 1 \('launch'\)"):
        Problem("early wait", (wait, launch), (Storage(1),), FSDP)


def chain(length: int) -> Problem:
    """One collective, then a chain of computes, then its wait."""
    gather = Node("gather", Kind.COLLECTIVE, alloc=(0,), time_us=10.0, group="fsdp")
    body = [Node(f"n{v}", Kind.COMPUTE, deps=(v - 1,) if v > 1 else (), time_us=1.0) for v in range(1, length)]
    wait = Node("wait", Kind.WAIT, use=(0,), collective=0)
    return Problem("chain", (gather, *body, wait), (Storage(8),), FSDP)


@pytest.mark.slow
def test_a_long_chain() -> None:
    """What goes by squares, or deeper with each node, does not end here."""
    problem = chain(250_000)
    assert lower_bound_us(problem) == 249999.0
    assert violation(problem, schedule(problem, Options(effort=1)).order) is None


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


def test_redacted_names() -> None:
    assert [node.launches for node in redact_problem(problem("bA*")).nodes] == [(), ("group0",), ("*",)]


def test_ranks_that_differ_in_them_have_other_digests() -> None:
    found = [digest_of(problem(text), Options(), range(3)) for text in ("aAb", "aBb", "a.b", "a*b")]
    assert len({one.launches for one in found}) == len({one.operators for one in found}) == 4


def test_they_never_run_again() -> None:
    assert refusal(problem("A").nodes[0]._replace(op="deep.dispatch")) == "communicates, or may (deep.dispatch)"


def outputs(problem: Problem) -> int:
    return sum(node.kind is Kind.OUTPUT for node in problem.nodes)


@given(problems(), st.data())
def test_as_much_is_live_as_in_the_whole(problem: Problem, data: st.DataObject) -> None:
    count = len(problem.nodes)
    if count < 2 or outputs(problem) > 1:
        return
    at = data.draw(st.integers(1, count - 1))
    first, second = cut_problem(problem, at)
    ahead = [v for v, node in enumerate(problem.nodes) if v < at or node.kind is Kind.INPUT]
    behind = [v for v in range(count) if v not in set(ahead)]
    whole = memory_profile(problem, [*ahead, *behind])
    halves = [memory_profile(one, one.original_order) for one in (first, second)]
    assert halves[0][: len(ahead)] == whole[: len(ahead)]
    assert halves[1][len(halves[1]) - len(behind) :] == whole[len(ahead) :]
    assert [node.name for node in first.nodes[:-1]] == [problem.nodes[v].name for v in ahead]
    assert [node.name for node in second.nodes][-len(behind) or len(second.nodes) :] == [
        problem.nodes[v].name for v in behind
    ]


@given(problems())
def test_the_halves_take_no_less_than_the_whole(problem: Problem) -> None:
    if len(problem.nodes) < 2 or outputs(problem) > 1 or problem.contention:
        return
    steps = [replay(one, one.original_order).step_us for one in cut_problem(problem, len(problem.nodes) // 2)]
    assert sum(steps) >= replay(problem, problem.original_order).step_us - 1e-6


def test_what_a_node_needs_comes_first() -> None:
    """``wgrad`` needs no gathered weight: the gather, its wait and ``dgrad`` come after it."""
    order, count = needed_first(EXAMPLE, 6)
    assert [EXAMPLE.nodes[v].name for v in order[:count]] == ["w", "x", "mm", "wgrad"]
    assert violation(EXAMPLE, order) is None
    first, second = cut_problem(EXAMPLE.renumbered(order), count)
    assert [node.name for node in first.nodes] == ["w", "x", "mm", "wgrad", "example.given"]
    assert [node.name for node in second.nodes[:4]] == ["w.0", "mm.3", "wgrad.5", "gather"]
    assert [node.kind for node in second.nodes[:3]] == [Kind.INPUT] * 3
    assert replay(first, first.original_order).step_us == 80
    assert replay(second, second.original_order).step_us == 40 + 30 + 40


@given(problems(), st.data())
def test_needed_first_is_valid(problem: Problem, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, len(problem.nodes) - 1))
    order, count = needed_first(problem, last)
    assert last in order[:count]
    if outputs(problem) < 2:
        assert violation(problem, order) is None
