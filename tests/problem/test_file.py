"""Problem files: the way there and back, mistakes, limits, and names left out."""

import gzip
import json
import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Options, schedule
from overlap_sched.errors import InputTooLargeError, OptionsError, ProblemError
from overlap_sched.problem import EXAMPLE, Kind, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import (
    DEFAULT_LIMITS,
    PARTS_PER_NODE,
    Limits,
    problem_bytes,
    read_problem,
    redact_problem,
    write_problem,
)
from tests.judge.test_contention import two_groups
from tests.support.examples import examples, run
from tests.support.graphs import problems


@pytest.mark.parametrize("name", ["example.json", "example.json.gz"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_problem(EXAMPLE, path)
    first = path.read_bytes()
    assert read_problem(path) == EXAMPLE
    write_problem(read_problem(path), path)
    assert path.read_bytes() == first


@given(problems())
def test_round_trip_of_any_problem(tmp_path_factory: pytest.TempPathFactory, problem: Problem) -> None:
    path = tmp_path_factory.mktemp("any") / "problem.json"
    write_problem(problem, path)
    assert read_problem(path) == problem


def test_memory_model_is_written_where_it_is_not_runtime(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(EXAMPLE, path)
    assert "memory_model" not in json.loads(path.read_text())
    data = json.loads(path.read_text()) | {"memory_model": "tracker"}
    path.write_text(json.dumps(data))
    assert read_problem(path).memory_model == "tracker"


def test_contention_is_written_as_version_2_where_there_is_any(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    problem = replace(EXAMPLE, contention=Contention({"all_gather": 1.1, "": 1.05}, {"fsdp": "nvlink"}))
    write_problem(problem, path)
    assert json.loads(path.read_text())["format"] == "overlap-problem/2"
    assert "stretch" not in json.loads(path.read_text())["contention"]  # older readers know no such key
    assert read_problem(path) == problem
    assert "lanes" not in json.loads(path.read_text())["contention"]
    both = replace(problem, contention=replace(problem.contention, stretch={"all_gather": 4.0}, lanes=2, crowding=1.5))
    both = replace(both, contention=replace(both.contention, shares={"bytes": 1.5}, flops_per_byte=295.2))
    write_problem(both, path)
    assert read_problem(path) == both
    for field, said in (
        ({"slowdown": {"": "fast"}}, "contention.slowdown"),
        ({"links": {"fsdp": 1}}, "contention.links"),
        ({"lanes": 1.5}, "contention.lanes: expected int, got float"),
        ({"links": []}, "contention.links: expected object, got array"),
        ({"link": {}}, "contention: .*unknown field link. Did you mean 'links'?"),
        ({"slowdown": {"": 10**400}}, "contention.slowdown.*: number out of range"),
        ({"slowdown": {"": 0.5}}, "contention: compute beside '' takes 0.5 times its time"),
        ({"links": {"fsdp": "nvlink", "tp": "nvlink"}}, "contention: group 'tp' has link"),
    ):
        tree = json.loads(path.read_text()) | {"contention": field}
        assert re.match(said.replace("?", r"\?"), bad(path, json.dumps(tree).encode()))
        write_problem(problem, path)


def test_comm_scale(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(EXAMPLE, path)
    scaled = read_problem(path, comm_scale=4)
    assert [node.time_us for node in scaled.nodes] == [0, 0, 160, 0, 50, 30, 30, 160, 0, 0]
    with pytest.raises(ProblemError, match="comm_scale is -1: it is a finite factor of 0 or more"):
        read_problem(path, comm_scale=-1)


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
        said = bad(zipped, content[:end])
        assert said == "the gzip stream is cut short. Copy or download the file again."
    assert "Rename it to .json or compress it again." in bad(zipped, b"{}")
    assert "Rename it to .json or compress it again." in bad(zipped, content[:20] + b"\xff" * 20 + content[40:])
    text = gzip.decompress(content)
    for end in (0, 1, len(text) // 2, len(text) - 1):
        assert bad(plain, text[:end]).startswith("is not JSON (")
    assert "is not text" in bad(plain, text.replace(b'"dgrad"', b'"\xff"'))
    assert "is not JSON" in bad(plain, b"\xff\xfe\xff")
    assert "is a list" in bad(plain, b"[" * 100_000)
    twice = bad(plain, text.replace(b'"pinned":', b'"pinned":false,"pinned":', 1))
    assert "'pinned' occurs twice" in twice
    assert "got int" in bad(plain, b"95")
    for deep in (b'{"format":' + b"[" * 100_000, b'{"format":"overlap-problem/1","nodes":' + b'[{"deps":' * 100_000):
        bad(plain, deep)


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


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (put("format", value="overlap-problem/3"), "format", "this version reads 'overlap-problem/1'"),
        (put("contention", value={"links": {"g": "nvlink"}}), "", "Write 'overlap-problem/2' as its format"),
        (drop("name"), "", "required field name"),
        (put("nodes", value={}), "nodes", "expected array, got object"),
        (put("nodes", 1, "kind", value="send"), "nodes[1].kind", "'send'. It is one of 'input', 'compute',"),
        (put("nodes", 0, "deps", value=[0.5]), "nodes[0].deps[0]", "expected int"),
        (drop("nodes", 0, "use"), "nodes[0]", "required field use"),
        (put("nodes", 0, "us", value=-1), "compute 0 ('a')", "-1.0 us"),
        (drop("nodes", 1, "group"), "collective 1 ('c')", "Add it to `groups`"),
        (put("storages", 0, "bytes", value=1.5), "storages[0].bytes", "expected int"),
        (put("memory_model", value="guess"), "memory_model", "'guess'"),
        (put("nodes", 0, "us", value=10**400), "nodes[0].us", "out of range"),
        (put("nodes", 0, "bytes", value=10**400), "compute 0 ('a')", "below 2**63"),
        (put("nodes", 2, "us", value=3), "wait 2 ('w')", "Make it a compute node"),
        (put("groups", "g", "size", value=0), "group 'g'", "1 to 2147483647"),
        (put("nodes", 1, "dep", value=[0]), "nodes[1]", "unknown field dep. Did you mean 'deps'?"),
        (put("groups", "g", "ranks", value=[0]), "group 'g'", "lists 1"),
    ],
)
def test_wrong_types_name_their_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], place: str, said: str
) -> None:
    tree = data()
    change(tree)
    text = bad(tmp_path / "p.json", json.dumps(tree).encode())
    assert text.startswith(place)
    assert said in text


@pytest.mark.parametrize("us", ["NaN", "Infinity", "1e999"])
def test_times_that_cannot_be(tmp_path: Path, us: str) -> None:
    bad(tmp_path / "p.json", json.dumps(data()).replace('"us": 1.5', f'"us": {us}').encode())


def test_counts_may_be_written_as_floats(tmp_path: Path) -> None:
    path, tree = tmp_path / "p.json", data()
    tree["nodes"][0] |= {"flops": 1e12, "group": "g"}
    path.write_text(json.dumps(tree))
    node = read_problem(path).nodes[0]
    assert (node.flops, type(node.flops), node.group) == (10**12, int, None)


def test_a_well_formed_file_may_still_be_a_bad_problem(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data() | {"nodes": [], "storages": []}))
    with pytest.raises(ProblemError):
        read_problem(path)


def test_the_file_that_all_others_start_from_is_good(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data()))
    assert read_problem(path).nodes[2].collective == 1


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
def test_a_file_larger_than_the_limit_is_not_read_to_its_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_problem(EXAMPLE, path)
    size = len(gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes())
    assert read_problem(path, limits=Limits(input_bytes=size)) == EXAMPLE
    with pytest.raises(InputTooLargeError) as caught:
        read_problem(path, limits=Limits(input_bytes=size - 1))
    assert str(caught.value).startswith(f"{path}: has more than {size - 1:,}")
    assert str(caught.value).endswith("(--max-input-bytes on the command line) if the file is meant to be that large.")


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
    repair = "Raise the limit (--max-nodes on the command line) if the file is meant to be that large."
    assert str(caught.value) == f"{path}: has 10 nodes, more than the limit of 9. {repair}"
    path.write_text(f"[{'[],' * 33}]")
    with pytest.raises(InputTooLargeError) as caught:
        read_problem(path, limits=Limits(nodes=2))
    assert str(caught.value) == f"{path}: has 34 objects and lists, more than 16 for each of 2 nodes. {repair}"


@pytest.mark.parametrize(("limit", "name"), [({"nodes": 0}, "nodes"), ({"input_bytes": -1}, "input_bytes")])
def test_limits_that_nothing_can_keep(limit: dict[str, int], name: str) -> None:
    with pytest.raises(OptionsError, match=f"the limit of {name} is {limit[name]}; it is 1 or more"):
        Limits(**limit)


@pytest.mark.slow
def test_instances_are_far_below_the_limits() -> None:
    paths = sorted((Path(__file__).parents[2] / "scripts" / "instances").glob("*.json.gz"))
    assert len(paths) == 4
    for path in paths:
        text = gzip.decompress(path.read_bytes())
        problem = read_problem(path)
        assert len(text) / len(problem.nodes) * DEFAULT_LIMITS.nodes < DEFAULT_LIMITS.input_bytes
        assert (text.count(b"{") + text.count(b"[")) / len(problem.nodes) < PARTS_PER_NODE / 2


@pytest.mark.parametrize("gzipped", [False, True])
def test_a_pipe_is_read_once(tmp_path: Path, gzipped: bool) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(problem_bytes(EXAMPLE, gzipped=gzipped),))
    writer.start()
    assert read_problem(path) == EXAMPLE
    writer.join()


def test_an_order_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text('["a", "b"]')
    with pytest.raises(ProblemError, match=r"order\.json: is a list, as an order is\. Give "):
        read_problem(path)


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
    assert (
        schedule(redact_problem(problem), Options(memory_model=problem.memory_model)).order
        == schedule(problem, Options(memory_model=problem.memory_model)).order
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "sweep --vary headroom=0", "explain", "memory"])
def test_every_command_saves_what_it_read(command: str, problem: str, tmp_path: Path) -> None:
    out = tmp_path / "saved.json.gz"
    assert run(*command.split(), "--save-problem", str(out), problem) == 0
    assert read_problem(out) == EXAMPLE
    assert run(*command.split(), "--save-problem", str(out), "--redact", problem) == 0
    assert read_problem(out) == redact_problem(EXAMPLE)


def test_times_and_contention_are_saved_as_used(problem: str, tmp_path: Path) -> None:
    out = tmp_path / "saved.json"
    assert run("plan", problem, "--save-problem", str(out), "--comm-scale", "4", "--slowdown", "1.5") == 0
    assert json.loads(out.read_text())["contention"] == {"slowdown": {"": 1.5}, "links": {}}
    assert read_problem(out).nodes[2].time_us == 160.0
