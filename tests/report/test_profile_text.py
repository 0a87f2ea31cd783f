"""What a profile says, in lines and as a table."""

import re

from rich.console import Console

from overlap_sched.cost.profile import MeasuredTime, Profile, Sought
from overlap_sched.report.words.graph import profile_notes, profile_table

MM = Sought("aten::mm", ((4, 8), (8, 2)), 6.0)
GATHER = Sought("_c10d_functional::all_gather_into_tensor", ((16,),), 10.0, collective=True)
CAT = Sought("aten::cat", ((4, 2), (4, 2), (4, 2)), 4.0)
ADD = Sought("aten::add", ((4, 2), (4, 2)), 0.5)
LOST = tuple(Sought(f"aten::{name}", (), 1.0) for name in ("a", "b", "b", "c", "d", "e"))


def lines(profile: Profile) -> list[str]:
    return list(profile_notes(profile))


def test_lines() -> None:
    sought = (MM, MM, GATHER, CAT, ADD)
    how = (
        MeasuredTime(3.0, "order"),
        MeasuredTime(9.0, "shapes"),
        MeasuredTime(25.0, "order"),
        MeasuredTime(4.0, "shapes"),
    )
    found = Profile(sought, (*how, MeasuredTime(1.0, "names")), runs=3, ranks=2, skew_us=1250.0, fused_us=1.0)
    assert lines(found) == [
        "profile: 5 of 5 nodes that take time were found in it, 100.0% of the predicted time, 2 by shapes and order, "
        "2 by shapes alone, 1 by names of fused kernels (3 runs on 2 ranks)",
        "profile: 1.25 ms of waiting for late ranks taken out of the collectives of a run",
    ]
    fused = MM._replace(us=0.0)  # a part of another's kernel, by prediction: not missing
    alone = Profile(
        (MM, *LOST, fused), (MeasuredTime(3.0, "order"), *[None] * 7), runs=1, ranks=1, skew_us=None, fused_us=0.0
    )
    assert lines(alone) == [
        "profile: 1 of 7 nodes that take time were found in it, 50.0% of the predicted time, 1 by shapes and order "
        "(1 run on 1 rank)",
        "profile: one rank: its collectives still hold the time that it waited for others in them; give the traces of "
        "more ranks to take that out",
        "profile: not found, so as predicted: 2 x aten::b, 1 x aten::a, 1 x aten::c, 1 x aten::d, ...",
    ]


def test_the_table_has_the_largest_differences_first() -> None:
    sought = (MM, MM, GATHER, CAT, ADD, *LOST)
    how = (
        MeasuredTime(3.0, "order"),
        MeasuredTime(4.0, "order"),
        MeasuredTime(25.0, "order"),
        MeasuredTime(4.0, "order"),
    )
    found = Profile(
        sought, (*how, MeasuredTime(1.0, "names"), *[None] * len(LOST)), runs=1, ranks=1, skew_us=None, fused_us=1.0
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(profile_table(found))
    rows = [re.split(r" {2,}", line.strip()) for line in captured.get().splitlines()]
    assert rows[4:8] == [
        ["all_gather_into_tensor [16]", "1", "10.0 us", "25.0 us", "2.50"],
        ["aten::mm [4, 8] [8, 2]", "2", "12.0 us", "7.0 us", "0.58"],
        ["in fused kernels", "1", "0.5 us", "1.0 us", "2.00"],
        ["aten::cat [4, 2] [4, 2] ...", "1", "4.0 us", "4.0 us", "1.00"],
    ]
