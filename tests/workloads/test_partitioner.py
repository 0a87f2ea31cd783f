"""Torch's partitioner: what comes out is the same step, in less memory and more time."""

import pytest

torch = pytest.importorskip("torch")

from llama_repro.workloads.partitioner import partitioned  # noqa: E402
from llama_repro.workloads.points import point  # noqa: E402
from llama_repro.workloads.trace import joint_graph, step_problem, with_updates  # noqa: E402
from overlap_sched.joint.graphs import copy_of  # noqa: E402
from tests.support.steps import TINY, run_step, tiny_inputs  # noqa: E402


@pytest.mark.nightly
@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_the_step_is_the_same(budget: float) -> None:
    joint = joint_graph(TINY)
    before = [node.name for node in joint.graph.nodes]
    step = with_updates(partitioned(joint, budget))
    assert [node.name for node in joint.graph.nodes] == before
    weights, batch = tiny_inputs()
    trained, expected = ([weight.clone() for weight in weights] for _ in range(2))
    loss = run_step(step, trained, batch)
    assert torch.equal(loss, run_step(with_updates(joint), expected, batch))
    assert all(torch.equal(mine, other) for mine, other in zip(trained, expected, strict=True))


@pytest.mark.nightly
def test_a_smaller_budget_saves_less_and_takes_longer() -> None:
    joint = joint_graph(TINY)
    plain = point(step_problem(TINY, with_updates(copy_of(joint))))
    half = point(step_problem(TINY, with_updates(partitioned(joint, 0.5))))
    whole = point(step_problem(TINY, with_updates(partitioned(joint, 1.0))))
    assert half.peak_bytes < whole.peak_bytes <= plain.peak_bytes
    assert half.step_us > plain.step_us
