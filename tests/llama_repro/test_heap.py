import pytest

from llama_repro.harness.heap import first_dominated, heap_order, is_heavy, original_by_heavy
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage

_HEAVY = {"mm", "dgrad", "wgrad"}
_NEVER = 2**62


@pytest.fixture
def example():
    nodes = tuple(node._replace(flops=1) if node.name in _HEAVY else node for node in EXAMPLE.nodes)
    return Problem("example", nodes, EXAMPLE.storages, EXAMPLE.groups)


def test_first_dominated_is_the_first_heavy_node_that_needs_it(example):
    #                                w  x  gather full mm dgrad wgrad scatter grad   output
    assert first_dominated(example) == [1, 0, 1, 1, 0, 1, 2, _NEVER, _NEVER, _NEVER]
    assert [node.name for v, node in enumerate(example.nodes) if is_heavy(example, v)] == ["mm", "dgrad", "wgrad"]


def test_the_original_profile_is_kept_per_heavy_node(example):
    mib = 2**20
    assert original_by_heavy(example) == [17 * mib, 21 * mib, 21 * mib, 21 * mib]


def test_prefetching_hides_the_gather_and_not_prefetching_does_not(example):
    hidden, exposed = heap_order(example), heap_order(example, prefetch=False)
    assert example.names(hidden)[:4] == ["x", "w", "gather", "mm"]
    assert replay(example, hidden).step_us < replay(example, exposed).step_us
    assert replay(example, exposed).exposed_us == 80.0


def _deferred_reductions(layers):
    """Per layer a matrix product whose gradient is reduced; nothing heavy needs the reductions."""
    nodes = [Node("x", Kind.INPUT, alloc=(0,))]
    storages = [Storage(2**30)]
    for i in range(layers):
        g, r = len(storages), len(storages) + 1
        storages += [Storage(2**30), Storage(2**20)]
        at = len(nodes)
        nodes += [
            Node(f"mm{i}", Kind.COMPUTE, (0,), (g,), (0,), 10.0, flops=1),
            Node(f"scatter{i}", Kind.COLLECTIVE, (at,), (r,), (g,), 5.0, "reduce_scatter_tensor", "fsdp", bytes=2**30),
            Node(f"wait{i}", Kind.WAIT, (at + 1,), (), (g, r), collective=at + 1),
        ]
    waits = tuple(v for v, node in enumerate(nodes) if node.kind is Kind.WAIT)
    results = tuple(s for v in waits for s in nodes[v].use[1:])
    nodes.append(Node("output", Kind.OUTPUT, waits, (), results))
    return Problem("deferred", tuple(nodes), tuple(storages), {"fsdp": Group(8, intra_node=True)})


def test_without_prefetching_reductions_pile_up_and_the_fallback_stops_that():
    problem = _deferred_reductions(8)
    original = peak_memory(problem, problem.original_order)[0]
    piled = peak_memory(problem, heap_order(problem, prefetch=False))[0]
    assert piled > original + 5 * 2**30
    kept = heap_order(problem, prefetch=False, fallback=True)
    assert peak_memory(problem, kept)[0] <= original + 3 * 2**30
    assert peak_memory(problem, kept)[0] < piled


def test_keys_are_fixed_at_push_time():
    """Reductions pushed while memory was fine stay last in the heap, however tight memory gets afterwards."""
    problem = _deferred_reductions(8)
    names = problem.names(heap_order(problem, prefetch=False, fallback=True))
    assert names.index("scatter0") > names.index("mm7")


@pytest.mark.parametrize("options", [{}, {"prefetch": False}, {"fallback": True}])
def test_orders_of_a_real_graph_are_valid_and_reproducible(tiny, options):
    for problem in tiny.problems.values():
        order = heap_order(problem, **options)
        assert violation(problem, order) is None
        assert heap_order(problem, **options) == order
