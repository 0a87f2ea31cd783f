"""What each of several gloo ranks runs: ``python -m tests.support.inductor.default_ranks FOLDER`` as under torchrun.

Three steps of training with all defaults, over gloo that coalesces gathers, and the same with torch alone. Writes
``FOLDER/rank<r>.pt``: per type, what the steps gave, and rewrites per graph.
"""

from typing import Any

import torch
import torch.distributed as dist

import overlap_sched
from overlap_sched import Options
from tests.support.inductor.coalescing import coalescing_gloo
from tests.support.inductor.models import Net, step
from tests.support.ranks import save_found


def trained(dtype: torch.dtype, **compile_arguments: Any) -> list[torch.Tensor]:
    """What three steps give, one after the other."""
    torch._dynamo.reset()
    model = Net(blocks=3, ranks=dist.get_world_size()).to(dtype)
    with torch.no_grad():
        compiled = torch.compile(lambda x: model(x.to(dtype)).float(), **compile_arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    results = []
    for _ in range(3):
        results += [one.clone() for one in step(model, compiled)]
        optimizer.step()
    return results


def found() -> dict[str, Any]:
    """What is saved."""
    saved = {}
    for dtype in (torch.float32, torch.bfloat16):
        alone = trained(dtype, backend="aot_eager")
        overlap_sched.clear_reports()
        with coalescing_gloo(), overlap_sched.enabled(Options(headroom="100%", strict=True), ranks_per_node=1):
            ours = trained(dtype, backend=overlap_sched.backend)
        rewrites = [one.report.made for one in overlap_sched.reports()]
        saved[str(dtype)] = (alone, ours, [0 if made is None else len(made.rewrites) for made in rewrites])
    return saved


if __name__ == "__main__":
    save_found(found)
