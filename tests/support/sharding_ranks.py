"""What each of several gloo ranks runs: ``python -m tests.support.sharding_ranks FOLDER compare`` as under torchrun.

Trains by ``fully_shard`` and by ``shard``, in several ways; writes ``FOLDER/rank<r>.json``: per way and who, what each
step was like, and the most by which weights differ from ``fully_shard``'s at the end.
"""

import json
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import overlap_sched
from llama_repro.capture.parallelism import fake_world
from overlap_sched.distributed import shard
from overlap_sched.inductor import agree
from tests.support.ranks import save_found

# A decoder put together as Hugging Face's are: modules in modules, a tied head, keyword arguments, a dict out.


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


# One start of a job, on a rank of a fake group: ``python -m tests.support.sharding_ranks FILE cached``.
#
# Compiles a small sharded model by Inductor; writes what torch's caches counted.


def count_hits() -> None:
    """See the module."""
    with fake_world(2):
        model = shard(nn.Sequential(nn.Linear(8, 8, bias=False)), init_device_mesh("cpu", (2,)))
        assert isinstance(model, nn.Module)
        torch.compile(model, fullgraph=True)(torch.ones(2, 8)).sum().backward()
    counted = {**counters["aot_autograd"], **counters["inductor"]}
    Path(sys.argv[1]).write_text(json.dumps({name: n for name, n in counted.items() if "cache" in name}))


# What each rank runs: ``python -m tests.support.sharding_ranks FOLDER page`` runs the program in docs/fully_shard.md.


PAGE = Path(__file__).parents[2] / "docs" / "fully_shard.md"


def run_page() -> None:
    """All blocks that are marked, one after the other."""
    program = "\n".join(re.findall(r"^```python run\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    exec(compile(program, str(PAGE), "exec"), globals())  # Dynamo looks names up in the module


# What each of three gloo ranks runs: ``python -m tests.support.sharding_ranks FOLDER rows`` as under torchrun.
#
# Parameters of 1 and 5 rows: some ranks have none of them, so each rank compiles code of its own. Two steps and an
# evaluation by Inductor. Saves, of DTensors and of ``shard``: results by torch alone and by ours, and of each agreement
# the reason why it failed.


ROWS = (1, 5)


class Rows(nn.Module):
    """Its parameters are DTensors, gathered one by one."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        parts = [nn.Parameter(distribute_tensor(torch.randn(rows, 5), mesh, [Shard(0)])) for rows in ROWS]
        self.weights = nn.ParameterList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            whole = weight.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            x = x + (x @ whole.t()).sin().sum(-1, keepdim=True)
        return x


def sharded(mesh: DeviceMesh) -> Any:
    """The same sizes, by ``shard``."""
    return overlap_sched.shard(nn.Sequential(nn.Linear(5, ROWS[0]), nn.Linear(ROWS[0], ROWS[1])), mesh)


def trained_rows(build: Callable[[DeviceMesh], nn.Module]) -> list[Tensor]:
    """Losses, then what a batch gives without gradients, then the parts of the weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = build(init_device_mesh("cpu", (dist.get_world_size(),)))
    run, optimizer = torch.compile(model, fullgraph=True), torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    results = []
    for _ in range(2):
        loss = run(torch.randn(4, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        results.append(loss.detach())
    with torch.no_grad():
        results.append(run.eval()(torch.randn(4, 5)))
    return [*results, *(p.detach().to_local().clone() for p in model.parameters())]  # type: ignore[attr-defined]


def found() -> dict[str, Any]:
    """What is saved."""
    saved: dict[str, Any] = {}
    for way, build in {"DTensor": Rows, "shard": sharded}.items():
        reasons: list[str | None] = []

        def heard(*args: Any, real: Any = agree.agree, reasons: list[str | None] = reasons, **more: Any) -> Any:
            agreement = real(*args, **more)
            reasons.append(agreement.reason)
            return agreement

        for name, on in {"alone": nullcontext, "ours": partial(overlap_sched.enabled, timeout_s=600)}.items():
            caches = torch._inductor.config.patch(fx_graph_cache=False)  # a pass is not called behind a hit
            with caches, mock.patch.object(agree, "agree", heard), on():
                saved[f"{way} {name}"] = trained_rows(build)
        saved[f"{way} reasons"] = reasons
    return saved


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx


STEPS = 2
"""The second has momentum from the first."""
Apply = Callable[..., Any]
PLAIN = MixedPrecisionPolicy()
BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
FP16 = MixedPrecisionPolicy(reduce_dtype=torch.float16)
SEQUENCE = {"q_proj": ColwiseParallel, "k_proj": ColwiseParallel, "v_proj": ColwiseParallel, "o_proj": RowwiseParallel}


@dataclass(frozen=True)
class Way:
    """A way of training; ``mesh``: lengths of data parallelism and, last, of tensor parallelism where ``tp``."""

    mesh: tuple[int, ...]
    policy: MixedPrecisionPolicy = PLAIN
    sizes: tuple[int, int] = UNEVEN
    tied: bool = True
    tp: bool = False
    layers: bool = False
    accumulate: int = 1
    late: bool = False
    depth: int = LAYERS


def ways(ranks: int) -> dict[str, Way]:
    """By name."""
    flat = (ranks,)
    found = {
        "plain": Way(flat),
        "bf16": Way(flat, BF16, tied=False),
        "fp16 sums": Way(flat, FP16),
        "layers": Way(flat, layers=True),
        "accumulated": Way(flat, accumulate=3),
        "accumulated in bf16": Way(flat, BF16, accumulate=2, tied=False),
        "switched late": Way(flat, accumulate=2, late=True),
    }
    if ranks == 2:
        return {**found, "tensor parallel alone": Way((1, 2), sizes=EVEN, tp=True)}
    square = Way((2, 2))
    found |= {"replicated": square, "replicated over all": Way((4, 1), accumulate=2)}
    found["tensor parallel"] = replace(square, sizes=EVEN, tp=True)
    return {**found, "tensor parallel in bf16": replace(found["tensor parallel"], policy=BF16, tied=False)}


def build(way: Way, apply: Apply) -> Decoder:
    """The model, sharded."""
    names = ("a", "b")[: len(way.mesh)]
    mesh = init_device_mesh("cpu", way.mesh, mesh_dim_names=names)
    model = decoder(way.sizes, way.tied, way.depth)
    if way.tp:
        for layer in model.model.layers:
            parallelize_module(layer.self_attn, mesh[names[-1]], {name: make() for name, make in SEQUENCE.items()})
        mesh = mesh[names[0]]
    if way.layers:
        for layer in model.model.layers:
            apply(layer, mesh=mesh, mp_policy=way.policy)
    apply(model, mesh=mesh, mp_policy=way.policy)
    return model


def train(
    way: Way, model: Decoder, run: Callable[..., Any], first: int = 0, optimizer: Any = None
) -> list[list[float]]:
    """(loss, norms of the gradients before they are clipped) of each step; the loss is the mean over ranks."""
    data_rank = dist.get_rank() // way.mesh[-1] if way.tp else dist.get_rank()
    optimizer = optimizer or optimizer_of(model)
    seen = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for micro in range(way.accumulate):
            last = micro == way.accumulate - 1
            if way.accumulate > 1:
                model.set_requires_gradient_sync(last and not way.late)
            tokens, labels = batch(step * way.accumulate + micro, data_rank)
            loss = run(tokens, labels=labels)["loss"]
            if way.late:
                model.set_requires_gradient_sync(last)
            (loss / way.accumulate).backward()
            total += loss.detach() / way.accumulate
        norms = clip(model)
        optimizer.step()
        dist.all_reduce(total)
        seen.append([total.item() / dist.get_world_size(), *norms])
    return seen


def clip(model: nn.Module) -> list[float]:
    """Of each mesh by itself: torch adds up no norms of different meshes."""
    groups: dict[DeviceMesh, list[Any]] = {}
    for parameter in model.parameters():
        if parameter.grad is not None:
            groups.setdefault(parameter.device_mesh, []).append(parameter)
    return [torch.nn.utils.clip_grad_norm_(group, 0.5).full_tensor().item() for group in groups.values()]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """One whose step grows with the gradient: Adam's would hide a wrong factor."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def parts(model: nn.Module) -> dict[str, torch.Tensor]:
    """This rank's parts, plain."""
    state = model.state_dict().items()
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in state}


def distance(model: nn.Module, other: nn.Module) -> float:
    """The most by which a weight differs; of parts of one shape."""
    mine, theirs = parts(model), parts(other)
    assert list(mine) == list(theirs)
    assert all(mine[name].shape == theirs[name].shape for name in mine)
    return max((mine[name] - theirs[name]).abs().max().item() for name in mine if mine[name].numel())


def compared(way: Way) -> dict[str, Any]:
    """The same training by both, not compiled."""
    theirs, ours = build(way, fully_shard), build(way, shard)
    named = [[(name, p.placements) for name, p in model.named_parameters()] for model in (theirs, ours)]
    assert named[0] == named[1]
    result = {"fully_shard": train(way, theirs, theirs), "eager": train(way, ours, ours)}
    return {**result, "distance": distance(ours, theirs)}


def compiled(way: Way, backend: str, *, ours: bool = False) -> dict[str, Any]:
    """``shard``, compiled, with the plug-in or without."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    model = build(way, shard)
    run = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    caches = torch._inductor.config.patch(fx_graph_cache=False)  # what is found there is not reported graph by graph
    with caches, overlap_sched.enabled() if ours else nullcontext():
        steps = train(way, model, run)
    reports = [(report.report.changed, report.line) for report in overlap_sched.reports()]
    weights = [part.tolist() for part in parts(model).values()]
    return {"steps": steps, "weights": weights, "reports": reports}


def resumed(folder: Path, save_from: Apply, load_into: Apply) -> dict[str, Any]:
    """Train, save; load into a new model of another kind, and go on; next to the first one's going on."""
    way = Way((dist.get_world_size(),))
    first = build(way, save_from)
    optimizer = optimizer_of(first)
    train(way, first, first, 0, optimizer)
    model_state, optimizer_state = get_state_dict(first, optimizer)
    save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    went_on = train(way, first, first, STEPS, optimizer)

    second = build(way, load_into)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    other = optimizer_of(second)
    model_state, optimizer_state = get_state_dict(second, other)
    load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_state_dict(second, other, model_state_dict=model_state, optim_state_dict=optimizer_state)
    momenta = [value for state in other.state.values() for value in state.values()]
    assert momenta
    assert all(isinstance(value, DTensor) for value in momenta)
    return {"went on": went_on, "resumed": train(way, second, second, STEPS, other)}


def compare() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    result: dict[str, Any] = {name: compared(way) for name, way in ways(ranks).items()}
    result["to fully_shard"] = resumed(folder / "ours", shard, fully_shard)
    result["from fully_shard"] = resumed(folder / "theirs", fully_shard, shard)
    if ranks == 2:
        even = Way((2,), BF16, EVEN, tied=False, depth=1)
        result["even"] = compared(even)
        result["compiled alone"] = compiled(even, "inductor")
        result["compiled with us"] = compiled(even, "inductor", ours=True)
        short = replace(ways(2)["accumulated"], depth=1)  # half as much to compile
        result["accumulated, short"] = compared(short)
        result["compiled, accumulated"] = compiled(short, "aot_eager")
    else:
        short = replace(ways(4)["tensor parallel"], depth=1)
        result["tensor parallel, short"] = compared(short)
        result["compiled, tensor parallel"] = compiled(short, "aot_eager")
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    WHAT = {"compare": compare, "rows": partial(save_found, found), "cached": count_hits, "page": run_page}
    WHAT[sys.argv[2]]()
