"""What each of several gloo ranks runs: ``python -m tests.inductor.two_ranks CASE FOLDER`` as under torchrun.

Writes ``FOLDER/rank<r>.pt``: per way of compiling, results of a step, reports, the code.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch._inductor.compile_fx
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from overlap_sched.inductor import lift, scheduler_pass
from tests.inductor.models import Net, step


def fails(*_: Any) -> Any:
    """A fault on one rank."""
    raise RuntimeError("injected")


def one(model: Net, **compile_arguments: Any) -> dict[str, Any]:
    """Compile anew, one step."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(model, fullgraph=True, **compile_arguments)
        results, code = run_and_get_code(step, model, compiled)
    return {
        "results": results,
        "code": code,
        "changed": [report.report.changed for report in overlap_sched.reports()],
        "reasons": [report.report.reason for report in overlap_sched.reports()],
        "warned": [str(w.message) for w in caught if issubclass(w.category, overlap_sched.errors.OverlapSchedWarning)],
    }


def main() -> None:
    """See the module."""
    case, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Net(blocks=2 if case == "alike" else 1, ranks=ranks)
    options = Options(headroom="20%", strict=case == "alike")
    if case == "options differ" and rank == 1:
        options = Options(headroom="19%")
    if case == "a rank fails" and rank == 1:
        scheduler_pass.schedule = fails
    if case == "a rank cannot lift" and rank == 1:
        lift.read_buffers = fails
    found = {"plain": one(model), "ours": one(model, options=overlap_sched.inductor_options(options))}
    if case == "alike":
        found["eager"] = one(model, backend="aot_eager")
        found["backend"] = one(model, backend=overlap_sched.backend)
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    main()
