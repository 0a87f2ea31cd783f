"""One rank of a job with DeepSpeed's own engine, ZeRO-3 and DeepCompile, on a CPU: with our pass, or without.

``python -m tests.support.deepspeed.engine FOLDER theirs|ours``, started as torchrun would. Writes
``FOLDER/<which><rank>.json``: losses, and the shards of the parameters behind the steps.

DeepCompile's operators exist for CUDA alone (``op_builder/dc.py``), and so does what is replaced here: the handle of
its library, by :mod:`tests.support.deepspeed.operators`; the test whether it is supported; the name of a device, which
is a number there; ``record_stream``. All else is DeepSpeed's. Its measuring fails without CUDA, which it admits.
"""

import json
import operator
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from overlap_sched.inductor import reports
from tests.support.deepspeed.operators import STATE, Parameter, define
from tests.support.deepspeed.ranks import Block

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


def main(folder: Path, which: str) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
