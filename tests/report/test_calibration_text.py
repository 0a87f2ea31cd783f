"""What a calibration has found, as text."""

from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, Tables
from overlap_sched.report.words.graph import calibration_text

TABLES = Tables(
    (
        CollectiveTime("all_gather", 8, 2, 2**20, 500.0, 20.0),
        CollectiveTime("all_gather", 8, 2, 2**12, 30.0, 10.0),
    ),
    (
        KernelTime("aten.mm.default", "a", 4 * 10**9, 10**6, 10.0),
        KernelTime("aten.mm.default", "b", 10**9, 10**6, 10.0),
        KernelTime(COPY, "c", 0, 10**6, 10.0),
    ),
)


def test_a_line_per_table():
    assert calibration_text(TABLES, ["all_to_all of 4 bytes, 8 ranks: no such thing"], "c.toml").splitlines() == [
        "c.toml: 2 collectives, 3 kernels measured",
        "  all_gather of 8 ranks on 2 nodes: 4.0 KiB 30.0 us, 1.0 MiB 500.0 us (2.10 GB/s), launch 10.0 us to 20.0 us",
        "  aten.clone.default: 1 shapes, 100 GB/s at best",
        "  aten.mm.default: 2 shapes, 400 TFLOP/s at best",
        "  not measured: all_to_all of 4 bytes, 8 ranks: no such thing",
    ]


def test_nothing_at_all():
    assert calibration_text(Tables(), [], "c.toml") == "c.toml: 0 collectives, 0 kernels measured"
