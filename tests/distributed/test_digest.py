"""Digests: the same everywhere, and each part says what is in it."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from overlap_sched.distributed import Digest, Verdict, digest_of
from overlap_sched.distributed.digest import absent, judge, options_text, ranks_text
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Group, Problem, Storage
from overlap_sched.problem.contention import Contention

ORDER = EXAMPLE.original_order


def changed(problem: Problem = EXAMPLE, options: Options | None = None, order: tuple[int, ...] = ORDER) -> set[str]:
    """The fields of the digest that are not those of the example."""
    before = asdict(digest_of(EXAMPLE, Options(), ORDER))
    after = asdict(digest_of(problem, options or Options(), order))
    return {name for name in before if before[name] != after[name]}


def with_node(v: int, **fields: object) -> Problem:
    nodes = list(EXAMPLE.nodes)
    nodes[v] = nodes[v]._replace(**fields)  # type: ignore[arg-type]
    return replace(EXAMPLE, nodes=tuple(nodes))


def test_the_digest_is_this_one_on_every_machine_and_in_every_version_of_python() -> None:
    digest = digest_of(EXAMPLE, Options(), ORDER)
    assert Digest.from_json(digest.to_json()) == digest
    assert {part: str(value)[:12] for part, value in asdict(digest).items() if part != "options"} == {
        "operators": "f50886cfea7d",
        "sizes": "f00145fcb06d",
        "costs": "b2ad9cbe2329",
        "order": "6c301cda718f",
        "key": "79fa52e78227",
        "launches": "77de05607965",
        "failure": "",
        "name": "example",
        "nodes": "10",
    }


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (with_node(4, time_us=50.000000001), {"costs"}),
        (with_node(2, time_us=41.0), {"costs"}),
        (with_node(4, op="aten.bmm"), {"operators", "key"}),
        (with_node(4, deps=(0, 1)), {"operators", "key"}),
        (with_node(4, flops=1), {"sizes"}),
        (with_node(2, bytes=1), {"sizes"}),
        (with_node(4, use=(0, 1)), {"sizes"}),
        (replace(EXAMPLE, storages=(Storage(2**20), *EXAMPLE.storages[1:])), {"sizes"}),
        (replace(EXAMPLE, storages=(Storage(2**19, pinned=True), *EXAMPLE.storages[1:])), {"sizes"}),
        (replace(EXAMPLE, groups={"fsdp": Group(4, intra_node=True)}), {"operators", "launches"}),
        (replace(EXAMPLE, memory_model="tracker"), {"operators"}),
        (replace(EXAMPLE, contention=Contention({"all_gather": 1.1})), {"costs"}),
        (replace(EXAMPLE, contention=Contention(links={"fsdp": "nvlink"})), set()),  # nobody shares it
        (replace(EXAMPLE, name="graph_7"), {"name"}),
        (with_node(4, name="mm_1"), set()),
        (with_node(2, op="all_reduce"), {"operators", "key", "launches"}),
        (with_node(4, launches=("fsdp",)), {"operators", "key", "launches"}),
    ],
)
def test_what_is_in_which_part(problem: Problem, parts: set[str]) -> None:
    assert changed(problem) == parts


def test_every_option_counts() -> None:
    others = {"headroom": "0", "memory_limit": "40GiB", "budget": "profile", "preserve_collective_order": "all"}
    for name, value in {**others, "base": "memory", "effort": 3, "strict": True, "agreement": "none"}.items():
        assert changed(options=Options(**{name: value})) == {"options"}, name  # type: ignore[arg-type]


def test_integers_of_numpy_and_whole_floats_are_the_same_numbers() -> None:
    assert changed(order=(1, 0, *ORDER[2:])) == {"order"}
    assert changed(order=tuple(np.array(ORDER))) == set()
    assert changed(with_node(4, time_us=50, flops=np.int64(0), deps=(np.int64(1),))) == set()
    assert changed(with_node(0, time_us=-0.0)) == set()


def test_every_group_on_which_an_operator_launches_by_itself_counts() -> None:
    ways = (("fsdp",), ("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "tp", "tp"))
    assert len({digest_of(with_node(4, launches=groups), Options(), ORDER).launches for groups in ways}) == len(ways)


def two_groups(first: str, second: str, listed: tuple[str, str]) -> Problem:
    """The gather on one group, the scatter on another."""
    nodes = list(EXAMPLE.nodes)
    nodes[2], nodes[7] = nodes[2]._replace(group=first), nodes[7]._replace(group=second)
    sizes = {first: Group(8, intra_node=True), second: Group(2, intra_node=False)}
    return replace(EXAMPLE, nodes=tuple(nodes), groups={name: sizes[name] for name in listed})


def test_ranks_of_a_mesh_name_their_groups_differently() -> None:
    here, there = two_groups("1", "5", ("1", "5")), two_groups("8", "2", ("2", "8"))
    assert digest_of(here, Options(), ORDER) == digest_of(there, Options(), ORDER)
    shared = Contention(links={"1": "rail", "5": "rail"}), Contention(links={"2": "nic", "8": "nic"})
    here, there = replace(here, contention=shared[0]), replace(there, contention=shared[1])
    assert digest_of(here, Options(), ORDER) == digest_of(there, Options(), ORDER)
    one = two_groups("1", "5", ("1", "5"))
    assert digest_of(here, Options(), ORDER).costs != digest_of(one, Options(), ORDER).costs
    assert changed(one) == {"operators", "key", "launches"}


A = Digest(
    operators="p", sizes="s", options="{}", costs="c", order="r", key="k", launches="l", name="backward", nodes=7
)


def test_equal_digests_agree_whatever_the_names() -> None:
    assert judge({0: A, 1: replace(A, name="backward_1")}) == Verdict(agreed=True, shown=(A.identity,))


SIDES = "ranks 0-1, 3 against rank 2"


@pytest.mark.parametrize(
    ("other", "parts", "named"),
    [
        (
            replace(A, operators="q", sizes="t", costs="d", order="s", name="forward", nodes=8),
            ["operators"],
            "(rank 0 compiles 'backward' of 7 nodes, rank 2 compiles 'forward' of 8 nodes)",
        ),
        (replace(A, sizes="t", costs="d", order="s"), ["sizes"], "tensor sizes"),
        (
            replace(A, options='{"effort": 2}', order="s"),
            ["options"],
            "Give overlap_sched the same options on every rank.",
        ),
        (replace(A, costs="d", order="s"), ["costs"], "(overlap_sched.distributed.broadcast_costs)"),
        (replace(A, order="s"), ["order"], "different versions of overlap_sched"),
        (
            replace(A, options='{"effort": 2}', costs="d"),
            ["options", "costs"],
            f"ranks 0-1, 3 and 2 on rank 2; costs: {SIDES}",
        ),
    ],
)
def test_who_differs_in_what(other: Digest, parts: list[str], named: str) -> None:
    verdict = judge({0: A, 1: A, 2: other, 3: A})
    assert (verdict.agreed, verdict.launches_alike) == (False, True)
    assert verdict.to_repair is (parts[0] not in ("operators", "sizes"))
    assert verdict.differs == dict.fromkeys(parts, ((0, 1, 3), (2,)))
    assert "options" in parts or SIDES in str(verdict.reason)
    assert "launch order kept" in str(verdict.reason)
    assert named in str(verdict.reason)
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_options_that_differ_are_named_with_the_value_of_each_rank() -> None:
    default = replace(A, options=options_text(Options(effort=9)))
    other = replace(A, options=options_text(Options(headroom="1GiB", effort=9), max_slowdown=0.1))
    told = 'headroom is 0 on ranks 0-1, 3 and "1GiB" on rank 2, max_slowdown is null on ranks 0-1, 3 and 0.1 on rank 2;'
    assert told in str(judge({0: default, 1: default, 2: other, 3: default}).reason)


@pytest.mark.parametrize("launches", ["other", ""], ids=["others", "not known"])
def test_ranks_that_launch_differently_keep_their_own_launches_and_waits(launches: str) -> None:
    for first in (A, replace(A, launches="")):
        verdict = judge({0: first, 1: replace(A, sizes="t", launches=launches)})
        assert not verdict.launches_alike
        assert "Their launch sequences differ too" in str(verdict.reason)


def test_a_rank_that_failed_is_named_and_the_others_keep_their_launches() -> None:
    failed = Digest(failure="KeyError: 'mm'", key="k", launches=A.launches, name="backward")
    verdict = judge({0: A, 1: failed, 2: A})
    assert (verdict.agreed, verdict.launches_alike, verdict.differs) == (False, True, {})
    assert verdict.reason == "rank 1 could not schedule this graph (KeyError: 'mm'); launch order kept."
    assert not judge({0: failed, 1: failed}).agreed
    both = str(judge({0: A, 1: replace(A, sizes="t"), 2: failed}).reason)
    assert both.startswith("the ranks differ in tensor sizes: rank 0 against rank 1; rank 2 could not schedule")


def test_who_is_missing() -> None:
    verdict = absent([2], {0: A, 1: A}, "backward", 300.0, 300.0)
    assert verdict.missing == (2,)
    assert str(verdict.reason).startswith("rank 2 did not publish an order for graph 'backward' within 300 s.")
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert "within 30 s (instead of 300 s, " in str(absent([1, 2], {0: A}, "x", 30.0, 300.0).reason)


def test_thousands_of_ranks_stay_readable() -> None:
    assert ranks_text(range(4096)) == "ranks 0-4095"
    assert ranks_text(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
    verdict = judge({rank: replace(A, operators=str(rank)) for rank in range(1000)})
    assert len(str(verdict.reason)) < 1000
    assert "rank 7 and 992 more kinds" in str(verdict.reason)


def test_what_is_for_people_is_no_part_of_an_identity() -> None:
    assert replace(A, name="forward 0/1", nodes=8).identity == A.identity
    for part in ("operators", "sizes", "options", "costs", "order", "key", "launches", "failure"):
        assert replace(A, **{part: "other"}).identity != A.identity
