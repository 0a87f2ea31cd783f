"""Cluster files: those that are shipped, the way there and back, and every mistake by its text."""

import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from overlap_sched.cost.cluster import (
    Across,
    Cluster,
    DefaultContention,
    IntraNodeLink,
    MeshDimension,
    cluster_text,
    contention_of,
    parse_cluster,
    read_cluster,
    shipped_clusters,
    write_cluster,
)
from overlap_sched.cost.model import H100
from overlap_sched.cost.table import CollectiveTime, KernelTime, Tables
from overlap_sched.cost.toml_file import parse_toml
from overlap_sched.errors import CostError
from overlap_sched.problem import Group
from overlap_sched.problem.contention import Contention

GOOD = """
name = "mine"
device = "H100"
ranks_per_node = 8
generation = "hopper"
[inside]
fabric = "nvswitch"
bandwidth = "450GB/s"
[across]
bandwidth = "400Gb/s"
cards_per_node = 4
rails = 2
latency = "500ns"
[mesh]
names = ["dp", "tp"]
sizes = [8, 8]
"""


def test_all_that_are_shipped_can_be_read_and_say_their_sources() -> None:
    names = shipped_clusters()
    assert names == ("dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200", "gloo", "mi300x", "pcie-box")
    for name in names:
        cluster = read_cluster(name)
        assert cluster.name == name
        assert cluster.source
        assert cluster.inside.source
        assert cluster.across is None or cluster.across.source
        assert cluster.beside.source


def test_what_a_file_says() -> None:
    cluster = parse_cluster(GOOD, "mine.toml")
    assert cluster == Cluster(
        "mine", H100, 8, IntraNodeLink("nvswitch", 450e9), Across(50e9, 4, 0.5, 2), generation="hopper",
        mesh=(MeshDimension("dp", 8), MeshDimension("tp", 8)),
    )  # fmt: skip
    assert cluster.across_bytes_per_s == 25e9  # two ranks share a card


def test_a_device_may_say_its_memory() -> None:
    own = '[device]\nname = "X"\nflops = "1PFLOPS"\nbandwidth = "8TB/s"\nmemory = "192GB"\n[inside]'
    cluster = parse_cluster(GOOD.replace('device = "H100"\n', "").replace("[inside]", own), "mine.toml")
    assert cluster.device.memory_bytes == 192 * 10**9
    assert parse_cluster(cluster_text(cluster), "x") == cluster
    assert read_cluster("dgx-h100").device.memory_bytes == 80 * 10**9


def test_off_their_rails_ranks_share_the_spine() -> None:
    text = GOOD.replace("rails = 2", "rails = 4\noversubscription = 2.0")
    on_rails = parse_cluster(text, "x")
    assert (on_rails.on_rails, on_rails.across_bytes_per_s) == (True, 25e9)
    for rails in (1, 2):
        off = parse_cluster(text.replace("rails = 4", f"rails = {rails}"), "x")
        assert (off.on_rails, off.across_bytes_per_s) == (False, 12.5e9)
    one_card = parse_cluster(text.replace("rails = 4", "rails = 1").replace("= 4", "= 1"), "x")
    assert not one_card.on_rails  # one leaf switch for all nodes is not known to be there
    assert not replace(on_rails, across=None).on_rails


def test_there_and_back(tmp_path: Path) -> None:
    tables = Tables(
        (
            CollectiveTime("all_gather", 8, 1, 1024, 20.5, 3.0),
            CollectiveTime("all_gather", 8, 1, 4096, 21.0, 3.0, 1.5),
        ),
        (KernelTime("aten.mm.default", 'bf16 2x2 "x" 2x2', 16, 24, 2.5),),
    )
    beside = DefaultContention({"": 1.189, "all_to_all": 1.4}, False, "ours", {"flops": 0.5, "bytes": 1.5})
    cluster = replace(parse_cluster(GOOD, "x"), tables=tables, beside=beside, source='2026, \\ a "test"\n')
    write_cluster(cluster, tmp_path / "c.toml")
    assert read_cluster(tmp_path / "c.toml") == cluster
    assert cluster_text(cluster) == cluster_text(read_cluster(tmp_path / "c.toml"))
    older = re.sub("finish_us = .*\n", "spread_us = [0.1, 0.2]\n", cluster_text(cluster))  # as calibrate wrote it
    older = older.replace("us = 2.5", "us = 2.5\nspread_us = 0.25")
    known = parse_cluster(older, "x").tables
    assert known.collectives == tuple(one._replace(finish_us=0.0) for one in tables.collectives)
    assert known.kernels == tables.kernels


def test_what_binds_compute_goes_into_the_problem_with_the_balance_of_the_device() -> None:
    cluster = replace(parse_cluster(GOOD, "x"), beside=DefaultContention({"": 1.2}, shares={"bytes": 1.5}))
    found = contention_of(cluster, {})
    assert found.shares == {"bytes": 1.5}
    assert found.flops_per_byte == cluster.device.flops_per_s / cluster.device.bytes_per_s
    assert contention_of(replace(cluster, beside=DefaultContention({"": 1.2})), {}) == Contention({"": 1.2})
    with pytest.raises(CostError) as caught:
        replace(cluster, beside=DefaultContention(shares={"memory": 1.0}))
    assert str(caught.value).startswith(
        "contention.shares: compute bound by 'memory' takes 1.0 of a slowdown; kinds are"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"450GB/s"', "450", 'inside.bandwidth: 450 has no unit. Write "50GB/s" or "400Gb/s".'),
        ('"450GB/s"', '"450"', "inside.bandwidth: '450' has no unit."),
        ('"450GB/s"', '"-450GB/s"', "inside.bandwidth: '-450GB/s' is out of range"),
        ('"450GB/s"', '"450gb/s"', "inside.bandwidth: '450gb/s' is in 'gb/s', which does not fit. Write"),
        ('"450GB/s"', '"12us"', "inside.bandwidth: '12us' is in 'us', which does not fit."),
        ('"450GB/s"', '"fast"', "inside.bandwidth: 'fast' is not a number with a unit."),
        ('"450GB/s"', '"0GB/s"', "inside.bandwidth: '0GB/s' is out of range: it is finite and above 0."),
        ('"450GB/s"', '"1e999GB/s"', "inside.bandwidth: '1e999GB/s' is out of range"),
        ('"500ns"', "12", 'across.latency: 12 has no unit. Write "12us".'),
        ('"H100"', '"H1000"', "device is unknown: no device is named 'H1000'; known are H100, H200, A100"),
        ("ranks_per_node = 8", "ranks_per_node = 0", "ranks_per_node: expected int >= 1."),
        ("ranks_per_node = 8", "ranks_per_node = true", "ranks_per_node: expected int, got bool."),
        ("ranks_per_node = 8", "", "object missing required field ranks_per_node."),
        ("ranks_per_node", "rank_per_node = 8\nranks_per_node", "rank_per_node. Did you mean 'ranks_per_node'?"),
        ("rails = 2", "rails = 3", "across.rails is 3, but a node has 4 cards"),
        (
            '"nvswitch"',
            '"ethernet"',
            "inside.fabric: invalid enum value 'ethernet'. It is one of '",
        ),
        ('"hopper"', '""', 'library is "nccl", whose times depend on the generation of the GPU: give'),
        ("[8, 8]", "[8]", "mesh has 2 names and 1 sizes"),
        ("[8, 8]", "[8, -8]", "mesh.sizes[1]: expected int >= 1."),
        ('"tp"]', '"dp"]', "mesh.names are dp, dp: each dimension has a name of its own."),
        ("[mesh]", "[contention.slowdown]\nany = 0.5\n[mesh]", "contention.slowdown of '' is 0.5: it is finite and 1"),
        ("[mesh]", '[[in_flight]]\nkind = "all_gather"\n[mesh]', "delete each [[in_flight]]."),
        ("[mesh]", '[[slowdown]]\nkind = "all_gather"\n[mesh]', "delete each [[slowdown]]."),
    ],
)
def test_mistakes_name_the_place_and_the_remedy(old: str, new: str, said: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(CostError, match=f"^mine.toml: .*{re.escape(said)}"):
        parse_cluster(GOOD.replace(old, new), "mine.toml")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CostError) as error:
        read_cluster("dgx-h1000")
    assert str(error.value) == (
        "dgx-h1000: is neither a file that can be read (No such file or directory) nor the name of a cluster that is "
        "shipped: dgx-a100, dgx-b200, dgx-h100, dgx-h200, gloo, mi300x, pcie-box."
    )
    (tmp_path / "a.toml").write_text("name = ")
    with pytest.raises(CostError, match=r"a\.toml: is not TOML: Invalid value"):
        read_cluster(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(CostError, match=r"is not text\. A cluster file is TOML in UTF-8\."):
        read_cluster(tmp_path / "b.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nx = " + "9" * 5000, "an integer has more than 64 bits (at line 2)"),
        ("x = 0x" + "f" * 5000, "'x' is an integer of more than 64 bits"),
        ("x = [1, [9223372036854775808]]", "'x' is an integer of more than 64 bits"),
        ("\n\n" + ".".join("a" * 4000) + " = 1", "a key has more than 32 parts (at line 3)"),
        ("[ " + " . ".join(["'a'"] * 4000) + " ]", "a key has more than 32 parts (at line 1)"),
        ("x = { " + ".".join([r'"\""'] * 4000) + " = 1 }", "a key has more than 32 parts (at line 1)"),
        ("x" + ".a" * 32 + " = 1", "a key has more than 32 parts (at line 1)"),
        ("x" + ".a" * 20 + " = { b" + ".c" * 20 + " = 1 }", "'c' nests more than 32 deep"),
        ("x = " + "[" * 100 + "]" * 100, "'x' nests more than 32 deep"),
        ("x = " + "[" * 5000 + "]" * 5000, "a value nests more than 32 deep"),
    ],
)
def test_what_is_too_large_for_toml(text: str, said: str) -> None:
    tracemalloc.start()
    with pytest.raises(CostError) as error:
        parse_cluster(text, "mine.toml")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value) == f"mine.toml: is not TOML: {said}."
    assert most < 4 * 2**20


def test_what_is_just_small_enough_for_toml() -> None:
    text = f"""
        x{".a" * 31} = {2**63 - 1}
        y = [{-(2**63)}, 1e300, true, "{"1234567890" * 500}"]  # {"z, " * 40}
        z = "{"../" * 40}"
        us = [{"1.5, " * 40}]
    """
    assert {"x", "y", "us"} < set(parse_toml(text))


def test_contention_follows_from_placement() -> None:
    cluster = read_cluster("dgx-h100")
    groups = {"fsdp": Group(8, False, 8), "dp": Group(64, False, 8), "tp": Group(8, True), "one": Group(1, True)}
    contention = contention_of(cluster, groups)
    assert contention.slowdown == {"": 1.189}
    assert contention.links == {"fsdp": "across nodes", "dp": "across nodes"}
