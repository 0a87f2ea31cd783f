"""The graphs that are compared: captured Llamas, and blocks written out in plain torch: a GPT's, and experts."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.compile_fx import compile_fx

from llama_repro.capture.configs import CONFIGS
from llama_repro.capture.parallelism import fake_world, make_mesh
from llama_repro.capture.partition import split_joint
from llama_repro.capture.simplify import simplify
from llama_repro.capture.trace import move_to_gpu, saved_nodes, trace_joint


def llama_graphs(name: str, layers: int, device: str) -> Iterator[tuple[str, fx.GraphModule]]:
    """Forward and backward of a captured Llama with so many layers; its fake world lasts until the next one."""
    config = replace(CONFIGS[name], layers=layers)
    with fake_world(config.world):
        joint = trace_joint(config, make_mesh(config))
        simplify(joint.graph)
        parts = split_joint(joint, 1, saved_nodes(joint.graph, config))
        for part, graph in zip(("forward", "backward"), parts, strict=True):
            if device == "cuda":
                move_to_gpu(graph)
            yield f"{name}, {part}", graph


class Gpt(nn.Module):
    """One block: layer norms, attention with its softmax written out, GELU. ``(batch, sequence, width)``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of ``x``."""
        normed = self.attention_norm(x)
        query, key, value = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, -1)
        x = x + self.out((scores @ value).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Experts(nn.Module):
    """A mixture-of-experts block: a router, the best experts of each token, SwiGLU. ``(batch, sequence, width)``.

    Tokens are sorted by expert and every expert takes an equal share, as where a capacity balances them: the sizes of
    the graph are known.
    """

    def __init__(self, width: int, experts: int, best: int) -> None:
        super().__init__()
        self.experts, self.best = experts, best
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Of the shape of ``x``."""
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = torch.topk(torch.softmax(self.router(tokens), -1), self.best)
        order = torch.argsort(chosen.flatten(), stable=True)
        taken = (tokens[order // self.best]).unflatten(0, (self.experts, -1))
        hidden = nn.functional.silu(taken @ self.gate) * (taken @ self.up)
        out = (hidden @ self.down).flatten(0, 1) * weights.flatten()[order].unsqueeze(-1)
        return x + torch.zeros_like(tokens).index_add(0, order // self.best, out).view_as(x)


def compiled_graphs(name: str, model: nn.Module, x: Tensor) -> list[tuple[str, fx.GraphModule]]:
    """The graphs that ``torch.compile`` hands to Inductor for a step of a model; it is run without being compiled."""
    found: list[fx.GraphModule] = []

    def keep(graph_module: fx.GraphModule, inputs: Any, **_: Any) -> Any:
        found.append(graph_module)
        return make_boxed_func(graph_module)

    torch._dynamo.reset()
    torch.compile(model, backend=functools.partial(compile_fx, inner_compile=keep))(x).sum().backward()
    torch._dynamo.reset()
    return [(f"{name}, {part}", graph) for part, graph in zip(("forward", "backward"), found, strict=True)]
