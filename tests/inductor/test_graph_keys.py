"""Ranks are processes of their own: the key under which they meet holds names, never addresses or hashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import fx

from overlap_sched.inductor.agree import graph_key, target_name

SCRIPT = """
import math, operator
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv
from torch.fx.experimental.sym_node import method_to_operator
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation
from overlap_sched.inductor.agree import graph_key

class Callable:
    def __call__(self, x):
        return x

graph = fx.Graph()
x = graph.placeholder("x")
targets = [
    torch.ops.aten.mm.default, torch.ops.aten.mm, operator.add, math.floor, torch.sym_sum, torch.sym_max, len,
    lambda x: x, Callable, FloorDiv, method_to_operator("add"),
    torch.ops.higher_order.cond, torch.ops.higher_order.auto_functionalized,
    triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation,
]
for target in targets:
    graph.call_function(target, (x,))
graph.output(x)
print(graph_key(graph, "inductor"))
"""


@pytest.mark.slow
def test_two_processes_have_one_key(capsys: pytest.CaptureFixture[str]) -> None:
    """This one, and one under another hash seed and with other addresses."""
    exec(SCRIPT, {"__name__": "__main__"})
    there = subprocess.run(
        [sys.executable, "-c", f"keep = [object() for _ in range(99_999)]\n{SCRIPT}"],
        env={**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert there == capsys.readouterr().out
    assert len(there.strip()) == 64


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.ops.aten.mm.default, "aten.mm.default"),
        (torch.ops.aten.mm, "aten.mm"),
        (torch.sym_sum, "torch.sym_sum"),
        (len, "builtins.len"),
        (fx.Graph, "torch.fx.graph.Graph"),
        (fx.Graph(), "torch.fx.graph.Graph"),
        (torch.ops.higher_order.cond, "cond"),
    ],
)
def test_names(target: object, name: str) -> None:
    assert target_name(target) == name


def test_other_operators_have_another_key() -> None:
    def graph(target: object) -> fx.Graph:
        made = fx.Graph()
        made.output(made.call_function(target, (made.placeholder("x"),)))  # type: ignore[arg-type]
        return made

    keys = [graph_key(graph(target), stage) for target in (torch.sym_sum, len) for stage in ("inductor", "backend")]
    assert len(set(keys)) == 4
