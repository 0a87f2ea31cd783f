"""NCCL's tuning against what NCCL logs, and against times that others have published. Sources stand beside the data."""

from dataclasses import replace

import pytest

from overlap_sched.cost import Collective
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import ClusterModel, nccl_us, setting, ways
from overlap_sched.problem import Group

H100 = read_cluster("dgx-h100")
A100 = read_cluster("dgx-a100")

# NCCL 2.27.5 on H100 nodes, NCCL_DEBUG_SUBSYS=TUNING: us and GB/s of LL, LL128, SIMPLE by (nodes, ranks per node).
# meta-pytorch/autoparallel, a54c2529, autoparallel/cost_models/nccl_cost_model.py, _H100_AGRS_RING
RING = {
    (2, 1): ((11.6, 48.0), (22.5, 88.3), (22.4, 96.0)),
    (2, 2): ((11.3, 52.0), (21.8, 117.8), (29.2, 128.0)),
    (2, 8): ((23.3, 41.6), (44.6, 313.2), (70.0, 409.6)),
    (4, 4): ((26.7, 21.8), (48.8, 188.4), (91.2, 204.8)),
    (8, 1): ((41.6, 23.3), (73.5, 50.5), (106.4, 54.9)),
    (8, 8): ((81.5, 20.7), (148.4, 298.3), (296.8, 390.1)),
    (16, 8): ((159.1, 20.6), (286.8, 295.9), (599.2, 387.0)),
    (32, 2): ((122.3, 20.7), (198.8, 89.7), (551.2, 97.5)),
    (32, 8): ((314.3, 20.5), (563.6, 294.8), (1204.0, 385.5)),
}
# the same, _H100_AR_TREE and _H100_AR_NVLS_TREE
TREE = {
    (2, 1): ((16.8, 9.3), (31.0, 31.2), (36.4, 35.2)),
    (2, 8): ((25.2, 16.6), (48.5, 124.8), (92.4, 140.8)),
    (4, 8): ((35.2, 8.7), (65.5, 98.6), (120.4, 122.4)),
    (8, 1): ((36.8, 4.9), (65.0, 17.6), (92.4, 18.8)),
    (8, 8): ((45.2, 8.7), (82.5, 98.6), (148.4, 122.4)),
    (32, 8): ((65.2, 8.7), (116.5, 98.6), (204.4, 122.4)),
}
NVLS_TREE = {(2, 4): (53.0, 160.0), (2, 8): (53.0, 266.7), (8, 4): (109.0, 80.0), (32, 8): (165.0, 160.0)}
# the same, _NVSWITCH_LAT_POINTS and _NVSWITCH_BW_POINTS: nccl-tests on one node, by ranks
ONE_NODE = {
    "all_gather": {2: (8.0, 537.0), 4: (17.0, 434.0), 8: (30.0, 394.0)},
    "all_reduce": {2: (10.0, 324.0), 4: (15.0, 236.0), 8: (31.0, 267.0)},
}
# all_reduce_perf, us by (nodes, ranks, bytes): 16 H100 on InfiniBand (skypilot-org/skypilot, examples/nebius), 8 H100
# (an nccl-tests report of one and two H100 nodes, file 69758259407 of the index) and 8 H200 (Azure ND H200 v5, file
# 19124581599), out of place
MEASURED = {
    (2, 16, 2**29): 2432.7,
    (2, 16, 2**30): 4523.3,
    (2, 16, 2**33): 34468.0,
    (1, 8, 2**27): 613.3,
    (1, 8, 2**29): 2175.8,
    (1, 8, 2**32): 15870.0,
    (1, 8, 2**33): 31533.0,
}

# all_reduce_perf on 8 MI300X of one node, us, out of place: AMD, Understanding RCCL Bandwidth and xGMI Performance on
# AMD Instinct MI300X, 2 March 2025 (ROCm/rocm-blogs, blogs/software-tools-optimization/mi300x-rccl-xgmi)
RCCL = {
    2**20: 27.42,
    2**22: 51.72,
    2**24: 148.8,
    2**26: 429.1,
    2**28: 1537.1,
    2**30: 5970.6,
    2**33: 47278.0,
}


def logged(kind: str, nodes: int, per_node: int, algorithm: str) -> list[tuple[float, float]]:
    return [
        (way.latency_us, way.bytes_per_s / 1e9)
        for way in ways(kind, setting(H100, nodes * per_node, nodes))
        if way.algorithm == algorithm
    ]


@pytest.mark.parametrize(("nodes", "per_node"), RING)
def test_rings_across_nodes_are_those_of_nccl(nodes: int, per_node: int) -> None:
    found = logged("reduce_scatter", nodes, per_node, "ring")
    for (us, rate), (us_logged, rate_logged) in zip(found, RING[nodes, per_node], strict=True):
        assert us == pytest.approx(us_logged, abs=0.06)
        assert rate == pytest.approx(rate_logged, rel=0.04)


@pytest.mark.parametrize(("nodes", "per_node"), TREE)
def test_trees_are_those_of_nccl(nodes: int, per_node: int) -> None:
    found = logged("all_reduce", nodes, per_node, "tree")
    for (us, rate), (us_logged, rate_logged) in zip(found, TREE[nodes, per_node], strict=True):
        assert us == pytest.approx(us_logged, abs=0.06)
        assert rate == pytest.approx(rate_logged, rel=0.08)


@pytest.mark.parametrize(("nodes", "per_node"), NVLS_TREE)
def test_nvls_trees_are_those_of_nccl(nodes: int, per_node: int) -> None:
    ((us, rate),) = logged("all_reduce", nodes, per_node, "nvls-tree")
    assert (us, rate) == pytest.approx(NVLS_TREE[nodes, per_node], rel=0.01)


@pytest.mark.parametrize("kind", ONE_NODE)
def test_one_node_is_within_a_quarter_of_what_was_measured(kind: str) -> None:
    worst = max(
        (abs(sum(nccl_us(kind, size, setting(H100, ranks, 1))[1:]) / (us + size / rate / 1e3) - 1), ranks, size)
        for ranks, (us, rate) in ONE_NODE[kind].items()
        for size in (2**k for k in range(20, 33))
    )
    assert worst[0] <= 0.25, worst


@pytest.mark.parametrize(("nodes", "ranks", "size"), MEASURED)
def test_all_reduces_that_others_have_measured(nodes: int, ranks: int, size: int) -> None:
    us = sum(nccl_us("all_reduce", size, setting(H100, ranks, nodes))[1:])
    assert us == pytest.approx(MEASURED[nodes, ranks, size], rel=0.25)


@pytest.mark.parametrize("size", RCCL)
def test_the_formula_of_mi300x_against_what_amd_has_measured(size: int) -> None:
    us = ClusterModel(read_cluster("mi300x")).collective_us(Collective("all_reduce", size, Group(8, True)))
    assert us == pytest.approx(RCCL[size], rel=0.21)


def test_small_ones_go_by_ll_and_large_ones_by_bandwidth() -> None:
    there = setting(A100, 64, 8)
    taken = [nccl_us("all_gather", size, there)[0].protocol for size in (2**10, 2**24, 2**34)]
    assert taken == ["LL", "LL128", "SIMPLE"]
    assert nccl_us("all_reduce", 2**10, there)[0].algorithm == "tree"
    assert nccl_us("all_reduce", 2**34, there)[0].algorithm == "ring"


def test_pcie_has_no_ll128_inside_a_node() -> None:
    pcie = read_cluster("pcie-box")
    assert [way.protocol for way in ways("all_gather", setting(pcie, 8, 1))] == ["LL", "SIMPLE"]


@pytest.mark.parametrize(
    "kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all_single", "broadcast", "isend"]
)
def test_more_bytes_take_longer_and_crossing_nodes_too(kind: str) -> None:
    for cluster in (A100, H100):
        model = ClusterModel(cluster)
        for group in (Group(8, True), Group(8, False, 8), Group(64, False, 8)):
            times = [model.collective_us(Collective(kind, size, group)) for size in (2**20, 2**25, 2**30)]
            assert times == sorted(times)
        inside, across = (model.collective_us(Collective(kind, 2**28, g)) for g in (Group(8, True), Group(8, False, 8)))
        assert inside < across


def test_where_a_price_comes_from() -> None:
    model = ClusterModel(H100)
    assert model.collective_price(Collective("all_gather_into_tensor", 2**30, Group(8, True)))[1:] == (
        "nccl",
        "bandwidth",
        "",
    )
    assert model.collective_price(Collective("all_reduce", 8, Group(64, False)))[1:] == ("nccl", "latency", "")
    assert model.collective_us(Collective("all_reduce", 8, Group(1, True))) == 0.0
    gloo = ClusterModel(read_cluster("gloo"))
    assert gloo.collective_price(Collective("all_reduce", 2**21, Group(2, True)))[:2] == (200 + 2**21 / 2e3, "roofline")


def test_rings_fill_with_size_as_measured() -> None:
    """1 MiB per rank: 0.68 of the rate that NCCL logs (autoparallel, _TABLE_RING_FULL_MESH_RAMP), by LL128."""
    us = sum(nccl_us("all_gather", 2**26, setting(H100, 64, 8))[1:])
    assert us == pytest.approx(148.4 + 2**26 / (0.68 * 298.3e3), rel=0.01)


def test_a_long_ring_of_all_reduce_has_a_plateau() -> None:
    (ring,) = [w for w in ways("all_reduce", setting(H100, 64, 8)) if (w.algorithm, w.protocol) == ("ring", "SIMPLE")]
    assert ring.time_us(2**30, 64)[0] == pytest.approx(1.4 * ring.time_us(2**14, 64)[0])


def test_all_to_all_goes_through_each_ranks_own_card() -> None:
    """As autoparallel's fit: 60 us on 8 nodes, seven eighths of the bytes, 1 - 0.44 / 8 of 50 GB/s."""
    us = sum(nccl_us("all_to_all_single", 2**30, setting(H100, 64, 8))[1:])
    assert us == pytest.approx(60 + 2**30 * 0.875 / (50e3 * (1 - 0.44 / 8)), rel=1e-6)


def test_cards_that_are_shared_are_slower() -> None:
    cluster = replace(H100, across=replace(H100.across, cards_per_node=2, rails=2))
    own, shared = (sum(nccl_us("all_gather", 2**30, setting(c, 8, 8))[1:]) for c in (H100, cluster))
    assert 3 < shared / own < 4
