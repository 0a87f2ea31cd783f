"""What collectives take: by NCCL, and as measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from overlap_sched.cost import H100, Collective, Compute, Price, Roofline
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import ClusterModel, nccl_us, setting, ways
from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, TableModel, Tables, curve_of, kind_of
from overlap_sched.errors import CostError, OverlapSchedWarning
from overlap_sched.problem import Group

DGX_H100 = read_cluster("dgx-h100")
LOGGED = structs.replace(DGX_H100, across=structs.replace(DGX_H100.across, latency_us=0.0))
DGX_A100 = read_cluster("dgx-a100")

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
NVLS_TREE = {(2, 4): [(53.0, 160.0)], (2, 8): [(53.0, 266.7)], (8, 4): [(109.0, 80.0)], (32, 8): [(165.0, 160.0)]}
# all_reduce_perf, us by (nodes, ranks, bytes): 16 H100 on InfiniBand (skypilot-org/skypilot, examples/nebius), 8 H100
# (an nccl-tests report of one and two H100 nodes, file 69758259407 of the index) and 8 H200 (Azure ND H200 v5, file
# 19124581599), out of place
MEASURED = {
    (2, 16, 2**29): 2432.7, (2, 16, 2**30): 4523.3, (2, 16, 2**33): 34468.0,
    (1, 8, 2**27): 613.3, (1, 8, 2**29): 2175.8, (1, 8, 2**32): 15870.0, (1, 8, 2**33): 31533.0,
}  # fmt: skip

# all_reduce_perf on 8 MI300X of one node, us, out of place: AMD, Understanding RCCL Bandwidth and xGMI Performance on
# AMD Instinct MI300X, 2 March 2025 (ROCm/rocm-blogs, blogs/software-tools-optimization/mi300x-rccl-xgmi)
RCCL = {
    2**20: 27.42, 2**22: 51.72, 2**24: 148.8, 2**26: 429.1, 2**28: 1537.1, 2**30: 5970.6, 2**33: 47278.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "algorithm", "table", "most"),
    [
        ("reduce_scatter", "ring", RING, 0.04),
        ("all_reduce", "tree", TREE, 0.08),
        ("all_reduce", "nvls-tree", NVLS_TREE, 0.01),
    ],
)
def test_across_nodes_they_are_those_of_nccl(kind: str, algorithm: str, table: dict, most: float) -> None:
    for (nodes, per_node), logged in table.items():
        found = [way for way in ways(kind, setting(LOGGED, nodes * per_node, nodes)) if way.algorithm == algorithm]
        assert [way.latency_us for way in found] == pytest.approx([us for us, _ in logged], abs=0.06), (nodes, per_node)
        assert [way.bytes_per_s / 1e9 for way in found] == pytest.approx([rate for _, rate in logged], rel=most)


def test_all_reduces_that_others_have_measured() -> None:
    for (nodes, ranks, size), us in MEASURED.items():
        assert sum(nccl_us("all_reduce", size, setting(DGX_H100, ranks, nodes))[1:]) == pytest.approx(us, rel=0.25)
    mi300x = ClusterModel(read_cluster("mi300x"))
    for size, us in RCCL.items():
        assert mi300x.collective_us(Collective("all_reduce", size, Group(8, True))) == pytest.approx(us, rel=0.21)


def test_small_ones_go_by_ll_and_large_ones_by_bandwidth() -> None:
    there = setting(DGX_A100, 64, 8)
    taken = [nccl_us("all_gather", size, there)[0].protocol for size in (2**10, 2**24, 2**34)]
    assert taken == ["LL", "LL128", "SIMPLE"]
    assert nccl_us("all_reduce", 2**10, there)[0].algorithm == "tree"
    assert nccl_us("all_reduce", 2**34, there)[0].algorithm == "ring"


@pytest.mark.parametrize(
    ("nodes", "nbytes", "chunk"), [(1, 2**22, 16), (1, 2**24, 32), (1, 2**27, 64), (1, 2**30, 128),
    (2, 2**20, 32), (2, 2**24, 64), (2, 2**26, 128), (3, 2**26, 128), (4, 2**22, 32), (4, 2**30, 64)],
)  # fmt: skip
def test_nvls_goes_by_chunks(nodes: int, nbytes: int, chunk: int) -> None:
    """``calcCollChunking`` with 16 channels and 8 ranks a node, in KiB; a round adds 4 us on one node and 9 on more."""
    way = ways("all_reduce", setting(LOGGED, 8 * nodes, nodes))[-1]
    assert way.chunks.round_bytes(nbytes) == chunk * 1024 * 16 * 8
    loops_us = nbytes / way.chunks.round_bytes(nbytes) * (9.0 if nodes > 1 else 4.0)
    assert way.time_us(nbytes)[1] == pytest.approx(nbytes / way.measured[1] * 1e6 + loops_us)
    assert way.time_us(nbytes)[0] > way.time_us(64)[0]


def test_a_token_goes_once_to_each_node_and_low_latency_kernels_send_it_to_each_expert() -> None:
    where = setting(read_cluster("dgx-h800"), 64, 8)
    dispatch, low = (nccl_us(op, 2**28, where)[0].bytes_per_s for op in ("dispatch", "low_latency_dispatch"))
    assert low == pytest.approx(50e9 * 0.87 * 8 / 7)  # seven of eight tokens leave the node
    assert 2.0 < dispatch / low < 2.2  # those of four nodes at most, of seven ranks in eight
    assert nccl_us("combine", 2**28, setting(DGX_H100, 8, 1))[0].bytes_per_s == pytest.approx(450e9 * 0.77)


def test_small_ones_in_a_node_with_switches() -> None:
    """all_gather by LL, 6.6 us and 1.6 for each of 7 steps; all_to_all starts in 50 us, on B200 in 11."""
    b200 = setting(read_cluster("dgx-b200"), 8, 1)
    assert nccl_us("all_gather", 64, b200)[1] == pytest.approx(6.6 + 7 * 1.6)
    assert [nccl_us("all_to_all_single", 64, where)[1] for where in (setting(DGX_H100, 8, 1), b200)] == [50.0, 11.0]


def test_pcie_has_no_ll128_inside_a_node() -> None:
    assert [way.protocol for way in ways("all_gather", setting(read_cluster("pcie-box"), 8, 1))] == ["LL", "SIMPLE"]


@pytest.mark.parametrize(
    "kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all_single", "broadcast", "isend"]
)
def test_more_bytes_take_longer_and_crossing_nodes_too(kind: str) -> None:
    for cluster in (DGX_A100, DGX_H100):
        model = ClusterModel(cluster)
        for group in (Group(8, True), Group(8, False, 8), Group(64, False, 8)):
            times = [model.collective_us(Collective(kind, size, group)) for size in (2**20, 2**25, 2**30)]
            assert times == sorted(times)
        inside, across = (model.collective_us(Collective(kind, 2**28, g)) for g in (Group(8, True), Group(8, False, 8)))
        assert inside < across


def test_where_a_price_comes_from() -> None:
    model = ClusterModel(DGX_H100)
    assert model.collective_price(Collective("all_gather", 2**30, Group(8, True)))[1:3] == ("nccl", "bandwidth")
    assert model.collective_price(Collective("all_reduce", 8, Group(64, False)))[1:3] == ("nccl", "latency")
    assert model.collective_us(Collective("all_reduce", 8, Group(1, True))) == 0.0
    gloo = ClusterModel(read_cluster("gloo"))
    assert gloo.collective_price(Collective("all_reduce", 2**21, Group(2, True)))[:2] == (200 + 2**21 / 2e3, "roofline")


def test_cards_that_are_shared_are_slower() -> None:
    cluster = structs.replace(DGX_H100, across=structs.replace(DGX_H100.across, cards_per_node=2, rails=2))
    own, shared = (sum(nccl_us("all_gather", 2**30, setting(c, 8, 8))[1:]) for c in (DGX_H100, cluster))
    assert 3 < shared / own < 4


PAIR, ACROSS = Group(2, True), Group(2, False)
GATHERS = (
    CollectiveTime("all_gather", 2, 1, 1000, 10.0, 4.0),
    CollectiveTime("all_gather", 2, 1, 100000, 90.0, 9.0),
    CollectiveTime("all_gather", 2, 4, 1000, 40.0, 4.0),
    CollectiveTime("all_gather", 2, 2, 1000, 20.0, 4.0),
)
MATMULS = (
    KernelTime("aten.mm.default", "a", 10**12, 10**9, 3000.0),
    KernelTime("aten.mm.default", "b", 10**10, 10**7, 40.0),
)
COPIES = (KernelTime(COPY, "c", 0, 10**6, 2.0), KernelTime(COPY, "d", 0, 10**8, 200.0))
TABLES = Tables(GATHERS, (*MATMULS, *COPIES))


def test_curves() -> None:
    curve = curve_of([(100, 10.0), (10000, 1000.0)])
    assert curve.at(1000) == pytest.approx(100.0)  # the middle of both, on both axes
    assert curve_of([(1, 2.0), (4, 4.0)]).at(2) == pytest.approx(2 * math.sqrt(2))
    curve = curve_of([(100, 10.0), (200, 12.0)])
    assert [curve.at(size) for size in (0, 1, 100, 200, 2000)] == pytest.approx([10.0, 10.0, 10.0, 12.0, 120.0])
    assert [curve.covers(size) for size in (99, 100, 150, 200, 201)] == [False, True, True, True, False]
    curve = curve_of([(1, 1.0), (2, 8.0), (3, 2.0), (4, 16.0)])
    assert curve.times_us == pytest.approx((1.0, 4.0, 4.0, 16.0))
    assert curve_of([(3, 1.0), (2, 10.0), (1, 100.0)]).times_us == pytest.approx((10.0, 10.0, 10.0))
    assert curve_of([(5, 4.0), (5, 9.0)]).times_us == pytest.approx((6.0,))  # two of one size


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(1e-3, 1e9)), min_size=1), st.data())
def test_a_larger_size_never_takes_less(points, data):
    curve = curve_of(points)
    small, large = sorted(data.draw(st.tuples(st.integers(0, 10**13), st.integers(0, 10**13))))
    assert curve.at(small) <= curve.at(large) * (1 + 1e-9)
    assert min(us for _, us in points) * (1 - 1e-9) <= curve.times_us[0]
    assert curve.times_us[-1] <= max(us for _, us in points) * (1 + 1e-9)


@pytest.mark.parametrize(
    "points", [[], *([p] for p in ((0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)))]
)
def test_points_that_are_none(points):
    with pytest.raises(CostError, match="measured"):
        curve_of(points)


def test_the_kind_of_an_operator():
    ops = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "all_reduce_", "allreduce_", "broadcast")
    assert [kind_of(op) for op in ops] == ["all_gather", "reduce_scatter", "all_reduce", "all_reduce", ""]


def test_a_collective_is_looked_up_by_kind_ranks_and_nodes():
    model = TableModel(TABLES)
    gather = Collective("all_gather_into_tensor", 10000, PAIR)
    assert model.collective_price(gather) == Price(pytest.approx(30.0), "table")
    assert model.collective_us(gather) == model.collective_price(gather).time_us
    with pytest.warns(OverlapSchedWarning):
        assert model.collective_us(Collective("all_gather_into_tensor", 999, ACROSS)) == 20.0  # fewest nodes above 1
    fresh = TableModel(TABLES)
    with pytest.warns(OverlapSchedWarning):
        assert fresh.collective_us(Collective("all_gather_into_tensor", 999, Group(2, False, 4))) == 40.0
    for other in (Collective("broadcast", 10, PAIR), Collective("all_gather_into_tensor", 10, Group(4, True))):
        assert model.collective_price(other) == Roofline().collective_price(other)
    assert model.launch_us(gather) == 0.0  # a GPU's stream does not wait for the host
    host = TableModel(TABLES, on_host=True)
    assert host.launch_us(gather) == pytest.approx(6.0)
    assert host.launch_us(Collective("all_reduce", 10, PAIR)) == 0.0


def test_a_kernel_that_was_measured():
    model = TableModel(TABLES)
    assert model.compute_price(Compute("aten.mm.default", 10**12, 10**9)) == Price(pytest.approx(3000.0), "table")
    assert model.compute_us(Compute("aten.mm.default", 10**10, 10**7)) == pytest.approx(40.0)
    odd = Tables(kernels=(MATMULS[0]._replace(time_us=10.0), MATMULS[1]))  # what was measured may fall
    assert TableModel(odd).compute_us(Compute("aten.mm.default", 10**12, 10**9)) == 10.0
    twice = Tables(kernels=(*MATMULS, MATMULS[0]._replace(shapes="transposed", time_us=12000.0)))
    assert TableModel(twice).compute_us(Compute("aten.mm.default", 10**12, 10**9)) == pytest.approx(6000.0)


def test_a_shape_in_between_is_found_by_the_time_of_the_formulas():
    model = TableModel(TABLES)
    between = Compute("aten.mm.default", 10**11, 10**8)
    small, asked, large = (
        Roofline().compute_us(Compute("aten.mm.default", 10**k, 10 ** (k - 3))) for k in (10, 11, 12)
    )
    part = math.log(asked / small) / math.log(large / small)
    assert model.compute_price(between) == Price(pytest.approx(40.0 * 75.0**part), "table")


def test_kernels_without_products_cost_what_copies_cost():
    model = TableModel(TABLES)
    assert model.compute_price(Compute("aten.add.Tensor", 0, 10**7)) == Price(pytest.approx(20.0), "table")
    assert model.compute_price(Compute("aten.view.default", 0, 0)) == Price(0.0, "free")
    bmm = Compute("aten.bmm.default", 10**10, 10**7)
    assert model.compute_price(bmm) == Roofline().compute_price(bmm)
    add = Compute("aten.add.Tensor", 0, 10**7)
    assert TableModel(Tables(GATHERS), Roofline(H100)).compute_price(add) == Roofline().compute_price(add)


def test_beyond_what_was_measured_there_is_one_warning():
    model = TableModel(TABLES)
    gather = Collective("all_gather_into_tensor", 200000, PAIR)
    with pytest.warns(OverlapSchedWarning, match="^all_gather of 2 ranks on 1 node is asked for beyond"):
        assert model.collective_us(gather) == pytest.approx(180.0)
    assert model.collective_us(gather._replace(bytes=400000)) == pytest.approx(360.0)  # warnings are errors
    small = Compute("aten.mm.default", 10**9, 10**6)
    ratio = Roofline().compute_us(small) / Roofline().compute_us(Compute("aten.mm.default", 10**10, 10**7))
    with pytest.warns(OverlapSchedWarning, match=r"^aten\.mm\.default is asked for beyond"):
        assert model.compute_us(small) == pytest.approx(40.0 * ratio)  # in proportion, not as long as the smallest
    with pytest.warns(OverlapSchedWarning, match=r"^a copy is asked for beyond"):
        assert model.compute_us(Compute("aten.add.Tensor", 0, 10)) == 2.0
    other = TableModel(TABLES)
    assert (model, repr(model)) == (other, repr(other))  # one key of caches, whatever it was asked
