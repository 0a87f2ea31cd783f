"""One rank of a job whose graphs are those of DeepCompile's ZeRO-3: steps in its order, and in ours.

``python -m tests.support.deepspeed_ranks FOLDER graphs``, started as torchrun would. Writes ``FOLDER/rank<r>.json``.
"""

import json
import operator
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from overlap_sched.deepspeed.graph_pass import order_pass
from overlap_sched.inductor import reports
from overlap_sched.inductor.settings import Settings
from tests.support.deepspeed_graphs import STATE, Backend, Parameter, define, start

# One rank of a job with DeepSpeed's own engine, ZeRO-3 and DeepCompile, on a CPU: with our pass, or without.
#
# ``python -m tests.support.deepspeed_ranks FOLDER theirs|ours``, started as torchrun would. Writes
# ``FOLDER/<which><rank>.json``: losses, and the shards of the parameters behind the steps.
#
# DeepCompile's operators exist for CUDA alone (``op_builder/dc.py``), and so does what is replaced here: the handle of
# its library, by :mod:`tests.support.deepspeed_graphs`; the test whether it is supported; the name of a device, which
# is a number there; ``record_stream``. All else is DeepSpeed's. Its measuring fails without CUDA, which it admits.


COMPARED = (operator.ge, operator.le, operator.eq, operator.ne, operator.gt, operator.lt)


def on_a_cpu() -> None:
    """Have DeepSpeed take this machine for one on which DeepCompile runs."""
    import deepspeed.compile.util as util
    import deepspeed.runtime.engine  # noqa: F401, which takes names from the others
    from deepspeed.accelerator import get_accelerator

    define()
    nothing = dict.fromkeys(
        ("cleanup", "reset", "enable_profiling", "register_graph_z3", "start_forward", "end_forward", "start_backward"),
        lambda *_: None,
    )
    util.dc_handle = SimpleNamespace(
        **nothing,
        init=lambda *_: STATE.__init__(64, dist.get_world_size()),  # type: ignore[misc]
        is_profiling=lambda: False,
        register_z3_param=_register,
        invalidate_gathered_param=lambda one: None,
        clear_all_gathered_params=STATE.gathered.clear,
    )
    util.sym_size_ops = {*COMPARED, torch.ops.aten.sym_size.int, operator.getitem}
    for module in list(sys.modules.values()):
        if module.__name__.startswith("deepspeed") and hasattr(module, "is_deepcompile_supported"):
            module.is_deepcompile_supported = lambda: True  # type: ignore[attr-defined]
    type(get_accelerator()).current_device = lambda self: "cpu"
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign, assignment]


def _register(one: int, shape: Any, shard: torch.Tensor, gradient: torch.Tensor, *_: Any) -> None:
    STATE.parameters[one] = Parameter(torch.Size(shape), shard, gradient)


def train_with_engine(folder: Path, which: str) -> None:
    import deepspeed

    import overlap_sched.deepspeed

    on_a_cpu()
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(3)))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "compile": {"deepcompile": True},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    overlap_sched.deepspeed.register(overlap_sched.Options(headroom=0))
    passes = ["zero3_compile", "overlap_sched"] if which == "ours" else ["zero3_compile"]
    engine.compile(backend="eager", schedule=[(0, passes)])
    losses = []
    for k in range(3):
        torch.manual_seed(100 * k + dist.get_rank())
        loss = engine(torch.randn(8, 16)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    shards = [one.shard.tolist() for one in STATE.parameters.values()]
    changed = [report.report.changed for report in reports()]
    found = {"losses": losses, "shards": shards, "told": STATE.told, "changed": changed}
    (folder / f"{which}{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


class Block(nn.Module):
    """A normed layer with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def shards_of(model: nn.Module, rank: int, ranks: int) -> dict[int, tuple[torch.Tensor, torch.Size]]:
    """Per parameter, by number, this rank's padded shard and the whole shape. The model's own is overwritten."""
    found = {}
    for number, parameter in enumerate(model.parameters()):
        flat = parameter.detach().flatten()
        padded = torch.zeros(-(-flat.numel() // ranks) * ranks)
        padded[: flat.numel()] = flat
        found[number] = padded.view(ranks, -1)[rank].clone(), parameter.shape
        parameter.data.fill_(float("nan"))
    return found


def step(graph_pass: Any, rank: int, ranks: int) -> dict[str, Any]:
    """Two forward and backward passes; the losses, gradients' shards, and in which order the graphs ran."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(*(Block(16) for _ in range(3)))
    parameters = shards_of(model, rank, ranks)
    zero3 = start(parameters, ranks)
    backend = Backend({id(parameter): number for number, parameter in enumerate(model.parameters())}, graph_pass)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(2):
        loss = compiled(torch.randn(8, 16)).square().mean()
        loss.backward()
        losses.append(loss.item())
    gradients = [parameter.gradient.tolist() for parameter in zero3.parameters.values()]
    left = list(zero3.gathered), len(zero3.in_flight), len(zero3.bucket)
    return {"losses": losses, "gradients": gradients, "left": left, "told": zero3.told, "graphs": backend.listings}


def train_graphs(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ours = partial(order_pass, settings=Settings(stage="deepspeed"))
    found: dict[str, Any] = {"theirs": step(lambda gm, bwd: None, rank, ranks)}
    found["ours"] = step(lambda gm, bwd: ours(gm, 7, [(7, True)], {}, None, 0.0, None, bwd), rank, ranks)
    plans = [report.report.schedule for report in reports()]
    found["peaks"] = [(plan.original.peak_bytes, plan.scheduled.peak_bytes) for plan in plans if plan is not None]
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, how = Path(sys.argv[1]), sys.argv[2]
    train_graphs(folder) if how == "graphs" else train_with_engine(folder, how)
