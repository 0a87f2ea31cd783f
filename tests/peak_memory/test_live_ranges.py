"""Live ranges against drawn ones, where every rule shows."""

from overlap_sched.peak_memory.addresses import address_violation
from overlap_sched.peak_memory.memory_graph import memory_graph_of
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.simulate.ledger import LiveRange, LiveRanges

# storages     0: unused input  1: given up  2: pinned input  3: passing  4: pinned  5: of the output, unused
NODES = (
    Node("unused", Kind.INPUT, alloc=(0,)),
    Node("given", Kind.INPUT, alloc=(1,)),
    Node("weight", Kind.INPUT, alloc=(2,)),
    Node("make", Kind.COMPUTE, deps=(1,), alloc=(3, 4), use=(1, 2)),
    Node("use", Kind.COMPUTE, deps=(3,), use=(4,)),
    Node("output", Kind.OUTPUT, alloc=(5,)),
    Node("behind", Kind.COMPUTE, deps=(5,)),
)
STORAGES = (Storage(1), Storage(2), Storage(4, True), Storage(8), Storage(16, True), Storage(32))
PROBLEM = Problem("rules", NODES, STORAGES)


def test_every_rule() -> None:
    ranges = LiveRanges(PROBLEM).of(PROBLEM.original_order)
    spans = [(0, 6), (0, 3), (0, 6), (3, 3), (3, 6), (5, 6)]
    assert ranges == [LiveRange(s, STORAGES[s].bytes, *span) for s, span in enumerate(spans)]
    assert LiveRanges(PROBLEM).profile(PROBLEM.original_order).tolist() == [7, 7, 7, 31, 21, 53, 53]
    assert LiveRanges(PROBLEM).end_bytes == 53


def test_the_memory_graph_sorts_storages_by_the_same_rules() -> None:
    graph = memory_graph_of(PROBLEM)
    assert (graph.always_bytes, graph.given, graph.kept) == (5, (1,), (4, 5))
    assert graph.passing_bytes == (0, 0, 0, 8, 0, 0, 0)


def test_the_checker_of_addresses_keeps_what_an_output_makes() -> None:
    apart = {0: 0, 1: 1, 2: 3, 3: 7, 4: 15, 5: 31}
    assert address_violation(PROBLEM, PROBLEM.original_order, apart) is None
    late = Node("late", Kind.COMPUTE, deps=(5,), alloc=(6,), use=())
    problem = Problem("late", (*NODES, late), (*STORAGES, Storage(1)))
    said = address_violation(problem, problem.original_order, {**apart, 6: 31})
    assert said == "storages 5 and 6 overlap while late runs"
