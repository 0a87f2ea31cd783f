"""Graphs as DeepCompile's ``zero3_compile`` leaves them: gathers, releases and reductions written into torch's.

After ``deepspeed/compile/passes/zero3_compile.py`` and ``fx.py`` of 0.19.8, without its measuring and its own order.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._ops import OpOverload

# DeepCompile's operators of ZeRO-3 on CPU tensors over gloo, as ``csrc/compile`` of DeepSpeed 0.19.8 has them on CUDA.
#
# Schemas are those of ``csrc/compile/init.cpp``; what each does is ``z3.cpp`` and ``deepcompile.cpp``, for the parts
# that an order can break: gathers in flight until their wait, a storage that the last release frees, gradients copied
# into a bucket that is reduced when it is full or backward ends.


SCHEMAS = (
    "allgather_param(Tensor a, int graph_id, int id, ScalarType? dtype = None) -> Tensor",
    "wait_allgather(Tensor(a) a, int graph_id, int id) -> Tensor(a)",
    "release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)",
    "reduce_grad(Tensor a, int graph_id, int id) -> Tensor",
    "end_backward(Any deps, int graph_id, bool release_reduce_buckets) -> ()",
)


@dataclass
class Parameter:
    """A parameter in shards: its shape, this rank's shard (flat, padded), and where its gradient's shard goes."""

    shape: torch.Size
    shard: torch.Tensor
    gradient: torch.Tensor


@dataclass
class Zero3:
    """What DeepCompile's executor of a process keeps. ``told``: what was done, in order: ``("gather", 3)``."""

    bucket_elements: int = 64
    ranks: int = 1
    parameters: dict[int, Parameter] = field(default_factory=dict)
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    in_flight: dict[int, Any] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    bucket: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)

    def gather(self, one: int, dtype: torch.dtype | None) -> torch.Tensor:
        """Launch a gather into a new storage."""
        known = self.parameters[one]
        shard = known.shard.to(dtype or known.shard.dtype)
        if one not in self.gathered:
            whole = torch.full((shard.numel() * self.ranks,), float("nan"), dtype=shard.dtype)
            if self.ranks > 1:
                self.in_flight[one] = (dist.all_gather_into_tensor(whole, shard, async_op=True), shard)
            else:
                whole.copy_(shard)
            self.gathered[one] = whole
            self.told.append(("gather", one))
        return self.gathered[one][: known.shape.numel()].view(known.shape)

    def wait(self, one: int) -> None:
        """Have what follows see what was gathered."""
        if one in self.in_flight:
            self.in_flight.pop(one)[0].wait()
        self.told.append(("wait", one))

    def release(self, one: int, users: int) -> None:
        """Count a use; free the storage behind the last one."""
        left = self.uses.pop(one, users) - 1
        if left:
            self.uses[one] = left
            return
        self.gathered.pop(one).untyped_storage().resize_(0)
        self.told.append(("free", one))

    def reduce(self, one: int, gradient: torch.Tensor) -> None:
        """Copy a gradient into the bucket; reduce that first where it is full."""
        if sum(copy.numel() for _, copy in self.bucket) + gradient.numel() > self.bucket_elements:
            self.flush()
        self.bucket.append((one, gradient.clone()))

    def flush(self) -> None:
        """Reduce and scatter what is in the bucket."""
        for one, copy in self.bucket:
            into = self.parameters[one].gradient
            padded = torch.zeros(into.numel() * self.ranks, dtype=copy.dtype)
            padded[: copy.numel()] = copy.flatten()
            if self.ranks > 1:
                dist.reduce_scatter_tensor(into, padded)
            else:
                into.copy_(padded)
            self.told.append(("reduce", one))
        self.bucket.clear()


STATE = Zero3()


def start(parameters: dict[int, tuple[torch.Tensor, torch.Size]], ranks: int = 1, bucket_elements: int = 64) -> Zero3:
    """Begin anew with these parameters: per number its shard and its whole shape."""
    define()
    STATE.__init__(bucket_elements, ranks)  # type: ignore[misc]
    for one, (shard, shape) in parameters.items():
        STATE.parameters[one] = Parameter(shape, shard, torch.zeros_like(shard))
    return STATE


@cache
def define() -> torch.library.Library:
    """Register the operators, once a process; the library that keeps them."""
    library = torch.library.Library("dc", "DEF")
    for schema in SCHEMAS:
        library.define(schema)

    kernels = {
        "allgather_param": lambda a, graph_id, one, dtype=None: STATE.gather(one, dtype),
        "wait_allgather": lambda a, graph_id, one: STATE.wait(one) or a,
        "release_param": lambda a, graph_id, one, users: STATE.release(one, users) or a,
        "reduce_grad": lambda a, graph_id, one: STATE.reduce(one, a) or a.new_empty(0),
        "end_backward": lambda deps, graph_id, release_reduce_buckets: STATE.flush(),
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CompositeExplicitAutograd")
    return library


@dataclass
class Backend:
    """A backend of ``torch.compile`` that shards as DeepCompile does, and calls a pass on each graph.

    Attributes:
        ids: Per parameter of the model its number; by ``id()``, as ``ds_id`` is an attribute there.
        graph_pass: What is called on each graph.
        listings: Of each graph, its calls as they ran: forward, then backward.
    """

    ids: dict[int, int]
    graph_pass: Callable[[fx.GraphModule, bool], object]
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
