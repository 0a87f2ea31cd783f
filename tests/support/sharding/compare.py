"""What each of several gloo ranks runs: ``python -m tests.support.sharding.compare FOLDER`` as under torchrun.

Trains by ``fully_shard`` and by ``shard``, in several ways; writes ``FOLDER/rank<r>.json``: per way and who, what each
step was like, and the most by which weights differ from ``fully_shard``'s at the end.
"""

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx

import overlap_sched
from overlap_sched.distributed import shard
from tests.support.sharding.decoder import EVEN, LAYERS, UNEVEN, Decoder, batch, decoder

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
        found["tensor parallel alone"] = Way((1, 2), sizes=EVEN, tp=True)
    if ranks == 4:
        found |= {
            "replicated": Way((2, 2)),
            "replicated over all": Way((4, 1), accumulate=2),
            "tensor parallel": Way((2, 2), sizes=EVEN, tp=True),
            "tensor parallel in bf16": Way((2, 2), BF16, sizes=EVEN, tp=True, tied=False),
        }
    return found


def build(way: Way, apply: Apply) -> Decoder:
    """The model, sharded."""
    names = ("a", "b", "c")[: len(way.mesh)]
    mesh = init_device_mesh("cpu", way.mesh, mesh_dim_names=names)
    model = decoder(way.sizes, way.tied, way.depth)
    if way.tp:
        for layer in model.model.layers:
            attention = layer.self_attn
            parallelize_module(attention, mesh[names[-1]], {name: make() for name, make in SEQUENCE.items()})
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
            if way.accumulate > 1 and not way.late:
                model.set_requires_gradient_sync(last)
            elif way.late:
                model.set_requires_gradient_sync(False)
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
    return {name: _local(value) for name, value in model.state_dict().items()}


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def distance(model: nn.Module, other: nn.Module) -> float:
    """The most by which a weight differs; of parts of one shape."""
    mine, theirs = parts(model), parts(other)
    assert list(mine) == list(theirs)
    assert all(mine[name].shape == theirs[name].shape for name in mine)
    return max((mine[name] - theirs[name]).abs().max().item() for name in mine if mine[name].numel())


def compared(way: Way) -> dict[str, Any]:
    """The same training by both, not compiled."""
    theirs, ours = build(way, fully_shard), build(way, shard)
    assert [(n, p.placements) for n, p in ours.named_parameters()] == [
        (n, p.placements) for n, p in theirs.named_parameters()
    ]
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


def main() -> None:
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
    main()
