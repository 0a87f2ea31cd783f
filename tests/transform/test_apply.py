"""What rewrites make of a problem: names, memory and times by hand; what each node computes by an oracle."""

import json
import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import Group, Kind, Problem
from overlap_sched.errors import RewriteError
from overlap_sched.judge.validate import violation
from overlap_sched.problem.contention import Contention
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import Cut
from overlap_sched.transform.rewrites import (
    Bucket,
    Fission,
    Keep,
    Leave,
    Offload,
    Recompute,
    Regather,
    Rewrite,
    Slice,
    Stream,
    to_json,
)
from tests.support.oracle import peak_by_definition
from tests.support.sharded import LATENCY_US, PRICES, RANKS, US_PER_BYTE, meanings, sharded, sharded_problems

TWO = sharded([[1, 3]])


def live(problem: Problem) -> list[tuple[str, int]]:
    """Bytes at each step of the original order, by the definition, inputs left out."""
    profile = peak_by_definition(problem, list(problem.original_order))
    named = zip(problem.nodes, profile, strict=True)
    return [(node.name, at) for node, at in named if node.kind is not Kind.INPUT]


def named(problem: Problem, name: str):  # type: ignore[no-untyped-def]
    return next(node for node in problem.nodes if node.name == name)


def test_a_copied_bucket_of_gathers_by_hand() -> None:
    """Inputs: 1 + 3 pinned, 8 + 8. Packed shards 4, packed results 16, results 4 and 12, dx 8."""
    after = apply(TWO, [Bucket(("gather0_0", "gather0_1"))], PRICES)
    b = "bucket_gather0_0_2"
    assert live(after)[:12] == [
        (f"{b}_flat_0", 20),
        (f"{b}_flat_1", 20),
        (f"{b}_in", 24),
        (b, 40),
        (f"{b}_wait", 40),  # the packed shards are held until here
        (f"{b}_rows", 36),
        (f"{b}_part_0", 36),
        (f"{b}_copy_0", 40),
        (f"{b}_out_0", 40),
        (f"{b}_part_1", 40),
        (f"{b}_copy_1", 52),
        (f"{b}_out_1", 36),
    ]
    launch, copy_in, copy_out = named(after, b), named(after, f"{b}_in"), named(after, f"{b}_copy_1")
    assert (launch.bytes, launch.time_us, launch.group) == (16, LATENCY_US + US_PER_BYTE * 16, "fsdp")
    assert (copy_in.bytes, copy_out.bytes) == (8, 24)
    assert (copy_in.time_us, copy_out.time_us) == (pytest.approx(0.08), pytest.approx(0.24))


def test_a_coalesced_bucket_of_scatters_holds_all_inputs_until_its_last_wait() -> None:
    after = apply(TWO, [Bucket(("scatter0_0", "scatter0_1"), "coalesced")], PRICES)
    b = "bucket_scatter0_0_2"
    tail = dict(live(after))
    assert tail[f"{b}_out_0"] == tail[f"{b}_out_1"] == 4 + 8 + 16 + 4
    assert tail["output"] == 4 + 8 + 4


def test_groups_of_what_communicates_itself_stay() -> None:
    nodes = [n._replace(launches=("tp",)) if n.kind is Kind.COMPUTE else n for n in TWO.nodes]
    problem = replace(TWO, nodes=tuple(nodes), groups=TWO.groups | {"tp": Group(2, True), "gone": Group(2, True)})
    assert apply(problem, [Bucket(("gather0_0", "gather0_1"))], PRICES).groups == TWO.groups | {"tp": Group(2, True)}


def twice() -> Problem:
    """The same parameter gathered for two layers."""
    one = sharded([[2], [2]])
    nodes = list(one.nodes)
    at = [node.name for node in nodes].index("gather1_0")
    nodes[at] = nodes[at]._replace(deps=(0,), use=(0,))
    nodes[at + 1] = nodes[at + 1]._replace(use=(0, *nodes[at + 1].use[1:]))
    return Problem("twice", tuple(nodes), one.storages, one.groups)


def test_a_gather_kept_and_gathered_again() -> None:
    kept = apply(twice(), [Keep("gather0_0", "gather1_0")], PRICES)
    assert [node.name for node in kept.nodes if node.op == "all_gather_into_tensor"] == ["gather0_0"]
    waits = {node.name: v for v, node in enumerate(kept.nodes)}
    assert waits["gather0_0_wait"] in named(kept, "dgrad1").deps
    again = apply(kept, [Regather("gather0_0", ("dgrad1",))], PRICES)
    assert named(again, "again_gather0_0_dgrad1").time_us == named(kept, "gather0_0").time_us
    assert meanings(again)["dgrad1"] == meanings(kept)["dgrad1"] == meanings(twice())["dgrad1"]
    assert dict(live(again))["scatter0_0"] < dict(live(kept))["scatter0_0"]


@st.composite
def problem_and_rewrites(draw: st.DrawFn) -> tuple[Problem, list[Rewrite]]:
    """Any partition of the gathers, of the scatters and of the reductions, in both forms; some streams."""
    problem = draw(sharded_problems())
    rewrites: list[Rewrite] = []
    singles: list[str] = []
    for op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
        names = [problem.nodes[v].name for v in problem.collectives if problem.nodes[v].op == op]
        while names:
            taken = names[: draw(st.integers(1, 4))]
            del names[: len(taken)]
            if len(taken) > 1:
                rewrites.append(Bucket(tuple(taken), draw(st.sampled_from(("copied", "coalesced")))))
            else:
                singles += taken
    launches = [one.name for one in rewrites if isinstance(one, Bucket)] + singles
    rewrites += [Stream(name) for name in launches if draw(st.booleans())]
    return problem, rewrites


@given(problem_and_rewrites())
def test_every_node_computes_what_it_did(made: tuple[Problem, list[Rewrite]]) -> None:
    problem, rewrites = made
    after = apply(problem, rewrites, PRICES)
    assert violation(after, after.original_order) is None
    before, now = meanings(problem), meanings(after)
    gone = {name for one in rewrites for name in (one.members if isinstance(one, Bucket) else ())}
    for node in problem.nodes:
        if node.name not in gone and node.name.removesuffix("_wait") not in gone:
            assert now[node.name] == before[node.name]
    assert now["output"] == before["output"]
    for one in rewrites:
        if isinstance(one, Bucket):
            for i, name in enumerate(one.members):
                assert now[f"{one.name}_out_{i}"] == before[f"{name}_wait"]
    moved = [sum(p.nodes[v].bytes for v in p.collectives) for p in (problem, after)]
    ends = [peak_by_definition(p, list(p.original_order))[-1] for p in (problem, after)]
    assert (moved[0], ends[0]) == (moved[1], ends[1])
    assert {group.size for group in after.groups.values()} == {RANKS}


REFUSED: list[tuple[list[Rewrite], str]] = [
    ([Bucket(("gather0_0",))], "gather0_0: two collectives at least"),
    ([Bucket(("gather0_0", "gather0_0"))], "gather0_0, gather0_0: two collectives at least"),
    ([Bucket(("gather0_0", "scatter0_0"))], "'scatter0_0' has operator 'reduce_scatter_tensor'"),
    ([Bucket(("gather0_0", "nothing"))], "'nothing'"),
    ([Bucket(("gather0_0", "gather0_1")), Stream("gather0_0")], "'gather0_0'"),
    ([Bucket(("dgrad0", "gather0_0"))], "'dgrad0' is 'aten.mm.default'"),
    ([Stream("dgrad0")], "'dgrad0' does not name its process group"),
    ([Stream("gather0_0"), Stream("gather0_0")], "second communicator already, 'fsdp/2'"),
    ([Keep("gather0_0", "gather0_1")], "'gather0_0' and 'gather0_1' are not two gathers of one tensor"),
    ([Keep("gather0_0", "gather0_0")], "'gather0_0' and 'gather0_0' are not two gathers of one tensor"),
    ([Keep("scatter0_0", "scatter0_1")], "'scatter0_0' is 'reduce_scatter_tensor': only gathers"),
    ([Regather("gather0_0", ("x0",))], "'x0' does not take 'gather0_0_wait'"),
    ([Regather("gather0_0", ("dgrad0",))], "'gather0_0' again needs users for both"),
]


@pytest.mark.parametrize(("rewrites", "message"), REFUSED, ids=str)
def test_what_is_refused_and_why(rewrites: list[Rewrite], message: str) -> None:
    with pytest.raises(RewriteError, match=re.escape(message)):
        apply(TWO, rewrites, PRICES)


def test_types_and_groups_must_be_alike() -> None:
    bucket = Bucket(("gather0_0", "gather0_1"))
    with pytest.raises(RewriteError, match="'gather0_1' has type and reduction 'bfloat16' and 'gather0_0' has 'f"):
        apply(TWO, [bucket], PRICES, {"gather0_0": "float32", "gather0_1": "bfloat16"})
    with pytest.raises(RewriteError, match="'gather0_1' has process group 'fsdp' and 'gather0_0' has 'fsdp/2'"):
        apply(TWO, [Stream("gather0_0"), bucket], PRICES)


def test_collectives_on_one_path_make_a_ring() -> None:
    chain = sharded([[1], [1]])
    at = next(v for v, node in enumerate(chain.nodes) if node.name == "dgrad0")
    nodes = [node._replace(deps=(*node.deps, at)) if node.name == "gather1_0" else node for node in chain.nodes]
    problem = Problem("chain", tuple(nodes), chain.storages, chain.groups)
    with pytest.raises(RewriteError, match="'bucket_gather0_0_2' would need itself, through 'dgrad0'"):
        apply(problem, [Bucket(("gather0_0", "gather1_0"))], PRICES)


def test_what_compute_and_communication_cost_each_other_stays() -> None:
    contention = Contention({"all_gather": 1.2}, {"fsdp": "rail"}, {"": 4.0})
    problem = replace(TWO, contention=contention)
    assert apply(problem, [Bucket(("gather0_0", "gather0_1"))], PRICES).contention == contention
    shared = replace(contention, links={"fsdp": "rail", "fsdp/2": "rail"})  # a second communicator has the same wires
    assert apply(problem, [Stream("scatter0_0")], PRICES).contention == shared


def test_only_the_runtime_memory_model() -> None:
    tracked = Problem("t", TWO.nodes, TWO.storages, TWO.groups, "tracker")
    with pytest.raises(RewriteError, match="problem 't' is in the 'tracker' memory model"):
        apply(tracked, [], PRICES)


ALL: tuple[Rewrite, ...] = (
    Bucket(("a", "b"), "coalesced"),
    Stream("bucket_a_2"),
    Keep("d", "e"),
    Regather("f", ("g", "h")),
    Fission(
        ("i", "j"),
        2,
        (Slice("x", Cut(0, 2, 4), 64, False, "x"),),
        (Leave("j", "cat", Cut(1), 32, "i", 1, (1, 0)),),
        ("j",),
        (("i", 1),),
    ),
    Recompute(("i", "j"), ("k",), 2),
    Offload("l", ("m",), ("n",)),
)


def test_plain_data() -> None:
    assert msgspec.convert(json.loads(json.dumps(to_json(ALL))), tuple[Rewrite, ...]) == ALL
    assert to_json(ALL[:1]) == [{"kind": "bucket", "members": ["a", "b"], "form": "coalesced"}]
