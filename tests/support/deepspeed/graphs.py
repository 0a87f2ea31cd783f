"""Graphs as DeepCompile's ``zero3_compile`` leaves them: gathers, releases and reductions written into torch's.

After ``deepspeed/compile/passes/zero3_compile.py`` and ``fx.py`` of 0.19.8, without its measuring and its own order.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._ops import OpOverload

from tests.support.deepspeed.operators import define

Pass = Callable[[fx.GraphModule, bool], object]
"""Called with a graph of ZeRO-3 and whether it is a backward."""


@dataclass
class Backend:
    """A backend of ``torch.compile`` that shards as DeepCompile does, and calls a pass on each graph.

    Attributes:
        ids: Per parameter of the model its number; by ``id()``, as ``ds_id`` is an attribute there.
        graph_pass: What is called on each graph.
        listings: Of each graph, its calls as they ran: forward, then backward.
    """

    ids: dict[int, int]
    graph_pass: Pass
    listings: list[list[str]] = field(default_factory=list)

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph from Dynamo."""
        define()
        numbers = {i: self.ids[id(one)] for i, one in enumerate(inputs) if isinstance(one, nn.Parameter)}
        named: dict[str, int] = {}

        def forward(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
            placeholders = list(graph.graph.find_nodes(op="placeholder"))
            named.update({placeholders[i].name: number for i, number in numbers.items()})
            gather_and_release(graph.graph, named)
            return self._finished(graph, False)

        def backward(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
            gather_and_release(graph.graph, named)
            results = graph.graph.output_node().args[0]
            reduce_gradients(graph.graph, {number: results[i] for i, number in numbers.items()})
            return self._finished(graph, True)

        compiled: Callable[..., Any] = aot_module_simplified(
            gm, inputs, fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition
        )
        return compiled

    def _finished(self, graph: fx.GraphModule, bwd: bool) -> Callable[..., Any]:
        self.graph_pass(graph, bwd)
        graph.graph.lint()
        graph.recompile()
        self.listings.append([node.name for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)


def gather_and_release(graph: fx.Graph, named: dict[str, int], graph_id: int = 7) -> None:
    """Gather each parameter where the graph takes it, and release it behind each of its users."""
    dc = torch.ops.dc
    parameters = [node for node in graph.find_nodes(op="placeholder") if node.name in named and node.users]
    uses = {node: _real_users(node) for node in parameters}
    for node in parameters:
        number, dtype = named[node.name], node.meta["val"].dtype
        users = list(node.users)
        with graph.inserting_before(min(users)):  # as late as can be: DeepCompile's own order
            gather = graph.call_function(dc.allgather_param.default, (node, graph_id, number), {"dtype": dtype})
            wait = graph.call_function(dc.wait_allgather.default, (gather, graph_id, number))
        gather.meta["val"] = wait.meta["val"] = node.meta["val"].to(dtype)  # often the same storage
        for user in users:
            if user.op != "output":
                user.replace_input_with(node, wait)
        for user in uses[node]:
            part = next((one for one in user.users if one.target is operator.getitem), user)
            _behind(graph, part, dc.release_param.default, (graph_id, number, len(uses[node])))


def reduce_gradients(graph: fx.Graph, gradients: dict[int, Any], graph_id: int = 7) -> None:
    """Reduce and scatter gradients, end the backward, and give nothing for them."""
    dc = torch.ops.dc
    output = graph.output_node()
    reductions = []
    for number, gradient in gradients.items():
        if isinstance(gradient, fx.Node):
            reductions.append(_behind(graph, gradient, dc.reduce_grad.default, (graph_id, number)))
    with graph.inserting_before(output):
        graph.call_function(dc.end_backward.default, (reductions, graph_id, True))
    output.args = (tuple(None if one in reductions else one for one in output.args[0]),)


def _behind(graph: fx.Graph, node: fx.Node, target: OpOverload, rest: tuple[Any, ...]) -> fx.Node:
    """A call right behind a node, which all its users take in its place."""
    users = list(node.users)
    with graph.inserting_after(node):
        new = graph.call_function(target, (node, *rest))
    new.meta["val"] = None
    for user in users:
        user.replace_input_with(node, new)
    return new


def _real_users(node: fx.Node) -> list[fx.Node]:
    """Who takes it, or a view of it: the views themselves apart."""
    found: list[fx.Node] = []
    for user in node.users:
        if user.op == "call_function" and isinstance(user.target, OpOverload) and _views(user.target):
            found += _real_users(user)
        elif user.op != "output":
            found.append(user)
    return list(dict.fromkeys(found))


def _views(op: OpOverload) -> bool:
    return any(one.alias_info is not None for one in op._schema.returns)
