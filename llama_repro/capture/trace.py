"""From a configuration to the forward and backward graphs of one training step, on a machine without a GPU.

Traced by AOTAutograd on fake CPU tensors (autograd on fake CUDA tensors aborts a CPU-only build); afterwards
the graphs' metadata is moved to a fake GPU.
"""

import operator
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from llama_repro.capture.configs import MATRICES, LlamaConfig
from llama_repro.capture.model import Weights, llama_loss, weights_of
from llama_repro.capture.parallelism import Mesh, fake_world, make_mesh
from llama_repro.capture.partition import split_joint
from llama_repro.capture.simplify import simplify

_ATEN = torch.ops.aten
_FLASH = _ATEN._scaled_dot_product_flash_attention.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default
_GPU = torch.device("cuda", 0)


@dataclass(frozen=True)
class Captured:
    """The graphs of one training step of one rank, with ``meta["val"]`` on a fake GPU.

    Attributes:
        config: What was captured.
        forward, backward: Graphs of AOTAutograd's convention; parameters are the ``primals_*``.
        seconds: How long it took.
    """

    config: LlamaConfig
    forward: fx.GraphModule
    backward: fx.GraphModule
    seconds: float


@contextmanager
def captured(config: LlamaConfig) -> Iterator[Captured]:
    """Capture; the fake world that the graphs' process groups live in lasts as long as the ``with`` block.

    Raises:
        RuntimeError: A process group is initialized already.
    """
    started = time.perf_counter()
    with fake_world(config.world):
        joint = trace_joint(config, make_mesh(config))
        simplify(joint.graph)
        forward, backward = split_joint(joint, 1, saved_nodes(joint.graph, config))
        for graph_module in (forward, backward):
            move_to_gpu(graph_module)
        yield Captured(config, forward, backward, time.perf_counter() - started)


def trace_joint(config: LlamaConfig, mesh: Mesh) -> fx.GraphModule:
    """The joint graph of forward and backward: (sharded parameters, tokens, labels, rotation, tangent) in."""
    weights = weights_of(config)
    names = [weight.name for weight in weights]
    shared = frozenset(weight.name for weight in weights if weight.shared)
    with FakeTensorMode():
        dtype = torch.bfloat16 if config.bf16_parameters else torch.float32
        sizes = [(w.shape[0] // config.fsdp, *w.shape[1:]) for w in weights]
        shards = [torch.empty(size, dtype=dtype, requires_grad=True) for size in sizes]
        tokens = torch.empty(config.sequence // config.tp, config.batch, dtype=torch.int64)
        labels = torch.empty(config.sequence, config.batch, dtype=torch.int64)
        rotation = torch.empty(config.sequence, config.head_dim // 2, dtype=torch.complex64)

    def step(*flat: Tensor) -> tuple[Tensor]:
        sharded = Weights(dict(zip(names, flat, strict=False)), mesh, shared)
        return (llama_loss(config, sharded, *flat[len(names) :]),)

    joint = aot_export_joint_simple(
        step, (*shards, tokens, labels, rotation), trace_joint=True, decompositions=select_decomp_table()
    )
    assert isinstance(joint, fx.GraphModule)
    return joint


def saved_nodes(graph: fx.Graph, config: LlamaConfig) -> set[fx.Node]:
    """Which values of the forward pass are saved for backward, after torchtitan's selective recomputation.

    Saved: the input of each layer, the outputs of attention, every second matrix product of a layer (wq, wv, w1, w2),
    the results of the tensor-parallel reductions, and the gradient of the logits. All else is recomputed, gathers
    included. With full recomputation, only layers' inputs and the gradient of the logits; with none, all products.
    """
    tokens = config.sequence * config.batch
    residual = (config.sequence // config.tp, config.batch, config.hidden)
    logits = (tokens, config.vocabulary // config.tp)
    products = graph.find_nodes(op="call_function", target=_ATEN.mm.default)[: config.layers * len(MATRICES)]
    every = {"selective": 2, "none": 1}.get(config.recompute, 0)
    saved = {mm for i, mm in enumerate(products) if every and i % len(MATRICES) % every == 0}
    sums = 0
    for node in graph.nodes:
        target = node.target
        if target is _ATEN.add.Tensor and _is(node, residual, torch.bfloat16) and sums < 2 * config.layers - 1:
            sums += 1
            if sums % 2 == 0:
                saved.add(node)
        elif (
            (every and target is operator.getitem and node.args[0].target is _FLASH)
            or target is _ATEN.embedding.default
            or (
                every
                and target is torch.ops._c10d_functional.wait_tensor.default
                and _is(node, residual, torch.bfloat16)
            )
            or (target is torch.ops.prims.convert_element_type.default and _is(node, logits, torch.bfloat16))
        ):
            saved.add(node)
    return saved


def _is(node: fx.Node, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype is dtype and tuple(value.shape) == shape


def move_to_gpu(graph_module: fx.GraphModule) -> None:
    """Say that everything lives on a GPU; tensors that shared a storage still do."""
    for node in graph_module.graph.nodes:
        node.meta = {"val": tree_map_only(FakeTensor, _on_gpu, node.meta.get("val"))}
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": _GPU}


def _on_gpu(value: FakeTensor) -> Any:
    """The same view of the same (meta) storage, as a fake tensor of the GPU."""
    meta = torch.empty(0, dtype=value.dtype, device="meta")
    meta.set_(value.untyped_storage(), value.storage_offset(), value.size(), value.stride())
    return FakeTensor(value.fake_mode, meta, _GPU)
