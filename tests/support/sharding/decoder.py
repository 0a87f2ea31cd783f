"""A decoder put together as Hugging Face's are: modules in modules, a tied head, keyword arguments, a dict out."""

from collections import OrderedDict

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, POSITIONS = 16, 2, 2, 6
UNEVEN, EVEN = (37, 3), (40, 8)
"""(vocabulary, width inside the feed-forward): those of the first divide by neither 2 nor 4 ranks."""


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, inside, bias=False), nn.Linear(WIDTH, inside, bias=False)
        self.down_proj = nn.Linear(inside, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp(inside)
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states))
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Body(nn.Module):
    def __init__(self, rows: int, inside: int, depth: int) -> None:
        super().__init__()
        self.embed_tokens, self.embed_positions = nn.Embedding(rows, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.embed_positions.weight.requires_grad_(False)
        self.layers, self.norm = nn.ModuleList(Layer(inside) for _ in range(depth)), Norm()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden_states = self.embed_tokens(input_ids) * self.scale + self.embed_positions(places)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.norm(hidden_states)


class Decoder(nn.Module):
    """``Decoder()(input_ids, labels=...)["loss"]``; ``tied``: the head's weight is the embedding's."""

    def __init__(self, rows: int, inside: int, tied: bool, depth: int) -> None:
        super().__init__()
        self.model, self.lm_head = Body(rows, inside, depth), nn.Linear(WIDTH, rows, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: Tensor, *, labels: Tensor) -> OrderedDict[str, Tensor]:
        logits = self.lm_head(self.model(input_ids=input_ids))
        loss = functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return OrderedDict(loss=loss, logits=logits)


def decoder(sizes: tuple[int, int] = UNEVEN, tied: bool = True, depth: int = LAYERS) -> Decoder:
    """The same on every rank, of so many layers; its position embedding is frozen."""
    torch.manual_seed(0)
    return Decoder(*sizes, tied, depth)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """(tokens, labels), (2, POSITIONS) each."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens, labels = torch.randint(UNEVEN[0], (2, 2, POSITIONS), generator=generator)
    return tokens, labels
