"""Streams on which collectives go together: by hand, on the drawn example of the module."""

from overlap_sched import Kind, Node, Problem
from overlap_sched.transform.buckets import BatchingStreams, Key, batch_time, keys_of, parts_of
from tests.support.sharded import PRICES, RANKS, sharded

THREE = sharded([[10], [10], [10]])
KEYS = keys_of(THREE, None)
SCATTERS = [v for v in THREE.collectives if THREE.nodes[v].op == "reduce_scatter_tensor"]
ONE_US, TWO_US = 10.0 + 0.25 * 40, 10.0 + 0.25 * 80


def streams(latencies: float) -> BatchingStreams:
    return BatchingStreams(THREE, KEYS, lambda key, nbytes: 10.0 + 0.25 * nbytes if nbytes < 2**16 else 10.0, latencies)


def test_what_waits_goes_together() -> None:
    made = streams(10.0)
    first, second, third = SCATTERS
    made.launch(first)
    assert made.finish_us[first] == ONE_US
    made.clock_us = 5.0
    made.launch(second)
    assert made.finish_us[second] == 2 * ONE_US
    made.clock_us = 9.0
    made.launch(third)
    assert made.finish_us[second] == made.finish_us[third] == ONE_US + TWO_US
    assert [batch.members for batch in made.batches] == [[first], [second, third]]
    assert made.free_us("fsdp") == made.end_us() == ONE_US + TWO_US


def test_a_batch_takes_no_longer_than_its_cap() -> None:
    made = streams(2.5)  # 25 us: two of them take 30
    for v in SCATTERS:
        made.launch(v)
    assert [len(batch.members) for batch in made.batches] == [1, 1, 1]


def test_kinds_do_not_mix() -> None:
    made = streams(10.0)
    made.launch(SCATTERS[0])
    made.clock_us = 1.0
    made.launch(THREE.collectives[0])
    made.clock_us = 2.0
    made.launch(SCATTERS[1])
    assert [len(batch.members) for batch in made.batches] == [1, 1, 1]


def test_levels_keep_what_lies_on_one_path_apart() -> None:
    gathers = [v for v in THREE.collectives if v not in SCATTERS]
    assert {KEYS[v] for v in gathers} == {Key("all_gather_into_tensor", "fsdp", "", 0)}
    assert {KEYS[v] for v in SCATTERS} == {Key("reduce_scatter_tensor", "fsdp", "", 0)}
    at = next(v for v, node in enumerate(THREE.nodes) if node.name == "dgrad0")
    nodes = [node._replace(deps=(*node.deps, at)) if node.name == "gather1_0" else node for node in THREE.nodes]
    chained = keys_of(Problem("chained", tuple(nodes), THREE.storages, THREE.groups), None)
    assert [chained[v].level for v in gathers] == [0, 1, 0]


def test_only_what_is_known_to_be_alike_has_a_key() -> None:
    kinds = {"gather0_0": "bfloat16", "gather1_0": "float32"}
    found = keys_of(THREE, kinds)
    assert [found[v].alike for v in sorted(found)] == ["bfloat16", "float32"]


def test_others_than_buckets_have_none() -> None:
    lone = Node("send", Kind.COLLECTIVE, op="isend", group="fsdp")
    assert keys_of(Problem("lone", (lone,), (), THREE.groups), None) == {}
    alone_us = PRICES.collective_us("reduce_scatter_tensor", 8, THREE.groups["fsdp"])
    assert batch_time(THREE, PRICES)(KEYS[SCATTERS[0]], 8) == alone_us
    assert THREE.groups["fsdp"].size == RANKS


def test_parts_of_a_list_are_never_empty() -> None:
    """One collective deferred alone is in one part, not in one and an empty one."""
    assert parts_of([7], 2) == [[7]]
    assert parts_of([1, 2, 3], 2) == [[1], [2, 3]]
