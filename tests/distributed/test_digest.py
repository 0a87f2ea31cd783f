"""Digests: the same everywhere, and each part says what is in it."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from overlap_sched.distributed import Digest, digest_of
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
        "calls": "96da3e422c2e",
        "storages": "e8717b5d95ae",
        "pair": "",
    }


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("seed", ["0", "1"])
def test_another_process_with_other_hashes_and_without_torch_has_the_same_digest(seed: str) -> None:
    code = (
        "import sys; from overlap_sched.distributed import digest_of; from overlap_sched import EXAMPLE, Options; "
        "print(digest_of(EXAMPLE, Options(), EXAMPLE.original_order).to_json()); assert 'torch' not in sys.modules"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed}
    out = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    assert Digest.from_json(out) == digest_of(EXAMPLE, Options(), ORDER)


def test_text_and_back() -> None:
    digest = digest_of(EXAMPLE, Options(), ORDER)
    assert Digest.from_json(digest.to_json()) == digest
    assert sorted(json.loads(digest.to_json())) == [
        "calls", "costs", "failure", "key", "launches", "name", "nodes", "operators", "options", "order",
        "pair", "sizes", "storages",
    ]  # fmt: skip


def test_what_can_only_be_taken_together_counts_until_it_is_left_out() -> None:
    first, rest = digest_of(EXAMPLE, Options(), ORDER), digest_of(EXAMPLE, Options(), ORDER[::-1])
    both = [first.with_rest(one) for one in ([], [rest], [first], [rest, rest])]
    assert both[0] == first
    assert len({one.identity for one in both}) == len(both)
    assert all(one.alone == first for one in both)


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        (with_node(4, time_us=50.000000001), {"costs"}),
        (with_node(2, time_us=41.0), {"costs"}),
        (with_node(4, op="aten.bmm"), {"operators", "calls", "key"}),
        (with_node(4, deps=(0, 1)), {"operators", "key"}),
        (with_node(4, flops=1), {"sizes"}),
        (with_node(2, bytes=1), {"sizes"}),
        (with_node(4, use=(0, 1)), {"sizes"}),
        (replace(EXAMPLE, storages=(Storage(2**20), *EXAMPLE.storages[1:])), {"sizes"}),
        (replace(EXAMPLE, storages=(Storage(2**19, pinned=True), *EXAMPLE.storages[1:])), {"sizes", "storages"}),
        (replace(EXAMPLE, groups={"fsdp": Group(4, intra_node=True)}), {"operators", "launches"}),
        (replace(EXAMPLE, memory_model="tracker"), {"operators"}),
        (replace(EXAMPLE, contention=Contention({"all_gather": 1.1})), {"costs"}),
        (replace(EXAMPLE, contention=Contention(links={"fsdp": "nvlink"})), set()),  # nobody shares it
        (replace(EXAMPLE, name="graph_7"), {"name"}),
        (with_node(4, name="mm_1"), set()),
        (with_node(2, op="all_reduce"), {"operators", "calls", "key", "launches"}),
        (with_node(4, launches=("fsdp",)), {"operators", "key", "launches"}),
    ],
)
def test_what_is_in_which_part(problem: Problem, parts: set[str]) -> None:
    assert changed(problem) == parts


@pytest.mark.parametrize(
    "options",
    [
        Options(headroom=1),
        Options(headroom="0"),
        Options(memory_limit="40GiB"),
        Options(budget="profile"),
        Options(preserve_collective_order="all"),
        Options(base="memory"),
        Options(base="memory-peak"),
        Options(effort=3),
        Options(strict=True),
        Options(agreement="none"),
    ],
)
def test_every_option_counts(options: Options) -> None:
    assert changed(options=options) == {"options"}


def test_the_order_counts() -> None:
    assert changed(order=(1, 0, *ORDER[2:])) == {"order"}
    assert changed(order=tuple(np.array(ORDER))) == set()


def test_integers_of_numpy_and_whole_floats_are_the_same_numbers() -> None:
    assert changed(with_node(4, time_us=50, flops=np.int64(0), deps=(np.int64(1),))) == set()
    assert changed(with_node(0, time_us=-0.0)) == set()


def test_every_group_on_which_an_operator_launches_by_itself_counts() -> None:
    digests = [
        digest_of(with_node(4, launches=launches), Options(), ORDER)
        for launches in (("fsdp",), ("fsdp", "tp"), ("tp", "fsdp"), ("fsdp", "tp", "tp"))
    ]
    assert len({digest.launches for digest in digests}) == len(digests)


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
