"""Rebuild an FX graph from a problem, so that torch's own pass can run where only the problem is at hand.

Collectives become real ``_c10d_functional`` operators ; all else becomes an opaque
operator that is as heavy, pointwise or neither as the original one. What torch's pass looks at is there: edges,
fake tensors whose storages alias as the problem's do, which nodes count as compute, and what is a collective.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import register_flop_formula

from overlap_sched.problem import Kind, Problem

_C10D = torch.ops._c10d_functional
_LIBRARY = torch.library.Library("llama_repro", "DEF")
_LIBRARY.define("heavy(Tensor[] inputs) -> Tensor")
_LIBRARY.define("light(Tensor[] inputs) -> Tensor")
_LIBRARY.define("pointwise(Tensor[] inputs) -> Tensor", tags=(torch.Tag.pointwise,))
_HEAVY = torch.ops.llama_repro.heavy.default
_LIGHT = torch.ops.llama_repro.light.default
_POINTWISE = torch.ops.llama_repro.pointwise.default

Values = dict[int, Tensor]
"""What a node hands to its users: the problem's storage -> the tensor that stands for it."""


@register_flop_formula(torch.ops.llama_repro.heavy, get_raw=True)
def _heavy_flops(*_: Any, **__: Any) -> int:
    return 0  # registered so that the node counts as compute; its time comes from the problem


@dataclass(frozen=True)
class RebuiltGraph:
    """An FX graph and, for each of its nodes that stands for one, the problem's node id."""

    graph_module: fx.GraphModule
    node_ids: dict[fx.Node, int]


@torch.library.register_fake("llama_repro::heavy")
def _heavy_fake(inputs: list[Tensor]) -> Tensor:
    return inputs[0].new_empty(0)  # torch runs heavy nodes on fake tensors to log their operations


def problem_to_graph(
    problem: Problem, group_names: Mapping[str, str] | None = None, device: str = "cuda"
) -> RebuiltGraph:
    """The problem as an FX graph, in its original order.

    ``group_names`` says what the problem's process groups are called in this process (default: the same); ``device``,
    where its tensors are. (Where torch traces operators over them it wants a device that it is built for.)

    Every wait's value has a storage of its own, as the fake kernel of ``wait_tensor`` makes it: torch's pass reckons
    in the ``tracker`` model whatever model the problem is in.
    """
    return _Rebuild(problem, group_names or {}, device).run()


class _Rebuild:
    def __init__(self, problem: Problem, group_names: Mapping[str, str], device: str) -> None:
        self.problem, self.device = problem, device
        self.group_names = group_names
        self.graph = fx.Graph()
        self.made: list[fx.Node] = []
        self.values: list[Values] = []
        self.node_ids: dict[fx.Node, int] = {}
        self.wanted = _storages_wanted_by_users(problem)
        self.mode = FakeTensorMode()

    def run(self) -> RebuiltGraph:
        for v, node in enumerate(self.problem.nodes):
            inputs = self.inputs_of(v)
            values = self.values_of(v, inputs)
            made = self.make(v, inputs)
            made.meta["val"] = next(iter(values.values())) if len(values) == 1 else tuple(values.values()) or None
            if node.kind is Kind.OUTPUT:
                made.meta.pop("val")
            self.made.append(made)
            self.values.append(values)
            self.node_ids[made] = v
        if self.problem.nodes[-1].kind is not Kind.OUTPUT:
            self.graph.output(())
        return RebuiltGraph(fx.GraphModule(torch.nn.Module(), self.graph), self.node_ids)

    def inputs_of(self, v: int) -> list[int]:
        """Its dependencies, and whoever allocates what it uses where no dependency hands it over."""
        node = self.problem.nodes[v]
        inputs = list(node.deps)
        if node.kind is Kind.WAIT:
            return (
                [node.collective, *(u for u in inputs if u != node.collective)]
                if node.collective is not None
                else inputs
            )
        for s in node.use:
            if not any(s in self.values[u] for u in inputs) and self.problem.maker[s] != v:
                inputs.append(self.problem.maker[s])
        return inputs

    def values_of(self, v: int, inputs: Sequence[int]) -> Values:
        node = self.problem.nodes[v]
        if node.kind is Kind.WAIT:
            made = self.problem.nodes[node.collective].alloc if node.collective is not None else ()
            handed = [s for s in node.use if s in self.wanted[v] and (s in made or not made)] + list(node.alloc)
            return {s: self.tensor(s, node.op) for s in handed}
        values = {s: self.tensor(s, node.op) for s in node.alloc}
        for s in node.use:
            if not node.alloc and s in self.wanted[v]:
                handed_over = [self.values[u][s] for u in inputs if s in self.values[u]]
                values[s] = handed_over[-1]
        return values

    def tensor(self, s: int, op: str) -> Tensor:
        """A fresh tensor of the storage's size; what is reduced is fp32, all else bf16, since bucket keys ask."""
        size = self.problem.storages[s].bytes
        dtype = torch.float32 if "reduce" in op else torch.bfloat16
        if size % dtype.itemsize:
            dtype = torch.uint8
        with self.mode:
            return torch.empty(size // dtype.itemsize, dtype=dtype, device=self.device)

    def make(self, v: int, inputs: Sequence[int]) -> fx.Node:
        node = self.problem.nodes[v]
        arguments = [self.made[u] for u in inputs]
        if node.kind is Kind.INPUT:
            pinned = any(self.problem.storages[s].pinned for s in node.alloc)
            return self.graph.placeholder(f"primals_{v}" if pinned else f"input_{v}")  # torch never frees primals
        if node.kind is Kind.OUTPUT:
            return self.graph.output(tuple(arguments))
        if node.kind is Kind.COLLECTIVE:
            return self.make_collective(v, arguments)
        if node.kind is Kind.WAIT:
            return self.graph.call_function(_C10D.wait_tensor.default, tuple(arguments))
        if inputs and self.problem.nodes[inputs[0]].kind is Kind.COLLECTIVE and len(inputs) == 1:
            return self.graph.call_function(operator.getitem, (arguments[0], 0))  # one part of a coalesced collective
        tensors = [part for u in inputs for part in self.parts(u)]
        return self.graph.call_function(_opaque(node.op, node.flops), (tensors,))

    def parts(self, u: int) -> list[fx.Node]:
        """What stands for node u among the inputs of an opaque operator, which takes tensors.

        A compute node may stand for several storages (one result of several, that aliases them all).
        """
        made, values = self.made[u], self.made[u].meta.get("val")
        if values is None and self.problem.nodes[u].kind is Kind.INPUT:
            return []  # no tensor: a graph that the operator runs, a number
        if self.problem.nodes[u].kind is not Kind.COMPUTE or not isinstance(values, tuple):
            return [made]
        parts = [self.graph.call_function(operator.getitem, (made, k)) for k in range(len(values))]
        for part, value in zip(parts, values, strict=True):
            part.meta["val"] = value
        return parts

    def make_collective(self, v: int, arguments: list[fx.Node]) -> fx.Node:
        """A collective takes one tensor: several inputs go through a node that joins them."""
        node = self.problem.nodes[v]
        source = arguments[0] if len(arguments) == 1 else None
        if source is None or not isinstance(source.meta["val"], Tensor):
            source = self.graph.call_function(_LIGHT, (arguments,))
            handed = [value for a in arguments for value in _tensors(a.meta["val"])]
            with self.mode:
                source.meta["val"] = handed[-1] if handed else torch.empty(0, device=self.device)
        name = node.group or ""
        size, group = self.problem.groups[name].size, self.group_names.get(name, name)
        if "all_gather" in node.op:
            return self.graph.call_function(_C10D.all_gather_into_tensor.default, (source, size, group))
        if "reduce_scatter" in node.op:
            return self.graph.call_function(_C10D.reduce_scatter_tensor.default, (source, "sum", size, group))
        if "all_reduce" in node.op:
            return self.graph.call_function(_C10D.all_reduce.default, (source, "sum", group))
        return self.graph.call_function(_C10D.all_to_all_single.default, (source, [], [], group))


def _tensors(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value) if isinstance(value, tuple) else []


def _storages_wanted_by_users(problem: Problem) -> list[set[int]]:
    wanted: list[set[int]] = [set() for _ in problem.nodes]
    for node in problem.nodes:
        for u in node.deps:
            wanted[u].update(node.use)
    return wanted


def _opaque(op: str, flops: int) -> Any:
    """The stand-in for an operator named ``aten.mul.Tensor`` or the like."""
    if flops > 0:
        return _HEAVY
    target: Any = torch.ops
    for part in op.split("."):
        target = getattr(target, part, None) if target is not None else None
    cheap = isinstance(target, torch._ops.OpOverload) and (target.is_view or torch.Tag.pointwise in target.tags)
    return _POINTWISE if cheap else _LIGHT
