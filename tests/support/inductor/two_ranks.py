"""What each of several gloo ranks runs: ``python -m tests.support.inductor.two_ranks FOLDER`` as under torchrun.

Writes ``FOLDER/rank<r>.pt``: per way of compiling, results of a step, reports, the code.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from tests.support.inductor.models import Net, step
from tests.support.ranks import save_found


def one(model: Net, **compile_arguments: Any) -> dict[str, Any]:
    """Compile anew, one step."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    compiled = torch.compile(model, fullgraph=True, **compile_arguments)
    results, code = run_and_get_code(step, model, compiled)
    return {
        "results": results,
        "code": code,
        "changed": [report.report.changed for report in overlap_sched.reports()],
    }


def found() -> dict[str, Any]:
    """What is saved."""
    torch._inductor.config.fx_graph_cache = False  # every way compiles
    model = Net(blocks=2, ranks=dist.get_world_size())
    ours = overlap_sched.inductor_options(Options(headroom="20%", strict=True))
    return {
        "plain": one(model),
        "ours": one(model, options=ours),
        "eager": one(model, backend="aot_eager"),
        "backend": one(model, backend=overlap_sched.backend),
    }


if __name__ == "__main__":
    save_found(found)
