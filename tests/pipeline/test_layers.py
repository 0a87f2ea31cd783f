"""A whole model's graphs cut into stages: each node once, sums as of the whole, stages as torch traces them alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch.nn.functional import embedding, silu

from overlap_sched.errors import PipelineError
from overlap_sched.fx.lifting import lift
from overlap_sched.pipeline import job_file
from overlap_sched.pipeline.graphs import JobGraphs
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.job_file import parse_job
from overlap_sched.pipeline.layers import cut_model
from overlap_sched.problem import Group, Kind, Node, Problem
from tests.support.dump_graphs import forward_and_backward
from tests.support.graphs import Maker, Value

LAYERS, WIDTH, ROWS, WORDS = 5, 8, 6, 16
HIDDEN = ROWS * WIDTH * 4
KINDS: Sequence[dict[str, Any]] = (
    {},
    {"recomputes": True},
    {"dense": 1},
    {"tied": True},
    {"dense": 2, "tied": True, "recomputes": True},
)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def layer(x: torch.Tensor, weights: Sequence[torch.Tensor], dense: bool) -> torch.Tensor:
    """Attention of one head and an MLP; of a dense layer another one."""
    qkv, out, up, down, scale = weights
    q, k, v = (norm(x, scale) @ qkv).chunk(3, dim=-1)
    x = x + (torch.softmax(q @ k.T, -1) @ v) @ out
    inner = norm(x, scale) @ up
    return x + (inner.tanh().sin() if dense else silu(inner)) @ down


@cache
def graphs(
    layers: range = range(LAYERS), recomputes: bool = False, dense: int = 0, tied: bool = False
) -> tuple[Problem, Problem]:
    """Forward and backward of some layers, with the embedding in front of the first, and behind the last the head."""
    first, last = 0 in layers, LAYERS - 1 in layers
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH), (WIDTH,)] * len(layers)
    ends = [(WORDS, WIDTH)] * (first + (last and not tied))
    weights = [torch.ones(shape, requires_grad=True) for shape in (*ends, *shapes)]
    x = torch.arange(ROWS) if first else torch.ones(ROWS, WIDTH, requires_grad=True)

    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        x = embedding(x, weights[0]) if first else x
        for i, k in enumerate(layers):
            x = layer(x, weights[len(ends) + 5 * i : len(ends) + 5 * i + 5], k < dense)
        return norm(x, weights[-1]) @ weights[len(ends) - 1].T if last else x

    partition = min_cut_rematerialization_partition if recomputes else default_partition
    forward, backward = forward_and_backward(run, x, *weights, partition=partition)
    return lift(forward[0], name="graph").problem, lift(backward[0], name="graph").problem


def steps(problem: Problem) -> list[Node]:
    return [node for node in problem.nodes if node.kind not in (Kind.INPUT, Kind.OUTPUT)]


def work(problem: Problem) -> Counter[tuple[object, ...]]:
    return Counter((node.op, node.flops, *(problem.storages[s].bytes for s in node.alloc)) for node in steps(problem))


def pinned_bytes(problem: Problem) -> int:
    return sum(storage.bytes for storage in problem.storages if storage.pinned)


def taken(whole: Problem, part: Problem) -> dict[int, str]:
    """By storage, who makes what a part uses and does not make; parameters aside."""
    own = {node.name for node in steps(part)}
    used = {s for node in whole.nodes for s in node.use if node.name in own and not whole.storages[s].pinned}
    return {s: name for s in used if (name := whole.nodes[whole.maker[s]].name) not in own}


@pytest.mark.parametrize("layers", [None, 2, (1, 3, 1)])
@pytest.mark.parametrize("kinds", KINDS)
def test_each_node_is_in_one_stage_and_only_the_hidden_state_goes_on(
    kinds: dict[str, Any], layers: Sequence[int] | int | None
) -> None:
    """With tied weights the head's part of their gradient goes to the embedding, too."""
    forward, backward = graphs(**kinds)
    model = cut_model(forward, backward, layers)
    assert (model.layers, model.found_by) == (LAYERS, "repeated operators")
    assert model.stages[0].name == f"embedding, layer{'s 1 to 3' if layers == 2 else ' 1'}"
    fronts, backs = [one.forward for one in model.stages], [one.backward for one in model.stages]
    for whole, parts in ((forward, fronts), (backward, backs)):
        assert sorted(one.name for part in parts for one in steps(part)) == sorted(one.name for one in steps(whole))
        assert sum(map(work, parts), Counter[Any]()) == work(whole)
        assert sum(sum(part.compute_us) for part in parts) == pytest.approx(sum(whole.compute_us))
    known, count, summed = {node.name for node in forward.nodes}, len(model.stages), Counter[int]()
    for k, stage in enumerate(model.stages):
        assert [forward.storages[s].bytes for s in taken(forward, stage.forward)] == [HIDDEN] * (k > 0)
        assert (stage.output_bytes, stage.gradient_bytes) == (HIDDEN * (k < count - 1), HIDDEN * (k > 0))
        back = taken(backward, stage.backward)
        gradients = {s for s, name in back.items() if name not in known}
        sizes = (
            [HIDDEN, *[WORDS * WIDTH * 4] * (kinds.get("tied", False) and k == 0)]
            if k < count - 1
            else [ROWS * WORDS * 4]
        )
        assert sorted(backward.storages[s].bytes for s in gradients) == sizes
        assert stage.saved_bytes == sum(backward.storages[s].bytes for s in back.keys() - gradients)
        summed.update(back.keys() - gradients)
        (gradient,) = (node for node in stage.backward.nodes if node.name == stage.gradient)
        assert [stage.backward.storages[s].bytes for s in gradient.alloc] == [HIDDEN]
        left = [one for s in stage.forward.nodes[-1].use if not (one := stage.forward.storages[s]).pinned]
        if k < count - 1 and not kinds.get("recomputes"):  # else it saves views of parameters, which are pinned there
            assert sum(one.bytes for one in left) == stage.saved_bytes + stage.output_bytes
        if k == count - 1:  # the logits
            assert ROWS * WORDS * 4 in [one.bytes for one in left]
    kept = {
        s for v, node in enumerate(backward.nodes) if node.kind is Kind.INPUT and node.name in known for s in node.alloc
    }
    assert set(summed.values()) == {1}  # no stage saves what another one saves
    if not kinds.get("recomputes"):
        assert summed.keys() == {s for s in kept if not backward.storages[s].pinned}
    assert len(model.extra) == kinds.get("tied", False)


@pytest.mark.parametrize("dense", [0, 1])
def test_stages_are_what_torch_traces_of_their_layers_alone(dense: int) -> None:
    """Operators, their sizes and operations, and what is saved, where torch saves all."""
    cuts = [range(2), range(2, 4), range(4, LAYERS)]
    for layers, stage in zip(cuts, cut_model(*graphs(dense=dense), [2, 2, 1]).stages, strict=True):
        forward, backward = graphs(layers, dense=dense)
        assert (work(stage.forward), work(stage.backward)) == (work(forward), work(backward))
        given = [node for node in backward.nodes if node.kind is Kind.INPUT and "tangents" not in node.name]
        saved = [node for node in given if "primals" not in node.name or (node.name == "primals_1" and layers[0])]
        assert stage.saved_bytes == sum(backward.storages[s].bytes for node in saved for s in node.alloc)
        assert pinned_bytes(stage.forward) == pinned_bytes(forward) - HIDDEN * (layers[0] > 0)


@pytest.mark.parametrize("inputs_alone", [False, True])
def test_names_of_modules_say_what_a_layer_is(inputs_alone: bool) -> None:
    """Blocks of two layers, of all nodes or of parameters alone, as some dumps have them."""
    forward, backward = graphs()
    at = {node.name: k for k, stage in enumerate(cut_model(forward, backward).stages) for node in steps(stage.forward)}
    of = {f"primals_{4 + 5 * k + i}": k for k in range(LAYERS) for i in range(5)} | ({} if inputs_alone else at)
    nodes = [
        one._replace(module=f"net.blocks.{of[one.name] & 6}.mlp.0") if one.name in of else one for one in forward.nodes
    ]
    model = cut_model(replace(forward, nodes=tuple(nodes)), backward, [1, 2])
    assert (model.layers, model.found_by) == (3, "names of modules (net.blocks.0, ...)")
    assert [one.name for one in model.stages] == ["embedding, layer 1", "layers 2 to 3, head"]
    expected = cut_model(forward, backward, [2, 3])
    assert [one.saved_bytes for one in model.stages] == [one.saved_bytes for one in expected.stages]


def test_no_wait_is_parted_from_its_collective_and_what_is_shared_is_where_it_is_first_needed() -> None:
    """Layers of a product, an all_reduce and its wait; the first and the last one read one cast weight."""
    made, back = Maker(), Maker()

    def launched(name: str, x: Value, op: str) -> Value:
        sent, there = made.storage(8), made.storage(8)
        launch = made.add(Node(name, Kind.COLLECTIVE, (x[0],), (sent,), (x[1],), 1.0, op, "g"))
        return made.add(Node(f"{name}.wait", Kind.WAIT, (launch,), (there,), (sent,), collective=launch)), there

    tokens, table, weight = made.given("tokens", 8), made.given("table", 9, True), made.given("weight", 16, True)
    cast = made.compute("cast", 1.0, 16, weight, op="cast")
    x = made.compute("embedding", 1.0, 8, tokens, table, op="embedding")
    x, products = launched("gather", x, "all_gather"), []
    for k in range(3):
        products.append(made.compute(f"mm{k}", 2.0, 8, x, *[cast] * (k != 1), op="mm"))
        x = made.compute(f"tanh{k}", 1.0, 8, products[k], op="tanh")
        x = launched(f"sum{k}", x, "all_reduce")
    logits, loss = made.compute("head", 1.0, 4, x, op="head"), made.compute("loss", 1.0, 3, products[0], op="loss")
    forward = made.problem("forward", [logits, loss, *products], {"g": Group(2, True)})
    gradient = back.compute("head_back", 1.0, 8, back.given("tangents", 4))
    for k in (2, 1, 0):
        gradient = back.compute(f"mm_back{k}", 4.0, 8, gradient, back.given(f"mm{k}", 8))
    model = cut_model(forward, back.problem("backward", [gradient], {}))
    assert (model.layers, model.extra) == (3, ("cast",))
    for k, stage in enumerate(model.stages):
        assert all(node.collective is not None for node in steps(stage.forward) if node.kind is Kind.WAIT)
        names = {node.name for node in steps(stage.forward)}
        assert names & {"cast", "gather", "mm0", "loss"} == (set() if k else {"cast", "gather", "mm0", "loss"})
        assert len(stage.forward.nodes[-1].use) == 2 + (k == 0)  # a product, what is sent or the logits, the loss


JOB = """
format = "overlap-pipeline/1"
ranks = 2
micro_batches = 4
[model]
forward = "0"
backward = "1"
optimizer = 2
"""


def read_model(text: str, problems: Sequence[Problem]) -> tuple[PipelineJob, JobGraphs]:
    read = JobGraphs(lambda source: problems[int(source.name)])
    return parse_job(text, "job.toml", Path("jobs"), read), read


def test_a_job_of_one_model() -> None:
    job, read = read_model(JOB, graphs())
    names = "embedding, layer 1 | layer 2 | layer 3 | layer 4 | layer 5, head"
    assert list(read.notes) == [f"job.toml: {LAYERS} layers (by repeated operators): {names}"]
    assert len(job.stages) == LAYERS
    assert len(read.graphs) == 3 * (2 + 2)  # forward and backward, whole and in halves
    for stage, cut in zip(job.stages, cut_model(*graphs()).stages, strict=True):
        assert stage.splits
        assert stage.static_bytes == 3 * pinned_bytes(cut.forward)
        assert (stage.saved_bytes, stage.forward.output_bytes) == (cut.saved_bytes, cut.output_bytes)
        assert stage.backward.output_bytes == cut.gradient_bytes
        assert stage.forward.time_us == pytest.approx(sum(cut.forward.compute_us))
    assert len(read_model(JOB + "layers = [2, 3]", graphs())[0].stages) == 2


def test_of_many_stages_the_first_and_the_last_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "SHOWN", 4)
    (said,) = read_model(JOB, graphs())[1].notes
    assert said.endswith(": embedding, layer 1 | layer 2 | ... | layer 5, head")


@pytest.mark.parametrize(
    ("more", "problems", "why"),
    [
        ("layers = 6", (0, 1), "model: 6 stages of 1, 1, 1, 1, 1, 0 layers: graph has 5 layers, by repeated operators"),
        ("layers = [2, 2]", (0, 1), "model: 2 stages of 2, 2 layers: graph has 5 layers"),
        ("layers = []", (0, 1), "model.layers: "),
        ("", (0, 0), "nothing in it belongs to layer 1 of graph, which has 5"),
        ("", (0, 3), "nothing in it belongs to layer 3 of graph, which has 5. Give the two graphs of one step."),
        ("", (5, 1), "graph: takes mul, which graph does not return. Give the two graphs of one step."),
        ("", (4, 1), "no layers are found: no modules have numbers, and no sequence of operators is repeated."),
        ('[[stage]]\nforward = { time = "1us" }', (0, 1), "there are [model] and [[stage]]. Leave one out."),
    ],
)
def test_what_is_no_model_is_refused(more: str, problems: Sequence[int], why: str) -> None:
    lone = [Node("x", Kind.INPUT), Node("y", Kind.COMPUTE, (0,)), Node("output", Kind.OUTPUT, (1,))]
    known = [*graphs(), *graphs(range(2)), Problem("lone", tuple(lone), ()), graphs(recomputes=True)[0]]
    with pytest.raises(PipelineError) as caught:
        read_model(JOB + more, [known[k] for k in problems])
    assert why in str(caught.value)
