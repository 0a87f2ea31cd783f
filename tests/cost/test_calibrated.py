"""The cluster that measurements describe."""

from overlap_sched.cost import H100, XEON_8480, Collective, Price
from overlap_sched.cost.cluster import Across, IntraNodeLink, calibrated, cluster_text, parse_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, TableModel, Tables
from overlap_sched.problem import Group

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


def test_rates_are_the_best_that_was_measured():
    cluster = calibrated("NVIDIA H100 80GB HBM3", 8, TABLES, "today")
    device = cluster.device
    assert (cluster.name, cluster.source, cluster.ranks_per_node) == ("measured-nvidia-h100-80gb-hbm3", "today", 8)
    assert device.flops_per_s == 5e14  # of the large one
    assert device.bytes_per_s == 2e12  # of the largest: smaller ones stay in caches
    assert device.kernel_us == 1.0
    assert cluster.inside == IntraNodeLink("nvlink", 350e9, 20.0, "measured")  # 80 MB * 7/8 in 200 us, of most ranks
    assert cluster.across is None
    assert (cluster.library, cluster.tables) == ("formula", TABLES)


def test_links_across_nodes():
    cluster = calibrated("GPU", 8, Tables((*GATHERS, *ACROSS), KERNELS), "")
    assert cluster.across == Across(8 * 50e9, 1, 60.0, source="measured, all cards of a node together")
    assert cluster.across_bytes_per_s == 50e9  # 16 MB * 15/16 in 300 us


def test_a_slow_link_of_a_gpu_is_pcie_and_of_a_cpu_memory():
    slow = Tables((GATHERS[0], GATHERS[1]._replace(time_us=2020.0)))
    assert calibrated("GPU", 8, slow, "").inside.fabric == "pcie"
    assert calibrated("cpu", 8, slow, "").inside.fabric == "memory"


def test_what_was_not_measured_is_that_of_a_published_device():
    for name, basis in (("cpu", XEON_8480), ("GPU", H100)):
        cluster = calibrated(name, 1, Tables(), "")
        assert cluster.device == basis._replace(name=name, memory_bytes=0)
        assert cluster.inside.source == "not measured: that of memory"
    one_size = calibrated("GPU", 8, Tables(GATHERS[:1]), "")
    assert one_size.inside.bytes_per_s == H100.peak_bytes_per_s


def test_a_file_gives_the_same_cluster_again():
    cluster = calibrated("cpu", 8, Tables((*GATHERS, *ACROSS), KERNELS), "today")
    assert parse_cluster(cluster_text(cluster), "x") == cluster


def test_the_model_of_a_measured_file_knows_launches_on_a_cpu_alone():
    gather = Collective("all_gather_into_tensor", 8_000, Group(8, True))
    for device, launch_us in (("cpu", 5.0), ("GPU", 0.0)):
        model = model_of(calibrated(device, 8, TABLES, ""))
        assert isinstance(model, TableModel)
        assert model.launch_us(gather) == launch_us
        assert model.finish_us(gather) == 0.0  # not measured
        assert model.collective_price(gather) == Price(20.0 - launch_us, "table")  # a launch has a node of its own
        assert model.collective_price(gather._replace(op="broadcast")).source == "roofline"
