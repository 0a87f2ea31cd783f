"""Problems: what follows from them, what breaks their rules, graphs cut in two; their files, limits, names left out."""

import gzip
import itertools
import json
import os
import re
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, schedule
from overlap_sched.distributed import digest_of
from overlap_sched.errors import InputTooLargeError, ProblemError
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import Limits, problem_bytes, read_problem, redact_problem, write_problem
from overlap_sched.problem.parts import cut_problem
from overlap_sched.problem.precedence import Preserve, launch_pairs
from overlap_sched.transform.apply import refusal
from tests.judge.test_contention import two_groups
from tests.support.examples import examples, run
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
LONG_RING = tuple(Node(f"n{v}", COMPUTE, deps=((v - 1) % 1000,)) for v in range(1000))
BROKEN = [
    ((), (), "has no nodes to schedule"),
    ((A, A), (), "nodes 0 and 1 are both named 'a'"),
    ((A, Node("b", COMPUTE, deps=(7,))), (), r"1 \('b'\) depends on node 7, but ids go from 0 to 1"),
    ((Node("c", Kind.COLLECTIVE, group="tp"),), (), r"0 \('c'\) runs on group 'tp', .* \['fsdp'\]. Add it to `groups`"),
    ((A, Node("in", Kind.INPUT, deps=(0,))), (), r"input 1 \('in'\) has dependencies \[0\]"),
    ((A, Node("b", COMPUTE, collective=0)), (), r"compute 1 \('b'\) names a collective to wait for"),
    ((A, Node("w", WAIT, collective=5)), (), r"wait 1 \('w'\) waits for node 5, which is not a collective"),
    ((Node("b", COMPUTE, deps=(1,)), A), (), r"node 0 \('b'\) is listed before node 1 \('a'\)"),
    (tuple(Node("abc"[v], COMPUTE, deps=((v - 1) % 3,)) for v in range(3)), (), "in a ring of 3: a -> b -> c -> a"),
    (LONG_RING, (), r"in a ring of 1000: n0 -> n1 -> .* -> n7 -> \.\.\.\. Remove"),
    ((Node("a", COMPUTE, deps=(0,)),), (), "in a ring of 1: a -> a"),
    ((INPUT, Node("b", COMPUTE, alloc=(0,))), (Storage(1),), "storage 0 is allocated twice, by 'in' and by 'b'"),
    ((Node("b", COMPUTE, alloc=(0, 0)),), (Storage(1),), "storage 0 is allocated twice, by 'b' and by 'b'"),
    ((Node("b", COMPUTE, use=(0,)),), (Storage(1),), r"node 0 \('b'\) uses storage 0, which no node allocates"),
    ((Node("b", COMPUTE, use=(0,)), Node("c", COMPUTE, alloc=(0,))), (Storage(1),), r"before 'c' \(node 1\)"),
    ((INPUT, Node("b", COMPUTE, use=(0, 0))), (Storage(1),), r"node 1 \('b'\) lists storage 0 twice"),
    ((Node("b", COMPUTE, use=(3,)),), (Storage(1),), r"node 0 \('b'\) names storage 3, but storages go from 0 to 0"),
    ((INPUT,), (Storage(-5),), "storage 0 has -5 bytes"),
    ((INPUT,), (Storage(2**61),), r"2305843009213693952 bytes, more than 2\*\*60"),
    ((Node("b", COMPUTE, time_us=float("nan")),), (), r"0 \('b'\) takes nan us: times are finite"),
    ((Node("b", COMPUTE, time_us=-1.0),), (), r"0 \('b'\) takes -1.0 us: times are finite and 0 or more"),
    ((Node("b", COMPUTE, time_us=1.7e308), Node("c", COMPUTE, time_us=1.7e308)), (), "add up to infinity"),
    ((Node("b", COMPUTE, time_us=10**400),), (), r"0 \('b'\) takes 2\*\*1328 or more us"),
    ((Node("b", COMPUTE, flops=2**63),), (), r"0 \('b'\) has 9223372036854775808 flops"),
    ((Node("b", COMPUTE, bytes=-1),), (), r"0 \('b'\) has -1 bytes: counts are 0 or more"),
    ((INPUT._replace(time_us=5.0),), (Storage(1),), r"input 0 \('in'\) takes 5.0 us, as only compute"),
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


def lettered(text: str) -> Problem:
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
    given = lettered(text)
    pairs = launch_pairs(given, given.original_order, preserve)
    for order in itertools.permutations(range(len(text))):
        allowed = brute(text, order, preserve)
        assert all(order.index(u) < order.index(v) for u, v in pairs) == allowed
        assert (launch_violation(given, order, preserve) is None) == allowed


def test_files_have_them_as_version_2_and_names_are_redacted(tmp_path: Path) -> None:
    write_problem(lettered("bA*"), tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())["format"] == "overlap-problem/2"
    assert read_problem(tmp_path / "p.json") == lettered("bA*")
    assert [node.launches for node in redact_problem(lettered("bA*")).nodes] == [(), ("group0",), ("*",)]


def test_ranks_that_differ_in_them_have_other_digests() -> None:
    found = [digest_of(lettered(text), Options(), range(3)) for text in ("aAb", "aBb", "a.b", "a*b")]
    assert len({one.launches for one in found}) == len({one.operators for one in found}) == 4


def test_they_never_run_again() -> None:
    assert refusal(lettered("A").nodes[0]._replace(op="deep.dispatch")) == "communicates, or may (deep.dispatch)"


def outputs(problem: Problem) -> int:
    return sum(node.kind is Kind.OUTPUT for node in problem.nodes)


@given(problems(), st.data())
def test_as_much_is_live_as_in_the_whole(problem: Problem, data: st.DataObject) -> None:
    count = len(problem.nodes)
    if count < 2 or outputs(problem) > 1:
        return
    at = data.draw(st.integers(1, count - 1))
    first, second = cut_problem(problem, range(at))
    ahead = [v for v, node in enumerate(problem.nodes) if v < at or node.kind is Kind.INPUT]
    behind = [v for v in range(count) if v not in set(ahead)]
    whole = memory_profile(problem, [*ahead, *behind])
    halves = [memory_profile(one, one.original_order) for one in (first, second)]
    assert halves[0][: len(ahead)] == whole[: len(ahead)]
    assert halves[1][len(halves[1]) - len(behind) :] == whole[len(ahead) :]
    assert [node.name for node in first.nodes[:-1]] == problem.names(tuple(ahead))
    assert [node.name for node in second.nodes][-len(behind) or len(second.nodes) :] == problem.names(tuple(behind))


@given(problems(), st.sampled_from(("p.json", "p.json.gz")))
def test_round_trip_of_any_problem(tmp_path_factory: pytest.TempPathFactory, problem: Problem, name: str) -> None:
    path = tmp_path_factory.mktemp("any") / name
    write_problem(problem, path)
    first = path.read_bytes()
    assert read_problem(path) == problem
    write_problem(read_problem(path), path)
    assert path.read_bytes() == first


def test_contention_is_written_as_version_2_where_there_is_any(tmp_path: Path) -> None:
    """Older readers know no other key than these: what is at its default is left out."""
    path = tmp_path / "p.json"
    write_problem(EXAMPLE, path)
    assert not {"memory_model", "contention"} & json.loads(path.read_text()).keys()
    problem = replace(EXAMPLE, contention=Contention({"all_gather": 1.1, "": 1.05}, {"fsdp": "nvlink"}))
    write_problem(problem, path)
    written = json.loads(path.read_text())
    assert (written["format"], written["contention"].keys()) == ("overlap-problem/2", {"slowdown", "links"})
    assert read_problem(path) == problem
    rest: dict[str, Any] = {"lanes": 2, "crowding": 1.5, "shares": {"bytes": 1.5}, "flops_per_byte": 2.0}
    all_of_it = Contention({"": 1.5}, {"fsdp": "nvlink"}, {"all_gather": 4.0}, **rest)
    write_problem(replace(problem, contention=all_of_it), path)
    assert read_problem(path).contention == all_of_it


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"absent\.json: cannot be read \(No such file or directory\)\. Check the"):
        read_problem(tmp_path / "absent.json")


def bad(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ProblemError) as caught:
        read_problem(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_files_that_are_cut_short_or_something_else(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "p.json", tmp_path / "p.json.gz"
    write_problem(EXAMPLE, zipped)
    content = zipped.read_bytes()
    for end in range(2, len(content) - 1, 7):
        assert bad(zipped, content[:end]) == "the gzip stream is cut short. Copy or download the file again."
    for other in (b"{}", content[:20] + b"\xff" * 20 + content[40:]):
        assert "Rename it to .json or compress it again." in bad(zipped, other)
    text = gzip.decompress(content)
    for end in (0, 1, len(text) // 2, len(text) - 1):
        assert bad(plain, text[:end]).startswith("is not JSON (")
    for other, said in (
        (text.replace(b'"dgrad"', b'"\xff"'), "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b'["a", "b"]', "is a list, as an order is"),
        (b"[" * 100_000, "is a list, as an order is"),
        (text.replace(b'"pinned":', b'"pinned":false,"pinned":', 1), "'pinned' occurs twice"),
        (b"95", "got int"),
        (b'{"format":' + b"[" * 100_000, ""),
        (b'{"format":"overlap-problem/1","nodes":' + b'[{"deps":' * 100_000, ""),
    ):
        assert said in bad(plain, other)


def data() -> dict[str, Any]:
    return {
        "format": "overlap-problem/1",
        "name": "p",
        "groups": {"g": {"size": 8, "intra_node": True}},
        "storages": [{"bytes": 1, "pinned": False}],
        "nodes": [
            {"name": "a", "kind": "compute", "deps": [], "alloc": [0], "use": [], "us": 1.5},
            {"name": "c", "kind": "collective", "deps": [0], "alloc": [], "use": [0], "us": 2, "group": "g"},
            {"name": "w", "kind": "wait", "deps": [1], "alloc": [], "use": [0], "collective": 1},
        ],
    }


def changed(path: tuple[Any, ...], *value: Any) -> bytes:
    """The file with a value at a path, or without what is there."""
    tree = whole = data()
    for key in path[:-1]:
        tree = tree[key]
    if value:
        tree[path[-1]] = value[0]
    else:
        del tree[path[-1]]
    return json.dumps(whole).encode()


LINKS = {"links": {"g": "nvlink"}}


@pytest.mark.parametrize(
    ("path", "value", "place", "said"),
    [
        (("format",), ("overlap-problem/3",), "format", "this version reads 'overlap-problem/1'"),
        (("contention",), (LINKS,), "", "Write 'overlap-problem/2' as its format"),
        (("name",), (), "", "required field name"),
        (("nodes", 1, "kind"), ("send",), "nodes[1].kind", "'send'. It is one of 'input', 'compute',"),
        (("nodes", 1, "launches"), ([3],), "nodes[1].launches[0]", "expected str, got int"),
        (("memory_model",), ("guess",), "memory_model", "'guess'"),
        (("nodes", 0, "us"), (10**400,), "nodes[0].us", "out of range"),
        (("nodes", 0, "us"), (float("nan"),), "is not JSON", ""),
        (("nodes", 0, "bytes"), (10**400,), "compute 0 ('a')", "below 2**63"),
        (("nodes", 1, "dep"), ([0],), "nodes[1]", "unknown field dep. Did you mean 'deps'?"),
        (("groups", "g", "ranks"), ([0],), "group 'g'", "lists 1"),
    ],
)
def test_wrong_types_name_their_place(
    tmp_path: Path, path: tuple[Any, ...], value: tuple[Any, ...], place: str, said: str
) -> None:
    text = bad(tmp_path / "p.json", changed(path, *value))
    assert text.startswith(place)
    assert said in text


@pytest.mark.parametrize(
    ("contention", "place", "said"),
    [
        ({"links": {"g": 1}}, "contention.links", "expected str"),
        ({"link": {}}, "contention", "unknown field link. Did you mean 'links'?"),
        ({"slowdown": {"": 10**400}}, "contention.slowdown", "out of range"),
        ({"slowdown": {"": 0.5}}, "contention", "compute beside '' takes 0.5 times its time"),
        ({"links": {"g": "nvlink", "tp": "nvlink"}}, "contention", "group 'tp' has link"),
    ],
)
def test_contention_that_cannot_be(tmp_path: Path, contention: dict[str, Any], place: str, said: str) -> None:
    tree = data() | {"format": "overlap-problem/2", "contention": contention}
    text = bad(tmp_path / "p.json", json.dumps(tree).encode())
    assert text.startswith(place)
    assert said in text


def test_counts_may_be_written_as_floats(tmp_path: Path) -> None:
    path, tree = tmp_path / "p.json", data() | {"memory_model": "tracker"}
    tree["nodes"][0] |= {"flops": 1e12, "group": "g"}
    path.write_text(json.dumps(tree))
    found = read_problem(path)
    node = found.nodes[0]
    assert (node.flops, type(node.flops), node.group) == (10**12, int, None)
    assert (found.memory_model, found.nodes[2].collective) == ("tracker", 1)


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_a_file_larger_than_the_limit_is_not_read_to_its_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_problem(EXAMPLE, path)
    size = len(gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes())
    assert read_problem(path, limits=Limits(input_bytes=size)) == EXAMPLE
    with pytest.raises(InputTooLargeError) as caught:
        read_problem(path, limits=Limits(input_bytes=size - 1))
    assert re.match(rf".*: has more than {size - 1:,} .*Raise the limit \(--max-input-bytes", str(caught.value))


def test_a_small_file_that_unpacks_to_a_huge_one(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**24))
    tracemalloc.start()
    try:
        with pytest.raises(InputTooLargeError):
            read_problem(path, limits=Limits(input_bytes=2**21))
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_more_nodes_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(EXAMPLE, path)
    assert read_problem(path, limits=Limits(nodes=10)) == EXAMPLE
    with pytest.raises(InputTooLargeError) as caught:
        read_problem(path, limits=Limits(nodes=9))
    said = f"{path}: has 10 nodes, more than the limit of 9. Raise the limit (--max-nodes "
    assert str(caught.value).startswith(said)
    path.write_text(f"[{'[],' * 33}]")
    with pytest.raises(InputTooLargeError) as caught:
        read_problem(path, limits=Limits(nodes=2))
    assert str(caught.value).startswith(f"{path}: has 34 objects and lists, more than 16 for each of 2 nodes. Raise")


@pytest.mark.parametrize("gzipped", [False, True])
def test_a_pipe_is_read_once(tmp_path: Path, gzipped: bool) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(problem_bytes(EXAMPLE, gzipped=gzipped),))
    writer.start()
    assert read_problem(path) == EXAMPLE
    writer.join()


SECRET = Contention({"all_gather": 1.5, "our_kernel": 2.0, "": 1.25}, {"fsdp": "our rail", "ep": "our rail"})


def test_every_name_is_replaced() -> None:
    problem = redact_problem(replace(two_groups(), name="our model", contention=SECRET))
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
    options = Options(memory_model=problem.memory_model)
    assert schedule(redact_problem(problem), options).order == schedule(problem, options).order


def test_times_and_contention_are_saved_as_used(problem: str, tmp_path: Path) -> None:
    out = tmp_path / "saved.json"
    assert run("plan", problem, "--save-problem", str(out), "--comm-scale", "4", "--slowdown", "1.5") == 0
    assert json.loads(out.read_text())["contention"] == {"slowdown": {"": 1.5}, "links": {}}
    assert read_problem(out).nodes[2].time_us == 160.0
