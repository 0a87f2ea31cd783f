import pytest
import torch

from llama_repro.errors import TorchPassError
from llama_repro.harness import torch_pass
from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS
from llama_repro.harness.problem_graph import problem_to_graph
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.problem import EXAMPLE, Group, Kind, Node, Problem, Storage
from overlap_sched.problem.file import read_problem
from tests.support.examples import at_night
from tests.support.oracle import INSTANCES

needs_pass = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="compares with what torch 2.13's own pass gives"
)


@pytest.mark.slow
def test_storages_of_the_rebuilt_graph_alias_as_the_problem_says(tiny):
    from torch._inductor.fx_passes.memory_estimator import MemoryTracker

    problem = tiny.problems["tracker"]
    rebuilt = problem_to_graph(problem)
    tracker = MemoryTracker(rebuilt.graph_module.graph)
    for node in rebuilt.graph_module.graph.nodes:
        tracker.schedule_node(node)
    assert tracker.peak_memory == peak_memory(problem, problem.original_order)[0]


def test_nodes_keep_their_edges_and_order():
    rebuilt = problem_to_graph(EXAMPLE)
    ids = [rebuilt.node_ids[node] for node in rebuilt.graph_module.graph.nodes]
    assert ids == list(range(len(EXAMPLE.nodes)))
    for node, v in rebuilt.node_ids.items():
        inputs = {rebuilt.node_ids[parent] for parent in node.all_input_nodes}
        assert inputs >= set(EXAMPLE.nodes[v].deps)
    pinned = [node.name for node in rebuilt.graph_module.graph.find_nodes(op="placeholder")]
    assert pinned == ["primals_0", "input_1"]  # torch frees no placeholder that is called primals


def test_collectives_with_several_inputs_and_parts_are_rebuilt():
    nodes = (
        Node("a", Kind.INPUT, alloc=(0,)),
        Node("b", Kind.INPUT, alloc=(1,)),
        Node("both", Kind.COLLECTIVE, (0, 1), (2, 3), (0, 1), 5.0, "all_gather_into_tensor_coalesced", "g"),
        Node("first", Kind.COMPUTE, (2,), (), (2,), op="getitem"),
        Node("wait", Kind.WAIT, (3,), (), (0, 2), collective=2),
        Node("other", Kind.COLLECTIVE, (4,), (4,), (2,), 5.0, "broadcast", "g"),
        Node("outside", Kind.WAIT, (1,), (), (1,)),
        Node("output", Kind.OUTPUT, (4, 6), (), (2, 1)),
    )
    problem = Problem("coalesced", nodes, (Storage(64),) * 5, {"g": Group(2, intra_node=True)})
    rebuilt = problem_to_graph(problem)
    rebuilt.graph_module.graph.lint()
    assert sorted(rebuilt.node_ids.values()) == list(range(len(nodes)))


def test_a_result_that_stands_for_several_storages_is_taken_apart_for_opaque_operators():
    nodes = (
        Node("x", Kind.INPUT, alloc=(0,)),
        Node("pair", Kind.COMPUTE, (0,), (1, 2), (0,), 5.0, "pair", flops=1),
        Node("second", Kind.COMPUTE, (1,), (), (1, 2), op="getitem"),
        Node("both", Kind.COMPUTE, (2,), (3,), (1, 2), 5.0, "both", flops=1),
        Node("output", Kind.OUTPUT, (3,), (), (3,)),
    )
    problem = Problem("pair", nodes, (Storage(64), Storage(32), Storage(16), Storage(8)), {})
    rebuilt = problem_to_graph(problem)
    ids = {v: node for node, v in rebuilt.node_ids.items()}
    (inputs,) = ids[3].args
    assert [node.meta["val"].nbytes for node in inputs] == [32, 16]
    assert all(node.args[0] is ids[2] for node in inputs)
    assert len(rebuilt.node_ids) == len(nodes)


def test_an_input_that_is_no_tensor_is_not_handed_to_an_opaque_operator():
    """A graph that attention runs, a number: torch runs heavy operators on fake tensors, and they take nothing else."""
    mask, x = Node("mask_graph", Kind.INPUT), Node("x", Kind.INPUT, alloc=(0,))
    attention = Node("attention", Kind.COMPUTE, (0, 1), (1,), (0,), 5.0, "flex_attention", flops=1)
    output = Node("output", Kind.OUTPUT, (2,), (), (1,))
    problem = Problem("mask", (mask, x, attention, output), (Storage(64), Storage(64)), {})
    ids = {v: node for node, v in problem_to_graph(problem).node_ids.items()}
    assert ids[2].args == ([ids[1]],)


@pytest.mark.slow
@needs_pass
def test_torchs_order_is_a_valid_order_of_the_problem(tiny):
    problem = tiny.problems["tracker"]
    for caps in (DEFAULT_CAPS, NO_CAPS):
        order, seconds, remark = torch_pass.torch_order(problem, caps)
        assert violation(problem, order) is None
        assert replay(problem, order).step_us < replay(problem, problem.original_order).step_us
        assert seconds > 0
        assert not remark
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_every_torch_with_the_pass_orders_a_problem():
    assert violation(EXAMPLE, torch_pass.torch_order(EXAMPLE).order) is None


def test_failures_of_the_pass_are_told(monkeypatch):
    def failing(bucketing):
        def run(graph_module, **options):
            raise AssertionError("should have estimate\nmore")

        return run

    monkeypatch.setattr(torch_pass, "overlap_pass", failing)
    with pytest.raises(TorchPassError) as caught:
        torch_pass.torch_order(EXAMPLE)
    assert str(caught.value) == (
        f"torch {torch.__version__}: its overlap pass failed on problem 'example' with AssertionError: should have "
        "estimate. Leave it out with --no-torch."
    )


def test_a_torch_without_the_right_pass_is_told(monkeypatch):
    import torch._inductor.fx_passes.overlap_scheduling as module

    monkeypatch.setattr(module, "schedule_overlap_bucketing", lambda gm: gm)
    with pytest.raises(TorchPassError, match="its overlap pass measures on a GPU only"):
        torch_pass.torch_order(EXAMPLE)
    monkeypatch.delattr(module, "schedule_overlap_bucketing")
    with pytest.raises(TorchPassError, match="has no overlap pass"):
        torch_pass.torch_order(EXAMPLE)


def _instance(name):
    return read_problem(INSTANCES / f"{name}.json.gz")


@needs_pass
@pytest.mark.slow
@pytest.mark.parametrize(("caps", "step_ms", "percent"), [(DEFAULT_CAPS, 1399.9, 10.4), at_night(NO_CAPS, 1411.7, 7.9)])
def test_the_figures_measured_on_an_instance_come_out(caps, step_ms, percent):
    problem = _instance("llama3_8b_bw_64_1d")
    order = torch_pass.torch_order(problem, caps).order
    assert violation(problem, order) is None
    assert replay(problem, order).step_us / 1e3 == pytest.approx(step_ms, abs=0.1)
    original = peak_memory(problem, problem.original_order)[0]
    assert 100 * (peak_memory(problem, order)[0] / original - 1) == pytest.approx(percent, abs=1)


@needs_pass
@pytest.mark.slow
def test_where_torch_recurses_without_end_it_is_helped_and_that_is_said():
    problem = _instance("llama3_8b_fw_64_2d")
    order, _, remark = torch_pass.torch_order(problem)
    assert "recurses without end on 'repro_llama3_8b_fw_64_2d'" in remark
    assert violation(problem, order) is None
    assert replay(problem, order).step_us / 1e3 == pytest.approx(138.8, rel=0.005)
