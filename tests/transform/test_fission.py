"""What a fission makes of a problem, by hand: times, bytes, memory, and the order in which parts run."""

import pytest

from overlap_sched import Group, Kind, Node, Problem, Storage
from overlap_sched.cost import H100, Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.judge.validate import measure, violation
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import (
    Cut,
    EndsError,
    cuts_of,
    is_range,
    range_cut,
    through_gather,
    through_scatter,
    through_view,
)
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.recipes import places
from overlap_sched.transform.rewrites import Fission, Leave, Slice

MIB = 2**20
PRICES = Prices(Roofline())
REDUCE_US = PRICES.collective_us("all_reduce", 64 * MIB, Group(8, True))


def layers(count: int, us: float = 100.0) -> Problem:
    """``x -> (mm with w -> all_reduce) ... -> output``: nothing hides anything."""
    nodes = [Node("x", Kind.INPUT, (), (0,)), Node("w", Kind.INPUT, (), (1,))]
    for k in range(count):
        v, s = 3 * k + 2, 2 * k + 2
        given = (s - 1 if k else 0, 1)
        mm = Node(f"mm{k}", Kind.COMPUTE, (v - 1 if k else 0, 1), (s,), given, us, "aten.mm.default", bytes=136 * MIB)
        total = Node(f"sum{k}", Kind.COLLECTIVE, (v,), (s + 1,), (s,), REDUCE_US, "all_reduce", "tp", bytes=64 * MIB)
        wait = Node(f"wait{k}", Kind.WAIT, (v + 1,), (), (s, s + 1), op="wait", collective=v + 1)
        nodes += [mm, total, wait]
    nodes.append(Node("output", Kind.OUTPUT, (3 * count + 1,), (), (2 * count + 1,)))
    storages = (Storage(64 * MIB), Storage(8 * MIB, pinned=True), *[Storage(64 * MIB)] * (2 * count))
    return Problem("layers", tuple(nodes), storages, {"tp": Group(8, True)})


def halves(problem: Problem) -> Fission:
    """All of it in two parts."""
    names = tuple(node.name for node in problem.nodes[2:-1])
    leave = Leave(names[-1], "cat", Cut(0, 1, 4), 64 * MIB, names[-2])
    return Fission(names, 2, (Slice("x", Cut(0, 1, 4), 64 * MIB, True, "x"),), (leave,))


def named(problem: Problem, name: str) -> Node:
    return next(node for node in problem.nodes if node.name == name)


def test_times_bytes_and_memory_by_hand() -> None:
    after = apply(layers(1), [halves(layers(1))], PRICES)
    f = "fission_mm0_2"
    assert [node.name for node in after.nodes] == [
        *("x", "w", f"{f}_x_in_0", f"{f}_mm0_0", f"{f}_sum0_0", f"{f}_x_in_1", f"{f}_mm0_1", f"{f}_sum0_1"),
        *(f"{f}_wait0_0", f"{f}_wait0_1", f"{f}_wait0_cat", "output"),
    ]
    mm, launch, cat = named(after, f"{f}_mm0_1"), named(after, f"{f}_sum0_1"), named(after, f"{f}_wait0_cat")
    assert mm.bytes == 8 * MIB + 64 * MIB  # all of the weight, half of the rest
    least = 5.0 * H100.bytes_per_s / 1e6 / MIB  # of a matmul, in what moves meanwhile
    assert mm.time_us == pytest.approx(100.0 * (72 + least) / (136 + least))
    assert launch.bytes == 32 * MIB
    assert launch.time_us == PRICES.collective_us("all_reduce", 32 * MIB, Group(8, True))
    assert (cat.bytes, cat.time_us) == (128 * MIB, PRICES.copy_us("aten.cat.default", 128 * MIB))
    assert [after.storages[s].bytes for node in after.nodes for s in node.alloc] == [
        MIB * size for size in (64, 8, 32, 32, 32, 32, 64)
    ]
    assert named(after, "output").use == cat.alloc
    assert violation(after, after.original_order) is None


def test_of_a_table_only_the_rows_that_are_read_count() -> None:
    """An embedding moves less than its table holds: half of that in each part."""
    one = layers(1)
    nodes = [node._replace(bytes=6 * MIB) if node.name == "mm0" else node for node in one.nodes]
    after = apply(Problem("table", tuple(nodes), one.storages, one.groups), [halves(one)], PRICES)
    assert named(after, "fission_mm0_2_mm0_0").bytes == 3 * MIB


def test_stage_by_stage() -> None:
    """Two stages of two nodes, then three: all of part 0's stage, then part 1's."""
    at = [3.0, 4.0, 8.0, 9.0, 10.0]
    found = places(at, [False, False, True, True, False], 2)
    order = sorted((place, p, i) for p, row in enumerate(found) for i, place in enumerate(row))
    stages = ((3.0, (0, 1)), (8.0, (2, 3, 4)))
    assert [(p, i) for _, p, i in order] == [(p, i) for _, stage in stages for p in (0, 1) for i in stage]
    assert all(start <= row[i] < start + 1 for start, stage in stages for i in stage for row in found)


def test_parts_hide_each_other() -> None:
    """Whole, compute and network take turns; in two parts one part's network hides behind the other's compute."""
    problem = layers(8, 400.0)
    after = apply(problem, [halves(problem)], PRICES)
    before, now = (measure(p, p.original_order).timeline for p in (problem, after))
    assert before.exposed_us == pytest.approx(8 * REDUCE_US)
    assert now.exposed_us < 0.2 * before.exposed_us
    assert now.step_us < 0.7 * before.step_us


NODES, SLICES = halves(layers(2)).nodes, halves(layers(2)).slices


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Fission(NODES, 2, SLICES), "'output' uses 'wait1', which runs in"),
        (Fission(("x",), 2), "'x' is an input: it cannot run in parts"),
        (Fission(("wait0",), 2), "'wait0' waits for a collective that does not run in parts"),
        (Fission(("mm0",), 1), "'fission_mm0_1' has 1 parts: 2 at least, and each node once"),
    ],
)
def test_what_is_refused_and_why(one: Fission, why: str) -> None:
    with pytest.raises(RewriteError, match=why):
        apply(layers(2), [one], PRICES)


def test_cuts_by_hand() -> None:
    """Rows 0 0 1 1 0 0 1 1: two runs of two blocks; gathered, flattened, scattered."""
    assert range_cut((2, 8), 1, 2) == Cut(1, 1, 4)
    assert through_gather(Cut(0, 1, 2), 8) == Cut(0, 8, 2)
    assert through_scatter(Cut(0, 8, 2), 8) == Cut(0, 1, 2)
    assert through_view(Cut(1, 1, 4), (2, 8), (16,), 2) == Cut(0, 2, 4)
    assert through_view(Cut(0, 2, 4), (16,), (4, 4), 2) == Cut(0, 2, 1)
    assert is_range(Cut(1, 1, 4), (1, 8))
    assert not is_range(Cut(1, 1, 4), (2, 8))
    assert cuts_of((4, 3), 2) == [Cut(0, 1, 2), Cut(0, 2, 1)]
    with pytest.raises(EndsError, match="8 ranks share 1 runs"):
        through_scatter(Cut(0, 1, 8), 8)
    with pytest.raises(EndsError, match=r"dimension 1 of a tensor of shape \(2, 7\) cannot be cut into 2 equal parts"):
        range_cut((2, 7), 1, 2)
