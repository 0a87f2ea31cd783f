"""Schedules, graphs and quantities in words: the figures that are named, and that nothing is lost or made up."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import to_builtins
from rich.console import Console
from rich.table import Table

from overlap_sched import EXAMPLE, Group, Kind, Node, Options, Problem, Schedule, Storage, read_problem, schedule
from overlap_sched.cost.profile import MeasuredTime, Profile, Sought
from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, Tables
from overlap_sched.errors import ProblemError
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.problem.sizes import EXPANDABLE, PLAIN, AllocatorSettings
from overlap_sched.report.answers import plan_answer
from overlap_sched.report.units import change, count, duration, from_to, printable, size
from overlap_sched.report.words import graph
from overlap_sched.report.words import schedule as words
from overlap_sched.report.words.graph import Purpose

ByHand = Callable[..., Schedule]


def printed(table: Table) -> str:
    file = io.StringIO()
    Console(file=file, width=120, color_system=None).print(table)
    return " ".join(file.getvalue().split())


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([duration(us) for us in (0.0, 0.03, 0.06, 999.0, 1000.0)], "0.0 us, 30.0 ns, 0.1 us, 999.0 us, 1.00 ms"),
        ([duration(us) for us in (2_281_812.0, 12_340_000.0)], "2,281.8 ms, 12.34 s"),
        ([size(n) for n in (0, 1023, 1536, 21 * 2**20, 36136566784)], "0 B, 1023 B, 1.5 KiB, 21.0 MiB, 33.655 GiB"),
        ([change(*pair) for pair in ((190, 120), (7, 7), (10**6, 10**6 - 1), (0, 3))], "-36.8 %, +0.0 %, +0.0 %, -"),
        ([from_to("190.0 us", "120.0 us"), from_to("1.00 ms", "0.0 us")], "190.0 -> 120.0 us, 1.00 ms -> 0.0 us"),
        ([count(number, "graph") for number in (0, 1, 2000)], "0 graphs, 1 graph, 2,000 graphs"),
        ([printable("\x1b[31mred\n"), printable("漢字 mm_1")], "\\x1b[31mred\\n, 漢字 mm_1"),
    ],
)
def test_quantities(found: list[str], text: str) -> None:
    assert ", ".join(found) == text


@pytest.mark.parametrize(
    ("contention", "named"),
    [
        (Contention({"": 1.1}), ["1.1 times as long beside any collective"]),
        (
            Contention({"": 1.125, "send": 1.0}),
            ["1 times as long beside send*", "1.125 times as long beside any other"],
        ),
        (Contention({"send": 1.0000001}), ["1.0000001 times as long"]),
        (Contention({"all_gather": 1.5}, stretch={"": 2.0}), ["1.5 times", "all_gather*", "takes 2 times as long"]),
        (Contention(lanes=2, crowding=1.5), ["2 collectives", "1.5 times"]),
        (
            Contention({"": 1.2}, shares={"flops": 0.5}, flops_per_byte=295.0),
            ["1.2 times", "0.5 of that", "flops"],
        ),
        (
            Contention({}, {"c": "rail", "own": "wire", "b": "rail", "a": "rail", "e": "[nv]\x1b", "d": "[nv]\x1b"}),
            ["groups a, b and c share link rail", "groups d and e share link [nv]\\x1b."],
        ),
    ],
)
def test_contention(contention: Contention, named: list[str]) -> None:
    assert all(text in words.with_contention_line("", contention) for text in ("With contention: ", *named))


def test_no_contention_has_no_line() -> None:
    for none in (NO_CONTENTION, Contention({"": 1.0, "all_gather": 1.0}, {"fsdp": "rail", "ep": "own"})):
        assert words.with_contention_line("", none) == ""


def test_a_calibration() -> None:
    gathers = [CollectiveTime("all_gather", 8, 2, 2**20, 500.0, 20.0)]
    kernels = [KernelTime("aten.mm.default", "a", 4 * 10**9, 10**6, 10.0), KernelTime(COPY, "c", 0, 10**6, 10.0)]
    text = graph.calibration_text(Tables(tuple(gathers), tuple(kernels)), ["all_to_all: no such thing"], "c.toml")
    for named in ("c.toml: 1 collectives, 2 kernels", "8 ranks on 2 nodes", "1.0 MiB 500.0 us (2.10 GB/s)",
                  "100 GB/s at best", "400 TFLOP/s at best", "not measured: all_to_all: no such thing"):  # fmt: skip
        assert named in text
    assert graph.calibration_text(Tables(), [], "c.toml") == "c.toml: 0 collectives, 0 kernels measured"


def test_a_profile() -> None:
    mm = Sought("aten::mm", ((4, 8), (8, 2)), 6.0)
    gather = Sought("_c10d_functional::all_gather_into_tensor", ((16,),), 10.0, collective=True)
    lost = tuple(Sought(f"aten::{name}", (), 1.0) for name in ("a", "b", "b"))
    found = (MeasuredTime(3.0, "order"), MeasuredTime(4.0, "order"), MeasuredTime(25.0, "order"), None, None, None)
    profile = Profile((mm, mm, gather, *lost), found, runs=1, ranks=1, skew_us=None, fused_us=0.0)
    said = "\n".join(graph.profile_notes(profile))
    for named in ("3 of 6 nodes", "88.0%", "one rank", "2 x aten::b, 1 x aten::a"):
        assert named in said
    alone = graph.profile_notes(replace(profile, skew_us=1250.0, ranks=2))
    assert "1.25 ms of waiting" in "\n".join(alone)
    rows = printed(graph.profile_table(profile))
    assert rows.index("all_gather_into_tensor [16] 1 10.0 us 25.0 us 2.50") < rows.index("2 12.0 us 7.0 us 0.58")


@pytest.mark.parametrize(
    ("here", "allocator", "settings", "title"),
    [
        ("", "environment", PLAIN, "plain segments"),
        ("expandable_segments:True", "environment", EXPANDABLE, "expandable segments"),
        ("expandable_segments:True", "plain", PLAIN, "plain segments"),
        ("max_split_size_mb:64", "environment", AllocatorSettings(max_split_size_bytes=2**26), "PYTORCH_ALLOC_CONF"),
    ],
)
def test_reserved_bytes_are_those_of_a_replay(
    here: str, allocator: str, settings: AllocatorSettings, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", here)
    found = schedule(EXAMPLE, Options(headroom="5MiB", allocator=allocator))
    before, after = (
        replay_allocator(EXAMPLE, order, settings).reserved_bytes for order in (EXAMPLE.original_order, found.order)
    )
    reserved = words.reserved_of(found)
    assert reserved == words.Reserved(before, after, settings)
    assert reserved.title == f"reserved, {title}"
    answer = plan_answer(found, None, reserved)
    assert (answer.original_reserved_bytes, answer.reserved_bytes) == (before, after)
    row = (size(before), size(after), change(before, after), "6.000 GiB")
    assert words.reserved_rows(reserved, 6 * 2**30)[0][1:] == row
    assert from_to(size(before), size(after)) in words.figures_text(words.reserved_rows(reserved))[0]


def test_where_nothing_is_replayed() -> None:
    assert words.reserved_of(schedule(EXAMPLE, Options(allocator="none"))) is None
    tracked = schedule(replace(EXAMPLE, memory_model="tracker"), Options(memory_model="tracker"))
    assert words.reserved_of(tracked) is None
    assert not words.reserved_rows(None)
    assert plan_answer(tracked, None, None).reserved_bytes is None
    assert "reserved" not in words.verdict(tracked, tracked.problem, None)[2]


@pytest.mark.parametrize(
    ("options", "came", "named"),
    [
        ({}, "reordered", ["step 190.0 -> 150.0 us (-21.1 %)", "peak memory 21.0 -> 21.0 MiB (+0.0 %)"]),
        ({"headroom": "5MiB"}, "reordered", ["120.0 us", "26.0 MiB (+23.8 %)", "segments 22.0 -> 42.0 MiB (+90.9 %)"]),
        ({"effort": 0}, "kept", ["step 190.0 -> 190.0 us (+0.0 %)"]),
        ({"memory_limit": "20MiB"}, "fails", ["Does not fit into 20.0 MiB"]),
        ({"memory_limit": "1GiB"}, "runs", ["Fits into 1.000 GiB"]),
    ],
)
def test_the_verdict(options: dict[str, object], came: str, named: list[str]) -> None:
    found = schedule(EXAMPLE, Options(**options))  # type: ignore[arg-type]
    what, *said = words.verdict(found, EXAMPLE, words.reserved_of(found))
    assert what == came
    assert all(text in ": ".join(said) for text in named), said
    asked = [words.verdict(found, replace(EXAMPLE), words.reserved_of(found), fits)[0] for fits in (True, False)]
    assert asked == ["runs", "fails"]


def test_figures(reordered: Schedule, by_hand: ByHand, odd: Problem) -> None:
    found = to_builtins(plan_answer(reordered, None, None))
    keys = ("original_step_us", "step_us", "exposed_us", "bound_us", "gap_percent", "peak_bytes", "headroom_bytes")
    assert [found[key] for key in keys] == [190.0, 120.0, 10.0, 120.0, 0.0, 26 * 2**20, 5 * 2**20]
    kept = by_hand(EXAMPLE, EXAMPLE.original_order, fell_back="full runs before gather")
    assert (plan_answer(kept, None, None).fell_back, found["fell_back"]) == (True, False)
    assert plan_answer(kept, None, None).gap_percent == pytest.approx(100 * (190 / 120 - 1))
    assert plan_answer(by_hand(odd, odd.original_order), None, None).gap_percent == 0.0
    assert words.gap_percent(120.0 * (1 + 1e-12), 120.0) == 0.0
    assert words.gap_percent(90.0, 120.0) == pytest.approx(-25.0)  # a wrong bound must show


def test_a_collective_is_explained(reordered: Schedule) -> None:
    decision = replace(
        reordered.decisions[0],
        reason="no stall", under=(4,), held_by="memory", over_bytes=3 * 2**20, over_position=5,
    )  # fmt: skip
    text = words.explanation(replace(reordered, decisions=(decision,)), "gather")
    for named in ("on group fsdp of 8, 8.0 MiB, 40.0 us", "hidden 40.0 us under mm (50.0 us)", "position 2",
                  "every other ready node would have stalled", "first waited for at 80.0 us", "blocked by memory",
                  "3.0 MiB (3,145,728 bytes) over the budget while dgrad runs (position 5"):  # fmt: skip
        assert named in text


def test_what_blocked_it(reordered: Schedule) -> None:
    for held_by, node, text in (("dependency", 6, "dependency (wgrad): what"), ("stream", None, "stream: another")):
        said = words.blocked_by(EXAMPLE, replace(reordered.decisions[1], held_by=held_by, held_node=node))
        assert said.startswith(text)


def test_odd_ones_are_explained(reordered: Schedule, by_hand: ByHand, odd: Problem) -> None:
    kept = by_hand(EXAMPLE, EXAMPLE.original_order, fell_back="full runs before gather")
    assert "full runs before gather" in words.explanation(kept).splitlines()[1]
    text = words.explanation(by_hand(odd, odd.original_order))
    assert all(named in text for named in ("nothing in this graph waits for it", "a\\nb: all_reduce", "漢字: "))
    with pytest.raises(ProblemError, match="Did you mean gather"):
        words.explanation(reordered, "gathr")
    with pytest.raises(ProblemError, match="There are gather, scatter"):
        words.explanation(reordered, "mm")


ROOT = Path(__file__).resolve().parents[2]


def names_of(problem: Problem) -> dict[str, str]:
    return graph.group_names(graph.group_purposes(problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("scripts/instances/dsv3_bw_64", {"0": "FSDP 0", "513": "FSDP 513", "521": "expert 521"}),
        ("scripts/instances/llama3_8b_fw_64_2d", {"0": "FSDP 0", "1": "tensor 1"}),
        ("llama_repro/titan/graphs/titan-llama3-8b-fsdp8-tp8", {"281": "FSDP 281", "137": "tensor 137"}),
    ],
)
def test_groups_of_real_graphs(file: str, names: dict[str, str]) -> None:
    assert names_of(read_problem(ROOT / f"{file}.json.gz")) == names


def numbered(problem: Problem) -> Problem:
    nodes = tuple(node._replace(group="7") if node.group else node for node in problem.nodes)
    return replace(problem, nodes=nodes, groups={"7": problem.groups["fsdp"]})


def test_a_name_says_what_it_is_for_by_itself() -> None:
    assert names_of(EXAMPLE) == {"fsdp": "fsdp"}
    marked = numbered(EXAMPLE)
    assert names_of(marked) == {"7": "FSDP 7"}
    nodes = (node._replace(module="layers.0") if node.name == "gather" else node for node in marked.nodes)
    told = words.explanation(schedule(replace(marked, nodes=tuple(nodes))), "gather")
    assert told.startswith("gather in layers.0: all_gather_into_tensor on group FSDP 7 of 8, 8.0 MiB, 40.0 us\n")
    found = graph.group_names({"0/2": "FSDP", "9": "other"})  # a second communicator is for the same
    assert found == {"0/2": "FSDP 0/2", "9": "other 9"}


def test_a_gradient_that_is_reduced_is_of_data_parallel() -> None:
    nodes = [Node("x", Kind.INPUT, alloc=(0,))]
    nodes += [Node(f"mm{k}", Kind.COMPUTE, (k,), (k + 1,), (k,), 1.0) for k in range(9)]
    nodes += [
        Node("sum", Kind.COLLECTIVE, (9,), (10,), (9,), 1.0, "all_reduce", "3"),
        Node("done", Kind.WAIT, (10,), (), (9, 10), collective=10),
        Node("output", Kind.OUTPUT, (11,), (), (10,)),
    ]
    problem = Problem("data", tuple(nodes), (Storage(1),) * 11, {"3": Group(4, True)})
    assert names_of(problem) == {"3": "data 3"}
    more = [Node(f"more{k}", Kind.COMPUTE, (11 + k,), (11 + k,), (10 + k,), 1.0) for k in range(8)]
    nodes[-1:] = [*more, Node("output", Kind.OUTPUT, (19,))]
    assert names_of(replace(problem, nodes=tuple(nodes), storages=(Storage(1),) * 19)) == {"3": "tensor 3"}


@pytest.mark.parametrize(("op", "purpose"), [("send", "other"), ("", "other"), ("offload", "host"), ("reload", "host")])
def test_what_is_neither_gathered_nor_reduced(op: str, purpose: Purpose) -> None:
    nodes = (node._replace(op=op if node.group else node.op) for node in EXAMPLE.nodes)
    assert graph.group_purposes(replace(EXAMPLE, nodes=tuple(nodes))) == {"fsdp": purpose}


def test_groups_of_one_purpose_stand_together_in_their_order() -> None:
    purposes: dict[str, Purpose] = {"a": "expert", "b": "other", "c": "FSDP", "d": "tensor", "e": "FSDP"}
    assert graph.by_purpose(purposes, purposes) == ["c", "e", "d", "a", "b"]
