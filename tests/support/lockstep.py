"""Run one captured graph on all ranks of a small world at once, node by node, with real numbers on the CPU."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, fx

from llama_repro.capture.configs import LlamaConfig

# An independent Llama in plain fp32 PyTorch, unsharded: what the captured graphs must compute.


def reference_loss(config: LlamaConfig, weights: dict[str, Tensor], tokens: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy; ``tokens`` and ``labels`` are (batch, sequence)."""
    x = functional.embedding(tokens, weights["embedding"])
    for i in range(config.layers):
        x = x + _attention(
            config, functional.rms_norm(x, (config.hidden,), weights[f"{i}.attention_norm"], 1e-5), weights, i
        )
        y = functional.rms_norm(x, (config.hidden,), weights[f"{i}.ffn_norm"], 1e-5)
        gate = functional.silu(y @ weights[f"{i}.w1"].T) * (y @ weights[f"{i}.w3"].T)
        x = x + gate @ weights[f"{i}.w2"].T
    x = functional.rms_norm(x, (config.hidden,), weights["norm"], 1e-5)
    return functional.cross_entropy((x @ weights["head"].T).flatten(0, 1), labels.flatten())


def angles(config: LlamaConfig) -> Tensor:
    """Rotation angle by position and pair: (sequence, head_dim / 2)."""
    frequencies = 10000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    return torch.outer(torch.arange(config.sequence).float(), frequencies)


def _attention(config: LlamaConfig, x: Tensor, weights: dict[str, Tensor], layer: int) -> Tensor:
    def heads(name: str) -> Tensor:
        return (x @ weights[f"{layer}.{name}"].T).unflatten(-1, (-1, config.head_dim)).transpose(1, 2)

    query, key, value = _rotate(heads("wq"), config), _rotate(heads("wk"), config), heads("wv")
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2) @ weights[f"{layer}.wo"].T


def _rotate(x: Tensor, config: LlamaConfig) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    cosine, sine = angles(config).cos(), angles(config).sin()
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


_C10D = torch.ops._c10d_functional
_ATEN = torch.ops.aten

Groups = dict[str, list[list[int]]]
"""By the group name that the graph of rank 0 uses: all the groups of that kind, as lists of ranks."""


def run_lockstep(graph_module: fx.GraphModule, inputs: Sequence[Sequence[Any]], groups: Groups) -> list[Sequence[Any]]:
    """Outputs of every rank; ``inputs[rank]`` are the placeholders' values in their order."""
    world = len(inputs)
    env: list[dict[fx.Node, Any]] = [{} for _ in range(world)]
    placeholders = iter(range(len(inputs[0])))
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            i = next(placeholders)
            for rank in range(world):
                env[rank][node] = inputs[rank][i]
            continue
        arguments = [fx.map_arg((node.args, node.kwargs), env[rank].__getitem__) for rank in range(world)]
        if node.op == "output":
            return [args[0] for args, _ in arguments]
        if node.target in _COLLECTIVES:
            results = _communicate(node.target, [args for args, _ in arguments], groups)
        else:
            results = [_call(node, args, kwargs) for args, kwargs in arguments]
        for rank in range(world):
            env[rank][node] = results[rank]
    raise AssertionError("no output node")


def _call(node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target: Any = node.target
    if target is _C10D.wait_tensor.default:
        return args[0]
    if target is operator.getitem:  # the CPU's attention lays its results out in another way than the GPU's
        like = node.meta["val"]
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype).copy_(args[0][args[1]])
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if target is _ATEN._scaled_dot_product_flash_attention.default:
        out, logsumexp = _ATEN._scaled_dot_product_flash_attention_for_cpu(*args)
        nothing = torch.zeros(2, dtype=torch.uint64)
        return (out, logsumexp, None, None, 0, 0, nothing, nothing[0], None)
    if target is _ATEN._scaled_dot_product_flash_attention_backward.default:
        gradient, query, key, value, out, logsumexp = args[:6]
        return _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, out, logsumexp, 0.0, True
        )
    return target(*args, **kwargs)


def _reduced(sent: Sequence[Any]) -> Tensor:
    stacked = torch.stack([args[0] for args in sent])
    return {"sum": stacked.sum(0), "avg": stacked.mean(0), "max": stacked.amax(0)}[sent[0][1]]


_COLLECTIVES: dict[Any, Callable[[Sequence[Any], int], Tensor]] = {
    _C10D.all_gather_into_tensor.default: lambda sent, index: torch.cat([args[0] for args in sent]),
    _C10D.reduce_scatter_tensor.default: lambda sent, index: _reduced(sent).chunk(len(sent))[index].clone(),
    _C10D.all_reduce.default: lambda sent, index: _reduced(sent),
    _C10D.all_to_all_single.default: lambda sent, index: torch.cat([args[0].split(args[2])[index] for args in sent]),
}
"""What a rank gets, by its place in the group, of the arguments of all ranks of the group."""


def _communicate(target: Any, arguments: Sequence[Any], groups: Groups) -> list[Any]:
    results = [None] * len(arguments)
    for ranks in groups[arguments[0][-1]]:
        for index, rank in enumerate(ranks):
            results[rank] = _COLLECTIVES[target]([arguments[other] for other in ranks], index)
    return results
