"""Clusters: files and their mistakes, what measurements say of one, and where process groups are on it."""

import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from overlap_sched.cost import H100, XEON_8480, Collective, Device, Price
from overlap_sched.cost.cluster import (
    Across,
    Cluster,
    DefaultContention,
    IntraNodeLink,
    MeshDimension,
    cluster_from_tables,
    cluster_text,
    contention_of,
    parse_cluster,
    read_cluster,
    shipped_clusters,
)
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.placement import SHORT, DataflowNode, Facts, Nodes, place, ranks_along, sharding_groups
from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, TableModel, Tables
from overlap_sched.cost.toml_file import Bandwidth, Time, parse_toml
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


TIMES = '[[collective]]\nkind = "all_gather"\nranks = 8\n'


def test_all_that_are_shipped_can_be_read_and_say_their_sources() -> None:
    assert {"dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200", "gloo", "mi300x", "pcie-box"} < {*shipped_clusters()}
    for cluster in map(read_cluster, shipped_clusters()):
        assert all((cluster.source, cluster.inside.source, cluster.contention.source))
        assert cluster.across is None or cluster.across.source
        assert parse_cluster(cluster_text(cluster), "x") == cluster


def test_what_a_file_says() -> None:
    cluster = parse_cluster(GOOD, "mine.toml")
    assert cluster == Cluster(
        name="mine", device=H100, ranks_per_node=8, inside=IntraNodeLink("nvswitch", Bandwidth(450e9)),
        across=Across(Bandwidth(50e9), 4, Time(0.5), 2), generation="hopper",
        mesh=(MeshDimension("dp", 8), MeshDimension("tp", 8)),
    )  # fmt: skip
    assert cluster.across_bytes_per_s == 25e9  # two ranks share a card
    own = '[device]\nname = "X"\nflops = "1PFLOPS"\nbandwidth = "8TB/s"\nmemory = "192GB"\n[inside]'
    cluster = parse_cluster(GOOD.replace('device = "H100"\n', "").replace("[inside]", own), "mine.toml")
    assert cluster.device == Device("X", 1e15, 8e12, memory_bytes=192 * 10**9)  # a file need not have what is newer
    assert parse_cluster(cluster_text(cluster), "x") == cluster


def test_off_their_rails_ranks_share_the_spine() -> None:
    text = GOOD.replace("rails = 2", "rails = 4\noversubscription = 2.0")
    on_rails = parse_cluster(text, "x")
    assert (on_rails.on_rails, on_rails.across_bytes_per_s) == (True, 25e9)
    for rails in (1, 2):
        off = parse_cluster(text.replace("rails = 4", f"rails = {rails}"), "x")
        assert (off.on_rails, off.across_bytes_per_s) == (False, 12.5e9)
    one_card = parse_cluster(text.replace("rails = 4", "rails = 1").replace("= 4", "= 1"), "x")
    assert not one_card.on_rails  # one leaf switch for all nodes is not known to be there
    assert not structs.replace(on_rails, across=None).on_rails


def test_there_and_back(tmp_path: Path) -> None:
    gathers = [("all_gather", 8, 1, 1024, 20.5, 3.0), ("all_gather", 8, 1, 4096, 21.0, 3.0, 1.5)]
    kernel = KernelTime("aten.mm.default", 'bf16 2x2 "x" 2x2', 16, 24, 2.5)
    tables = Tables(tuple(CollectiveTime(*one) for one in gathers), (kernel,))
    contention = DefaultContention(False, "ours", {"any": 1.189, "all_to_all": 1.4}, {"flops": 0.5, "bytes": 1.5})
    new = {"tables": tables, "contention": contention, "source": '2026, \\ a "test"\n'}
    cluster = structs.replace(parse_cluster(GOOD, "x"), **new)
    (tmp_path / "c.toml").write_text(cluster_text(cluster))
    assert read_cluster(tmp_path / "c.toml") == cluster
    older = re.sub("finish_us = .*\n", "spread_us = [0.1, 0.2]\n", cluster_text(cluster))  # as calibrate wrote it
    known = parse_cluster(older.replace("us = 2.5", "us = 2.5\nspread_us = 0.25"), "x").tables
    assert known == replace(tables, collectives=tuple(one._replace(finish_us=0.0) for one in tables.collectives))


def test_contention_follows_from_placement_and_the_balance_of_the_device() -> None:
    cluster = read_cluster("dgx-h100")
    groups = {"fsdp": Group(8, False, 8), "dp": Group(64, False, 8), "tp": Group(8, True), "one": Group(1, True)}
    contention = contention_of(cluster, groups)
    assert contention == Contention({"": 1.189}, {"fsdp": "across nodes", "dp": "across nodes"})
    found = contention_of(structs.replace(cluster, contention=DefaultContention(shares={"bytes": 1.5})), {})
    assert found.shares == {"bytes": 1.5}
    assert found.flops_per_byte == cluster.device.flops_per_s / cluster.device.bytes_per_s
    with pytest.raises(CostError, match=r"contention.shares: .*'memory'"):
        structs.replace(cluster, contention=DefaultContention(shares={"memory": 1.0}))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"450GB/s"', "450", 'inside.bandwidth: .*450 .*unit.* Write "50GB/s" or "400Gb/s"'),
        ('"450GB/s"', '"-450GB/s"', "inside.bandwidth: .*-450GB/s.* above 0"),
        ('"450GB/s"', '"12us"', "inside.bandwidth: .*12us.*unit that fits"),
        ('"450GB/s"', '"0GB/s"', "inside.bandwidth: .*above 0"),
        ('"500ns"', "12", 'across.latency: .*12 .* Write "12us"'),
        ('"H100"', '"H1000"', "device is unknown: .*'H1000'; known are H100, .*H200, .*A100.*own"),
        ("ranks_per_node = 8", "ranks_per_node = 0", "ranks_per_node: expected int >= 1"),
        ("ranks_per_node = 8", "", "missing required field ranks_per_node"),
        ("ranks_per_node", "rank_per_node = 8\nranks_per_node", "rank_per_node. Did you mean 'ranks_per_node'"),
        ("rails = 2", "rails = 3", "across.rails is 3, but a node has 4 cards"),
        ('"nvswitch"', '"ethernet"', "inside.fabric: .*'ethernet'. It is one of '"),
        ('"hopper"', '""', 'library is "nccl", .* give generation'),
        ("[8, 8]", "[8]", "mesh has 2 names and 1 sizes"),
        ("[8, 8]", "[8, -8]", r"mesh.sizes\[1\]: expected int >= 1"),
        ('"tp"]', '"dp"]', "mesh.names are dp, dp"),
        ("[mesh]", "[contention.slowdown]\nany = 0.5\n[mesh]", r"contention.slowdown\[...\]: expected float >= 1"),
        ("[mesh]", '[[in_flight]]\nkind = "all_gather"\n[mesh]', r"delete each \[\[in_flight\]\]"),
        ("[mesh]", f"{TIMES}nodes = 9\nbytes = [1]\nus = [1.0]\nlaunch_us = [1.0]\n[mesh]", "nodes is 9, but .* 8"),
        ("[mesh]", f"{TIMES}nodes = 1\nbytes = [1, 2]\nus = [1.0]\nlaunch_us = [1.0]\n[mesh]", "have 2, 1, 1 values"),
        (
            "[mesh]",
            f"{TIMES}nodes = 1\nbytes = [1]\nus = [0.0]\nlaunch_us = [1.0]\n[mesh]",
            r"collective\[0\].us\[0\]: .*> 0",
        ),
    ],
)
def test_mistakes_name_the_place_and_the_remedy(old: str, new: str, said: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(CostError, match=f"^mine.toml: .*{said}"):
        parse_cluster(GOOD.replace(old, new), "mine.toml")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CostError, match=r"dgx-h1000: .*No such file.* dgx-h100,"):
        read_cluster("dgx-h1000")
    for content, said in ((b"name = ", "is not TOML: Invalid value"), (b"\xff\xfe", "TOML in UTF-8")):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(CostError, match=f"a.toml: .*{said}"):
            read_cluster(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nx = " + "9" * 5000, "an integer has more than 64 bits (at line 2)"),
        ("x = [1, [9223372036854775808]]", "'x' is an integer of more than 64 bits"),
        ("\n\n" + ".".join("a" * 4000) + " = 1", "a key has more than 32 parts (at line 3)"),
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


KERNELS = (
    KernelTime("aten.mm.default", "large", 2 * 10**12, 10**9, 4000.0),
    KernelTime("aten.mm.default", "small", 10**9, 10**6, 10.0),
    KernelTime(COPY, "small", 0, 10**4, 3.0),
    KernelTime(COPY, "in cache", 0, 10**7, 1.0),
    KernelTime(COPY, "large", 0, 10**9, 500.0),
)
GATHERS = (
    CollectiveTime("all_gather", 8, 1, 8_000, 20.0, 5.0),
    CollectiveTime("all_gather", 8, 1, 80_008_000, 220.0, 5.0),
    CollectiveTime("all_gather", 2, 1, 8_000, 5.0, 5.0),
    CollectiveTime("all_reduce", 8, 1, 8_000, 7.0, 5.0),
)
ACROSS = (
    CollectiveTime("all_gather", 16, 2, 16_000, 60.0, 5.0),
    CollectiveTime("all_gather", 16, 2, 16_016_000, 360.0, 5.0),
)
TABLES = Tables(GATHERS, KERNELS)


def test_rates_are_the_best_that_was_measured() -> None:
    cluster = cluster_from_tables("NVIDIA H100 80GB HBM3", 8, TABLES, "today")
    device = cluster.device
    assert (cluster.name, cluster.source, cluster.ranks_per_node) == ("measured-nvidia-h100-80gb-hbm3", "today", 8)
    assert device.flops_per_s == 5e14  # of the large one
    assert device.bytes_per_s == 2e12  # of the largest: smaller ones stay in caches
    assert device.kernel_us == 1.0
    assert cluster.inside == IntraNodeLink("nvlink", Bandwidth(350e9), Time(20.0), "measured")  # 80 MB * 7/8 in 200 us
    assert (cluster.across, cluster.library, cluster.tables) == (None, "formula", TABLES)
    cluster = cluster_from_tables("cpu", 8, Tables((*GATHERS, *ACROSS), KERNELS), "today")
    assert cluster.across_bytes_per_s == 50e9  # 16 MB * 15/16 in 300 us
    assert (cluster.across.latency_us, cluster.across.cards_per_node) == (60.0, 1)
    assert parse_cluster(cluster_text(cluster), "x") == cluster
    slow = Tables((GATHERS[0], GATHERS[1]._replace(time_us=2020.0)))
    assert cluster_from_tables("GPU", 8, slow, "").inside.fabric == "pcie"
    assert cluster_from_tables("cpu", 8, slow, "").inside.fabric == "memory"


def test_what_was_not_measured_is_that_of_a_published_device() -> None:
    for name, basis, tables in (("cpu", XEON_8480, Tables()), ("GPU", H100, Tables(GATHERS[:1]))):  # of one size
        cluster = cluster_from_tables(name, 8, tables, "")
        assert cluster.device == basis._replace(name=name, memory_bytes=0)
        assert cluster.inside.bytes_per_s == basis.peak_bytes_per_s
        assert "not measured" in cluster.inside.source


def test_the_model_of_a_measured_file_knows_launches_on_a_cpu_alone():
    gather = Collective("all_gather_into_tensor", 8_000, Group(8, True))
    for device, launch_us in (("cpu", 5.0), ("GPU", 0.0)):
        model = model_of(cluster_from_tables(device, 8, TABLES, ""))
        assert isinstance(model, TableModel)
        assert model.launch_us(gather) == launch_us
        assert model.finish_us(gather) == 0.0  # not measured
        assert model.collective_price(gather) == Price(20.0 - launch_us, "table")  # a launch has a node of its own
        assert model.collective_price(gather._replace(op="broadcast")).source == "roofline"


MESH = (MeshDimension("pp", 2), MeshDimension("fsdp", 8), MeshDimension("tp", 8))
INSIDE, SPREAD = Group(8, True), Group(8, False, 8)


def groups(facts: dict[str, Facts], on: Nodes) -> dict[str, Group]:
    return {name: placement.group for name, placement in place(facts, on).items()}


def test_ranks_decide_never_the_size() -> None:
    known = {
        "near": Facts(8, tuple(range(8, 16))),
        "far": Facts(8, tuple(range(0, 64, 8))),
        "across the edge": Facts(2, (7, 8)),
        "pairs": Facts(4, (0, 1, 8, 9)),
    }
    placed = place(known, Nodes(8))
    assert {name: one.group for name, one in placed.items()} == {
        "near": INSIDE,
        "far": SPREAD,
        "across the edge": Group(2, False, 2),
        "pairs": Group(4, False, 2),
    }
    assert not any(one.assumed for one in placed.values())


def test_the_mesh_places_what_has_a_size_of_its_own() -> None:
    placed = place({"0": Facts(128), "1": Facts(64), "2": Facts(2)}, Nodes(8, mesh=MESH))
    assert [one.group for one in placed.values()] == [Group(128, False, 16), Group(64, False, 8), Group(2, False, 2)]
    assert not any(one.assumed for one in placed.values())


def test_of_two_dimensions_alike_the_sharding_group_is_the_outer_one() -> None:
    placed = place({"a": Facts(8, shards=True), "b": Facts(8)}, Nodes(8, mesh=MESH))
    assert [one.group for one in placed.values()] == [SPREAD, INSIDE]
    assert re.search("'a' .*fsdp or tp .*taken as fsdp.*--group a=DIMENSION", placed["a"].assumed)


def test_tensor_parallel_fills_the_node_so_fsdp_crosses_it() -> None:
    placed = place({"0": Facts(8, shards=True), "1": Facts(8)}, Nodes(8))
    assert [one.group for one in placed.values()] == [SPREAD, INSIDE]
    assert groups({"0": Facts(8), "1": Facts(8, shards=True)}, Nodes(8)) == {"0": INSIDE, "1": SPREAD}
    assert re.search("'0' .*on 8 nodes.*--group 0=RANK,RANK,... or --mesh NAME=SIZE", placed["0"].assumed)


def test_as_large_as_the_others_together_is_all_of_them() -> None:
    facts = {"0": Facts(64, shards=True), "513": Facts(8, shards=True), "521": Facts(8)}
    assert groups(facts, Nodes(8)) == {"0": Group(64, False, 8), "513": SPREAD, "521": INSIDE}
    assert groups({"0": Facts(64, shards=True), "1": Facts(8)}, Nodes(8))["0"] == Group(64, False, 64)
    assert groups({"0": Facts(4, shards=True), "1": Facts(2)}, Nodes(8))["0"] == Group(4, True)
    assert groups({"0": Facts(4, shards=True), "1": Facts(4)}, Nodes(8))["0"] == Group(4, False, 2)


@pytest.mark.parametrize(
    ("facts", "on", "said"),
    [
        (Facts(64), Nodes(8, single=True), "has 64 ranks, but the cluster is one node of 8"),
        (Facts(5), Nodes(8, mesh=MESH), "has 5 ranks, but no dimension .* pp=2, fsdp=8, tp=8.*--group dp=RANK,RANK"),
        (Facts(2, (0, 128)), Nodes(8, mesh=MESH), "has rank 128, but .* 0 to 127"),
        (Facts(2, (0, 9)), Nodes(8, single=True), "has rank 9, but .* 0 to 7"),
    ],
)
def test_groups_that_do_not_fit(facts: Facts, on: Nodes, said: str) -> None:
    with pytest.raises(CostError, match=f"^process group 'dp' {said}"):
        place({"dp": facts}, on)


def test_ranks_along_a_mesh() -> None:
    assert ranks_along(MESH, "tp") == tuple(range(8))
    assert ranks_along(MESH, "fsdp") == tuple(range(0, 64, 8))
    assert ranks_along(MESH, "pp+fsdp") == tuple(range(0, 128, 8))
    with pytest.raises(CostError, match="pp=2, fsdp=8, tp=8: it has no 'ep'"):
        ranks_along(MESH, "ep")


def test_what_gathers_parameters_and_reduces_gradients_shards() -> None:
    def graph(casts: int) -> list[DataflowNode]:
        steps = [DataflowNode((), False), *(DataflowNode((k,), True) for k in range(casts))]
        steps.append(DataflowNode((casts,), True, "all_gather_into_tensor", "fsdp"))
        steps.append(DataflowNode((len(steps) - 1,), True))
        steps.append(DataflowNode((len(steps) - 1,), True, "all_reduce", "tp"))
        steps += [DataflowNode((len(steps) - 1 + k,), True) for k in range(SHORT + 1)]
        steps.append(DataflowNode((len(steps) - 1,), True, "reduce_scatter_tensor", "fsdp"))
        steps.append(DataflowNode((len(steps) - 1,), False))
        return steps

    assert sharding_groups(graph(1)) == {"fsdp"}
    assert sharding_groups(graph(SHORT + 1)) == {"fsdp"}  # half of them: the reduce_scatter
    assert sharding_groups(graph(SHORT + 1)[:-2]) == set()
