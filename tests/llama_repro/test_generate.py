"""Generated graphs: a repeated layer must be what tracing more layers gives."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from llama_repro.capture.cache import traced_graphs
from llama_repro.capture.configs import find_config
from llama_repro.generate.__main__ import main
from llama_repro.generate.graph import generate
from llama_repro.generate.models import MODELS, Mesh, Model, parse_mesh
from llama_repro.generate.repeat import find_layers, repeat
from llama_repro.generate.step import Step, saved_in_forward
from overlap_sched.errors import OptionsError, ProblemError
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, violation
from overlap_sched.problem import EXAMPLE, Kind, Problem
from overlap_sched.problem.file import read_problem

TINY = replace(find_config("tiny-2d"), name="tiny-3d", layers=4, cp=2)
MESH = Mesh(4, 2, 2)
MODEL = Model(replace(TINY, name="tiny"), 12, MESH)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Forward and backward graphs of four layers, and of six."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        four = traced_graphs(TINY)
        assert traced_graphs(TINY) == four  # from the cache
        yield four, traced_graphs(replace(TINY, name="tiny-six", layers=6))


def facts(problem: Problem) -> list[object]:
    """All that a node is, but for ids and names."""
    storages = problem.storages
    return [
        (n.kind, n.op, n.time_us, n.flops, n.bytes, n.group, len(n.deps), [storages[s] for s in (*n.alloc, *n.use)])
        for n in problem.nodes
    ]


def inputs_last(rows: list[object]) -> list[object]:
    """Inputs sorted: their order among each other says nothing."""
    return sorted((r for r in rows if r[0] is Kind.INPUT), key=repr) + [r for r in rows if r[0] is not Kind.INPUT]


def by_name(step: tuple[Problem, Problem]) -> dict[int, int]:
    """Who made what backward takes, where names say it."""
    made = {node.name: v for v, node in enumerate(step[0].nodes)}
    return {v: made[n.name] for v, n in enumerate(step[1].nodes) if n.kind is Kind.INPUT and n.name in made}


def distances(problem: Problem) -> list[list[int]]:
    """How far back each node's dependencies are, those on inputs and of the output left out."""
    nodes = problem.nodes
    return [[v - u for u in n.deps if nodes[u].kind is not Kind.INPUT] for v, n in enumerate(nodes[:-1])]


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_repeated_layers_are_those_that_tracing_more_gives(traced, part):
    four, six = traced[0][part], traced[1][part]
    more = repeat(find_layers(four), 2).problem
    output = [n for n in facts(more)[-1] if not isinstance(n, list)]
    assert output == [n for n in facts(six)[-1] if not isinstance(n, list)]
    assert inputs_last(facts(more)[:-1]) == inputs_last(facts(six)[:-1])
    assert distances(more) == distances(six)
    assert memory_profile(more, more.original_order) == memory_profile(six, six.original_order)
    assert replay(more, more.original_order).step_us == pytest.approx(replay(six, six.original_order).step_us)


@pytest.mark.slow
def test_a_repeated_step_is_the_step_of_more_layers(traced):
    four, six = traced
    ahead, back = (repeat(find_layers(graph), 2) for graph in four)
    saved = saved_in_forward(ahead, back)
    ours = Step(ahead.problem, back.problem, saved).problem("ours")
    theirs = Step(*six, by_name(six)).problem("theirs")
    assert violation(ours, ours.original_order) is None
    assert sum(s.bytes for s in ours.storages) == sum(s.bytes for s in theirs.storages)
    assert Counter(map(repr, facts(ours)[:-1])) == Counter(map(repr, facts(theirs)[:-1]))
    assert distances(ours) == distances(theirs)
    assert memory_profile(ours, ours.original_order) == memory_profile(theirs, theirs.original_order)


@pytest.mark.slow
def test_a_step_has_as_many_nodes_as_asked_and_hardly_more(traced):
    nodes = 12_345
    four = traced[0]
    mesh = replace(MESH, pp=2)
    problem = generate(MODEL, four, mesh, nodes)
    layers, micro_batches = map(int, problem.name.rsplit("_", 1)[1].split("x"))
    layer = sum(find_layers(graph).period for graph in four) + 60  # its inputs, and the sums of its gradients
    assert nodes <= len(problem.nodes) < nodes + layer * micro_batches
    assert layers <= 6
    assert violation(problem, problem.original_order) is None
    assert problem == generate(MODEL, four, mesh, nodes)
    assert all(len(set(node.use)) == len(node.use) for node in problem.nodes)


@pytest.mark.slow
def test_micro_batches_add_their_gradients_up_and_stages_hand_over(traced):
    problem = generate(MODEL, traced[0], replace(MESH, pp=2))
    counts = Counter(node.op for node in problem.nodes)
    gradients = 6 * 9 + 3
    assert counts["aten.add_.Tensor"] == gradients  # two micro-batches
    assert counts["recv"] == counts["send"] == 4
    output = problem.nodes[-1]
    assert len(output.deps) == gradients + 2  # and the losses
    names = [n.name for n in problem.nodes if n.group == "pp_forward" and n.kind is Kind.COLLECTIVE]
    assert names == ["f0.recv", "f0.send", "f1.recv", "f1.send"]
    last = problem.nodes[output.deps[-1]]
    assert last.op == "aten.add_.Tensor"
    assert len(last.deps) == 2


def test_what_does_not_repeat_is_told():
    with pytest.raises(ProblemError, match=r"'example': no four layers of 20 nodes or more repeat.* Trace more layers"):
        find_layers(EXAMPLE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fsdp=64,dp=2", "mesh is 'fsdp=64,dp=2'; write what there is of fsdp, tp, cp and pp once each: "),
        ("tp=3", "mesh is 'tp=3': tp=3 does not divide the model's 8 key/value heads."),
        ("fsdp=48", "mesh is 'fsdp=48': fsdp=48 does not divide the model's width of 8192."),
        ("fsdp=8,cp=16", "mesh is 'fsdp=8,cp=16': context-parallel ranks are among fsdp's: cp divides fsdp."),
        ("fsdp=8,pp=81", "mesh is 'fsdp=8,pp=81': more stages than the model's 80 layers."),
    ],
)
def test_meshes_that_cannot_be_are_told(text, said):
    with pytest.raises(OptionsError, match=re.escape(said)):
        parse_mesh(text, MODELS["70b"])


@pytest.mark.slow
def test_the_command_writes_a_problem(traced, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("llama_repro.generate.__main__.traced_graphs", lambda config, step: traced[0])
    monkeypatch.setitem(MODELS, "70b", MODEL)
    out = tmp_path / "step.json.gz"
    arguments = ["--model", "70b", "--mesh", "fsdp=4,tp=2,cp=2", "--nodes", "3000", "--out"]
    assert main([*arguments, str(out)]) == 0
    assert f"{len(read_problem(out).nodes):,} nodes" in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "no" / "step.json")]) == 2
    assert "cannot be written (No such file or directory). Check the path." in " ".join(capsys.readouterr().err.split())
    assert main(["--nodes", "5", "--out", str(out)]) == 2
    assert "nodes is 5; a generated graph has 2000 or more." in capsys.readouterr().err
