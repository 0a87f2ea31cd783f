"""Profiles: traces, and what they say of the nodes of a graph."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from overlap_sched.cost.profile import (
    MeasuredTime,
    Profile,
    Sought,
    fused_ops,
    profile_of,
    read_traces,
    share_kernels,
)
from overlap_sched.errors import CostError, InputTooLargeError
from overlap_sched.problem.file import Limits
from tests.support.traces import C10D, Event, event, kernel, launch, nccl, region, step, write

MM = Sought("aten::mm", ((4, 8), (8, 2)), 2.0, fuses=False)
ADD = Sought("aten::add", ((4, 2), (4, 2)), 1.0)
MUL = Sought("aten::mul", ((4, 2), (4, 2)), 3.0)
GATHER = Sought(C10D + "all_gather_into_tensor", ((16,),), 10.0, collective=True, bytes=128)


def profile(folder: Path, sought: Sequence[Sought], *ranks: Sequence[Event]) -> Profile:
    paths = [write(folder, events, rank, len(ranks)) for rank, events in enumerate(ranks)]
    return profile_of(sought, read_traces(paths))


def times(found: Profile) -> list[float | None]:
    return [None if m is None else m.us for m in found.measured]


def mm(ts: float, dur: float) -> Event:
    return event("aten::mm", ts, dur, (4, 8), (8, 2), [])


def test_the_kth_of_equal_shapes_is_the_kth_in_the_trace(tmp_path: Path) -> None:
    other = event("aten::mm", 30, 9, (4, 4), (4, 4))
    out = event("aten::mm", 40, 7, (4, 8), (8, 2), (4, 2))  # writes to a buffer, as Inductor calls it
    found = profile(tmp_path, [MM, ADD, MM], [mm(0, 5), other, out])
    assert found.measured == (MeasuredTime(5.0, "order"), None, MeasuredTime(7.0, "order"))
    assert (found.runs, found.ranks, found.skew_us) == (1, 1, None)
    assert found.share() == found.share("order") == 4 / 5
    assert found.share("names") == 0.0


def test_products_with_and_without_an_addition_are_one(tmp_path: Path) -> None:
    """Inductor makes an addmm of mm and add, and the reverse."""
    addmm = Sought("aten::addmm", ((2,), (4, 8), (8, 2)), 2.0)
    added = event("aten::addmm", 0, 5, (4, 2), (4, 8), (8, 2), (4, 2))
    assert times(profile(tmp_path, [MM, ADD], [added])) == [5.0, None]
    assert times(profile(tmp_path, [addmm], [mm(0, 7)])) == [7.0]
    own = event("aten::addmm", 10, 5, (2,), (4, 8), (8, 2))
    assert times(profile(tmp_path, [addmm, MM], [mm(0, 7), own])) == [5, 7]
    batched = Sought("aten::bmm", ((3, 4, 8), (3, 8, 2)), 2.0)
    both = [event("aten::baddbmm", 0, 6, (3, 4, 2), (3, 4, 8), (3, 8, 2)), mm(10, 1)]
    assert times(profile(tmp_path, [batched], both)) == [6.0]


def test_the_median_of_steps_and_ranks(tmp_path: Path) -> None:
    def three(first: float, second: float, third: float) -> list[Event]:
        steps = [step(k, 100 * k, 90) for k in range(3)]
        return [*steps, mm(-50, 1000), mm(10, first), mm(110, second), mm(210, third), mm(295, 1000)]  # two in no step

    found = profile(tmp_path, [MM], three(10, 30, 20))
    assert (times(found), found.runs) == ([20.0], 3)
    found = profile(tmp_path, [MM], three(10, 30, 20), three(60, 70, 25))
    assert (times(found), found.runs, found.ranks) == ([27.5], 3, 2)


def test_several_runs_in_one_step_are_runs(tmp_path: Path) -> None:
    """Micro-batches of a graph that is not compiled: twice as many operators."""
    assert times(profile(tmp_path, [MM, MM], [mm(0, 1), mm(10, 2), mm(20, 3), mm(30, 6)])) == [2.0, 4.0]


def test_other_numbers_of_a_shape_give_its_median(tmp_path: Path) -> None:
    found = profile(tmp_path, [MM, MM], [mm(0, 1), mm(10, 2), mm(20, 6)])
    assert found.measured == (MeasuredTime(2.0, "shapes"),) * 2


def test_only_the_compiled_graph_that_is_most_like_ours_counts(tmp_path: Path) -> None:
    forward = [region(0, 50), mm(1, 1), mm(10, 2), event("aten::add", 20, 3, (4, 2), (4, 2))]
    backward = [region(100, 50), mm(101, 11), event("aten::bmm", 120, 3, (4, 2), (4, 2))]
    outside = [mm(200, 500)]
    trace = [*forward, *backward, *outside]
    assert times(profile(tmp_path, [MM, MM, ADD], trace)) == [1.0, 2.0, 3.0]
    assert times(profile(tmp_path, [MM, Sought("aten::bmm", ((4, 2), (4, 2)), 1.0)], trace)) == [11.0, 3.0]


def test_micro_batches_of_a_compiled_graph_are_runs(tmp_path: Path) -> None:
    def rank(first: float, second: float) -> list[Event]:
        one = nccl("all_gather_into_tensor", 1, first, (16,), number=1)
        return [region(0, 50), *one, region(100, 50), *nccl("all_gather_into_tensor", 101, second, (16,), number=2)]

    found = profile(tmp_path, [GATHER], rank(10, 80), rank(70, 20))
    assert (times(found), found.runs) == ([15.0], 2)  # the median of 10 and 20: each is compared with its own


def test_what_an_operator_of_the_graph_calls_is_a_part_of_it(tmp_path: Path) -> None:
    inner = Sought("aten::copy_", ((4, 2), (4, 2)), 1.0)
    clone = Sought("aten::clone", ((4, 2),), 1.0)
    trace = [
        event("aten::copy_", 0, 5, (4, 2), (4, 2)),  # within the next one, which begins at the same moment
        event("aten::clone", 0, 10, (4, 2)),
        event("aten::copy_", 20, 7, (4, 2), (4, 2)),
        event("aten::copy_", 3, 90, (4, 2), (4, 2), tid=2),  # begun meanwhile, by another thread
    ]
    assert times(profile(tmp_path, [clone, inner, inner], trace)) == [10.0, 90.0, 7.0]


def test_on_a_gpu_an_operator_takes_as_long_as_its_kernels(tmp_path: Path) -> None:
    trace = [
        event("aten::mm", 0, 50, (4, 8), (8, 2), External_id=3),
        launch(5, 11),
        launch(10, 12),
        kernel("gemm", 1000, 7, 11),
        kernel("splitk_reduce", 1010, 2, 12),
        event("aten::add", 60, 50, (4, 2), (4, 2), External_id=4),
        event("fill", 2000, 5, cat="gpu_memset", tid=99, External_id=4),  # its launch was not recorded
        kernel("of another", 3000, 500, 77),
    ]
    assert times(profile(tmp_path, [MM, ADD, MUL], trace)) == [9.0, 5.0, None]


def test_a_collective_takes_as_long_as_its_last_rank(tmp_path: Path) -> None:
    early = nccl("all_gather_into_tensor", 0, 90, (16,), number=5)
    late = nccl("all_gather_into_tensor", 50, 40, (16,), number=8)
    both, alone = profile(tmp_path, [GATHER], early, late), profile(tmp_path, [GATHER], early)
    assert (times(both), both.skew_us) == ([40.0], 25.0)  # the mean of 50 and 0
    assert (times(alone), alone.skew_us) == ([90.0], None)


def test_collectives_of_other_groups_wait_for_others(tmp_path: Path) -> None:
    """Ranks 0 and 1 are one group, 2 and 3 another: the mean of what is least in each."""
    durations = {0: (90.0, "[0, 1]"), 1: (40.0, "[0, 1]"), 2: (60.0, "[2, 3]"), 3: (70.0, "[2, 3]")}
    ranks = [nccl("all_gather_into_tensor", 0, us, (16,), number=5, ranks=group) for us, group in durations.values()]
    assert times(profile(tmp_path, [GATHER], *ranks)) == [50.0]


def test_collectives_are_compared_run_by_run(tmp_path: Path) -> None:
    def two(first: float, second: float) -> list[Event]:
        one = nccl("all_gather_into_tensor", 10, first, (16,), number=1)
        return [step(4, 0, 90), step(5, 100, 90), *one, *nccl("all_gather_into_tensor", 110, second, (16,), number=2)]

    found = profile(tmp_path, [GATHER], two(10, 50), two(80, 20))
    assert times(found) == [15.0]  # the median of 10 and 20, not the least of all
    assert found.skew_us == (35 + 15) / 2


def test_gloo_works_on_threads_of_its_own(tmp_path: Path) -> None:
    scatter = Sought(C10D + "reduce_scatter_tensor", ((32,),), 10.0, collective=True, bytes=128)

    def ran(kind: str, ts: float, dur: float, *dims: Sequence[int]) -> Event:
        return event(f"gloo:{kind}", ts, dur, *dims, cat="user_annotation", tid=50)

    trace = [
        event("c10d::allreduce_", 1, 2, [[32]]),  # of somebody else, the same shape
        event(C10D + "all_gather_into_tensor", 10, 9, (16,), [], []),
        event(C10D + "all_gather_into_tensor_out", 11, 8, (16,), [], [], (32,)),
        event("c10d::_allgather_base_", 12, 7, (32,), (16,)),
        event(C10D + "reduce_scatter_tensor", 30, 5, (32,), [], [], []),
        event(C10D + "wait_tensor", 90, 5, (32,)),
        ran("all_reduce", -5, 999, (32,)),  # launched before the profiler was started
        ran("all_reduce", 3, 100, (32,)),
        ran("all_gather", 14, 20, (16,)),
        ran("all_reduce", 35, 40, (32,)),  # as which gloo runs a reduce_scatter
    ]
    assert times(profile(tmp_path, [GATHER, scatter], trace)) == [20.0, 40.0]


def test_fused_kernels_share_their_time_among_the_nodes_they_are_named_after(tmp_path: Path) -> None:
    kernels = [
        event("triton_poi_fused_add_0", 0, 8),
        event("graph_0_cpp_fused__to_copy_mul_silu_12", 10, 12),
        event("aten::empty_strided", 11, 1),
        event("triton_poi_fused_add_0", 30, 4),
    ]
    cast = Sought("prims::convert_element_type", ((4, 2),), 1.0)
    sigmoid = Sought("aten::sigmoid", ((4, 2),), 1.0)
    found = profile(tmp_path, [MM, ADD, MUL, cast, sigmoid], [mm(50, 5), *kernels])
    # add: 12 to itself and the sigmoid, which no name has; mul and cast: 12 to 3 + 1 + 1
    assert times(found) == pytest.approx([5.0, 6.0, 7.2, 2.4, 6.0 + 2.4])
    assert [m.how for m in found.measured if m] == ["order", *["names"] * 4]
    assert found.fused_us == 24.0


def test_the_time_of_fused_kernels_is_kept_and_never_given_to_a_matmul() -> None:
    def alone(name: str, us: float, fuses: bool = True) -> Sought:
        return Sought(f"aten::{name}", None, us, fuses=fuses)

    parts = [alone("mm", 1000.0, fuses=False), alone("add", 1.0), alone("sub", 0.0)]
    assert share_kernels(parts, {"add_sub": 6.0, "sub": 5.0}) == [None, 11.0, None]
    assert share_kernels([alone("mm", 9.0, fuses=False)], {"mm_relu": 4.0}) == [4.0]  # a template of a matmul
    assert share_kernels([], {"add": 3.0}) == []
    assert share_kernels(parts, {}) == [None] * 3


def test_predicted_kernels_take_the_time_of_those_that_are_most_like_them() -> None:
    def kernel(*names: str, us: float = 1.0) -> Sought:
        return Sought("", None, us, kernel=tuple(f"aten::{name}" for name in names))

    parts = [kernel("add", "mul"), kernel("add", "mul", us=3.0), kernel("add"), kernel("exp", "mul", "sum")]
    kernels = {"add_mul": 8.0, "add": 5.0, "mul_softmax_sum": 7.0}
    assert share_kernels(parts, kernels) == [2.0, 6.0, 5.0, 7.0]
    kernels = {"add": 8.0, "exp": 4.0, "permute_view": 2.0}
    assert share_kernels([kernel("add"), kernel("exp", us=3.0)], kernels) == [8.5, 5.5]
    # a kernel that was not predicted goes to what is most like it, a prediction that did not come shares what there is
    assert share_kernels([kernel("add", "mul"), kernel("mul")], {"add_mul_sub": 4.0}) == [2.0, 2.0]


def test_names_of_fused_kernels() -> None:
    names = ["triton_poi_fused_add_mul_3", "triton_per_fused_sum_1", "graph_2_cpp_fused_layer_norm_7", "aten::mm"]
    assert [fused_ops(name) for name in names] == ["add_mul", "sum", "layer_norm", None]


def test_a_problem_file_has_no_shapes_but_numbers_and_bytes(tmp_path: Path) -> None:
    nodes = [Sought("aten::mm", None, 1.0)] * 2
    other = event("aten::mm", 10, 7, (64, 64), (64, 64))
    assert times(profile(tmp_path, nodes, [mm(0, 5), other])) == [5.0, 7.0]
    op = "all_gather_into_tensor"
    gather, wide = (Sought(C10D + op, None, 10.0, collective=True, bytes=n) for n in (128, 256))
    comms = {"In msg nelems": 16, "Out msg nelems": 64, "dtype": "BFloat16"}
    first = nccl(op + "_", 20, 50, (16,), number=1, **comms)
    second = nccl(op, 40, 60, (32,), number=2, **{**comms, "Out msg nelems": 128})
    assert times(profile(tmp_path, [gather, wide], [*first, *second])) == [50.0, 60.0]
    types = {"Input type": ["c10::Half", "Scalar", ""], "Concrete Inputs": ["", "4", ""]}
    ran = event("gloo:all_gather", 1, 70, (4, 8), cat="user_annotation", tid=5)
    on_gloo = [event(C10D + op, 0, 5, (4, 8), **types), ran]
    assert times(profile(tmp_path, [wide, gather], on_gloo)) == [70.0, None]


@pytest.mark.parametrize(
    ("sought", "trace", "said"),
    [
        ([MM, ADD, MM], [event("aten::conv2d", 0, 1, (4, 4))], "none of .*aten::mm.*conv2d.*another job"),
        ([MM], [], "none of .*nothing"),
        ([MM], [event("aten::mm", 0, 1)], "record_shapes=True"),
        (
            [MM],
            [event("aten::mm", 0, 1, (64, 8), (8, 2))],
            r"graph has aten::mm of \(\(4, 8\).* trace aten::mm of \(\(64, 8\).*sharding",
        ),
        ([MM._replace(shapes=None)] * 3, [mm(0, 1), mm(10, 1)], "number: .*give the dump"),
    ],
)
def test_a_trace_of_something_else(sought: Sequence[Sought], trace: Sequence[Event], said: str, tmp_path: Path) -> None:
    with pytest.raises(CostError, match=f"rank0.json: .*{said}"):
        profile(tmp_path, sought, trace)


@pytest.mark.parametrize(
    ("name", "rank", "world_size", "said"),
    [
        ("again.json", 1, 2, r"once; .*rank1.json \(rank 1 of 2\), .*again.json \(rank 1 of 2\)"),
        ("rank1.json", 1, 2, r"once; .*rank1.json \(rank 1 of 2\), .*rank1.json \(rank 1 of 2\)"),
        ("large.json", 0, 8, r"one job.*rank1.json \(rank 1 of 2\), .*large.json \(rank 0 of 8\)"),
        ("lone.json", None, 2, r"one job.*rank1.json \(rank 1 of 2\), .*lone.json \(rank None of None\)"),
        ("later.json", 0, 2, r"rank1.json \(step 0\) and .*later.json \(step 9\)"),
    ],
)
def test_ranks_that_do_not_go_together(name: str, rank: int | None, world_size: int, said: str, tmp_path: Path) -> None:
    one = write(tmp_path, [mm(0, 1)], rank=1)
    events = [*([step(9, 0, 5)] if name == "later.json" else []), mm(0, 1)]
    other = write(tmp_path, events, rank=rank, world_size=world_size, name=name)
    with pytest.raises(CostError, match=said):
        profile_of([MM], read_traces([one, other]))
    if rank is None:
        with pytest.raises(CostError, match="each rank once"):
            profile_of([MM], read_traces([other, other]))


def test_ranks_whose_steps_differ(tmp_path: Path) -> None:
    one = [step(3, 0, 90), mm(0, 1), *nccl("all_gather_into_tensor", 10, 9, (16,), number=1)]
    more = [*one, *nccl("all_gather_into_tensor", 20, 9, (16,), number=2)]
    with pytest.raises(CostError, match=r"step 3 is not .* collective 2 is .*all_gather.*, nothing in"):
        profile(tmp_path, [MM, GATHER], more, one)
    wide = Sought(C10D + "all_gather_into_tensor", ((32,),), 10.0, collective=True, bytes=128)
    other = [step(3, 0, 90), mm(0, 1), *nccl("all_gather_into_tensor", 10, 9, (32,), number=1)]
    with pytest.raises(CostError, match=r"step 3 is not .* collective 1 is .*16.*, .*32"):
        profile(tmp_path, [MM, GATHER, wide], one, other)


def test_a_trace(tmp_path: Path) -> None:
    others = [{"ph": "i", "name": "marker", "ts": 3}, {"ph": "X", "name": "unfinished", "ts": 1}]
    path = write(tmp_path, [event("aten::mm", 5, 2.5, (4, 8)), *others], rank=3)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    (trace,) = read_traces([path])
    assert read_traces([packed]) == [trace._replace(path=str(packed))]
    assert (trace.rank, trace.world_size, trace.steps) == (3, 2, [(0, [0])])
    assert trace.calls == [("aten::mm", ((4, 8),), 2.5, 5.0, -1, 0, "")]
    assert read_traces([write(tmp_path, [], rank=None)])[0][1:] == (None, None, [], [(0, [])])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"\xff\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "export_chrome_trace"),
        (b'{"traceEvents": {}}', "export_chrome_trace"),
        (b'{"traceEvents": [3]}', r"traceEvents\[0\] is 3"),
        (b'{"traceEvents": [{"ph": "M"}, {"ph": "X", "name": 3, "ts": 1, "dur": 1}]}', r"traceEvents\[1\] is"),
        (b'{"traceEvents": [{"ph": "X", "name": "mm", "ts": "now", "dur": 1}]}', r"traceEvents\[0\] is .*now"),
        (b'{"traceEvents": [{"ph": "X", "name": "mm", "ts": 1, "dur": -1}]}', r"traceEvents\[0\] is .*microseconds"),
        (gzip.compress(b"{}" * 1000)[:20], "cut short"),
    ],
    ids=range(10),
)
def test_files_that_are_no_traces(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(CostError, match=f"trace.json: .*{said}"):
        read_traces([path])


def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{} for _ in range(31)]}))
    assert read_traces([path], Limits(nodes=3))[0].calls == []  # 33 objects and lists
    for limits in (Limits(nodes=2), Limits(input_bytes=50)):
        with pytest.raises(InputTooLargeError):
            read_traces([path], limits)
