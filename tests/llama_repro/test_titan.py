"""Whole steps of torchtitan's models: the files that are kept, and tracing them, where torchtitan is installed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from llama_repro import ROOT
from llama_repro.titan.attention import attention_of_a_gpu
from llama_repro.titan.models import MODELS, TitanModel
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.file import read_problem

needs_titan = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed (it wants torch 2.15)"
)
GIB = 2**30


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_kept_files_are_whole_steps(model: TitanModel) -> None:
    problem = read_problem(model.problem_file)
    assert problem.name == model.name
    groups = {problem.nodes[v].group for v in problem.collectives}
    assert len(groups) == 1 + (model.tp > 1) + 2 * (model.ep > 1)  # experts: their exchange, and their own sharding
    operators = [node.name for node in problem.nodes if node.kind is Kind.COLLECTIVE]
    assert sum("all_gather" in name for name in operators) > sum("reduce_scatter" in name for name in operators) / 2 > 0
    assert ("all_to_all" in " ".join(operators)) == (model.ep > 1)
    assert peak_memory(problem, problem.original_order)[0] < 141 * GIB  # an H200


@needs_titan
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if "qwen" not in name])
def test_two_layers_are_traced(name: str, tmp_path: Path) -> None:
    model, path = MODELS[name], tmp_path / "step.json"
    shown = _command("--model", name, "--layers", "2", "--out", str(path))
    assert shown.returncode == 0, shown.stderr
    problem = read_problem(path)
    assert f"{len(problem.nodes):,} nodes, {len(problem.collectives):,} collectives" in shown.stdout
    assert problem.name == f"{name}-2-layers"
    assert _in_flight_over_half(problem) == []
    if model.ep > 1:  # balanced experts: an exchange carries the tokens of all experts chosen
        sizes = {problem.storages[problem.nodes[v].alloc[0]].bytes for v in _exchanges(problem)}
        assert model.batch * model.sequence * 6 * 2048 * 2 in sizes


def _command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "llama_repro.titan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False, timeout=300)


def _exchanges(problem: Problem) -> list[int]:
    return [v for v in problem.collectives if "all_to_all" in problem.nodes[v].name]


def _in_flight_over_half(problem: Problem) -> list[str]:
    """Collectives whose wait lies more than half of the graph behind them: none, forward and backward gather anew."""
    place = {v: i for i, v in enumerate(problem.original_order)}
    far = len(problem.nodes) / 2
    waits = [(v, node) for v, node in enumerate(problem.nodes) if node.kind is Kind.WAIT]
    return [node.name for v, node in waits if place[v] - min(map(place.__getitem__, node.deps)) > far]


@pytest.mark.parametrize(("width", "operator"), [(64, "flash"), (32, "efficient")])
def test_attention_is_traced_as_a_gpu_runs_it(width: int, operator: str) -> None:
    seen: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            return func(*args, **kwargs or {})

    with FakeTensorMode(), attention_of_a_gpu(), Watch():
        query = torch.empty(2, 8, 128, 64, dtype=torch.bfloat16, requires_grad=True)
        key = torch.empty(2, 4, 128, 64, dtype=torch.bfloat16, requires_grad=True)
        value = torch.empty(2, 4, 128, width, dtype=torch.bfloat16, requires_grad=True)
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        assert out.shape == (2, 8, 128, width)
        gradients = torch.autograd.grad(out, [query, key, value], torch.empty_like(out))
    assert [gradient.shape for gradient in gradients] == [query.shape, key.shape, value.shape]
    attention = [name for name in seen if "attention" in name]
    assert len(attention) == 2
    assert all(f"_scaled_dot_product_{operator}_attention" in name for name in attention)
