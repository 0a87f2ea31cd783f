"""What-if: what is scaled, what is not, and what is refused."""

from dataclasses import replace

import pytest

from overlap_sched import EXAMPLE, Options
from overlap_sched.analysis.whatif import carried_over, placed_on, priced_on, whatif, with_ranks
from overlap_sched.cli.command import main
from overlap_sched.cli.whatif import whatif_answer
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import measure
from overlap_sched.problem import Group, Kind, Node, Problem, Storage
from overlap_sched.report.units import duration
from tests.support.sharded import sharded

H100 = read_cluster("dgx-h100")


def gather() -> Problem:
    """A parameter's shard is cast, gathered over 16 ranks and used."""
    nodes = (
        Node("shard", Kind.INPUT, alloc=(0,), use=(0,)),
        Node("cast", Kind.COMPUTE, (0,), (1,), (0, 1), 10.0),
        Node("gather", Kind.COLLECTIVE, (1,), (2,), (1, 2), 50.0, "all_gather_into_tensor", "fsdp", bytes=1600),
        Node("wait", Kind.WAIT, (2,), (), (1, 2), collective=2),
        Node("mm", Kind.COMPUTE, (3,), (3,), (2, 3), 100.0),
        Node("output", Kind.OUTPUT, (4,), (), (3,)),
    )
    storages = (Storage(200, True), Storage(100), Storage(1600), Storage(77))
    return Problem("gather", nodes, storages, {"fsdp": Group(16, False, 2)})


def test_shards_shrink_and_nothing_else_does() -> None:
    more = with_ranks(gather(), H100, 64)
    assert [storage.bytes for storage in more.storages] == [50, 25, 1600, 77]
    assert more.groups == {"fsdp": Group(64, False, 8)}
    assert more.nodes == gather().nodes
    priced = priced_on(more, H100, 2.0, True)
    assert [node.time_us for node in priced.nodes if node.kind is Kind.COMPUTE] == [5.0, 50.0]
    assert priced.nodes[2].time_us > priced_on(gather(), H100, 1.0, True).nodes[2].time_us


def test_what_cannot_be_known_is_refused() -> None:
    with pytest.raises(OptionsError) as error:
        with_ranks(gather(), H100, 12)
    assert str(error.value) == (
        "--vary ranks=12: process group 'fsdp' has 8 ranks on each node now; give a multiple of 8, two nodes at least."
    )
    with pytest.raises(OptionsError) as error:
        with_ranks(Problem("alone", (Node("mm", Kind.COMPUTE),), ()), H100, 16)
    assert str(error.value) == (
        "--vary ranks: it changes the process groups that shard parameters, and there is none here. Leave it out."
    )


def with_experts(size: int, kind: str = "all_gather_into_tensor") -> Problem:
    """The same, and an expert's parameter, whose collective is over so many ranks, one on each node."""
    nodes = (
        *gather().nodes[:5],
        Node("expert", Kind.INPUT, alloc=(4,), use=(4,)),
        Node("experts", Kind.COLLECTIVE, (5,), (5,), (4, 5), 50.0, kind, "experts", bytes=80 * size),
        Node("wait_experts", Kind.WAIT, (6,), (), (4, 5), collective=6),
        Node("mm_experts", Kind.COMPUTE, (4, 7), (6,), (3, 5, 6), 100.0),
        Node("output", Kind.OUTPUT, (8,), (), (6,)),
    )
    storages = (*gather().storages, Storage(80, True), Storage(80 * size), Storage(7))
    groups = {"fsdp": Group(16, False, 2), "experts": Group(size, False, size)}
    return Problem("experts", nodes, storages, groups)


def test_what_else_is_sharded_grows_with_the_largest_group() -> None:
    more = with_ranks(with_experts(2), H100, 64)
    assert more.groups == {"fsdp": Group(64, False, 8), "experts": Group(8, False, 8)}
    assert [storage.bytes for storage in more.storages] == [50, 25, 1600, 77, 20, 160, 7]
    replicas = with_ranks(with_experts(2, "all_reduce"), H100, 64)
    assert replicas.groups == {"fsdp": Group(64, False, 8), "experts": Group(2, False, 2)}


def test_a_group_that_cannot_grow_with_it_is_told() -> None:
    with pytest.raises(OptionsError) as error:
        with_ranks(with_experts(2), H100, 12)
    assert str(error.value) == (
        "--vary ranks=12: process group 'experts' has 2 ranks for 16 of the largest one that shards parameters, so it "
        "would have 1.5; give a multiple of 8."
    )


def test_a_slower_network_never_makes_the_step_shorter() -> None:
    points = list(whatif(gather(), H100, {"network": (0.25, 1.0, 4.0), "compute": (1.0, 2.0)}, Options()))
    assert [tuple(point.varied.values()) for point in points] == [
        (0.25, 1.0), (0.25, 2.0), (1.0, 1.0), (1.0, 2.0), (4.0, 1.0), (4.0, 2.0),
    ]  # fmt: skip
    steps = [point.found.scheduled.step_us for point in points]
    assert steps[::2] == sorted(steps[::2], reverse=True)
    assert all(fast < slow for slow, fast in zip(steps[::2], steps[1::2], strict=True))


def test_groups_of_unknown_nodes_are_placed() -> None:
    problem = replace(gather(), groups={"fsdp": Group(16, False)})
    assert placed_on(problem, H100).groups == {"fsdp": Group(16, False, 2)}
    assert placed_on(EXAMPLE, H100).groups == EXAMPLE.groups


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--vary", "speed=1"),
         "--vary speed=1: is not WHAT=VALUES, WHAT one of network, inside, compute, ranks: network=0.25..4, "
         "ranks=64,256."),
        (("--vary", "network=4..1"),
         "--vary network=4..1: values are numbers above 0, each once: FIRST..LAST in powers of two, or A,B,C."),
        (("--vary", "ranks=1.5"), "--vary ranks=1.5: ranks are whole numbers."),
        (("--vary", "network=1", "--vary", "network=2"), "--vary network=2: network is varied already. Give it once."),
        (("--comm-scale", "2"), "--comm-scale: whatif prices collectives anew. Give --vary network=FACTOR instead."),
    ],
)  # fmt: skip
def test_requests_that_are_none(given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", "no_such.json", *given]) == 2
    assert capsys.readouterr().err == f"overlap-sched: error: {said}\n"


def test_an_order_that_is_better_at_a_neighbours_prices_is_carried_over() -> None:
    """The scheduler is made to miss: the original order at two of four speeds."""
    vary = {"inside": (0.25, 1.0, 2.0, 4.0)}
    points = whatif(sharded([[10**8]] * 4, compute_us=5000.0), H100, vary, Options(headroom="100%"))
    missed = [
        replace(point, found=replace(found, order=found.problem.original_order, scheduled=found.original))
        if k in (1, 3)
        else point
        for k, point in enumerate(points)
        if (found := point.found)
    ]
    carried = carried_over(missed, vary)
    steps = [point.found.scheduled.step_us for point in carried]
    assert steps == [point.found.scheduled.step_us for point in points] == sorted(steps, reverse=True)
    for point in carried:
        assert measure(point.found.problem, point.found.order).timeline.step_us == point.found.scheduled.step_us
    assert carried_over(points, vary) == points
    short = [replace(one, found=replace(one.found, short_bytes=1)) if one in points else one for one in missed]
    assert (
        carried_over(short, vary) == short
    )  # an order that does not run in memory_limit is not carried to one that does
    ranks = [replace(point, varied={"ranks": 2.0**k}) for k, point in enumerate(missed)]
    assert carried_over(ranks, {"ranks": (1.0, 2.0, 4.0, 8.0)}) == ranks  # another graph
    assert whatif_answer(points) == (
        f"The shortest step is that with inside x4: {duration(steps[3])}; the longest that with inside x0.25: "
        f"{duration(steps[0])}."
    )
    assert whatif_answer(points[1:2]) == f"The step with inside x1: {duration(steps[1])}."
