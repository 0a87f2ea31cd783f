"""What process groups are for: on real graphs, and on small ones made for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE, Group, Kind, Node, Problem, Storage, read_problem
from overlap_sched.report.words.graph import Purpose, by_purpose, group_names, group_purposes
from overlap_sched.report.words.schedule import explanation
from overlap_sched.scheduler.driver import schedule

ROOT = Path(__file__).resolve().parents[2]


def names_of(problem: Problem) -> dict[str, str]:
    return group_names(group_purposes(problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("scripts/instances/dsv3_bw_64", {"0": "FSDP 0", "513": "FSDP 513", "521": "expert 521"}),
        ("scripts/instances/llama3_8b_fw_64_2d", {"0": "FSDP 0", "1": "tensor 1"}),
        ("llama_repro/titan/graphs/titan-llama3-8b-fsdp8-tp8", {"281": "FSDP 281", "137": "tensor 137"}),
    ],
)
def test_groups_of_real_graphs(file: str, names: dict[str, str]) -> None:
    assert names_of(read_problem(ROOT / f"{file}.json.gz")) == names


def numbered(problem: Problem) -> Problem:
    nodes = tuple(node._replace(group="7") if node.group else node for node in problem.nodes)
    return replace(problem, nodes=nodes, groups={"7": problem.groups["fsdp"]})


def test_a_name_says_what_it_is_for_by_itself() -> None:
    assert names_of(EXAMPLE) == {"fsdp": "fsdp"}
    assert names_of(numbered(EXAMPLE)) == {"7": "FSDP 7"}


def test_a_gradient_that_is_reduced_is_of_data_parallel() -> None:
    nodes = [Node("x", Kind.INPUT, alloc=(0,))]
    nodes += [Node(f"mm{k}", Kind.COMPUTE, (k,), (k + 1,), (k,), 1.0) for k in range(9)]
    nodes += [
        Node("sum", Kind.COLLECTIVE, (9,), (10,), (9,), 1.0, "all_reduce", "3"),
        Node("done", Kind.WAIT, (10,), (), (9, 10), collective=10),
        Node("output", Kind.OUTPUT, (11,), (), (10,)),
    ]
    problem = Problem("data", tuple(nodes), (Storage(1),) * 11, {"3": Group(4, True)})
    assert names_of(problem) == {"3": "data 3"}
    more = [Node(f"more{k}", Kind.COMPUTE, (11 + k,), (11 + k,), (10 + k,), 1.0) for k in range(8)]
    longer = replace(
        problem, nodes=(*nodes[:-1], *more, Node("output", Kind.OUTPUT, (19,))), storages=(Storage(1),) * 19
    )
    assert names_of(longer) == {"3": "tensor 3"}


def test_a_second_communicator_is_for_the_same_and_what_is_not_known_says_so() -> None:
    assert group_names({"0": "FSDP", "0/2": "FSDP", "9": "other"}) == {"0": "FSDP 0", "0/2": "FSDP 0/2", "9": "other 9"}


@pytest.mark.parametrize(("op", "purpose"), [("send", "other"), ("", "other"), ("offload", "host"), ("reload", "host")])
def test_what_is_neither_gathered_nor_reduced(op: str, purpose: Purpose) -> None:
    nodes = (node._replace(op=op if node.group else node.op) for node in EXAMPLE.nodes)
    assert group_purposes(replace(EXAMPLE, nodes=tuple(nodes))) == {"fsdp": purpose}


def test_groups_of_one_purpose_stand_together_in_their_order() -> None:
    purposes: dict[str, Purpose] = {"a": "expert", "b": "other", "c": "FSDP", "d": "tensor", "e": "FSDP"}
    assert by_purpose(purposes, purposes) == ["c", "e", "d", "a", "b"]


def test_an_explanation_names_group_and_module() -> None:
    marked = numbered(EXAMPLE)
    nodes = (node._replace(module="layers.0") if node.name == "gather" else node for node in marked.nodes)
    told = explanation(schedule(replace(marked, nodes=tuple(nodes))), "gather")
    assert told.startswith("gather in layers.0: all_gather_into_tensor on group FSDP 7 of 8, 8.0 MiB, 40.0 us\n")
